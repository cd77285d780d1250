# SPDX-License-Identifier: Apache-2.0
"""What an imported model is: parameters, modes, batch sizes, versions, control flow, errors."""

from __future__ import annotations

import numpy as np
import pytest

import nnl as nn

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper  # noqa: E402

from nnl.converters.onnx import load  # noqa: E402
from nnl.converters.onnx.file.errors import OnnxError, UnsupportedOperator  # noqa: E402
from nnl.converters.onnx.file.registry import ONNX, Registry  # noqa: E402
from nnl.converters.onnx.running.families import support_table  # noqa: E402
from tests.converters.onnx_nodes import affine, model, node, normal, value  # noqa: E402

# ---- modes ----


def test_static_dynamic_and_array_calls_agree():
    proto, w = affine()
    net, x = load(proto), normal(5, 3)
    wanted = x @ w["fc/w"] + w["fc/b"]
    (y,) = net.run(x)
    np.testing.assert_allclose(y, wanted, rtol=1e-6)
    v = net(nn.Variable.from_numpy_array(x))
    assert v.parent is not None and not v.d.any()  # recorded, not computed
    v.forward()
    np.testing.assert_array_equal(v.d, y)
    with nn.auto_forward():
        np.testing.assert_array_equal(net(nn.Variable.from_numpy_array(x)).d, y)


def test_integers_keep_64_bits():
    big = np.array([2**53 + 1, -(2**60) - 1], np.int64)
    proto = model(
        [node("Add", "x,one")],
        [value("x", None, TensorProto.INT64)],
        [value("y", None, TensorProto.INT64)],
        {"one": np.array([1, 1], np.int64)},
    )
    (y,) = load(proto).run(big)
    assert y.dtype == np.int64 and y.tolist() == [2**53 + 2, -(2**60)]


def test_shape_arithmetic_is_folded_while_a_static_graph_is_built():
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s,zero", "n"),
        node("Concat", "n,rest", "t", axis=0),
        node("Reshape", "x,t"),
    ]
    weights = {"zero": np.array([0], np.int64), "rest": np.array([-1], np.int64)}
    net = load(model(nodes, weights=weights))
    for batch in (1, 6):
        y = net(nn.Variable((batch, 2, 5)))
        assert y.shape == (batch, 10)
        functions = []
        y.visit(lambda f, seen=functions: seen.append(f.name))
        assert functions == ["Reshape"]


def test_a_static_graph_takes_token_ids_as_variables():
    """Whatever is computed from them on the way: nothing is folded into the graph."""
    nodes = [
        node("Equal", "x,zero", "is_zero"),
        node("Not", "is_zero", "keep"),
        node("Cast", "keep", "mask", to=TensorProto.FLOAT),
        node("Add", "x,one", "next"),
        node("Min", "next,last", "index"),
        node("Gather", "w,index", "rows"),
        node("Unsqueeze", "mask,last_axis", "column"),
        node("Mul", "rows,column", "masked"),
        node("Cast", "x", "number", to=TensorProto.FLOAT),
        node("ReduceSum", "number,last_axis", "total"),
        node("Unsqueeze", "total,last_axis", "totals"),
        node("Add", "masked,totals", "y"),
    ]
    constants = {
        "w": normal(5, 3),
        "zero": np.array(0),
        "one": np.array(1),
        "last": np.array(4),
        "last_axis": np.array([-1]),
    }
    proto = model(nodes, [value("x", ["N", 3], TensorProto.INT64)], weights=constants)
    net = load(proto)
    v = nn.Variable.from_numpy_array(np.array([[0, 4, 1]]))
    y = net(v)
    rng = np.random.default_rng(0)
    for ids in (v.d.copy(), np.array([[3, 0, 2]]), rng.integers(0, 5, (1, 3))):
        v.d = ids
        y.forward()
        rows = constants["w"][np.minimum(ids + 1, 4)] * (ids != 0)[..., None]
        np.testing.assert_allclose(y.d, rows + ids.sum(-1)[:, None, None], rtol=1e-6)
        np.testing.assert_allclose(net.run(ids)[0], y.d, rtol=1e-6)


