# SPDX-License-Identifier: Apache-2.0
"""Loops whose number of trips is an open size or a value, in programs of ONNX files."""

import numpy as np
import pytest

import nnl as nn
from nnl.cli.main import main

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from tests.converters.onnx_nodes import node, value  # noqa: E402
from tests.converters.test_onnx_control import constant, graph  # noqa: E402

INT, BOOL, FLOAT = TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT
SIZES = [(1, 1, 3), (2, 7, 3), (4, 30, 3)]


def saved(path, nodes, inputs, outputs, weights=(), opset=18):
    tensors = [numpy_helper.from_array(np.asarray(v), k) for k, v in dict(weights).items()]
    ends = [[value(*v) for v in some] for some in (inputs, outputs)]
    model = helper.make_model(
        helper.make_graph(nodes, "net", *ends, tensors),
        opset_imports=[helper.make_opsetid("", opset)], ir_version=9,
    )  # fmt: skip
    onnx.checker.check_model(model)
    onnx.save(model, path)


def check(path, inputs, sizes=()):
    """The program of a file gives what ONNX Runtime gives, for some inputs."""
    runtime = pytest.importorskip("onnxruntime")
    target = str(path).replace(".onnx", ".nnlp")
    assert main(["convert", *sizes, str(path), target]) == 0
    session, program = runtime.InferenceSession(str(path)), nn.load_program(target)
    for values in inputs:
        want = session.run(None, values)
        got = program.run(**values)
        assert [y.name for y in session.get_outputs()] == list(got)
        for w, g in zip(want, got.values(), strict=True):
            assert g.shape == w.shape
            np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-5)
    return program


def rows(*shapes):
    return [{"x": np.random.default_rng(1).normal(size=s).astype(np.float32)} for s in shapes]


STEP = [  # h of a recurrent layer, for the row x_i
    node("Gather", "x,i", "xi", axis=1),
    node("Mul", "h,w", "hw"),
    node("Add", "hw,xi", "sum"),
    node("Tanh", "sum", "h2"),
    node("Identity", "h2", "row"),
]
START = [
    node("Shape", "x", "shape"),
    node("Gather", "shape,one", "time"),
    node("Gather", "shape,zero", "n"),
    node("Unsqueeze", "n,at0", "n1"),
    node("Concat", "n1,three", "size", axis=0),
    node("ConstantOfShape", "size", "h0"),
]
NUMBERS = {"w": np.float32([0.5, -1, 2]), "zero": 0, "one": 1, "at0": [0], "three": [3]}
STATE = [value("i", (), INT), value("c", (), BOOL), value("h", (None, 3))]
LAST, ROWS = ("y", (None, 3)), ("all", (None, None, 3))
X = ("x", ("N", "T", 3))


def test_as_many_trips_as_a_size_says(tmp_path):
    """PyTorch: for t in range(x.shape[1])."""
    body = graph(
        [*STEP, node("Identity", "c", "c2")], STATE,
        [("c2", (), BOOL), ("h2", (None, 3)), ("row", (None, 3))],
    )  # fmt: skip
    nodes = [*START, constant("true", True), node("Loop", "time,true,h0", "y,all", body=body)]
    saved(tmp_path / "a.onnx", nodes, [X], [LAST, ROWS], NUMBERS)
    program = check(tmp_path / "a.onnx", rows(*SIZES))
    assert program.text().count("while(") == 1


def test_a_condition_that_counts_to_a_size(tmp_path):
    """tf2onnx: any number of trips, and a counter of the loop's own that ends it."""
    body = graph(
        [
            node("Gather", "x,k", "xi", axis=1),
            *STEP[1:],
            node("Add", "k,one", "k2"),
            node("Less", "k2,time", "c2"),
        ],
        [*STATE, value("k", (), INT)],
        [("c2", (), BOOL), ("h2", (None, 3)), ("k2", (), INT), ("row", (None, 3))],
    )
    nodes = [
        *START,
        constant("most", np.array(2**31 - 1)),
        node("Less", "zero,time", "goes"),
        node("Loop", "most,goes,h0,zero", "y,k,all", body=body),
    ]
    saved(tmp_path / "a.onnx", nodes, [X], [LAST, ("k", (), INT), ROWS], NUMBERS)
    program = check(tmp_path / "a.onnx", rows(*SIZES))
    assert program.text().count("while(") == 1


