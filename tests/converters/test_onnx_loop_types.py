# SPDX-License-Identifier: Apache-2.0
"""ONNX loops that carry values of every mixture of types, in every order."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F

onnx = pytest.importorskip("onnx")
ml_dtypes = pytest.importorskip("ml_dtypes")
from onnx import TensorProto, helper  # noqa: E402

from nnl.converters.onnx import load  # noqa: E402
from tests.converters.onnx_nodes import model, node, value  # noqa: E402
from tests.converters.test_onnx_control import constant, graph  # noqa: E402

VALUES = {
    TensorProto.INT32: np.array(2, np.int32),
    TensorProto.INT64: np.array([3, 4]),
    TensorProto.BOOL: np.array([True, False]),
    TensorProto.FLOAT: np.array([[0.25, 0.5]], np.float32),
    TensorProto.BFLOAT16: np.array([0.25, 0.75], ml_dtypes.bfloat16),
    TensorProto.FLOAT16: np.array([0.25, 0.5], np.float16),
    TensorProto.DOUBLE: np.array([0.125]),
    TensorProto.UINT8: np.array([1, 2], np.uint8),
}
ORDERS = [
    o for n in (1, 2, 3) for o in list(itertools.permutations(VALUES, n))[:: 1 + 16 * (n > 2)]
]


def looping(order, rows, bound):
    """Doubles each value at every trip, for `last` + 1 trips; booleans change."""
    specs = [(VALUES[t].shape, t) for t in order]
    nodes = [node("Less", "t,last", "c2")]
    for k, t in enumerate(order):
        nodes.append(
            node(*(("Not", f"x{k}") if t == TensorProto.BOOL else ("Add", f"x{k},x{k}")), f"y{k}")
        )
        nodes += [node("Identity", f"x{k}", f"r{k}")] if rows else []
    every = range(len(order))
    inside = [value(f"x{k}", *s) for k, s in enumerate(specs)]
    outs = [(f"y{k}", *s) for k, s in enumerate(specs)]
    outs += [(f"r{k}", *s) for k, s in enumerate(specs)] if rows else []
    first = [value("t", (), TensorProto.INT64), value("c", (), TensorProto.BOOL)]
    body = graph(nodes, [*first, *inside], [("c2", (), TensorProto.BOOL), *outs])
    results = [f"z{k}" for k in every] + ([f"q{k}" for k in every] if rows else [])
    names = ",".join([bound, "true", *[f"s{k}" for k in every]])
    given = [
        *[value(f"s{k}", *s) for k, s in enumerate(specs)],
        value("last", (), TensorProto.INT64),
    ]
    outputs = [value(f"z{k}", *s) for k, s in enumerate(specs)]
    if rows:
        outputs += [value(f"q{k}", (None, *shape), t) for k, (shape, t) in enumerate(specs)]
    loop = helper.make_node("Loop", names.split(","), results, body=body)
    nodes = [constant("true", np.array(True)), constant("m", np.array(9)), loop]
    return model(nodes, given, outputs), {f"s{k}": VALUES[t] for k, t in enumerate(order)}


def wanted(order, rows, last):
    xs, seen = [VALUES[t] for t in order], []
    for _ in range(last + 1):
        seen.append(xs)
        xs = [~x if x.dtype == bool else (x + x).astype(x.dtype) for x in xs]
    return [*xs, *(map(np.stack, zip(*seen, strict=True)) if rows else [])]


def same(found, want):
    """The values; Variables may hold them in another type than the file names."""
    assert len(found) == len(want)
    for a, b in zip(found, want, strict=True):
        assert a.shape == b.shape
        np.testing.assert_array_equal(a.astype(np.float64), b.astype(np.float64))


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("bound", ["", "m"])
def test_run_and_define_by_run(bound, rows):
    for order in ORDERS:
        proto, state = looping(order, rows, bound)
        want = wanted(order, rows, 2)
        got = load(proto).run(**state, last=np.array(2))
        assert [a.dtype for a in got] == [b.dtype for b in want]
        same(got, want)
        with nn.auto_forward():
            leaves = {k: nn.Variable.from_numpy_array(v) for k, v in state.items()}
            ys = load(proto)(last=np.array(2), **leaves)
            ys = ys if isinstance(ys, tuple) else (ys,)
            same([y.d if isinstance(y, nn.Variable) else y for y in ys], want)


def test_static_compiled_and_saved(tmp_path):
    for order in ORDERS:
        proto, state = looping(order, False, "")
        inputs = {**state, "last": np.array(0)}
        leaves = {k: nn.Variable.from_numpy_array(v) for k, v in inputs.items()}
        net = load(proto)
        ys = net(leaves)
        ys = ys if isinstance(ys, tuple) else (ys,)
        nn.save_program(tmp_path / "x.nnlp", {f"y{k}": y for k, y in enumerate(ys)}, leaves)
        found = nn.load_program(tmp_path / "x.nnlp")
        step = nn.compile(lambda *xs, net=net: net(*xs))
        for last in (0, 2):
            inputs["last"] = leaves["last"].d = np.array(last)
            want = wanted(order, False, last)
            nn.forward_all(ys)
            same([y.d for y in ys], want)
            same(list(found.run(**inputs).values()), want)
            zs = step(*map(nn.Variable.from_numpy_array, inputs.values()))
            same([z.d for z in (zs if isinstance(zs, tuple) else (zs,))], want)


@pytest.mark.parametrize("kind", ["float", "half", "bfloat16", "double"])
def test_gradients_of_halves_and_doubles(kind):
    order = (TensorProto.INT32, TensorProto.BFLOAT16, TensorProto.FLOAT, TensorProto.FLOAT16)
    proto, state = looping(order, False, "")
    with nn.context_scope(nn.Context([f"cpu:{kind}"])):
        leaves = {k: nn.Variable.from_numpy_array(v, need_grad=k != "s0") for k, v in state.items()}
        leaves["last"] = nn.Variable.from_numpy_array(np.array(1))
        _, *ys = load(proto, max_trips=6)(leaves)
        loss = F.sum(ys[0]) + F.sum(ys[1]) + F.sum(ys[2])
        for k in ("s1", "s2", "s3"):
            leaves[k].grad.zero()
        loss.forward()
        loss.backward()
        for k in ("s1", "s2", "s3"):
            assert (leaves[k].g == 4).all()


@pytest.mark.parametrize("order", ["ih", "hi", "wih", "ihw"])
def test_a_counter_before_the_state(order):
    """A recurrent network as converters from Keras write it: `while i < steps: h = h w`."""
    kinds = {"i": ((), TensorProto.INT32), "h": ((2, 4),), "w": ((4, 4),)}
    weight = "w" if "w" in order else "w0"
    body = graph(
        [
            node("MatMul", f"h,{weight}", "h1"),
            node("Add", "i,one", "i1"),
            node("Less", "i1,n", "c1"),
            *([node("Identity", "w", "w1")] if "w" in order else []),
        ],
        [
            value("t", (), TensorProto.INT64),
            value("c", (), TensorProto.BOOL),
            *[value(k, *kinds[k]) for k in order],
        ],
        [("c1", (), TensorProto.BOOL), *[(f"{k}1", *kinds[k]) for k in order]],
    )
    nodes = [
        constant("one", np.array(1, np.int32)),
        constant("zero", np.array(0)),
        constant("i0", np.array(0, np.int32)),
        node("Shape", "x", "s"),
        node("Gather", "s,zero", "n64"),
        node("Cast", "n64", "n", to=TensorProto.INT32),
        node("Less", "i0,n", "c0"),
        helper.make_node(
            "Loop", ["", "c0", *[f"{k}0" for k in order]], [f"{k}_end" for k in order], body=body
        ),
    ]
    w = np.random.default_rng(0).uniform(-0.3, 0.3, (4, 4)).astype(np.float32)
    inputs = [value("x", (3, 2, 4)), value("h0", (2, 4))]
    proto = model(nodes, inputs, [value(f"{k}_end", *kinds[k]) for k in order], {"w0": w})
    x, h = np.zeros((3, 2, 4), np.float32), np.full((2, 4), 0.5, np.float32)
    want = {"i": np.array(3), "h": h @ w @ w @ w, "w": w}
    for got, k in zip(load(proto).run(x, h), order, strict=True):
        np.testing.assert_allclose(got, want[k], rtol=1e-5)
