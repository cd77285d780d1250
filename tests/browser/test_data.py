# SPDX-License-Identifier: Apache-2.0
"""Data sets: brought, looked at, split, made of pictures; and what does not fit says so."""

from __future__ import annotations

import io
import re
import zipfile
from typing import Any

import numpy as np
import pytest

from nnl.console.data.pictures import png
from tests.browser.drawing import layer
from tests.browser.running import table

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = sync_api.expect

RNG = np.random.default_rng(0)
PICTURES = RNG.integers(0, 256, (20, 6, 6), dtype=np.uint8)
LABELS = np.arange(20) % 4


def archive(files: dict[str, bytes | str]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        for name, data in files.items():
            file.writestr(name, data)
    return content.getvalue()


def pictures_and_labels() -> bytes:
    rows = [f"x/{i}.png,{label}" for i, label in enumerate(LABELS)]
    pictures = {f"x/{i}.png": png(picture) for i, picture in enumerate(PICTURES)}
    return archive({"data.csv": "\n".join(["x:image,y:label", *rows]), **pictures})


def choose(page: Any, name: str, content: bytes, press: Any) -> None:
    """Give a file to the dialog that the browser opens after a press."""
    with page.expect_file_chooser() as chooser:
        press()
    kind = "application/octet-stream"
    chooser.value.set_files({"name": name, "mimeType": kind, "buffer": content})


def bring(page: Any, name: str, content: bytes) -> None:
    if not page.url.endswith("/data"):
        page.goto("/data")
    page.locator("summary", has_text="Bring").click()
    choose(page, name, content, page.get_by_role("menuitem", name="A CSV, or a zip").click)


def chosen(page: Any) -> Any:
    """The data set that the page shows, in the list."""
    return page.get_by_role("complementary", name="Data sets").locator("[aria-current]")


def test_an_archive_is_looked_at_counted_and_split(page: Any) -> None:
    bring(page, "small.zip", pictures_and_labels())
    expect(chosen(page)).to_contain_text("small")
    expect(chosen(page)).to_contain_text("20 rows")
    page.locator(".thumb").nth(19).scroll_into_view_if_needed()
    widths = page.locator(".thumb").evaluate_all(
        "all => Promise.all(all.map(async p => { await p.decode(); return p.naturalWidth }))"
    )
    assert widths == [64] * 20
    assert [row[2] for row in table(page, "Rows")] == [str(label) for label in LABELS]

    page.get_by_role("tab", name="Statistics").click()
    for name, values in (("x", PICTURES / 255), ("y", LABELS)):
        region = page.get_by_role("region", name=name, exact=True)
        region.wait_for()
        facts = region.locator("dd").all_inner_texts()
        wanted = [values.min(), values.max(), values.mean(), values.std()]
        assert [float(fact) for fact in facts[:4]] == pytest.approx(wanted, rel=1e-3, abs=1e-6)
    bars = page.get_by_role("img", name="0: 5, 1: 5, 2: 5, 3: 5")
    expect(bars).to_be_visible()

    page.get_by_role("button", name="Split").click()
    page.get_by_role("slider").fill("60")
    page.get_by_label("The same share of").select_option("y")
    page.get_by_role("dialog").get_by_role("button", name="Split").click()
    expect(chosen(page)).to_contain_text("small train")
    expect(chosen(page)).to_contain_text("12 rows")
    page.get_by_role("link", name="small valid").click()
    page.get_by_role("tab", name="Statistics").click()
    page.get_by_role("img", name="0: 2, 1: 2, 2: 2, 3: 2").wait_for()
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("link", name="small valid")).to_have_count(0)


def test_a_table_of_vectors_shows_each_of_its_columns(page: Any) -> None:
    bring(page, "points.csv", b"x__0,x__1,x__2,y\n1,2,3,0\n4,5,6.5,1\n")
    assert table(page, "Rows") == [["0", "1", "2", "3", "0"], ["1", "4", "5", "6.5", "1"]]
    heads = page.get_by_role("table", name="Rows").locator("th").all_inner_texts()
    assert heads == ["Row", "x__0", "x__1", "x__2", "y"]
    expect(page.get_by_text("x: 3 · y: 1")).to_be_visible()


