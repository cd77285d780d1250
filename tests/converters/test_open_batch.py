# SPDX-License-Identifier: Apache-2.0
"""Open batch sizes, where a file computes with the batch size: against ONNX Runtime, which runs the
file itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl.cli.main import main
from nnl.utils.load import load

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
from nnl.converters.onnx import OnnxError, save  # noqa: E402

h = onnx.helper


def results(path: Path, x: np.ndarray[Any, Any]) -> list[Any]:
    """What a file gives, in ONNX Runtime or as NNabla's."""
    if path.suffix == ".onnx":
        session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return list(session.run(None, {session.get_inputs()[0].name: x}))
    nn.clear_parameters()
    run = load(path, batch_size=len(x)).executors["runtime"]
    (given,) = run.dataset_assign
    given.variable_instance.d = x
    outputs = [y.variable_instance for y in run.output_assign]
    nn.forward_all(outputs)
    nn.clear_parameters()
    return [y.d.copy() for y in outputs]


def check(source: Path, target: Path, shape: tuple[int, ...]) -> None:
    """Convert with an open batch size, and compare at several."""
    assert main(["convert", str(source), str(target), "-b", "-1", "--verify"]) == 0
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 7):
        x = rng.standard_normal((n, *shape)).astype(np.float32)
        for want, got in zip(results(source, x), results(target, x), strict=True):
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


# ---- as torch.onnx.export(dynamo=True) writes them ----


def model(path: Path, nodes: list[Any], shape: list[Any], **constants: Any) -> Path:
    weights = [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
    value = h.make_tensor_value_info
    graph = h.make_graph(nodes, "net", [value("x", 1, shape)], [value("y", 1, None)], weights)
    made = h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=8)
    onnx.save(made, path)
    return path


COUNT = [
    h.make_node("Shape", ["x"], ["n1"], start=0, end=1),
    h.make_node("Squeeze", ["n1"], ["n"]),
    h.make_node("Range", ["zero", "n", "one"], ["samples"]),
]
LIMITS = {"zero": np.int64(0), "one": np.int64(1)}


def strided(path: Path) -> Path:
    """as_strided: places of every sample in the flat input."""
    nodes = [
        *COUNT,
        h.make_node("Reshape", ["x", "flat"], ["values"]),
        h.make_node("Mul", ["samples", "row"], ["begin"]),
        h.make_node("Unsqueeze", ["begin", "axes"], ["begins"]),
        h.make_node("Add", ["begins", "inside"], ["places"]),
        h.make_node("Gather", ["values", "places"], ["y"]),
    ]
    inside = np.array([[[0, 2, 4], [1, 3, 5]]])
    more = {"flat": [-1], "row": np.int64(6), "axes": [1, 2], "inside": inside}
    return model(path, nodes, ["N", 6], **LIMITS, **more)


def one_of_each(path: Path) -> Path:
    """x[arange(N), column]: pairs of indices."""
    nodes = [
        *COUNT,
        h.make_node("Unsqueeze", ["samples", "last"], ["rows"]),
        h.make_node("Shape", ["rows"], ["pairs"]),
        h.make_node("Expand", ["column", "pairs"], ["columns"]),
        h.make_node("Concat", ["rows", "columns"], ["both"], axis=1),
        h.make_node("GatherND", ["x", "both"], ["y"]),
    ]
    return model(path, nodes, ["N", 6], **LIMITS, last=[-1], column=[[4]])


def windows(path: Path) -> Path:
    """Windows of an image become samples, and an image again."""
    nodes = [
        h.make_node("Shape", ["x"], ["n"], start=0, end=1),
        h.make_node("Concat", ["n", "cut"], ["in"], axis=0),
        h.make_node("Reshape", ["x", "in"], ["a"]),
        h.make_node("Transpose", ["a"], ["b"], perm=[0, 1, 3, 2, 4, 5]),
        h.make_node("Reshape", ["b", "window"], ["c"]),
        h.make_node("Softmax", ["c"], ["d"], axis=1),
        h.make_node("Slice", ["d", "first", "last", "axis"], ["e"]),
        h.make_node("Concat", ["n", "whole"], ["out"], axis=0),
        h.make_node("Reshape", ["e", "out"], ["y"]),
    ]
    more = {"cut": [2, 2, 2, 2, 3], "window": [-1, 4, 3], "whole": [4, 2, 3]}
    return model(path, nodes, ["N", 4, 4, 3], **more, first=[1], last=[3], axis=[1])


NETWORKS = {"strided": (strided, (6,)), "one of each": (one_of_each, (6,))}
NETWORKS["windows"] = windows, (4, 4, 3)


