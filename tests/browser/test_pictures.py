# SPDX-License-Identifier: Apache-2.0
"""The pictures of docs/console.md: make test-console ARGS="--pictures docs/console -k pictures"."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import pytest

from tests.browser.drawing import layer, settle
from tests.browser.running import SECONDS, finished

Image = pytest.importorskip("PIL.Image", reason="pillow is not installed")


@pytest.fixture
def take(page: Any, request: pytest.FixtureRequest) -> Any:
    folder: Path = request.config.getoption("pictures")
    folder.mkdir(parents=True, exist_ok=True)

    def take(name: str) -> None:
        page.mouse.move(960, 20)  # nothing is hovered over
        page.wait_for_timeout(400)
        picture = Image.open(io.BytesIO(page.screenshot()))
        picture.save(folder / f"{name}.webp", lossless=True, quality=100, method=6)

    return take


@pytest.fixture(scope="module")
def project(api: Any) -> str:
    """A project of digits with three trials of two networks."""
    project = api("POST", "/projects", data={"name": "Handwritten digits", "sample": "digits"})
    key = project["id"]
    document = api("GET", f"/projects/{key}/document")
    names = {n["name"]: n for n in document["networks"][0]["nodes"]}
    for name, outmaps, alpha in (("base", 16, 0.001), ("small", 6, 0.001), ("fast", 16, 0.01)):
        names["conv1"]["properties"]["outmaps"] = outmaps
        head = api("GET", f"/projects/{key}")["head"]
        api("POST", f"/projects/{key}/versions", data={"document": document},
            headers={"If-Match": f'"{head}"'})  # fmt: skip
        optimizer = {"properties": {"alpha": alpha}}
        config = {"max_epoch": 8, "optimizer": optimizer}
        finished(api, "/trials", {"project": key, "name": name, "config": config})
    return str(key)


def trial(api: Any, project: str, name: str) -> str:
    found = api("GET", f"/trials?project={project}&q={name}")["trials"]
    return next(one["id"] for one in found if one["name"] == name)


def test_editor(page: Any, project: str, take: Any) -> None:
    page.goto(f"/p/{project}/edit")
    layer(page, "conv2").click()
    settle(page)
    take("editor")
    page.get_by_label("kernel", exact=True).fill("9, 9")
    page.get_by_role("button", name="Set kernel").first.wait_for()
    take("error")


def test_training(page: Any, api: Any, project: str, take: Any) -> None:
    page.goto(
        f"/p/{project}/train/{trial(api, project, 'base')}"
        f"?with={trial(api, project, 'fast')}&smooth=0.9"
    )
    page.get_by_role("figure", name="Validation").wait_for()
    take("training")


def test_comparison(page: Any, api: Any, project: str, take: Any) -> None:
    trials = ",".join(trial(api, project, name) for name in ("base", "small", "fast"))
    page.goto(f"/p/{project}/compare?trials={trials}")
    page.get_by_role("figure", name="Loss").wait_for()
    take("compare")


def test_evaluation(page: Any, api: Any, project: str, take: Any) -> None:
    evaluated = finished(api, f"/trials/{trial(api, project, 'small')}/evaluate", {})
    for plugin in api("GET", "/plugins")["plugins"]:
        if plugin["id"] == "grad_cam":
            given = {"sha256": plugin["sha256"]}
            api("POST", "/plugins/grad_cam/trust", data=given)
    page.goto(f"/p/{project}/eval/{evaluated['id']}?plugin=grad_cam")
    page.locator("tr[data-row]").nth(1).click()
    page.get_by_role("button", name="Run").click()
    page.locator("img.artifact").first.wait_for()
    take("evaluation")


def test_data(page: Any, api: Any, project: str, take: Any) -> None:
    data = next(d["id"] for d in api("GET", "/datasets")["datasets"] if "train" in d["name"])
    page.goto(f"/data/{data}")
    page.locator(".thumb").nth(10).wait_for()
    take("data")


def test_search(page: Any, api: Any, project: str, take: Any) -> None:
    settings = {"method": "nsga2", "attempts": 24, "jobs": 2, "max_epoch": 2, "seed": 1}
    search = api("POST", "/searches", data={"project": project, "settings": settings})
    end = time.monotonic() + 4 * SECONDS
    while api("GET", f"/searches/{search['id']}")["status"] == "running":
        assert time.monotonic() < end
        time.sleep(1)
    page.goto(f"/p/{project}/search/{search['id']}")
    page.locator(".candidates tbody tr").nth(3).click()
    page.locator(".chart canvas").wait_for()
    take("search")
