# SPDX-License-Identifier: Apache-2.0
"""Reports of nnl bench on the page: what was measured where, drawings, and two of them compared."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nnl.deep500.report import Report, load
from tests.browser.conftest import Server
from tests.browser.files import bring
from tests.browser.running import table

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = sync_api.expect


def bench(path: Path, *arguments: str) -> Report:
    """A report as the command writes it."""
    command = [sys.executable, "-m", "nnl.cli.main", "bench", *arguments, "--json", str(path)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, **quiet)
    return load(path)


@pytest.fixture(scope="module")
def folder(server: Server) -> Path:
    """The folder of reports, with one of a network in it."""
    pytest.importorskip("onnx")
    folder = server.folder / "reports"
    folder.mkdir(exist_ok=True)
    shape = ("--backends", "nnl,reference", "--runs", "5", "--batch-size", "2")
    bench(folder / "first.json", "network", "lenet", *shape)
    return folder


def test_a_report_of_the_folder_says_what_was_measured_where(page: Any, folder: Path) -> None:
    report = load(folder / "first.json")
    page.goto("/")
    page.get_by_role("link", name="Reports").click()
    page.get_by_role("link", name="network lenet").last.click()
    facts = page.get_by_role("region", name="Report")
    expect(facts).to_contain_text(report.id)
    expect(facts).to_contain_text("nnl bench network lenet --backends nnl,reference")
    made = page.get_by_role("region", name="Made with")
    for value in (report.hardware["processor"], report.versions["numpy"], report.versions["nnl"]):
        expect(made).to_contain_text(value)
    rows = table(page, "Rows")
    assert [row[1] for row in rows] == ["nnl", "reference"]
    heads = page.get_by_role("table", name="Rows").locator("th").all_inner_texts()
    at = heads.index("median time (s)")
    for row, measured in zip(rows, report.rows, strict=True):
        assert float(row[at]) == pytest.approx(measured["median_s"], rel=5e-3)  # three digits
    times = page.get_by_role("figure", name="median time")
    bars = [bar.bounding_box()["width"] for bar in times.locator(".bar").all()]
    medians = [row["median_s"] for row in report.rows]
    assert bars[0] / bars[1] == pytest.approx(medians[0] / medians[1], rel=0.1, abs=0.02)


def test_rows_are_sorted_and_found(page: Any, folder: Path) -> None:
    rows = [
        {
            "test": f"test_{i:03}",
            "operator": "Relu",
            "backend": "nnl",
            "status": s,
            "flops": 8 * i,
            "median_s": 1e-6 * (i + 1),
        }
        for i, s in enumerate(["pass"] * 150 + ["wrong", "failed"])
    ]
    report = Report("op", rows)
    report.write(folder / "op.json")
    page.goto(f"/reports/{report.id}")
    page.get_by_role("table", name="Rows").wait_for()
    assert table(page, "result by back end") == [["nnl", "", "1", "150", "1"]]
    times = page.get_by_role("img", name="median time (s) over computed (flop)")
    expect(times.locator("canvas")).to_be_visible()
    assert len(table(page, "Rows")) == 100
    page.get_by_role("button", name="Next").click()
    assert len(table(page, "Rows")) == 52
    page.get_by_label("Find in Rows").fill("relu wrong")
    assert [row[0] for row in table(page, "Rows")] == ["test_150"]
    page.get_by_label("Find in Rows").fill("")
    page.get_by_role("button", name="test of ONNX").click()
    page.get_by_role("button", name="test of ONNX").click()
    assert table(page, "Rows")[0][0] == "test_151"


def test_trainings_are_four_drawings(page: Any, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    report = bench(
        folder / "optimizer.json", "optimizer", "--backends", "nnl", "--epochs", "3",
        "--samples", "200", "-o", str(tmp_path),
    )  # fmt: skip
    page.goto(f"/reports/{report.id}")
    seconds = "time of training so far (s)"
    for y in ("accuracy (share)", "loss"):
        for x in ("samples so far", seconds):
            expect(page.get_by_role("figure", name=f"{y} over {x}")).to_be_visible()
    for figure in page.locator("figure.curves").all():
        expect(figure.locator(".u-series")).to_have_count(3)  # x, and two optimizers
        expect(figure).to_contain_text("native:momentum")


def test_a_report_is_brought_and_compared(page: Any, folder: Path, tmp_path: Path) -> None:
    first = load(folder / "first.json")
    second = load(folder / "first.json")
    second.rows[0]["median_s"] *= 2
    second.versions["numpy"] = "1.0"
    second.write(tmp_path / "second.json")
    page.goto("/reports")
    bring(page, page.get_by_role("button", name="Bring"), tmp_path / "second.json")
    page.wait_for_url(f"**/reports/{second.id}")
    page.get_by_role("button", name=f"Compare with network lenet {first.id}").click()
    page.get_by_role("table", name="Changes").wait_for()
    assert ["numpy", first.versions["numpy"], "1.0"] in table(page, "What differs")
    (row,) = table(page, "Changes")
    assert row[0] == "nnl" and "median_s" in row and row[-1] == "2"
    page.get_by_label("Changes by a factor").fill("3")
    page.get_by_text("Nothing has changed that much").wait_for()


def test_what_is_no_report_says_so(page: Any, faults: Any, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    page.goto("/reports")
    bring(page, page.get_by_role("button", name="Bring"), tmp_path / "a.json")
    said = page.get_by_role("status").filter(has_text="not a report of nnl bench")
    expect(said).to_contain_text("nnl bench --json writes one")
    faults.expect(422)
