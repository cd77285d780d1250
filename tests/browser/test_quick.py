# SPDX-License-Identifier: Apache-2.0
"""The quick page: a model file is dropped, looked at, and trained to its end."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from nnl.console.documents.samples import digits
from nnl.console.documents.training import export
from tests.browser.files import drop

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = sync_api.expect


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The network of the digits sample, without a loss, as ONNX."""
    pytest.importorskip("onnx")
    path = tmp_path / "digits.onnx"
    export(digits(), path)
    return path


def test_a_dropped_model_is_trained_to_its_end(page: Any, model: Path) -> None:
    pytest.importorskip("sklearn")
    page.goto("/quick")
    drop(page, page.get_by_role("button", name="Drop a model here"), model)
    report = page.get_by_role("region", name="Report")
    expect(report).to_contain_text("functions are supported")
    expect(report).to_contain_text("88.1 k")  # multiply-adds
    expect(report).to_contain_text("x 1 × 1 × 8 × 8")

    page.get_by_label("Data set").select_option("sample:digits")
    page.get_by_label("Epochs", exact=True).fill("4")
    page.get_by_role("button", name="Start").click()
    progress = page.get_by_role("region", name="Progress")
    expect(progress.locator(".status")).to_have_text("finished", timeout=60_000)
    bar = progress.get_by_role("progressbar")
    assert bar.get_attribute("value") == bar.get_attribute("max") == "4"
    expect(progress).to_contain_text(re.compile(r"loss \d.*best valid_error 0\.\d"))
    progress.get_by_role("link", name="Its page").click()
    expect(page.get_by_role("figure", name="Loss")).to_be_visible()


def test_what_is_not_supported_is_named(page: Any, model: Path) -> None:
    onnx = pytest.importorskip("onnx")
    broken = onnx.load(model)
    relu = next(node for node in broken.graph.node if node.op_type == "Relu")
    relu.op_type, relu.domain = "Rectify", "com.example"
    broken.opset_import.append(onnx.helper.make_opsetid("com.example", 1))
    onnx.save(broken, model)
    page.goto("/quick")
    drop(page, page.get_by_role("button", name="Drop a model here"), model)
    report = page.get_by_role("region", name="Report")
    expect(report).to_contain_text("Not supported: com.example.Rectify")
    row = report.get_by_role("row", name="com.example.Rectify")
    expect(row).to_contain_text("×")
    expect(row).to_contain_text("there is no importer for the operator 'Rectify'")
    expect(report.get_by_role("row", name="ai.onnx.Conv")).to_contain_text("✓")
    expect(page.get_by_role("form", name="Start")).to_have_count(0)


def test_a_file_that_is_no_model_says_so(page: Any, model: Path, faults: Any) -> None:
    target = page.get_by_role("button", name="ONNX, NNP, NNTXT")
    model.write_bytes(b"\xff" * 40)
    page.goto("/quick")
    drop(page, target, model)
    expect(page.get_by_role("alert")).to_contain_text("digits.onnx")
    expect(page.get_by_role("alert")).to_contain_text("unreadable")
    faults.expect(422)


def test_data_that_do_not_fit_are_refused_before_training(
    page: Any, model: Path, api: Any, faults: Any
) -> None:
    headers = {"Content-Type": "application/octet-stream"}
    table = b"x,y\n1,2\n3,4\n"
    api("POST", "/datasets?name=small.csv", data=table, headers=headers)
    page.goto("/quick")
    drop(page, page.get_by_role("button", name="Drop a model here"), model)
    page.get_by_label("Data set").select_option(label="small · 1")
    page.get_by_role("button", name="Start").click()
    message = page.get_by_role("status").filter(has_text="the network takes [1, 8, 8]")
    expect(message).to_contain_text("choose another data set")
    expect(message).to_contain_text("invalid")
    faults.expect(422)
