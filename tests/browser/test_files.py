# SPDX-License-Identifier: Apache-2.0
"""Networks come into the page as files and leave it as files, with what they are and weigh."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnl.console.documents.building import build
from nnl.console.documents.samples import digits
from nnl.console.documents.training import Data
from nnl.console.documents.training import export as write
from nnl.converters.nnp.parameter_files import Stored
from nnl.graph import load_program
from tests.browser.drawing import layer, names, settle, total
from tests.browser.files import bring, drop_from_desktop, export
from tests.console.test_sdcproj import CONFIG, LAYERS, LINKS
from tests.console.test_sdcproj import project as sdcproj

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = sync_api.expect
SHAPES = {"x": (1, 8, 8), "y": (1,)}


def nnl(*arguments: Any) -> str:
    command = [sys.executable, "-m", "nnl.cli.main", *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def import_as_project(page: Any, path: Path) -> None:
    page.goto("/")
    bring(page, page.get_by_role("button", name="Import a file"), path)
    page.locator(".layer").first.wait_for()
    settle(page)


def import_here(page: Any, path: Path) -> None:
    page.get_by_text("File", exact=True).click()
    bring(page, page.get_by_role("menuitem", name="Import …"), path)


def test_a_dropped_file_is_read_where_it_belongs_and_opens_nowhere_else(
    page: Any, tmp_path: Path
) -> None:
    write(digits(), tmp_path / "dropped.nntxt", Data("elsewhere.csv", SHAPES, 320))
    page.goto("/")
    page.get_by_role("heading", name="Samples").wait_for()
    drop_from_desktop(page, (600, 780), tmp_path / "dropped.nntxt")
    expect(layer(page, "conv1")).to_be_visible()
    address = page.url
    layer(page, "conv1").click()
    page.keyboard.press("Delete")
    expect(layer(page, "conv1")).to_have_count(0)
    for x, y in ((100, 300), (640, 20), (1200, 500)):  # the palette, the bar, the side
        drop_from_desktop(page, (x, y), tmp_path / "dropped.nntxt")
    page.wait_for_timeout(300)
    assert page.url.partition("?")[0] == address.partition("?")[0]
    expect(layer(page, "relu1")).to_be_visible()
    drop_from_desktop(page, (950, 300), tmp_path / "dropped.nntxt")
    expect(layer(page, "conv1")).to_be_visible()


def test_a_training_file_is_edited_and_trained_by_the_command_line(
    page: Any, api: Any, tmp_path: Path
) -> None:
    pytest.importorskip("sklearn")
    sets = api("POST", "/datasets/samples/digits", data={})["datasets"]
    document = digits()
    document.config["optimizer"]["type"] = "Momentum"
    write(document, tmp_path / "mine.nntxt", Data("elsewhere.csv", SHAPES, 320))
    import_as_project(page, tmp_path / "mine.nntxt")
    expect(page.get_by_role("region", name="Run")).to_contain_text("Momentum")
    layer(page, "conv1").click()
    page.get_by_label("outmaps").fill("24")
    page.get_by_role("link", name="Config").click()
    for field, chosen in zip(("Training set", "Validation set"), sets, strict=True):
        page.get_by_label(field).select_option(chosen["id"])
    page.get_by_role("link", name="Edit", exact=True).click()
    settle(page)
    parameters = total(page, "parameters")
    assert parameters == 24 * 9 + 24 + 32 * 24 * 9 + 32 + 32 * 16 * 10 + 10

    path = export(page, "NNabla text (.nntxt)", tmp_path)
    assert path.name == "mine.nntxt"
    assert json.loads(nnl("summary", path, "--json"))["parameters"] == parameters
    nnl("train", "-c", path, "-o", tmp_path / "out", "--set", "max_epoch=1")
    assert "valid_error" in (tmp_path / "out" / "monitoring_report.yml").read_text()


@pytest.mark.parametrize("kind", ["onnx", "nnp"])
def test_weights_go_in_and_out_again(page: Any, tmp_path: Path, kind: str) -> None:
    runtime = pytest.importorskip("onnxruntime")
    document = digits()
    graph = build(document, values=True)
    weights = [Stored(n, v.d.copy(), True) for n, v in graph.parameters().items()]
    for one in {"onnx", kind}:
        write(document, tmp_path / f"given.{one}", Data("", SHAPES), weights=weights)
    import_as_project(page, tmp_path / f"given.{kind}")
    expect(page.get_by_role("region", name="Run")).to_contain_text("weights of the file")
    assert total(page, "multiply_adds") == 88064

    (tmp_path / "back").mkdir()
    path = export(page, "ONNX", tmp_path / "back")
    x = np.random.default_rng(0).random((3, 1, 8, 8), np.float32)
    said = [
        runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"]).run(None, {"x": x})
        for file in (tmp_path / "given.onnx", path)
    ]
    assert np.allclose(said[0][0], said[1][0], atol=1e-5)

    page.get_by_role("button", name="forget them").click()
    expect(page.get_by_role("region", name="Run")).not_to_contain_text("weights")
    page.keyboard.press("Control+z")
    expect(page.get_by_role("region", name="Run")).to_contain_text("weights of the file")

    page.reload()
    expect(page.get_by_role("region", name="Run")).to_contain_text("weights of the file")


def test_a_project_of_neural_network_console_opens(page: Any, tmp_path: Path) -> None:
    layers = [*LAYERS, ("RepeatStart", "Repeat", {})]
    path = tmp_path / "theirs.sdcproj"
    path.write_text(sdcproj(layers, LINKS, CONFIG))
    import_as_project(page, path)
    dialog = page.get_by_role("dialog", name="Imported theirs")
    expect(dialog).to_contain_text("Repeat: the layer RepeatStart is unknown here")
    dialog.get_by_role("button", name="Close").click()
    assert {"Convolution", "BN", "Pool", "Affine", "Loss", "Repeat"} <= set(names(page))
    expect(layer(page, "Convolution")).to_contain_text("16 × 28 × 28")
    expect(page.get_by_role("region", name="Run")).to_contain_text("Adam · 7 epochs")
    expect(page.get_by_role("region", name="Problems")).to_contain_text("RepeatStart")


def test_a_network_leaves_in_every_format(project: Any, tmp_path: Path) -> None:
    program = export(project, "nnl program (.nnlp)", tmp_path)
    assert load_program(str(program))
    code = export(project, "Python code", tmp_path).read_text()
    assert "PF.convolution(" in code
    compile(code, "code", "exec")
    assert "conv1" in export(project, "Page (HTML)", tmp_path).read_text()
    assert export(project, "NNabla with weights (.nnp)", tmp_path).read_bytes()[:2] == b"PK"


@pytest.mark.parametrize(
    ("name", "content", "message", "code"),
    [
        ("a.onnx", b"\xff" * 40, "a.onnx", "unreadable"),
        ("a.nnp", b"PK\x03\x04 no archive", "a.nnp", "unreadable"),
        ("a.txt", b"text", "its extension is '.txt'", "unreadable"),
        ("a.nnlp", b"\x08" + bytes(40), "a.nnlp", "unreadable"),
    ],
)
def test_a_wrong_file_says_why_and_changes_nothing(
    project: Any, faults: Any, tmp_path: Path, name: str, content: bytes, message: str, code: str
) -> None:
    layer(project, "conv1").click()
    project.get_by_label("outmaps").fill("20")
    settle(project)
    before = names(project)
    (tmp_path / name).write_bytes(content)
    import_here(project, tmp_path / name)
    said = project.get_by_role("status").filter(has_text=message)
    expect(said).to_contain_text(code)
    assert names(project) == before
    expect(layer(project, "conv1")).to_contain_text("outmaps=20")
    faults.expect(422)


def test_an_import_is_one_step_of_undo(project: Any, tmp_path: Path) -> None:
    document = digits()
    document.main.nodes["n2"].properties["outmaps"] = 12
    write(document, tmp_path / "other.nntxt", Data("", SHAPES))
    import_here(project, tmp_path / "other.nntxt")
    expect(layer(project, "conv1")).to_contain_text("outmaps=12")
    project.keyboard.press("Control+z")
    expect(layer(project, "conv1")).to_contain_text("outmaps=16")