def test_negative_token_ids_count_from_the_end():
    inputs = [value("x", None, TensorProto.INT64)]
    net = load(model([node("Gather", "w,x")], inputs, weights={"w": normal(5, 3)}))
    ids = np.array([[0, 4, -1]])
    y = net(nn.Variable.from_numpy_array(ids))
    y.forward()
    np.testing.assert_array_equal(y.d, net.run(ids)[0])


def test_half_precision_models_give_half_precision():
    proto = model(
        [node("Mul", "x,w")],
        [value("x", None, TensorProto.FLOAT16)],
        [value("y", None, TensorProto.FLOAT16)],
        {"w": np.array([1.5, 2.5], np.float16)},
    )
    (y,) = load(proto).run(np.array([2, 4], np.float16))
    assert y.dtype == np.float16 and y.tolist() == [3, 10]


# ---- control flow ----


def loop_model(condition=True):
    """y = x 2^n, and all partial results."""
    body = helper.make_graph(
        [
            node("Add", "h,h", "h2"),
            node("Identity", "c", "c2"),
            node("Mul", "h2,k", "out"),  # k comes from outside
        ],
        "body",
        [
            value("i", (), TensorProto.INT64),
            value("c", (), TensorProto.BOOL),
            value("h", None),
        ],
        [value("c2", (), TensorProto.BOOL), value("h2", None), value("out", None)],
    )
    return model(
        [node("Loop", "n,,x", "y,all", body=body)],
        [value("n", (), TensorProto.INT64), "x", "k"],
        ["y", "all"],
    )


def test_a_loop_runs_as_often_as_an_array_says_also_in_a_static_graph():
    net, x, k = load(loop_model()), normal(3), np.array(2, np.float32)
    y, parts = net.run(np.array(3), x, k)
    np.testing.assert_allclose(y, 8 * x, rtol=1e-6)
    np.testing.assert_allclose(parts, [4 * x, 8 * x, 16 * x], rtol=1e-6)
    v = nn.Variable.from_numpy_array(x, need_grad=True)
    out, _ = net(np.array(3), v, k)
    out.forward()
    out.backward()
    np.testing.assert_allclose(v.g, [8, 8, 8])


def test_a_static_graph_says_which_number_it_needs():
    proto = model([node("Reshape", "x,s")], ["x", value("s", (1,), TensorProto.INT64)])
    with pytest.raises(OnnxError, match=r"node Reshape 'y': needs the number in .* while the"):
        load(proto)(nn.Variable((2, 3)), nn.Variable((1,)))


def test_a_loop_that_would_never_end_is_stopped(monkeypatch):
    from nnl.converters.onnx.running import interpreter

    monkeypatch.setattr(interpreter, "MAX_RUNS", 50)
    with pytest.raises(OnnxError, match="node Loop 'y': loops and functions run more than 50 time"):
        load(loop_model()).run(np.array(2**62), normal(3), np.array(1, np.float32))


def test_if_reads_values_around_it_and_trains():
    def branch(op, name):
        return helper.make_graph([node(op, "x,w", name)], name, [], [value(name)])

    proto = model(
        [node("If", "c", then_branch=branch("Add", "a"), else_branch=branch("Mul", "m"))],
        [value("c", (), TensorProto.BOOL), "x"],
        weights={"w": np.array([2, 3], np.float32)},
    )
    net, x = load(proto), normal(2)
    np.testing.assert_allclose(net.run(np.array(True), x)[0], x + [2, 3], rtol=1e-6)
    y = net(np.array(False), nn.Variable.from_numpy_array(x))
    y.forward()
    y.backward()
    np.testing.assert_allclose(nn.get_parameters()["w"].g, x, rtol=1e-6)


