# SPDX-License-Identifier: Apache-2.0
"""OnnxModel.run keeps graphs for shapes it has seen; results are those of ONNX Runtime."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import nnl as nn

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from onnx import TensorProto as T  # noqa: E402
from onnx import helper, numpy_helper  # noqa: E402

from nnl.converters.onnx import load  # noqa: E402
from nnl.converters.onnx.file.errors import OnnxError  # noqa: E402
from nnl.converters.onnx.running.interpreter import Interpreter  # noqa: E402

node = helper.make_node


def model(nodes: Any, inputs: Any, outputs: Any, weights: Any = ()) -> Any:
    """inputs: {name: (type, shape)}; outputs: {name: type}."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, *spec) for n, spec in inputs.items()],
        [helper.make_tensor_value_info(n, t, None) for n, t in outputs.items()],
        [numpy_helper.from_array(w, n) for n, w in dict(weights).items()],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    ).SerializeToString()


def oracle(file: bytes, **given: Any) -> Any:
    return ort.InferenceSession(file).run(None, given)


@pytest.fixture
def interpreted(monkeypatch):
    """How often a node was interpreted: a call that a plan serves adds nothing."""
    counts = [0]
    call = Interpreter._call

    def counting(self, *args):
        counts[0] += 1
        return call(self, *args)

    monkeypatch.setattr(Interpreter, "_call", counting)
    return counts


def network() -> bytes:
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((8, 4)).astype("f"), "b": np.ones(4, "f")}
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Add", ["h", "b"], ["y"])]
    return model(nodes, {"x": (T.FLOAT, ["n", 8])}, {"y": T.FLOAT}, weights)


def rows(n: int, seed: int = 1) -> Any:
    return np.random.default_rng(seed).standard_normal((n, 8)).astype("f")


def test_a_call_with_known_shapes_interprets_nothing(interpreted):
    file = network()
    net = load(file)
    for n in (2, 3):
        net.run(rows(n))
    before = interpreted[0]
    for n, seed in ((2, 5), (3, 6), (2, 7)):
        (y,) = net.run(rows(n, seed))
        np.testing.assert_allclose(y, oracle(file, x=rows(n, seed))[0], rtol=1e-5, atol=1e-6)
    assert interpreted[0] == before


def test_what_numpy_makes_float64_is_converted_and_has_a_plan(interpreted):
    file = network()
    net = load(file)
    net.run(rows(2).astype(np.float64))
    before = interpreted[0]
    for given in (rows(2).astype(np.float64), rows(2), rows(2).tolist(), rows(2)[::1]):
        (y,) = net.run(given)
        np.testing.assert_allclose(y, oracle(file, x=rows(2))[0], rtol=1e-5, atol=1e-6)
    assert interpreted[0] == before


def test_wrong_calls_say_so_and_cost_no_plan(interpreted):
    net = load(network())
    for _ in range(5):
        with pytest.raises(OnnxError, match="input 'x' has the shape"):
            net.run(np.zeros(3, np.float32))
        with pytest.raises(OnnxError, match="'x' is complex64"):
            net.run(np.zeros((2, 8), np.complex64))
    net.run(rows(2))
    before = interpreted[0]
    net.run(rows(2))
    assert interpreted[0] == before


def test_shapes_that_never_come_again_get_no_plan_of_their_own():
    net = load(network())
    for n in range(1, 40):
        net.run(rows(n))
    assert len(net._plans._plans) <= 8


def test_results_are_the_callers():
    net = load(network())
    (first,) = net.run(rows(2))
    kept = first.copy()
    net.run(rows(2, 9))
    np.testing.assert_array_equal(first, kept)


def test_new_values_of_parameters_and_new_parameters_count():
    file = network()
    net = load(file)
    net.run(rows(2))
    for change in (
        lambda w: setattr(w, "d", np.zeros((8, 4))),
        lambda w: w.data.fill(1),
        lambda w: setattr(w, "data", nn.NdArray.from_numpy_array(np.full((8, 4), 2, "f"))),
        lambda w: nn.parameter.set_parameter("w", nn.Variable.from_numpy_array(rows(8)[:, :4])),
        lambda w: nn.clear_parameters(),
    ):
        change(net.parameters()["w"])
        (y,) = net.run(rows(2))
        w = net.parameters()["w"].d
        np.testing.assert_allclose(y, rows(2) @ w + 1, rtol=1e-5, atol=1e-5)


