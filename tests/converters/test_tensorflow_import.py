# SPDX-License-Identifier: Apache-2.0
"""Frozen graphs of TensorFlow as networks, against numpy; tests/interop has TensorFlow itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnl as nn
from nnl.cli.main import main
from nnl.converters.formats import read_model
from nnl.converters.tensorflow import interpreter
from nnl.converters.tensorflow.messages import TensorFlowError
from nnl.core.graph.node import capture
from tests.converters.tensorflow_graphs import FLOAT, IMAGE, Graph, functions, images, loop
from tests.graph.saved import normal


def run(g: Graph, tmp_path: Path, **values: Any) -> Any:
    """The one output of a graph."""
    network = read_model([str(g.save(tmp_path / "g.pb"))])[0].network()
    (y,) = network.run(values).values()
    return y


def ops(path: Path) -> list[str]:
    """Names of the functions of a graph, in order."""
    network = read_model([str(path)])[0].network()
    return [n.op.name for n in capture([v.edge for v in network.outputs.values()])]


def convolved(x: Any, w: Any, stride: int) -> Any:
    """Conv2D with padding SAME, of images with channels last."""
    sizes = [-(-n // stride) for n in x.shape[1:3]]
    total = [
        max(0, (m - 1) * stride + k - n)
        for m, k, n in zip(sizes, w.shape, x.shape[1:3], strict=False)
    ]
    wide = np.pad(x, [(0, 0), *[(t // 2, t - t // 2) for t in total], (0, 0)])
    y = np.zeros((len(x), *sizes, w.shape[3]))
    for i in range(w.shape[0]):
        for j in range(w.shape[1]):
            rows = slice(i, i + (sizes[0] - 1) * stride + 1, stride)
            columns = slice(j, j + (sizes[1] - 1) * stride + 1, stride)
            y += wide[:, rows, columns] @ w[i, j]
    return y


def test_images_are_computed_with_channels_first_between_functions(tmp_path: Path) -> None:
    g, w, b, m = images()
    x = normal(2, 7, 6, 3)
    h = np.maximum(convolved(x, w, 2) + b, 0)
    h = h / (1 + np.exp(-h.mean((1, 2), keepdims=True)))
    want = np.pad(h, [(0, 0), (1, 0), (0, 2), (0, 0)]).mean((1, 2)) @ m
    network = read_model([str(g.save(tmp_path / "g.pb"))])[0].network(2)
    (got,) = network.run({"x": x}).values()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    found = ops(tmp_path / "g.pb")
    assert found.count("transpose") == 1 and "add2" not in found
    assert sorted(network.parameters) == ["BiasAdd_5", "Conv2D_3", "y"]


def test_a_network_is_converted_and_its_ends_are_chosen(tmp_path: Path, capsys: Any) -> None:
    g, *_ = images()
    file = str(g.save(tmp_path / "g.pb"))
    assert main(["convert", file, str(tmp_path / "a.nnp"), "--verify", "-b", "2"]) == 0
    ends = ["--inputs", "x", "--outputs", "Relu_6,y:0"]
    assert main(["convert", file, str(tmp_path / "b.nnp"), *ends]) == 0
    network = read_model([str(tmp_path / "b.nnp")])[0].network(2)
    assert [v.shape for v in network.outputs.values()] == [(2, 4, 3, 5), (2, 4)]
    capsys.readouterr()
    assert main(["convert", file, str(tmp_path / "b.nnp"), "--outputs", "z"]) == 1
    assert "g.pb: the graph has no tensor 'z'" in capsys.readouterr().err


def test_scale_and_shift_of_channels_are_a_normalization(tmp_path: Path) -> None:
    g, w, scale, shift = Graph(), normal(1, 1, 3, 4), normal(4), normal(4)
    h = g("Conv2D", g.input("x", 2, 3, 5, 3), w, **{**IMAGE, "strides": [1, 1, 1, 1]})
    g("Relu", g("AddV2", g("Mul", scale, h), shift), name="y")
    x = normal(2, 3, 5, 3)
    want = np.maximum((x @ w[0, 0]) * scale + shift, 0)
    np.testing.assert_allclose(run(g, tmp_path, x=x), want, rtol=1e-4, atol=1e-5)
    assert ops(tmp_path / "g.pb")[1:4] == ["convolution", "batch_normalization", "relu"]


def test_shapes_are_computed_and_folded(tmp_path: Path) -> None:
    g = Graph()
    x = g.input("x", None, 2, 6)
    first = g(
        "StridedSlice", g("Shape", x), [0], [1], [1], shrink_axis_mask=1, T=np.dtype(np.int32)
    )
    half = g("FloorDiv", 12, 4, T=np.dtype(np.int32))
    g("Reshape", x, g("Pack", first, half, -1, axis=0), name="y")
    found = run(g, tmp_path, x=normal(1, 2, 6))
    assert found.shape == (1, 3, 4)
    assert ops(tmp_path / "g.pb") == ["reshape"]


def test_slices_as_python_says_them(tmp_path: Path) -> None:
    x = normal(4, 5, 6, 2)
    g = Graph()
    # x[1:, ..., None, 0] and x[::-2, 2]
    one = g(
        "StridedSlice", g.input("x", 4, 5, 6, 2), [1, 0, 0, 0], [0, 0, 0, 1], [1, 1, 1, 1],
        begin_mask=0, end_mask=1, ellipsis_mask=2, new_axis_mask=4, shrink_axis_mask=8,
    )  # fmt: skip
    two = g(
        "StridedSlice", "x", [0, 2], [0, 3], [-2, 1],
        begin_mask=1, end_mask=1, shrink_axis_mask=2,
    )  # fmt: skip
    g("Sub", g("Sum", one, [3], keep_dims=False), g("Sum", two, [0, 2], keep_dims=False)[:0] or one)
    network = read_model([str(g.save(tmp_path / "g.pb"))])[0].between(["x"], [one, two]).network()
    a, b = network.run({"x": x}).values()
    np.testing.assert_array_equal(a, x[1:, ..., None, 0])
    np.testing.assert_array_equal(b, x[::-2, 2])


# ---- control flow ----


def test_a_switch_by_a_constant_chooses(tmp_path: Path) -> None:
    for chosen, want in ((True, 2.0), (False, -1.0)):
        g = Graph()
        s = g("Switch", g.input("x", 3), np.array(chosen), name="s")
        low = g("Neg", s)
        high = g("Mul", f"{s}:1", 2.0)
        g("Merge", low, high, name="y")
        x = normal(3)
        np.testing.assert_allclose(run(g, tmp_path, x=x), want * x)


def test_a_loop_of_version_1_is_unrolled(tmp_path: Path) -> None:
    g = Graph()
    g.input("x", 3)
    loop(g, 3)
    network = read_model([str(g.save(tmp_path / "g.pb"))])[0].between(None, ["y"]).network()
    (y,) = network.run({"x": np.float32([0, 1, 2])}).values()
    np.testing.assert_allclose(y, np.float32([0, 1, 2]) * 1.5**3 + 1 + 1.5 + 1.5**2)


def test_functions_and_loops_of_version_2(tmp_path: Path) -> None:
    g = functions()
    x = normal(3)
    np.testing.assert_allclose(run(g, tmp_path, x=x), 32 * x, rtol=1e-6)


def test_arrays_of_tensors(tmp_path: Path) -> None:
    g = Graph()
    items = g("TensorListFromTensor", g.input("x", 3, 2), [2])
    last = g("TensorListGetItem", items, 2, [2], element_dtype=FLOAT)
    items = g("TensorListSetItem", items, 0, g("Neg", last))
    g("TensorListStack", items, [2], element_dtype=FLOAT, name="y")
    x = normal(3, 2)
    np.testing.assert_array_equal(run(g, tmp_path, x=x), [-x[2], x[1], x[2]])


def test_neither_tensorflow_nor_onnx_is_needed(tmp_path: Path) -> None:
    g, *_ = images()
    code = "import sys; sys.modules.update(dict.fromkeys(['onnx', 'tensorflow', 'ml_dtypes']))\n"
    code += "from nnl.converters.formats import read_model\n"
    code += f"print(read_model([{str(g.save(tmp_path / 'g.pb'))!r}])[0].network().outputs)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "'y'" in done.stdout, done.stderr


def recurrent(rows: int | None) -> Graph:
    """h = tanh(x_t + w h) for the rows of x, as Keras's layers have it."""
    g, whole = Graph(), np.dtype(np.int32)
    x = g.input("x", rows, 2)
    most = g("StridedSlice", g("Shape", x), [0], [1], [1], shrink_axis_mask=1, T=whole)
    args = ["count", "most", "time", "made", "h", "given", "w"]
    going = g.function("going", args, {"r": "less:z:0"})
    going("Less", "time", "most", name="less")
    ends = ["next:z:0", "most", "later:z:0", "set:output_handle:0", "kept:output:0", "given", "w"]
    body = g.function("body", args, {f"{a}_": end for a, end in zip(args, ends, strict=True)})
    row = body("TensorListGetItem", "given", "time", [2], element_dtype=FLOAT, name="row")
    h = body("Tanh", body("AddV2", row, body("Mul", "h", "w")), name="new")
    body("TensorListSetItem", "made", "time", h, name="set")
    body("Identity", "new", name="kept")
    body("AddV2", "count", 1, name="next", T=whole)
    body("AddV2", "time", 1, name="later", T=whole)
    made = g("TensorListReserve", [2], most, element_dtype=FLOAT)
    given = g("TensorListFromTensor", x, [2])
    state = [0, most, 0, made, np.zeros(2), given, np.array([0.5, -0.25])]
    g("While", *state, name="w", cond={"func": "going"}, body={"func": "body"})
    g("TensorListStack", "w:3", [2], element_dtype=FLOAT, name="ys")
    g("Mul", "w:4", g("Cast", "w:2", DstT=FLOAT), name="y")
    return g