@pytest.mark.parametrize("extension", [".onnx", ".nnp"])
@pytest.mark.parametrize("name", NETWORKS)
def test_indices_that_are_computed_from_the_batch_size(
    tmp_path: Path, name: str, extension: str
) -> None:
    write, shape = NETWORKS[name]
    check(write(tmp_path / "m.onnx"), tmp_path / f"o{extension}", shape)


def lstm(torch: Any) -> Any:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = torch.nn.LSTM(5, 6, batch_first=True), torch.nn.Linear(6, 3)

        def forward(self, x: Any) -> Any:
            return self.head(self.lstm(x)[0][:, -1])

    return Net()


def encoder(torch: Any) -> Any:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = torch.nn.Parameter(torch.randn(1, 1, 5))
            self.layer = torch.nn.TransformerEncoderLayer(5, 1, 8, batch_first=True)

        def forward(self, x: Any) -> Any:
            y = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
            return self.layer(y)[torch.arange(x.shape[0]), 0]

    return Net()


@pytest.mark.parametrize("build", [lstm, encoder])
def test_exports_of_torch(tmp_path: Path, build: Callable[[Any], Any]) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    size = torch.export.Dim("batch", min=1, max=100)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            build(torch).eval(),
            (torch.randn(2, 4, 5),),
            str(tmp_path / "m.onnx"),
            dynamo=True,
            dynamic_shapes=({0: size},),
            verbose=False,
        )
    for extension in (".onnx", ".nnp"):
        check(tmp_path / "m.onnx", tmp_path / f"o{extension}", (4, 5))


# ---- what cannot stay open ----


def test_numbers_that_nnp_cannot_say_are_named_and_computed_in_onnx(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [
        *COUNT,
        h.make_node("Mul", ["samples", "samples"], ["squares"]),
        h.make_node("Cast", ["squares"], ["numbers"], to=1),
        h.make_node("Unsqueeze", ["numbers", "last"], ["column"]),
        h.make_node("Mul", ["x", "column"], ["y"]),
    ]
    source = model(tmp_path / "m.onnx", nodes, ["N", 6], **LIMITS, last=[-1])
    assert main(["convert", str(source), str(tmp_path / "o.nnp"), "-b", "-1"]) == 1
    error = capsys.readouterr().err
    assert "m.onnx: with an open batch size: mul2" in error and "x1 is an array of the" in error
    assert not (tmp_path / "o.nnp").exists()
    check(source, tmp_path / "o.onnx", (6,))


def test_a_file_for_one_batch_size_is_not_opened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = model(tmp_path / "m.onnx", [h.make_node("Relu", ["x"], ["y"])], [1, 6])
    for name in ("o.onnx", "o.nnp"):
        assert main(["convert", str(source), str(tmp_path / name), "-b", "-1"]) == 1
        assert "m.onnx: the batch size is fixed, so -1 cannot leave it" in capsys.readouterr().err
        assert not (tmp_path / name).exists()


def picked(x: Any) -> Any:
    return F.gather(x, nn.Variable.from_numpy_array(np.arange(len(x.d))), axis=0)


def strided_here(x: Any) -> Any:
    places = np.arange(len(x.d))[:, None] * 6 + np.array([[1, 3]])
    return F.gather(F.reshape(x, (-1,)), nn.Variable.from_numpy_array(places), axis=0)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("gather", picked),
        ("gather", strided_here),
        ("gather", lambda x: x[:, :2] + strided_here(x)),
        ("slice", lambda x: F.reshape(x, (-1,))[:6]),
        ("embed", lambda x: F.embed(nn.Variable.from_numpy_array(np.zeros((2, 2), int)), x)),
    ],
)
def test_samples_picked_by_numbers_are_not_written_with_an_open_batch_size(
    tmp_path: Path, batch: int, name: str, function: Callable[[Any], Any]
) -> None:
    if (batch, name) == (1, "slice"):
        pytest.skip("all there is: the slice ends where the batch does")
    x = nn.Variable.from_numpy_array(np.ones((batch, 6), np.float32))
    y = function(x)
    with pytest.raises(OnnxError, match=f"save: {name} .*picks the same samples at any batch size"):
        save(tmp_path / "m.onnx", {"y": y}, {"x": x})
    save(tmp_path / "m.onnx", {"y": y}, {"x": x}, batch=None)


def test_sums_over_the_batch_and_places_that_the_batch_decides_stay_open(tmp_path: Path) -> None:
    x = nn.Variable.from_numpy_array(np.ones((3, 6), np.float32))
    best = F.max(F.sum(x, axis=1), axis=0, only_index=True, keepdims=True)
    outputs = {"mean": F.mean(x, axis=0), "best": F.gather(x, best, axis=0)}
    save(tmp_path / "m.onnx", outputs, {"x": x})
    values = np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32)
    mean, best_row = results(tmp_path / "m.onnx", values)
    np.testing.assert_allclose(mean, values.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(best_row, values[[values.sum(1).argmax()]])