def test_scopes_and_contexts_have_plans_of_their_own():
    net = load(network())
    (y,) = net.run(rows(2))
    with nn.parameter_scope("other"):
        net.parameters()["w"].d = 0
        np.testing.assert_array_equal(net.run(rows(2))[0], np.ones((2, 4)))
    np.testing.assert_array_equal(net.run(rows(2))[0], y)
    with nn.context_scope(nn.Context(["numpy:float"])):
        np.testing.assert_allclose(net.run(rows(2))[0], y, rtol=1e-5)


def test_a_number_alone_is_a_setting_until_it_changes(interpreted):
    branches = [
        helper.make_graph(
            [node(op, ["x"], [f"{op}_y"])],
            op,
            [],
            [helper.make_tensor_value_info(f"{op}_y", T.FLOAT, None)],
        )
        for op in ("Exp", "Neg")
    ]
    nodes = [
        node("Equal", ["rate", "high"], ["is_high"]),
        node("If", ["is_high"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    file = model(
        nodes,
        {"x": (T.FLOAT, [3]), "rate": (T.INT64, [])},
        {"y": T.FLOAT},
        {"high": np.array(16000, np.int64)},
    )
    net = load(file)
    x = np.array([0.5, -1, 2], "f")
    net.run(x, np.array(16000))
    assert [e.settings for e in net._plans._plans.values()] == [((1, 16000),)]
    for rate in (16000, 16000, 8000, 16000, 8000):
        (y,) = net.run(x, np.array(rate))
        np.testing.assert_allclose(y, np.exp(x) if rate == 16000 else -x, rtol=1e-6)
    before = interpreted[0]
    net.run(x, np.array(8000))
    assert interpreted[0] == before


POSITIONS = (
    [
        node("Equal", ["ids", "one"], ["padding"]),
        node("Not", ["padding"], ["here"]),
        node("Cast", ["here"], ["mask"], to=T.INT64),
        node("CumSum", ["mask", "one"], ["count"]),
        node("Mul", ["count", "mask"], ["masked"]),
        node("Add", ["masked", "one"], ["at"]),
        node("Gather", ["table", "at"], ["y"]),
    ],
    {"ids": (T.INT64, ["b", "t"])},
    {"y": T.FLOAT},
    {"one": np.array(1, np.int64), "table": rows(40)},
)


def test_whole_numbers_that_stay_small_run_in_a_plan(interpreted):
    file = model(*POSITIONS)
    net = load(file)
    ids = np.array([[5, 6, 7, 1, 1], [3, 1, 1, 1, 1]])
    for given in (ids, ids + 1):
        before = interpreted[0]
        np.testing.assert_array_equal(net.run(given)[0], oracle(file, ids=given)[0])
    assert interpreted[0] == before


EXACT = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Max": np.maximum,  # where ONNX Runtime 1.31 takes the smaller one of 2^31 and 2^31 - 2
    "Div": lambda x, z: np.sign(x) * np.sign(z) * (np.abs(x) // np.abs(z)),
    "Mod": np.mod,
}


@pytest.mark.parametrize("op", EXACT)
@pytest.mark.parametrize("at", (3, 2**20 - 1, 2**31, 2**53 + 1))
def test_whole_numbers_are_exact(op, at):
    file = model(
        [node(op, ["x", "z"], ["y"])],
        {"x": (T.INT64, ["n"]), "z": (T.INT64, ["n"])},
        {"y": T.INT64},
    )
    net = load(file)
    x, z = np.array([at, -at, 7, 1]), np.array([at - 2, 3, -5, 1])
    for _ in range(2):
        np.testing.assert_array_equal(net.run(x, z)[0], EXACT[op](x, z))


@pytest.mark.parametrize(
    "nodes, input_type, wanted",
    [
        (["Mul x k"], T.INT64, lambda x: x * 4001),
        (["Mul k x"], T.INT64, lambda x: x * 4001),
        (["Mul x k", "Sub h0 x"], T.INT64, lambda x: x * 4000),
        (["Cast x", "Div h0 k"], T.FLOAT, lambda x: x.astype(np.int64) // 4001),
        (["Cast x", "Add h0 k"], T.FLOAT, lambda x: x.astype(np.int64) + 4001),
        (["ReduceSum x"], T.INT64, lambda x: x.sum(keepdims=True)),
        (["CumSum x axis"], T.INT64, np.cumsum),
    ],
)
def test_chains_that_leave_float32_behind_are_exact(nodes, input_type, wanted):
    made = []
    for i, text in enumerate(nodes):
        op, *names = text.split()
        more = {"to": T.INT64} if op == "Cast" else {}
        made.append(node(op, names, [f"h{i}" if i < len(nodes) - 1 else "y"], **more))
    weights = {"k": np.array(4001, np.int64), "axis": np.array(0, np.int64)}
    file = model(made, {"x": (input_type, ["n"])}, {"y": T.INT64}, weights)
    x = np.array([2**20 - 1, 2**20 - 3, 7] * 9)
    if input_type == T.FLOAT:
        x = np.array([3e9, 2.0**31 + 256, 12345677], np.float32)
    np.testing.assert_array_equal(load(file).run(x)[0], wanted(x))


def test_small_types_wrap_around():
    file = model(
        [
            node("Cast", ["x"], ["u"], to=T.UINT8),
            node("Add", ["u", "u"], ["y"]),
        ],
        {"x": (T.INT64, ["n"])},
        {"y": T.UINT8},
    )
    x = np.array([200, 3, 255])
    np.testing.assert_array_equal(load(file).run(x)[0], oracle(file, x=x)[0])


def test_shapes_that_values_decide_are_interpreted():
    file = model(
        [node("Reshape", ["x", "to"], ["y"])],
        {"x": (T.FLOAT, [6]), "to": (T.INT64, [2])},
        {"y": T.FLOAT},
    )
    net = load(file)
    for to in ([2, 3], [3, 2], [1, 6], [6, 1], [2, 3]):
        assert net.run(np.arange(6, dtype="f"), np.array(to))[0].shape == tuple(to)


def test_an_error_in_a_plan_is_told_in_the_words_of_the_file():
    nodes = [node("Gather", ["table", "ids"], ["y"], name="lookup")]
    file = model(nodes, {"ids": (T.INT64, [2])}, {"y": T.FLOAT}, {"table": rows(4)})
    net = load(file)
    net.run(np.array([0, 3]))
    with pytest.raises(OnnxError, match="lookup"):
        net.run(np.array([0, 4]))
    assert net.run(np.array([0, 3]))[0].shape == (2, 8)


def test_threads_share_a_model():
    file = network()
    net = load(file)
    given = [rows(2 + i % 3, i) for i in range(60)]
    wanted = [oracle(file, x=x)[0] for x in given]
    with ThreadPoolExecutor(8) as pool:
        for y, expected in zip(pool.map(lambda x: net.run(x)[0], given), wanted, strict=True):
            np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("then, plans", [(T.FLOAT, True), (T.INT64, False)])
def test_sums_of_whole_numbers_that_are_rounded_once(interpreted, then, plans):
    """What is added in 32 bits and then cast to floats, as quantizers write a bias, is the float
    sum; of more than 2^24 that stays whole it is not."""
    given = {
        "a": np.array([2**20, 2**20 - 1, -(2**20), 77], np.int32),
        "b": np.array([2**20 - 1, 2**20 - 3, 1 - 2**20, 13], np.int32),
    }
    nodes = [
        node("Mul", ["a", "sixteen"], ["a16"]),
        node("Mul", ["b", "fifteen"], ["b15"]),
        node("Add", ["a16", "b15"], ["sum"]),
        node("Cast", ["sum"], ["y"], to=then),
    ]
    weights = {"sixteen": np.array(16, np.int32), "fifteen": np.array(15, np.int32)}
    file = model(nodes, {n: (T.INT32, [4]) for n in given}, {"y": then}, weights)
    net, want = load(file), oracle(file, **given)[0]
    for _ in range(2):
        np.testing.assert_array_equal(net.run(given)[0], want)
    before = interpreted[0]
    net.run(given)
    assert (interpreted[0] == before) is plans


def test_floats_that_a_model_makes_whole(interpreted):
    """As an embedding of Keras reads its tokens; large ones go the way on which they are exact."""
    nodes = [
        node("Cast", ["x"], ["i"], to=T.INT32),
        node("Add", ["i", "one"], ["more"]),
        node("Mul", ["more", "three"], ["y"]),
    ]
    weights = {"one": np.array(1, np.int32), "three": np.array(3, np.int32)}
    file = model(nodes, {"x": (T.FLOAT, [2])}, {"y": T.INT32}, weights)
    net = load(file)
    for x, plans in (([5, -7], True), ([2**24, 2], False), ([3, 1], True)):
        x = np.array(x, np.float32)
        net.run(x)
        before = interpreted[0]
        np.testing.assert_array_equal(net.run(x)[0], oracle(file, x=x)[0])
        assert (interpreted[0] == before) is plans


def test_places_of_the_largest_are_small_numbers(interpreted):
    nodes = [
        node("TopK", ["x", "k"], ["v", "i"]),
        node("Mul", ["i", "hundred"], ["y"]),
    ]
    weights = {"k": np.array([3]), "hundred": np.array(100)}
    file = model(nodes, {"x": (T.FLOAT, [2, 9])}, {"v": T.FLOAT, "y": T.INT64}, weights)
    net, x = load(file), np.random.default_rng(0).standard_normal((2, 9)).astype("f")
    net.run(x)
    before = interpreted[0]
    for got, want in zip(net.run(x), oracle(file, x=x), strict=True):
        np.testing.assert_array_equal(got, want)
    assert interpreted[0] == before


def test_a_transposed_convolution_of_many_channels():
    """1024 x 1024 channels of 32 x 32 are 4 MB of results, whatever lies between."""
    w = np.zeros((1024, 1024, 1, 1), np.float32)
    w[3, 5] = 2
    file = model(
        [node("ConvTranspose", ["x", "w"], ["y"])], {"x": (T.FLOAT, [1, 1024, 32, 32])},
        {"y": T.FLOAT}, {"w": w},
    )  # fmt: skip
    x = np.ones((1, 1024, 32, 32), np.float32)
    y = load(file).run(x)[0]
    assert y.shape == x.shape and (y[0, 5] == 2).all() and not y[0, 4].any()


@pytest.mark.parametrize(
    ("equation", "left", "right"),
    [
        ("i, j -> i j", (3,), (4,)),
        ("i,j->ji", (3,), (4,)),
        ("bthd,bshd->bhts", (2, 3, 4, 5), (2, 6, 4, 5)),
        ("abc,cde->abde", (2, 3, 4), (4, 5, 6)),
        ("abc,bc->a", (2, 3, 4), (3, 4)),
        ("ab,bc->abc", (2, 3), (3, 4)),
        ("ij,k->j", (2, 3), (4,)),  # sums one operand
        ("ii,ij->j", (2, 2), (2, 3)),
    ],
)
def test_einsum_of_two_operands(equation, left, right):
    a, b = (np.random.default_rng(len(s)).normal(size=s).astype("f") for s in (left, right))
    nodes = [node("Einsum", ["a", "b"], ["y"], equation=equation)]
    data = model(nodes, {"a": (T.FLOAT, left), "b": (T.FLOAT, right)}, {"y": T.FLOAT})
    (want,) = ort.InferenceSession(data).run(None, {"a": a, "b": b})
    (y,) = load(data).run({"a": a, "b": b})
    assert y.shape == want.shape
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)