def test_functions_of_the_model_are_called_with_their_attributes():
    inner = helper.make_node("LeakyRelu", ["h"], ["out"])
    inner.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    function = helper.make_function(
        "my",
        "Twice",
        ["p"],
        ["out"],
        [helper.make_node("Add", ["p", "p"], ["h"]), inner],
        [helper.make_opsetid("", 20)],
        ["slope"],
    )
    call = helper.make_node("Twice", ["x"], ["y"], domain="my", slope=0.25)
    proto = model([call], domains=[helper.make_opsetid("my", 1)], functions=[function])
    (y,) = load(proto).run(np.array([-2, 3], np.float32))
    assert y.tolist() == [-1, 6]


def test_a_function_that_calls_itself_is_stopped():
    function = helper.make_function(
        "my",
        "Again",
        ["p"],
        ["out"],
        [helper.make_node("Again", ["p"], ["out"], domain="my")],
        [helper.make_opsetid("", 20), helper.make_opsetid("my", 1)],
    )
    call = helper.make_node("Again", ["x"], ["y"], domain="my")
    proto = model([call], domains=[helper.make_opsetid("my", 1)], functions=[function])
    with pytest.raises(OnnxError, match="nested deeper than"):
        load(proto).run(normal(2))


# ---- errors ----


def test_all_unsupported_operators_are_named_at_once(tmp_path):
    nodes = [
        helper.make_node("Magic", ["x"], ["a"], "m", domain="com.example"),
        helper.make_node("Wand", ["a"], ["y"], domain="com.example"),
    ]
    path = tmp_path / "m.onnx"
    onnx.save(model(nodes, domains=[helper.make_opsetid("com.example", 1)]), path)
    message = (
        r"m\.onnx: operators without an importer: com\.example\.Magic \(node com\.example\.Magic "
        r"'m'\), com\.example\.Wand .*documentation: onnx_report#operators"
    )
    with pytest.raises(UnsupportedOperator, match=message):
        load(path)


def test_errors_name_file_node_and_reason(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(model([node("Reshape", "x,t")], weights={"t": np.array([7, -1])}), path)
    message = r"m\.onnx: node Reshape 'y': cannot put the shape \(2, 3\) into \(7, -1\)"
    with pytest.raises(OnnxError, match=message):
        load(path).run(normal(2, 3))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((), r"needs the inputs \['x'\]"),
        ((normal(2, 3), 1), "takes 1 inputs .* got 2"),
        ((normal(2, 3, 1),), r"input 'x' has the shape \(2, 3, 1\), wanted rank 2"),
        ((np.ones((2, 3), complex),), "input 'x' is complex128, wanted float32"),
        ((normal(2, 4),), "node MatMul 'h': .*inner sizes differ"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(given, message):
    with pytest.raises(OnnxError, match=message):
        load(affine()[0]).run(*given)


def test_unknown_input_names_are_refused():
    net = load(affine()[0])
    with pytest.raises(OnnxError, match=r"has no input 'z', its inputs are \['x'\]"):
        net.run(z=normal(2, 3))
    assert net.run(x=normal(2, 3))[0].shape == net.run({"x": normal(2, 3)})[0].shape == (2, 4)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node("ConstantOfShape", "big")], "wants an array of shape"),
        ([node("Expand", "x,big")], "wants an array of shape"),
        ([node("Tile", "x,twice")], "wants an array of shape"),
        ([node("Gather", "x,far")], r"has the index 9, outside \[-2, 2\)"),
        ([node("Squeeze", "x,zero")], "whose size must be 1"),
        ([node("Slice", "x,zero,far,zero,zero")], "has a step of 0"),
        ([node("Concat", "x,x", axis=5)], "axis is 5, outside"),
    ],
)
def test_values_out_of_range_are_refused(nodes, message):
    weights = {
        "big": np.array([2**40, 1, 1], np.int64),
        "twice": np.array([2**40, 2], np.int64),
        "far": np.array([9], np.int64),
        "zero": np.array([0], np.int64),
    }
    with pytest.raises(OnnxError, match=f"node {nodes[0].op_type} 'y': .*{message}"):
        load(model(nodes, weights=weights)).run(normal(2, 3))


