# SPDX-License-Identifier: Apache-2.0
"""nnl convert on what users get wrong: what --verify sees, open batch sizes, lists of operators."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.cli.main import main
from nnl.converters.networks.model import Model, Network
from nnl.converters.onnx.exporting import exporter
from nnl.utils.load import load
from nnl.utils.save import save
from tests.cli.test_convert import run, write_network

onnx = pytest.importorskip("onnx")
h = onnx.helper


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_network(tmp_path / "m.nnp")


def onnx_file(path: Path, nodes: list[Any], x: list[Any], **constants: np.ndarray) -> Path:
    """A model of x -> y in a file."""
    weights = [onnx.numpy_helper.from_array(a, n) for n, a in constants.items()]
    value = h.make_tensor_value_info
    graph = h.make_graph(nodes, "net", [value("x", 1, x)], [value("y", 1, None)], weights)
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


def mean_over_the_batch(path: Path) -> Path:
    """y = sum(x) / batch, which a graph built for one batch size divides by that number."""
    nodes = [
        h.make_node("Shape", ["x"], ["s"], start=0, end=1),
        h.make_node("Cast", ["s"], ["n"], to=1),
        h.make_node("Div", ["x", "n"], ["y"]),
    ]
    return onnx_file(path, nodes, ["N", 3])


def test_a_batch_size_that_is_a_number_is_computed_but_in_nnp(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = mean_over_the_batch(tmp_path / "m.onnx")
    assert run(source, tmp_path / "o.onnx", "--verify") == 0
    assert "largest difference: 0" in capsys.readouterr().out
    for name in ("p.onnx", "p.tflite", "p.pb"):
        assert run(source, tmp_path / name, "--verify", "-b", -1) == 0
    assert run(source, tmp_path / "p.nnp", "-b", -1) == 1
    assert "(MulScalar or Reshape): it depends on the batch size" in capsys.readouterr().err
    assert not (tmp_path / "p.nnp").exists()


def test_an_open_batch_size_is_verified_at_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_one_size(path: str, model: Model, *options: Any) -> None:
        network = model.network()
        exporter.save(path, network.outputs, network.inputs)

    monkeypatch.setattr(exporter, "save_model", of_one_size)
    source = mean_over_the_batch(tmp_path / "m.onnx")
    assert run(source, tmp_path / "o.onnx", "--verify", "-b", -1) == 1
    assert "o.onnx differs from its source" in capsys.readouterr().err


@pytest.mark.parametrize("extension", [".onnx", ".nnp", ".tflite", ".pb"])
def test_sizes_merged_with_the_batch_stay_open(
    tmp_path: Path, extension: str, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [h.make_node("Reshape", ["x", "shape"], ["y"])]
    source = onnx_file(tmp_path / "m.onnx", nodes, ["N", 4, 2], shape=np.array([-1, 4, 1]))
    assert run(source, tmp_path / f"o{extension}", "-b", -1, "--verify") == 0
    assert "largest difference: 0" in capsys.readouterr().out


@pytest.mark.parametrize("extension", [".onnx", ".nnp"])
def test_rows_of_a_buffer_follow_the_batch(
    tmp_path: Path, extension: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As RoBERTa takes its token types: rows of a buffer, stretched to the batch."""
    nodes = [
        h.make_node("Shape", ["x"], ["s"]),
        h.make_node("Expand", ["buffer", "s"], ["data"]),
        h.make_node("Cast", ["x"], ["index"], to=7),
        h.make_node("GatherElements", ["data", "index"], ["y"], axis=1),
    ]
    buffer = np.arange(3, dtype=np.float32)[None]
    source = onnx_file(tmp_path / "m.onnx", nodes, ["N", 3], buffer=buffer)
    code = run(source, tmp_path / f"o{extension}", "-b", -1, "--verify")
    if extension == ".nnp":
        assert code == 4 and "take_along" in capsys.readouterr().err
    else:
        assert code == 0 and "largest difference: 0" in capsys.readouterr().out