@pytest.mark.parametrize("way", [0, 1])
def test_scans_of_open_sizes(way, tmp_path):
    body = helper.make_graph(
        [node("Mul", "h,w", "hw"), node("Add", "hw,xi", "h2"), node("Neg", "h2", "row")], "g",
        [value("h", (None, 3)), value("xi", (None, 3))],
        [value("h2", (None, 3)), value("row", (None, 3))],
    )  # fmt: skip
    scan = node(
        "Scan", "h0,x", "y,all", body=body, num_scan_inputs=1, scan_input_axes=[1],
        scan_input_directions=[way], scan_output_axes=[-1], scan_output_directions=[way],
    )  # fmt: skip
    saved(tmp_path / "a.onnx", [*START, scan], [X], [LAST, ("all", (None, 3, None))], NUMBERS)
    assert check(tmp_path / "a.onnx", rows(*SIZES)).text().count("while(") == 1


@pytest.mark.parametrize(
    "kind,gates,activations",
    [("RNN", 1, ["Relu"]), ("LSTM", 4, ["Sigmoid", "Relu", "Tanh"]), ("GRU", 3, ["Tanh", "Tanh"])],
)
def test_recurrent_layers_of_other_activations(kind, gates, activations, tmp_path):
    layer = node(
        kind, "tx,w,r", "y,last", direction="bidirectional", hidden_size=2,
        activations=activations * 2,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    weights = {k: rng.normal(size=(2, gates * 2, n)) / 2 for k, n in (("w", 3), ("r", 2))}
    saved(
        tmp_path / "a.onnx", [node("Transpose", "x", "tx", perm=[1, 0, 2]), layer], [X],
        [("y", (None, 2, None, 2)), ("last", (2, None, 2))],
        {k: v.astype(np.float32) for k, v in weights.items()},
    )  # fmt: skip
    assert check(tmp_path / "a.onnx", rows(*SIZES)).text().count("while(") == 2


def decoder(sequence, limit=9):
    """Greedy decoding: the state h and the number of its largest feature, until that is 0.

    The numbers are a sequence, as PyTorch writes lists, or rows of the loop.
    """
    nodes = [
        node("MatMul", "h,w", "hw"),
        node("Tanh", "hw", "h2"),
        node("ArgMax", "h2", "best", axis=1, keepdims=0),
        node("ReduceMax", "best", "top", keepdims=0),
        node("Greater", "top,zero", "goes"),
        node("Less", "i,last", "before"),
        node("And", "goes,before", "c2"),
    ]
    given = [value("i", (), INT), value("c", (), BOOL), value("h", (None, 3))]
    made = [("c2", (), BOOL), ("h2", (None, 3))]
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(INT, [None]))
    ends = [value(*v) for v in made]
    start, after, found = [], [], "h_end,y"
    if sequence:
        nodes.append(node("SequenceInsert", "s,best", "s2"))
        given.append(helper.make_value_info("s", kind))
        ends.append(helper.make_value_info("s2", kind))
        start, found = [node("SequenceEmpty", "", "empty", dtype=INT)], "h_end,all"
        start[0].input[:] = []
        after = [
            node("ConcatFromSequence", "all", "y", axis=0, new_axis=1),
            node("ConcatFromSequence", "all", "flat", axis=0),
            node("SequenceLength", "all", "count"),
            node("SequenceAt", "all,minus", "end"),
        ]
    else:
        ends.append(value("best", (None,), INT))
    body = helper.make_graph(nodes, "g", given, ends)
    loop = node("Loop", f"most,true,x{',empty' if sequence else ''}", found, body=body)
    most = constant("most", np.array(2**31 - 1))
    outs = [("h_end", (None, 3)), ("y", (None, None), INT)]
    if sequence:
        outs += [("flat", (None,), INT), ("count", (), INT), ("end", (None,), INT)]
    w = np.random.default_rng(27).normal(size=(3, 3)).astype(np.float32) * 2
    weights = {"w": w, "last": np.array(limit), "zero": 0, "minus": -1}
    return [constant("true", True), most, *start, loop, *after], outs, weights


@pytest.mark.parametrize("sequence", [True, False])
def test_rows_of_a_loop_that_values_end(sequence, tmp_path, capsys):
    nodes, outs, weights = decoder(sequence)
    saved(tmp_path / "a.onnx", nodes, [("x", ("N", 3))], outs, weights)
    values = [v for k in range(4) for v in rows((1, 3), (2 + k, 3))]
    for k, v in enumerate(values):
        v["x"] = np.random.default_rng(k).normal(size=v["x"].shape).astype(np.float32)
    program = check(tmp_path / "a.onnx", values, ["--max-trips", "12"])
    trips = {len(program.run(**v)["y"]) for v in values}
    assert len(trips) > 2 and max(trips) == 10
    assert main(["convert", str(tmp_path / "a.onnx"), str(tmp_path / "b.nnlp")]) == 1
    assert "--max-trips says how many at most" in capsys.readouterr().err