# ---- registry ----


def test_two_handlers_for_one_operator_and_version_are_refused():
    registry = Registry("toy")
    registry.importer("Relu", since=6)(print)
    registry.importer("Relu", since=14)(print)
    with pytest.raises(ValueError, match="toy import: Relu has a handler since 14 already"):
        registry.importer("Relu", since=14)(print)


def test_handlers_serve_newer_versions():
    assert ONNX.find_import("Clip", 9) is not ONNX.find_import("Clip", 13)
    assert ONNX.find_import("Clip", 13) is ONNX.find_import("Clip", 999)


def test_nearly_every_operator_of_onnx_is_imported():
    rows = support_table()
    missing = {op for domain, op, how, _ in rows if domain == "ai.onnx" and not how}
    assert missing == set()
    assert len([r for r in rows if r[0] == "ai.onnx"]) >= 200


def test_random_operators_draw_new_numbers_at_every_forward():
    nodes = [node("RandomNormal", "", "r", shape=[4]), node("Add", "x,r")]
    nodes[0].ClearField("input")
    net = load(model(nodes))
    y = net(nn.Variable.from_numpy_array(np.zeros(4, np.float32)))
    y.forward()
    first = y.d.copy()
    y.forward()
    assert (y.d != first).all()
    seeded = [node("RandomNormal", "", "r", shape=[4], seed=3.0), node("Add", "x,r")]
    seeded[0].ClearField("input")
    runs = [load(model(seeded)).run(np.zeros(4, np.float32))[0] for _ in range(2)]
    np.testing.assert_array_equal(runs[0], runs[1])  # a seed fixes them
    assert first.std() > 0


def test_an_imported_model_can_be_compiled():
    proto, w = affine()
    net = load(proto)
    x = normal(5, 3)
    net.run(x)

    @nn.compile
    def step(v):
        return net(v)

    v = nn.Variable.from_numpy_array(x)
    np.testing.assert_allclose(step(v).d, x @ w["fc/w"] + w["fc/b"], rtol=1e-6)


def test_dropout_of_a_training_export_drops_and_scales():
    proto = model(
        [node("Dropout", "x,p,t")],
        weights={"p": np.array(0.25, np.float32), "t": np.array(True)},
    )
    (y,) = load(proto).run(np.ones(4000, np.float32))
    assert set(np.round(np.unique(y), 5)) == {0, np.float32(1.33333)}
    assert abs((y == 0).mean() - 0.25) < 0.03


@pytest.mark.parametrize("sign", [1, -1])
def test_reductions_of_whole_numbers_are_whole_in_static_graphs(sign):
    """Cut towards 0, as runtimes do."""
    x = np.array([[1, 2], [3, 5]]) * sign
    wanted = {"Mean": x.mean(), "L2": np.sqrt((x * x).sum()), "LogSumExp": np.log(np.exp(x).sum())}
    wanted |= {"LogSum": np.log(x.sum())} if sign > 0 else {}
    for name, want in wanted.items():
        proto = model(
            [node(f"Reduce{name}", "x", keepdims=0)],
            [value("x", (2, 2), TensorProto.INT64)],
            [value("y", (), TensorProto.INT64)],
        )
        y = load(proto)(nn.Variable.from_numpy_array(x))
        y.forward()
        assert y.d == np.trunc(want) == load(proto).run(x)[0]


def test_round_is_exact_for_large_numbers_and_infinities():
    """Adding 0.5 to an odd number above 2^23 would round it up."""
    x = np.array([2**23 + 1, -(2**23) - 3, np.inf, -np.inf, np.nan, 0.5, 1.5, -2.5, 0.49999997])
    x = x.astype(np.float32)
    proto = model([node("Round", "x")], [value("x", x.shape)], [value("y", x.shape)])
    y = load(proto)(nn.Variable.from_numpy_array(x))
    y.forward()
    np.testing.assert_array_equal(y.d, np.rint(x))