def test_loops_over_rows_are_recorded_once(tmp_path: Path) -> None:
    for rows, whiles in ((20, 1), (3, 0)):
        x, h, hs = normal(rows, 2), np.zeros(2), []
        for row in x:
            h = np.tanh(row + h * [0.5, -0.25])
            hs.append(h)
        file = str(recurrent(rows).save(tmp_path / "g.pb"))
        network = read_model([file])[0].between(None, ["ys", "y"]).network()
        ys, y = network.run({"x": x}).values()
        np.testing.assert_allclose(ys, hs, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(y, rows * h, rtol=1e-5, atol=1e-6)
        nodes = [n.op.name for n in capture([v.edge for v in network.outputs.values()])]
        assert nodes.count("while") == whiles
        if whiles:
            file = str(recurrent(None).save(tmp_path / "h.pb"))
            path = str(tmp_path / "h.nnlp")
            assert main(["convert", file, path, "--outputs", "ys"]) == 0
            np.testing.assert_allclose(
                nn.load_program(path).run(x=x)["ys"], hs, rtol=1e-5, atol=1e-6
            )


def test_loops_that_do_more_with_their_counters_are_unrolled(tmp_path: Path) -> None:
    g = recurrent(20)
    body = next(f for f in g.proto.library.function if f.signature.name == "body")
    product = next(n for n in body.node_def if n.op == "Mul")
    product.input[1] = "time"  # h * time, in place of h * w
    x, h = normal(20, 2), np.zeros(2)
    for t, row in enumerate(x):
        h = np.tanh(row + h * t)
    file = str(g.save(tmp_path / "g.pb"))
    (y,) = read_model([file])[0].between(None, ["w:4"]).network().run({"x": x}).values()
    np.testing.assert_allclose(y, h, rtol=1e-4, atol=1e-5)


def test_loops_that_assign_or_hand_their_counter_on_are_unrolled(tmp_path: Path) -> None:
    g = recurrent(20)
    body = next(f for f in g.proto.library.function if f.signature.name == "body")
    product = next(n for n in body.node_def if n.op == "Mul")
    body.ret["w_"] = "later:z:0"  # what was w is then the number of the turn
    assert product.input[1] == "w"
    x, h, w = normal(20, 2), np.zeros(2), np.array([0.5, -0.25])
    for t, row in enumerate(x):
        h, w = np.tanh(row + h * w), np.full(2, t + 1.0)
    file = str(g.save(tmp_path / "g.pb"))
    (y,) = read_model([file])[0].between(None, ["w:4"]).network().run({"x": x}).values()
    np.testing.assert_allclose(y, h, rtol=1e-4, atol=1e-5)

    g = recurrent(20)
    body = next(f for f in g.proto.library.function if f.signature.name == "body")
    for f in g.proto.library.function:
        f.signature.input_arg.add(name="s", type=20)
    body.signature.output_arg.add(name="s_", type=20)
    body.ret["s_"], body.control_ret["noted"] = "s", "noted"
    body.node_def.add(name="noted", op="AssignVariableOp", input=["s", "new:y:0"])
    g("VarHandleOp", name="s", dtype=FLOAT, shape=(2,), shared_name="s")
    next(n for n in g.proto.node if n.op == "While").input.append("s")
    g("Sub", g("ReadVariableOp", "s", "^w", dtype=FLOAT), g("Mul", "w:4", 2.0), name="out")
    network = read_model([str(g.save(tmp_path / "g.pb"))])[0].between(None, ["out"]).network()
    h = np.zeros(2)
    for row in x:
        h = np.tanh(row + h * [0.5, -0.25])
    np.testing.assert_allclose(network.run({"x": x})["out"], -h, rtol=1e-4, atol=1e-5)


def test_random_numbers_and_diagonals(tmp_path: Path) -> None:
    g = Graph()
    drawn = g("RandomUniform", [2000], dtype=FLOAT)
    g("AddV2", g.input("x", 2000), g("AddV2", drawn, g("RandomStandardNormal", [2000])), name="y")
    network = read_model([str(g.save(tmp_path / "g.pb"))])[0].network()
    zeros = np.zeros(2000, np.float32)
    (a,), (b,) = (network.run({"x": zeros}).values() for _ in range(2))
    assert abs(a.mean() - 0.5) < 0.15 and abs(a.var() - 13 / 12) < 0.2 and (a != b).all()
    g = Graph()
    g("MatrixDiagV3", g.input("x", 2, 3), 0, -1, -1, 0.0, name="y")
    x = normal(2, 3)
    np.testing.assert_array_equal(run(g, tmp_path, x=x), x[:, None] * np.eye(3, dtype=np.float32))
    g = Graph()
    g("MatrixDiagV3", g.input("x", 2, 3), 1, -1, -1, 0.0, name="y")
    refused(g, tmp_path, r"y \(MatrixDiagV3\): gives another diagonal, other sizes")


def test_operators_before_the_inputs_are_not_looked_at(tmp_path: Path) -> None:
    g = Graph()
    g("Qr", g.input("image", 2), name="a/qr")
    g("PlaceholderWithDefault", "a/qr", dtype=FLOAT, shape=(2,), name="x")
    g("Neg", "x", name="y")
    network = read_model([str(g.save(tmp_path / "g.pb"))])[0].between(["x"], ["y"]).network()
    np.testing.assert_array_equal(network.run({"x": np.ones(2)})["y"], [-1, -1])


# ---- what is refused ----


def test_all_unsupported_operators_are_listed(tmp_path: Path) -> None:
    g = Graph()
    inner = g.function("inner", ["v"], {"r": "fft:output:0"})
    inner("FFT2D", "v", name="fft")
    h = g("Qr", g.input("x", 2, 2), name="a/qr")
    g("PartitionedCall", h, f={"func": "inner"})
    with pytest.raises(TensorFlowError) as error:
        run(g, tmp_path)
    assert str(error.value).endswith(
        "g.pb: operators without an importer: FFT2D (inner: fft), Qr (a/qr)"
    )


def refused(g: Graph, tmp_path: Path, text: str, outputs: list[str] | None = None) -> None:
    with pytest.raises(ValueError, match=text):
        read_model([str(g.save(tmp_path / "g.pb"))])[0].between(None, outputs).network()


def test_what_inputs_decide_is_refused(tmp_path: Path) -> None:
    g = Graph()
    x = g.input("x", 1)
    g("Switch", x, g("Less", x, 0.0), name="y")
    refused(g, tmp_path, r"y \(Switch\): the condition depends on the inputs, wanted one that cons")
    g = Graph()
    g.input("x", 1)
    loop(g, g("Cast", "x", DstT=np.dtype(np.int32)))
    refused(g, tmp_path, "the condition of a loop depends on the inputs", ["y"])


def test_loops_without_end_and_circles_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interpreter, "MAX_STEPS", 1000)
    g = Graph()
    always = g.function("always", ["v"], {"r": "true:output:0"})
    always.constant(True)
    always.proto.node_def[0].name = "true"
    g.function("same", ["v"], {"r": "v"})
    g("While", g.input("x", 1), cond={"func": "always"}, body={"func": "same"})
    refused(g, tmp_path, "loops and functions run more than 1000 nodes")
    g = Graph()
    g.function("again", ["v"], {"r": "c:output:0"})(
        "PartitionedCall", "v", name="c", f={"func": "again"}
    )
    g("PartitionedCall", g.input("x", 1), f={"func": "again"})
    refused(g, tmp_path, "functions are nested deeper than 48")
    g = Graph()
    g("Add", g.input("x", 1), "b", name="a")
    g("Neg", "a", name="b")
    refused(g, tmp_path, r"\(\w+\): it needs its own result", ["b"])


