# SPDX-License-Identifier: Apache-2.0
"""If, Loop and Scan of static graphs, where only values of the run decide."""

from __future__ import annotations

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

import nnl.parametric_functions as PF  # noqa: E402
from nnl.converters.onnx import load  # noqa: E402
from nnl.converters.onnx.exporting.exporter import export  # noqa: E402
from nnl.converters.onnx.file.errors import OnnxError, UnsupportedOperator  # noqa: E402
from tests.converters.onnx_nodes import (  # noqa: E402
    model,
    node,
    normal,
    value,
)

INT, BOOL, FLOAT = TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT


def graph(nodes, inputs, outputs):
    return helper.make_graph(nodes, "g", inputs, [value(*v) for v in outputs])


def constant(name, array):
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array(array)))


def branching():
    """y, k = (x w, 3) if sum(x) > limit else (tanh(x) + the sum, the size of x)."""
    then = graph(
        [node("Mul", "x,w", "a"), constant("k1", np.array([3]))],
        [],
        [("a", (2, 3)), ("k1", (1,), INT)],
    )
    other = graph(
        [node("Tanh", "x", "t"), node("Add", "t,s", "b"), node("Shape", "s2", "k2")],
        [],
        [("b", (2, 3)), ("k2", (1,), INT)],
    )
    nodes = [
        node("ReduceSum", "x", "s", keepdims=0),
        constant("one", np.array([1])),
        node("Reshape", "s,one", "s2"),
        node("Greater", "s,limit", "c"),
        node("If", "c", "y,k", then_branch=then, else_branch=other),
    ]
    inputs = [value("x", (2, 3)), value("limit", ())]
    outputs = [value("y", (2, 3)), value("k", (1,), INT)]
    return model(nodes, inputs, outputs, {"w": normal(3)})


def looping(bound=""):
    """h grows by h w until its sum is large, or for `bound` trips; n counts the trips."""
    body = graph(
        [
            node("Mul", "h,w", "g"),
            node("Add", "h,g", "h2"),
            node("Add", "n,one", "n2"),
            node("ReduceSum", "h2", "s", keepdims=0),
            node("Less", "s,limit", "c2"),
        ],
        [value("i", (), INT), value("c", (), BOOL), value("h", (2, 3)), value("n", (), INT)],
        [("c2", (), BOOL), ("h2", (2, 3)), ("n2", (), INT)],
    )
    nodes = [
        constant("one", np.array(1)),
        constant("zero", np.array(0)),
        *([constant("m", np.array(6))] if bound == "m" else []),
        constant("true", np.array(True)),  # without it the reference makes no trip
        node("Loop", f"{bound},true,x,zero", "y,n_end", body=body),
    ]
    given = [value("trips", (), INT)] if bound == "trips" else []
    return model(
        nodes,
        [value("x", (2, 3)), value("limit", ()), *given],
        [value("y", (2, 3)), value("n_end", (), INT)],
        {"w": np.array([0.5, 1, 0.25], np.float32)},
    )


def static(proto, max_trips=None, **inputs):
    """What the model gives as a static graph for several inputs, and its leaves."""
    leaves = {k: nn.Variable.from_numpy_array(v, need_grad=k == "x") for k, v in inputs.items()}
    ys = load(proto, max_trips=max_trips)(leaves)
    return leaves, ys if isinstance(ys, tuple) else (ys,)


def check(proto, leaves, ys, **inputs):
    for k, v in inputs.items():
        leaves[k].d = v
    nn.forward_all(ys, clear_buffer=True)
    want = ReferenceEvaluator(proto).run(None, {k: np.asarray(v) for k, v in inputs.items()})
    for y, w in zip(ys, want, strict=True):
        assert y.shape == w.shape
        np.testing.assert_allclose(y.d, w, rtol=1e-5, atol=1e-6)


ONES = np.ones((2, 3), np.float32)


def test_if_chooses_by_value():
    proto = branching()
    leaves, ys = static(proto, x=ONES, limit=np.float32(0))
    check(proto, leaves, ys, x=ONES, limit=np.float32(5))
    check(proto, leaves, ys, x=ONES, limit=np.float32(7))
    assert [n.op.name for n in _nodes(ys[0])].count("switch") == 1


def _nodes(y):
    from nnl.core.graph.node import capture

    return capture([y.edge])


@pytest.mark.parametrize("bound,limits", [("", (3, 100, 900)), ("m", (3, 100, 1e9))])
def test_loop_ends_by_value(bound, limits):
    proto = looping(bound)
    leaves, ys = static(proto, x=ONES, limit=np.float32(0))
    for limit in limits:
        check(proto, leaves, ys, x=ONES * 1.5, limit=np.float32(limit))
    assert [n.op.name for n in _nodes(ys[0])].count("while") == 1


