# SPDX-License-Identifier: Apache-2.0
"""Files with open sizes, written once and run at several: against ONNX Runtime, which runs the
source, by the runtimes of the formats."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.cli.main import main
from nnl.converters.nnp.archive import read_files
from nnl.converters.onnx.exporting.exporter import export
from nnl.utils.nnp_graph import NnpLoader
from nnl.utils.save import save
from tests.converters.test_open_sizes import helper, picture, saved, tokens, weight
from tests.graph.open_networks import Network, rows, steps

runtime = pytest.importorskip("onnxruntime")


def branches(path: Path) -> None:
    """Windows that reach over borders, cut and strided parts, and rows that a size repeats."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("MaxPool", ["a"], ["b"], kernel_shape=[3, 3], strides=[2, 2]),
        node("AveragePool", ["a"], ["c"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Slice", ["b", "start", "end", "axes", "step"], ["d"]),
        node("ReduceMean", ["c", "pixels"], ["e"], keepdims=1),
        node("ConvTranspose", ["d", "v"], ["f"], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Mul", ["f", "e"], ["g"]),
        node("Shape", ["g"], ["shape"]),
        node("Expand", ["row", "shape"], ["rows"]),
        node("Sub", ["g", "rows"], ["y"]),
    ]
    numbers = {"start": [1, 0], "end": [2**31, 2**31], "axes": [2, 3], "step": [1, 2]}
    weights = [("w", weight(4, 3, 3, 3)), ("v", weight(4, 4, 3, 3)), ("row", weight(1, 4, 1, 1))]
    weights += [(k, np.array(v)) for k, v in {**numbers, "pixels": [2, 3]}.items()]
    saved(path, nodes, [("x", ["n", 3, "h", "w"])], [("y", [None, 4, None, None])], weights)


def stacked(path: Path) -> None:
    """A product that keeps more than one open axis."""
    node = helper.make_node
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Relu", ["h"], ["y"])]
    saved(path, nodes, [("x", ["N", "T", 8])], [("y", [None, None, 5])], [("w", weight(1, 8, 5))])


EVEN = [(1, 3, 16, 24), (2, 3, 32, 64), (5, 3, 20, 20), (1, 3, 34, 18), (3, 3, 64, 16)]
SHAPES = [(1, 3, 16, 23), (2, 3, 31, 64), (5, 3, 20, 20), (1, 3, 33, 18), (3, 3, 64, 17)]
TEXTS = [(1, 8, 8), (3, 17, 8), (2, 1, 8), (4, 3, 8), (1, 40, 8)]
TWICE = ["--open", "x=batch,3,height:2..1024:2,width:2..1024:2"]
NETWORKS = {  # that of the pictures has another form where what is enlarged is not twice as large
    "picture": (picture, EVEN, TWICE),
    "branches": (branches, SHAPES, []),
    "tokens": (tokens, TEXTS, []),
    "stacked": (stacked, TEXTS, []),
}


def in_litert(path: str, x: Any) -> Any:
    interpreter = pytest.importorskip("ai_edge_litert.interpreter").Interpreter(path)
    (given,), (result,) = interpreter.get_input_details(), interpreter.get_output_details()
    interpreter.resize_tensor_input(given["index"], x.shape, strict=True)
    interpreter.allocate_tensors()
    interpreter.set_tensor(given["index"], x)
    interpreter.invoke()
    return interpreter.get_tensor(result["index"])


@pytest.mark.parametrize("extension", [".onnx", ".tflite", ""])
@pytest.mark.parametrize("name", NETWORKS)
def test_open_sizes_of_onnx_stay_open(name: str, extension: str, tmp_path: Path) -> None:
    """In the file, and in the program that is made of the file; "" is a SavedModel."""
    write, shapes, sizes = NETWORKS[name]
    source, file = str(tmp_path / "net.onnx"), str(tmp_path / f"out{extension}")
    write(Path(source))
    kind = [] if extension else ["-O", "SAVED_MODEL"]
    assert main(["convert", "--verify", *kind, *sizes, source, file]) == 0
    assert main(["convert", "--verify", file, str(tmp_path / "net.nnlp")]) == 0
    session, program = runtime.InferenceSession(source), nn.load_program(tmp_path / "net.nnlp")
    for shape in shapes:
        x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
        (want,) = session.run(None, {"x": x})
        (found,) = program.run(x=x).values()
        np.testing.assert_allclose(found, want, atol=2e-5, rtol=2e-5)
        if extension == ".tflite":
            np.testing.assert_allclose(in_litert(file, x), want, atol=2e-5, rtol=2e-5)
        if extension == ".onnx":
            (found,) = runtime.InferenceSession(file).run(None, {"x": x})
            np.testing.assert_allclose(found, want, atol=2e-5, rtol=2e-5)


QUICK = (0, 3, 4, 6, 7, 11)  # every kind of layer is in one of them


@pytest.mark.parametrize(
    "seed", [n if n in QUICK else pytest.param(n, marks=pytest.mark.long) for n in range(16)]
)
def test_random_networks_of_open_sizes_run_in_onnx_runtime(seed: int, tmp_path: Path) -> None:
    """And become .tflite files of open sizes, which have no loops."""
    net, rng = Network(seed), np.random.default_rng(seed)
    x = nn.Variable(net.shape(rng))
    proto = export(net, {"x": x}, open={"x": net.axes})
    if not {steps, rows} & {layer for layer, _ in net.layers}:
        (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
        paths = [str(tmp_path / name) for name in ("m.onnx", "m.tflite")]
        assert main(["convert", "--verify", *paths]) == 0
    session = runtime.InferenceSession(proto.SerializeToString())
    sizes = [d.dim_param or d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim]
    assert sizes == [n or size for n, size in zip(net.axes, x.shape, strict=True)]
    for _ in range(3):
        y = net(x := nn.Variable.from_numpy_array(rng.normal(size=net.shape(rng)).astype("f4")))
        y.forward()
        (found,) = session.run(None, {"x": x.d})
        assert found.shape == y.shape
        scale = max(1.0, np.abs(y.d).max())
        np.testing.assert_allclose(found / scale, y.d / scale, atol=2e-5)


@pytest.mark.parametrize("seed,shape", [(136, (2, 3, 11, 10)), (198, (2, 9, 8))])
def test_numbers_follow_from_what_a_function_reads(seed: int, shape: Any) -> None:
    """5/4 of a size is 5/8 of the one before it, at most sizes; a reshape may leave some as they
    are."""
    net, x = Network(seed), nn.Variable(shape)
    proto = export(net, {"x": x}, open={"x": net.axes})
    x.d = np.random.default_rng(0).normal(size=shape)
    (y := net(x)).forward()
    session = runtime.InferenceSession(proto.SerializeToString())
    (found,) = session.run(None, {"x": x.d.astype(np.float32)})
    np.testing.assert_allclose(found, y.d, atol=1e-4)


def test_wrong_open_sizes_of_onnx_are_named() -> None:
    x = nn.Variable((2, 3))
    with pytest.raises(TypeError, match="save: outputs is Variable.*, wanted with open sizes"):
        export(x * 2, {"x": x}, open={"x": ("n", None)})
    with pytest.raises(ValueError, match="open: there is no input 'z' among "):
        export(lambda x: x * 2, {"x": x}, open={"z": ("n",)})
    with pytest.raises(ValueError, match="save: .* Where has to be told a number"):
        export(lambda x: F.cumprod(x, axis=0), {"x": x}, open={"x": ("n", None)})


@pytest.mark.parametrize("extension", [".onnx", ".tflite", ".nnp", ".pb"])
def test_slices_that_leave_the_batch_alone_do_so_at_any_size(
    extension: str, tmp_path: Path
) -> None:
    """Also in a file as NNabla writes it, with the size of the day as the end; other ends stay."""
    x = nn.Variable((2, 3, 8, 8))
    h = F.relu(PF.convolution(x, 4, (3, 3), pad=(1, 1)))
    y = PF.affine(h[:, :, 1:, ::2], 3)
    net = {"name": "n", "batch_size": 2, "outputs": {"y": y}, "names": {"x": x}}
    run = {"name": "e", "network": "n", "data": ["x"], "output": ["y"]}
    source, file = str(tmp_path / "m.nnp"), str(tmp_path / f"o{extension}")
    save(source, {"networks": [net], "executors": [run]})
    (cut,) = [
        f for f in read_files([source], "", "nnl").proto.network[0].function if f.type == "Slice"
    ]
    assert list(cut.slice_param.stop) == [2, 4, 8, 8]
    assert main(["convert", "-b", "-1", "--verify", source, file]) == 0
    network = NnpLoader(source).get_network("n", batch_size=5)
    assert network.outputs["y"].shape == (5, 3)
    network.inputs["x"].d = np.random.default_rng(0).normal(size=(5, 3, 8, 8))
    network.outputs["y"].forward()
    x.d, rows = network.inputs["x"].d[3:], network.outputs["y"].d[3:]
    y.forward()
    np.testing.assert_allclose(rows, y.d, atol=1e-6)


def test_numbers_that_no_expression_gives_are_named(tmp_path: Path, capsys: Any) -> None:
    node = helper.make_node
    nodes = [node("MaxPool", ["x"], ["y"], kernel_shape=[5, 5], strides=[3, 3], ceil_mode=1)]
    saved(tmp_path / "net.onnx", nodes, [("x", [1, 3, "h", 8])], [("y", [1, 3, None, 2])])
    source, file = str(tmp_path / "net.onnx"), tmp_path / "net.tflite"
    assert main(["convert", source, str(file)]) != 0
    error = capsys.readouterr().err
    assert "net.onnx: with the open sizes h: TFLITE needs other operators at other sizes" in error
    assert "--open says of what they are multiples, --shape closes them" in error
    assert not file.exists()
    assert main(["convert", "--verify", "--open", "x=1,3,h:6..63:3,8", source, str(file)]) == 0
    assert main(["convert", "--open", "x=1,3,h,8", source, str(tmp_path / "net.nnb")]) != 0
    assert (
        "--open is for ONNX, CSRC, TFLITE, TF_PB, TF_CKPT_V2, SAVED_MODEL, NNLP"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "output,options,text",
    [
        ("o.nnp", [], "open, and NNP closes all but the batch size, as -b N and 8 bits do"),
        ("o.nnb", [], "open, and NNB closes all but the batch size"),
        (
            "o.nnlp",
            ["-b", "2"],
            "closes all but the batch size, as -b N and 8 bits do for all formats",
        ),
        (
            "o.tflite",
            ["-b", "2"],
            "closes all but the batch size, as -b N and 8 bits do for all formats",
        ),
    ],
)
def test_sizes_that_a_format_cannot_leave_open_are_named(
    output: str, options: list[str], text: str, tmp_path: Path, capsys: Any
) -> None:
    """They would be 1."""
    picture(tmp_path / "net.onnx")
    given = [*options, str(tmp_path / "net.onnx"), str(tmp_path / output)]
    assert main(["convert", *given]) != 0
    assert text in capsys.readouterr().err
    assert not (tmp_path / output).exists()
    if output != "o.nnb":  # which lacks functions of this network
        assert main(["convert", "--shape", "x=2,3,16,16", "-b", "2", *given[len(options) :]]) == 0
