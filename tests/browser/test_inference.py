# SPDX-License-Identifier: Apache-2.0
"""A trained network asked about one sample: a row, or a picture of one's own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnl.console.data.pictures import png
from tests.browser.conftest import Server
from tests.browser.files import bring, drop
from tests.browser.running import finished, table

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = sync_api.expect


@pytest.fixture
def asked(page: Any, api: Any) -> Any:
    """The page of a trained network of digits."""
    pytest.importorskip("sklearn")
    project = api("POST", "/projects", data={"name": "asked", "sample": "digits"})["id"]
    given = {"project": project, "kind": "train", "config": {"max_epoch": 2}}
    trial = finished(api, "/trials", given)
    page.goto(f"/p/{project}/infer")
    page.get_by_role("link", name=trial["name"]).click()
    page.wait_for_url(f"**/infer/{trial['id']}")
    return page


def said(page: Any) -> dict[int, float]:
    page.get_by_role("table", name="y'").wait_for()
    return {int(row[0]): float(row[2]) for row in table(page, "y'")}


def test_a_row_gets_the_likelihoods_that_the_server_computes(asked: Any, api: Any) -> None:
    asked.get_by_label("Data set").select_option(label="digits valid")
    first = said(asked)
    assert len(first) == 10 and sum(first.values()) == pytest.approx(1, abs=1e-3)
    assert list(first.values()) == sorted(first.values(), reverse=True)
    picture = asked.get_by_role("img", name="x")
    expect(picture).to_have_js_property("complete", True)
    before = picture.get_attribute("src")
    asked.get_by_label("Row").fill("3")
    expect(picture).not_to_have_attribute("src", before)
    trial = asked.url.rpartition("/")[2].partition("?")[0]
    dataset = asked.get_by_label("Data set").input_value()
    wanted = api("POST", f"/trials/{trial}/infer", data={"dataset": dataset, "row": 3})
    values = wanted["outputs"][0]["values"]
    assert said(asked) == pytest.approx(dict(enumerate(values)), rel=1e-3, abs=1e-9)
    expect(asked).to_have_url(re.compile("row=3"))


def test_a_picture_of_ones_own_is_resized_and_answered(asked: Any, tmp_path: Path) -> None:
    image = np.zeros((40, 30, 3), np.uint8)
    image[5:35, 13:17] = 255
    (tmp_path / "one.png").write_bytes(png(image))
    bring(asked, asked.get_by_role("button", name="A file of mine"), tmp_path / "one.png")
    assert len(said(asked)) == 10
    expect(asked.get_by_role("region", name="Sample")).to_contain_text("one.png")
    (tmp_path / "zero.npy").write_bytes(b"")
    np.save(tmp_path / "zero.npy", np.zeros((1, 8, 8), np.float32))
    drop(asked, asked.get_by_role("region", name="Sample"), tmp_path / "zero.npy")
    expect(asked.get_by_role("region", name="Sample")).to_contain_text("zero.npy")


def test_what_is_no_sample_is_refused(
    asked: Any, api: Any, faults: Any, tmp_path: Path, server: Server
) -> None:
    (tmp_path / "a.png").write_bytes(b"no picture")
    bring(asked, asked.get_by_role("button", name="A file of mine"), tmp_path / "a.png")
    message = asked.get_by_role("status").filter(has_text="a.png")
    expect(message).to_contain_text("unreadable")
    faults.expect(422)
    headers = {"Content-Type": "application/octet-stream"}
    api("POST", "/datasets?name=wrong.csv", data=b"x,y\n1,2\n", headers=headers)
    asked.reload()
    asked.get_by_label("Data set").select_option(label="wrong")
    expect(asked.get_by_role("alert")).to_contain_text("the network takes [1, 8, 8]")
    faults.expect(422)