def test_loop_ends_after_a_number_of_trips_that_is_an_input():
    proto = looping("trips")
    leaves, ys = static(proto, x=ONES, limit=np.float32(0), trips=np.array(0))
    for n in (0, 1, 4):
        check(proto, leaves, ys, x=ONES, limit=np.float32(50), trips=np.array(n))


def test_onnxruntime_agrees():
    ort = pytest.importorskip("onnxruntime")
    for proto in (branching(), looping()):
        nn.clear_parameters()
        session = ort.InferenceSession(proto.SerializeToString())
        leaves, ys = static(proto, x=ONES, limit=np.float32(0))
        for limit in (1, 6.5, 40):
            inputs = {"x": ONES * 1.1, "limit": np.array(limit, np.float32)}
            for k, v in inputs.items():
                leaves[k].d = v
            nn.forward_all(ys)
            for y, w in zip(ys, session.run(None, inputs), strict=True):
                np.testing.assert_allclose(y.d, w, rtol=1e-5)


@pytest.mark.parametrize("limit", [3, 30, 900])
def test_gradients_are_torchs(limit):
    torch = pytest.importorskip("torch")

    def gradients(proto, **kw):
        nn.clear_parameters()
        leaves, ys = static(proto, x=normal_x, limit=np.float32(limit), **kw)
        loss = F.sum(ys[0] ** 2)
        (w,) = nn.get_parameters().values()
        w.grad.zero()
        loss.forward(clear_no_need_grad=True)
        loss.backward(clear_buffer=True)
        return leaves["x"].g, w.g, w.d

    normal_x = np.abs(normal(2, 3)) + 0.5
    for proto, kw in ((branching(), {}), (looping("m"), {}), (looping(), {"max_trips": 12})):
        gx, gw, start = gradients(proto, **kw)
        x, w = (torch.tensor(v, requires_grad=True) for v in (normal_x, start))
        if proto.graph.node[-1].op_type == "If":
            y = x * w if x.sum() > limit else torch.tanh(x) + x.sum()
        else:
            y, n = x, 0
            while n == 0 or (y.sum() < limit and n < (12 if kw else 6)):
                y, n = y + y * w, n + 1
        (y**2).sum().backward()
        for g, t in ((gx, x), (gw, w)):
            want = np.zeros(t.shape, np.float32) if t.grad is None else t.grad.numpy()
            np.testing.assert_allclose(g, want, rtol=1e-4)


def test_scan_of_branches():
    """Each row is added, or subtracted where it is negative."""
    up, down = (
        graph([node(op, "h,r", out)], [], [(out, (3,))]) for op, out in (("Add", "u"), ("Sub", "v"))
    )
    body = graph(
        [
            node("ReduceSum", "r", "s", keepdims=0),
            constant("nil", np.float32(0)),
            node("Less", "nil,s", "c"),
            node("If", "c", "h2", then_branch=up, else_branch=down),
            node("Identity", "h2", "out"),
        ],
        [value("h", (3,)), value("r", (3,))],
        [("h2", (3,)), ("out", (3,))],
    )
    proto = model(
        [node("Scan", "h0,x", "y,all", body=body, num_scan_inputs=1)],
        [value("h0", (3,)), value("x", (4, 3))],
        [value("y", (3,)), value("all", (4, 3))],
    )
    leaves, ys = static(proto, h0=normal(3), x=normal(4, 3))
    for _ in range(2):
        check(proto, leaves, ys, h0=normal(3), x=normal(4, 3))


def test_files_of_programs(tmp_path):
    proto = looping()
    leaves, ys = static(proto, x=ONES, limit=np.float32(0))
    nn.save_program(tmp_path / "x.nnlp", {"y": ys[0]}, leaves)
    want = ReferenceEvaluator(proto).run(None, {"x": ONES, "limit": np.float32(99)})
    got = nn.load_program(tmp_path / "x.nnlp").run(x=ONES, limit=99)
    np.testing.assert_allclose(got["y"], want[0], rtol=1e-5)


def one_of(then, other, nodes=()):
    """y is what one of two branches makes of x, as s says; (nodes, shape in the file) of each."""
    both = [
        graph([*made, node("Identity", "r", f"y{k}")], [], [(f"y{k}", shape)])
        for k, (made, shape) in enumerate((then, other))
    ]
    last = node("If", "c", "y", then_branch=both[0], else_branch=both[1])
    nodes = [*(nodes or [node("Greater", "s,zero", "c")]), last]
    weights = {"w": normal(1, 16, 6), "r0": normal(1, 16, 4), "axes": np.array([1])}
    weights["zero"] = np.array(0, np.float32)
    inputs = [value("x", (1, 1, 1, 6)), value("s", ())]
    return model(nodes, inputs, [value("y", None)], weights)