def test_a_network_of_another_size_than_the_data_says_so(project: Any) -> None:
    address = project.url
    bring(project, "small.zip", pictures_and_labels())
    expect(chosen(project)).to_contain_text("small")
    project.goto(address)
    project.get_by_role("link", name="Config").click()
    for part in ("Training set", "Validation set"):
        options = project.get_by_label(part).locator("option", has_text="small (20")
        project.get_by_label(part).select_option(options.last.get_attribute("value"))
    project.get_by_role("link", name="Edit", exact=True).click()
    words = "its shape is [1, 8, 8], the data set has 1 x 6 x 6 in the column 'x'"
    problems = project.get_by_role("region", name="Problems")
    expect(problems).to_contain_text(words)
    expect(layer(project, "x")).to_contain_text("its shape is [1, 8, 8]")
    expect(project.get_by_role("button", name="Train", exact=True)).to_be_disabled()
    problems.get_by_role("button", name="Take the shape of the data set").click()
    expect(layer(project, "x")).to_contain_text("1 × 6 × 6")
    expect(problems).to_contain_text("none")
    project.get_by_role("button", name="Train", exact=True).click()
    shown = project.get_by_role("complementary", name="Trial", exact=True).locator(".status")
    expect(shown).to_have_text("finished", timeout=60_000)


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("broken.zip", b"PK\x03\x04 broken", "the archive is damaged"),
        ("away.zip", archive({"../away.csv": "y\n1\n"}), "away.csv"),
        ("text.csv", b"x,y\n1,2\n3\n", "line 3 has 1 cells, the header 2"),
        ("lost.csv", b"x:image,y\nlost.png,1\n", "there is no file 'lost.png'"),
        ("notes.docx", b"PK", "the extension is '.docx', wanted .zip or .csv"),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(
    page: Any, api: Any, faults: Any, name: str, content: bytes, words: str
) -> None:
    before = api("GET", "/datasets")
    bring(page, name, content)
    expect(page.locator(".notice.error")).to_contain_text(words)
    faults.expect(422)
    assert api("GET", "/datasets") == before


def folders() -> bytes:
    names = [f"set/{'cat' if label % 2 else 'dog'}/{i}.png" for i, label in enumerate(LABELS)]
    files: dict[str, bytes | str] = {n: png(p) for n, p in zip(names, PICTURES, strict=True)}
    return archive(files | {"set/cat/broken.png": b"\x89PNG\r\n\x1a\n"})


def boxes() -> bytes:
    large = RNG.integers(0, 256, (4, 32, 48, 3), dtype=np.uint8)
    files: dict[str, bytes | str] = {f"{i}.png": png(picture) for i, picture in enumerate(large)}
    return archive(files | {f"{i}.txt": f"{i % 2} 0.5 0.5 0.25 0.5\n" for i in range(4)})


def test_pictures_in_folders_become_sets_for_training_and_validation(page: Any) -> None:
    page.goto("/data")
    page.locator("summary", has_text="Bring").click()
    page.get_by_role("menuitem", name="a folder per class").click()
    dialog = page.get_by_role("dialog", name="Pictures in a folder for every class")
    dialog.get_by_label("Width").fill("12")
    dialog.get_by_label("Height").fill("10")
    dialog.get_by_label("For validation").fill("25")
    press = dialog.get_by_role("button", name="Choose a zip").click
    choose(page, "animals.zip", folders(), press)
    expect(chosen(page)).to_contain_text("animals train")
    expect(chosen(page)).to_contain_text("15 rows")
    expect(page.get_by_text("x: 1 × 10 × 12 · y: 1")).to_be_visible()
    expect(page.get_by_role("link", name="animals valid")).to_be_visible()
    expect(page.locator(".notice")).to_contain_text(
        "set/cat/broken.png could not be read: left out of the data set"
    )


def test_pictures_with_boxes_become_a_set(page: Any, faults: Any) -> None:
    page.goto("/data")
    page.locator("summary", has_text="Bring").click()
    page.get_by_role("menuitem", name="Pictures with boxes").click()
    dialog = page.get_by_role("dialog", name="Pictures with boxes")
    dialog.get_by_label("For validation").fill("0")
    dialog.get_by_label("Classes").fill("2")
    dialog.get_by_label("Anchors").fill("1")
    dialog.get_by_label("Pixels of a cell").fill("7")
    press = dialog.get_by_role("button", name="Choose a zip").click
    choose(page, "boxes.zip", boxes(), press)
    expect(page.locator(".notice.error")).to_contain_text("does not divide")
    faults.expect(422)
    dialog.get_by_label("Pixels of a cell").fill("16")
    choose(page, "boxes.zip", boxes(), press)
    expect(chosen(page)).to_contain_text("4 rows")
    expect(page.get_by_text(re.compile(r"x: 3 × 32 × 48 · y: .* · r: "))).to_be_visible()


def test_a_set_that_comes_with_a_package_is_one_press_away(page: Any) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    page.goto("/data")
    page.locator("summary", has_text="Bring").click()
    page.get_by_role("menuitem", name="Sample: ").first.click()
    expect(chosen(page)).to_contain_text("train")
    page.get_by_role("table", name="Rows").wait_for()