def test_files_that_contradict_themselves_are_refused(tmp_path: Path) -> None:
    g = Graph()
    g("Neg", "nobody", name="y")
    refused(g, tmp_path, r"g.pb: y \(Neg\) reads 'nobody', which there is not")
    g = Graph()
    g("Add", g.input("x", 2), np.ones(2), name="y")
    constant = next(n for n in g.proto.node if n.op == "Const").attr["value"].tensor
    constant.tensor_shape.dim[0].size = 10**12
    refused(g, tmp_path, r"Const\): wants an array of shape \(1000000000000,\)")
    constant.tensor_shape.dim[0].size = 3
    refused(g, tmp_path, r"a constant of shape \(3,\) has 8 bytes, wanted 12")
    (tmp_path / "h.pb").write_bytes(b"no graph at all")
    with pytest.raises(TensorFlowError, match="h.pb: no GraphDef message"):
        read_model([str(tmp_path / "h.pb")])


def test_more_parts_than_graphs_have_are_refused(tmp_path: Path) -> None:
    for op, inputs, more in (
        ("Unpack", ["x"], {"axis": 0}),
        ("Split", [0, "x"], {"num_split": 2**40}),
    ):
        g = Graph()
        g.input("x", 10**9, 0)
        g(op, *inputs, name="y", **more)
        refused(g, tmp_path, r"y \(\w+\): makes \d+ parts, wanted at most 65536")