IS_FLAT = ([node("Squeeze", "x,axes", "f"), node("LSTM", "f,w,r0", "r", hidden_size=4)], None)
HAS_FOUR_AXES = ([node("LSTM", "x,w,r0", "r", hidden_size=4)], None)
SHORTER = ([node("ReduceSum", "x,axes", "r", keepdims=0)], (1, 6))  # it has the shape (1, 1, 6)
SAME = ([node("Identity", "x", "r")], (1, 1, "n", 6))


@pytest.mark.parametrize(
    "then,other,taken",
    [
        (IS_FLAT, HAS_FOUR_AXES, 1),
        (HAS_FOUR_AXES, IS_FLAT, -1),
        (SHORTER, SAME, -1),
        (SAME, SHORTER, 1),
    ],
)
def test_a_branch_that_cannot_be_taken_at_these_sizes_is_left_out(then, other, taken, caplog):
    proto = one_of(then, other)
    x = normal(1, 1, 1, 6)
    leaves, ys = static(proto, x=x, s=np.float32(0))
    assert f"node If 'y': a run whose condition is {taken < 0} will be an error" in caplog.text
    check(proto, leaves, ys, x=x, s=np.float32(taken))
    leaves["s"].d = -taken
    with pytest.raises(ValueError, match="index holds 1, and there are 1 branches"):
        ys[0].forward()


def test_an_if_of_which_no_branch_can_be_taken():
    with pytest.raises(OnnxError, match=r"node LSTM 'r': .*x float32\[1, 1, 1, 6\] has rank 4"):
        static(one_of(HAS_FOUR_AXES, HAS_FOUR_AXES), x=normal(1, 1, 1, 6), s=np.float32(0))


def test_an_if_on_sizes_takes_its_branch():
    """A Squeeze that is left out where its axis is longer, as exporters write it."""
    nodes = [
        node("Shape", "x", "shape"),
        node("Gather", "shape,axes", "n"),
        node("Cast", "n", "m", to=FLOAT),
        constant("unit", np.ones(1, np.float32)),
        node("Equal", "m,unit", "c"),
    ]
    proto = one_of(([node("Squeeze", "x,axes", "r")], None), SAME, nodes)
    leaves, ys = static(proto, x=normal(1, 1, 1, 6), s=np.float32(0))
    assert ys[0].shape == (1, 1, 6) and not any(n.op.name == "switch" for n in _nodes(ys[0]))
    check(proto, leaves, ys, x=normal(1, 1, 1, 6), s=np.float32(0))


# ---- export ----