def test_the_tolerance_grows_with_the_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    x = nn.Variable((2, 3))
    net = {"name": "n", "batch_size": 2, "outputs": {"y": x * 1e6}, "names": {"x": x}}
    save(tmp_path / "m.nnp", {"networks": [net]})
    compute = Network.run
    monkeypatch.setattr(
        Network,
        "run",
        lambda self, values: {n: y + 1 for n, y in compute(self, values).items()},
    )
    args = ["-b", 2, "--verify", "--json"]
    assert run(tmp_path / "m.nnp", tmp_path / "o.onnx", *args) == 0
    report = json.loads(capsys.readouterr().out)["outputs"][0]
    assert 0.9 < report["largest_difference"] < 1.1 and report["largest_value"] > 1e5
    assert report["inputs"] == {"x": [2, 3]} and report["written"]
    assert run(tmp_path / "m.nnp", tmp_path / "p.onnx", *args, "--tolerance", 1e-7) == 1
    assert not json.loads(capsys.readouterr().out)["outputs"][0]["written"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.nnp", "o.onnx"]


def test_small_outputs_are_compared_with_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of two outputs is of the size 1e-4, and half of it is wrong."""
    x = nn.Variable((2, 3))
    outputs = {"large": x * 1e3, "small": F.sigmoid(x) * 1e-4}
    net = {"name": "n", "batch_size": 2, "outputs": outputs, "names": {"x": x}}
    save(tmp_path / "m.nnp", {"networks": [net]})
    assert run(tmp_path / "m.nnp", tmp_path / "o.onnx", "-b", 2, "--verify") == 0
    old = (tmp_path / "o.onnx").read_bytes()
    compute = Network.run

    def off(self: Network, values: Any) -> Any:
        found = compute(self, values)
        return {**found, "small": found["small"] / 2}

    monkeypatch.setattr(Network, "run", off)
    assert run(tmp_path / "m.nnp", tmp_path / "o.onnx", "-b", 2, "--verify") == 1
    assert "o.onnx differs from its source, so it was not written" in capsys.readouterr().err
    assert (tmp_path / "o.onnx").read_bytes() == old
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.nnp", "o.onnx"]


def test_onnx_runtime_has_the_word_on_onnx_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime = pytest.importorskip("onnxruntime")
    source = onnx_file(tmp_path / "m.onnx", [h.make_node("Relu", ["x"], ["y"])], ["N", 3])
    asked, compute = [], runtime.InferenceSession.run

    def wrong(self: Any, *args: Any) -> Any:
        asked.append(args)
        return [y + 1 for y in compute(self, *args)]

    monkeypatch.setattr(runtime.InferenceSession, "run", wrong)
    assert run(source, tmp_path / "o.onnx", "--verify") == 1 and len(asked) == 1
    assert not (tmp_path / "o.onnx").exists()
    assert run(source, tmp_path / "o.nnp", "--verify") == 0 and len(asked) == 1
    assert capsys.readouterr().out.endswith(", by nnl\n")


def test_operators_with_versions_may_stand_in_the_list(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "device.txt"
    assert main(["function_info", str(file), "-f", "ONNX", "-t", "-o", str(config)]) == 0
    assert "Conv@11" in config.read_text().split()
    assert run(file, tmp_path / "o.onnx", "-c", config, "--verify") == 0
    assert sorted(p.name for p in tmp_path.glob("o_*")) == ["o_0_6.onnx"]
    config.write_text("Conv@11\nRelu@14\n")
    assert run(file, tmp_path / "p.onnx", "-c", config) == 0
    assert sorted(p.name for p in tmp_path.glob("p_*")) == ["p_0_0.onnx", "p_2_2.onnx"]
    assert "device.txt does not allow function 1, BatchNormal" in capsys.readouterr().err
    config.write_text("Conv@1\nRelu@6\n")
    assert run(file, tmp_path / "q.onnx", "-c", config) == 1


def test_what_is_left_out_is_told(
    file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert run(file, tmp_path / "o.onnx") == 0
    assert "has the executors e, g: e is converted, -E chooses another" in caplog.text
    caplog.clear()
    assert run(file, tmp_path / "o.onnx", "-E", 1) == 0
    assert run(file, tmp_path / "o.nnp") == 0
    assert caplog.text == ""
    assert run(file, tmp_path / "o.nntxt", "--nnp-exclude-parameter") == 0
    assert run(tmp_path / "o.nntxt", tmp_path / "p.onnx", "-E", 0) == 0
    want = "o.nntxt: the files have no values of 8 parameters, c1/conv/W, c1/conv/b, b1/bn/beta ..."
    assert want in caplog.text


def test_own_functions_have_a_form_in_onnx(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [h.make_node("GatherElements", ["x", "index"], ["y"], axis=1)]
    source = onnx_file(tmp_path / "m.onnx", nodes, [2, 2], index=np.array([[1, 0], [0, 1]]))
    assert main(["function_info", str(source), "-f", "ONNX"]) == 0
    assert capsys.readouterr().out == "take_along\n"
    assert main(["dump", str(source)]) == 4
    assert "`nnl view` shows the network" in capsys.readouterr().err


def test_opsets_without_a_valid_form_are_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value = h.make_tensor_value_info
    ends = [value("x", onnx.TensorProto.INT4, [2])], [value("y", onnx.TensorProto.INT4, [2])]
    graph = h.make_graph([h.make_node("Identity", ["x"], ["y"])], "net", *ends)
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, tmp_path / "m.onnx")
    code = run(tmp_path / "m.onnx", tmp_path / "o.onnx")
    error = capsys.readouterr().err
    assert code == 0 or "no valid form of this" in error or "dtype is int4, which no array" in error


@pytest.fixture
def image_file(tmp_path: Path) -> Path:
    x = nn.Variable((2, 4, 3, 3))
    net = {"name": "n", "batch_size": 2, "outputs": {"y": F.relu(x)}, "names": {"x": x}}
    executor = {"name": "e", "network": "n", "data": ["x"], "output": ["y"]}
    save(tmp_path / "i.nnp", {"networks": [net], "executors": [executor]})
    return tmp_path / "i.nnp"


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 3, 3, 4), r"x.npy is (2, 3, 3, 4), the input 'x' is (2, 4, 3, 3)"),
        ((5, 4, 3, 3), "the input 'x' is (2, 4, 3, 3): -b sets another batch size"),
    ],
)
def test_arrays_in_another_order_are_not_taken(
    image_file: Path,
    tmp_path: Path,
    shape: tuple[int, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    np.save(tmp_path / "x.npy", np.ones(shape, np.float32))
    out = str(tmp_path / "out")
    assert main(["infer", "-c", str(image_file), "-o", out, str(tmp_path / "x.npy")]) == 1
    assert message in capsys.readouterr().err
    np.save(tmp_path / "x.npy", np.ones((1, 2, 4, 3, 3), np.float32))
    assert main(["infer", "-c", str(image_file), "-o", out, str(tmp_path / "x.npy")]) == 0
    assert np.load(f"{out}_0.npy").shape == (2, 4, 3, 3)


def test_infer_says_what_is_wrong_with_files(
    image_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.npy").write_bytes(b"")
    assert main(["infer", "-c", str(image_file), str(tmp_path / "x.npy")]) == 1
    assert "x.npy is no .npy file of numbers: " in capsys.readouterr().err
    np.save(tmp_path / "x.npy", np.ones((2, 4, 3, 3), np.float32))
    target = tmp_path / "none" / "out"
    assert main(["infer", "-c", str(image_file), "-o", str(target), str(tmp_path / "x.npy")]) == 3
    assert f"{target}_0.npy: there is no folder {target.parent}" in capsys.readouterr().err


def test_weights_of_a_file_without_them_are_not_missed_by_load(file: Path, tmp_path: Path) -> None:
    assert run(file, tmp_path / "o.nntxt", "--nnp-exclude-parameter") == 0
    load(tmp_path / "o.nntxt")
    y = PF.affine(nn.Variable((4, 27)), 5, name="f")
    assert y.shape == (4, 5)