def check_export(ys, inputs, values):
    """What is exported gives the same in the reference, and in nnl again."""
    proto = export(dict(ys), inputs, batch=None)
    onnx.checker.check_model(proto, full_check=True)
    reference = ReferenceEvaluator(proto)
    nn.clear_parameters()
    leaves = {k: nn.Variable(x.shape) for k, x in inputs.items()}
    again = load(proto)(leaves)
    again = again if isinstance(again, tuple) else (again,)
    for one in values:
        for k, v in one.items():
            inputs[k].d = leaves[k].d = v
        nn.forward_all(list(ys.values()))
        nn.forward_all(again)
        given = {k: np.asarray(v, np.float32) for k, v in one.items()}
        for y, w, z in zip(ys.values(), reference.run(None, given), again, strict=True):
            np.testing.assert_allclose(w, y.d, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(z.d, y.d, rtol=1e-5, atol=1e-6)
    return [n.op_type for n in proto.graph.node]


def test_branches_are_exported():
    x, i = nn.Variable((2, 3)), nn.Variable(())

    def deep(x, z):
        a = nn.switch(F.greater_scalar(F.sum(x), 0), [F.sin, F.relu], z)
        return PF.affine(a, 3, name="fc"), x

    h = F.tanh(x)
    a, b = nn.switch(i, [lambda x, z: (x * h, z), deep], x, x * 2)
    values = [{"x": s * normal(2, 3) + s, "i": k} for s in (1, -1) for k in (0, 1)]
    assert "If" in check_export({"a": a, "b": b}, {"x": x, "i": i}, values)
    with pytest.raises(UnsupportedOperator, match="one of two subgraphs, and this is one of 3"):
        export(nn.switch(i, [F.relu, F.tanh, F.sin], x), [x, i], batch=None)


def test_loops_are_exported():
    x, limit = nn.Variable((2, 3)), nn.Variable(())
    y, n = nn.while_loop(
        lambda h, n: F.less(F.sum(F.abs(h)), limit),
        lambda h, n: (PF.affine(h, 3, name="fc") + h * 2, n + 1),
        x,
        F.constant(0, ()),
        max_trips=9,
    )
    values = [{"x": normal(2, 3), "limit": k} for k in (0, 5, 100, 1e9)]
    assert "Loop" in check_export({"y": y, "n": n}, {"x": x, "limit": limit}, values)


def test_rows_of_loops_are_exported():
    """As many as there may be, zeros for trips that there were not; at_most gives the others."""
    runtime = pytest.importorskip("onnxruntime")  # the reference collects no rows of no trips
    x, limit = nn.Variable((2, 3)), nn.Variable(())

    def once(h, n):
        return h * 2, n + 1, h, F.sum(h, axis=1)

    h, n, rows, sums = nn.while_loop(
        lambda h, n: F.less(F.sum(F.abs(h)), limit), once, x, F.constant(0, ()), max_trips=5
    )
    ys = {"h": h, "rows": rows, "sums": sums, "there": nn.at_most(rows, n)}
    proto = export(ys, {"x": x, "limit": limit}, batch=None)
    onnx.checker.check_model(proto, full_check=True)
    session = runtime.InferenceSession(proto.SerializeToString())
    for k in (0, 5, 100, 1e9):
        x.d, limit.d = normal(2, 3), k
        nn.forward_all([*ys.values(), n])
        want = session.run(None, {"x": x.d, "limit": np.array(k, np.float32)})
        for y, w in zip((h, rows, sums), want, strict=False):
            np.testing.assert_allclose(y.d, w, rtol=1e-5, atol=1e-6)
        assert want[3].tolist() == rows.d[: int(n.d)].tolist()


# ---- sequences ----


def sequences(short=False):
    """(x, x + x) if c else (tanh(x), x), or only (x): what SequenceAt takes of it."""
    some = helper.make_tensor_sequence_value_info("s", FLOAT, None)
    then = helper.make_graph(
        [node("Add", "x,x", "a"), node("SequenceConstruct", "x,a", "s")], "then", [], [some]
    )
    ends = [node("SequenceConstruct", "x" if short else "t,x", "s")]
    other = helper.make_graph([node("Tanh", "x", "t"), *ends], "other", [], [some])
    nodes = [
        node("If", "c", "all", then_branch=then, else_branch=other),
        constant("at", np.array(0)),
        node("SequenceAt", "all,at", "y"),
    ]
    return model(nodes, [value("c", (), BOOL), value("x", (2, 3))], ["y"])


def test_branches_may_give_sequences_of_one_length():
    for c, wanted in ((True, ONES), (False, np.tanh(ONES))):
        leaves, (y,) = static(sequences(), c=np.array(c), x=ONES)
        y.forward()
        np.testing.assert_allclose(y.d, wanted, rtol=1e-6)
    with pytest.raises(OnnxError, match="node If 'all': .*branch 0 float32"):
        static(sequences(short=True), c=np.array(True), x=ONES)


# ---- errors ----


def test_what_cannot_be_recorded_is_named():
    body = graph(
        [node("Add", "h,h", "h2"), node("Less", "h2,limit", "c2"), node("Identity", "h", "row")],
        [value("i", (), INT), value("c", (), BOOL), value("h", ())],
        [("c2", (), BOOL), ("h2", ()), ("row", ())],
    )
    rows = model([node("Loop", ",,x", "y,all", body=body)], ["x", "limit"], ["y", "all"])
    with pytest.raises(OnnxError, match="node Loop 'y': collects a row of every trip"):
        static(rows, x=np.float32(1), limit=np.float32(9))
    small = graph([node("ReduceSum", "x", "s", keepdims=0)], [], [("s", ())])
    same = graph([node("Identity", "x", "t")], [], [("t", (2, 3))])
    whole = graph([node("Shape", "x", "k")], [], [("k", (2,), INT)])
    for other, text in (
        (same, r"node If 'y': .*switch: branch 1 gives float32\[\], branch 0 float32\[2, 3\]"),
        (whole, r"node If 'y': "),
    ):
        proto = model(
            [node("If", "c", then_branch=small, else_branch=other)],
            [value("c", (), BOOL), "x"],
        )
        with pytest.raises(OnnxError, match=text):
            static(proto, c=np.array(True), x=ONES)
    leaves, ys = static(looping(), x=ONES, limit=np.float32(30))
    ys[0].forward()
    with pytest.raises(NotImplementedError, match="max_trips does not say for how many"):
        ys[0].backward()
