# SPDX-License-Identifier: Apache-2.0
"""The typed view holds no protobuf, is written back whole, and takes operators of one's own."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from google.protobuf.message import Message  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402

import nnl.deep500 as d5  # noqa: E402
from nnl.converters.onnx.file import operators  # noqa: E402
from nnl.converters.onnx.file.errors import OnnxError, UnsupportedOperator  # noqa: E402
from nnl.converters.onnx.file.model import Node, StrictVisitor, ValueInfo, Visitor  # noqa: E402
from nnl.converters.onnx.file.reader import read  # noqa: E402
from nnl.converters.onnx.file.writer import write  # noqa: E402
from nnl.converters.onnx.report import KINDS, cases  # noqa: E402
from tests.deep500 import contract, models  # noqa: E402
from tests.deep500.test_contract import need_compiler  # noqa: E402


def messages(x: Any, where: str = "model") -> list[str]:
    """Where protobuf objects are in a view."""
    if isinstance(x, Message):
        return [where]
    found = []
    if isinstance(x, dict):
        found = [m for k, v in x.items() for m in messages(v, f"{where}[{k!r}]")]
    elif isinstance(x, (list, tuple)):
        found = [m for i, v in enumerate(x) for m in messages(v, f"{where}[{i}]")]
    elif isinstance(x, Node):
        found = [m for k, v in vars(x).items() for m in messages(v, f"{where}.{k}")]
    elif is_dataclass(x):
        found = [m for f in fields(x) for m in messages(getattr(x, f.name), f"{where}.{f.name}")]
    return found


def same(x: Any, y: Any) -> bool:
    """Whether two views are the same."""
    if isinstance(x, np.ndarray):
        if x.dtype != y.dtype or x.shape != y.shape:
            return False
        return x.tolist() == y.tolist() if x.dtype == object else x.tobytes() == y.tobytes()
    if isinstance(x, dict):
        return x.keys() == y.keys() and all(same(v, y[k]) for k, v in x.items())
    if isinstance(x, (list, tuple)):
        return len(x) == len(y) and all(map(same, x, y))
    if isinstance(x, Node):
        return type(x) is type(y) and same(vars(x), vars(y))
    if is_dataclass(x):
        kept = [f.name for f in fields(x) if f.name not in ("producer", "file", "ir_version")]
        return all(same(getattr(x, n), getattr(y, n)) for n in kept)
    return x == y or (x != x and y != y)


def test_official_models_hold_no_protobuf_and_are_written_back_whole():
    seen = 0
    for kind in KINDS[1:4]:
        for case in cases(kind):
            model = read(case.model.SerializeToString())
            assert messages(model) == []
            assert same(model, read(write(model))), case.name
            seen += 1
    assert seen > 70


@pytest.mark.long
def test_all_official_models_hold_no_protobuf_and_are_written_back_whole():
    for kind in ("node", "real"):
        for case in cases(kind):
            model = read(case.model.SerializeToString())
            assert messages(model) == []
            assert same(model, read(write(model))), case.name


def test_types_among_attributes_are_typed_too():
    inner = helper.make_tensor_type_proto(TensorProto.FLOAT, [3])
    kind = helper.make_optional_type_proto(helper.make_sequence_type_proto(inner))
    node = helper.make_node("Optional", [], ["y"], type=kind)
    output = helper.make_value_info("y", kind)
    graph = helper.make_graph([node], "g", [], [output])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    model = read(proto)
    wanted = ValueInfo("", "optional", np.dtype(np.float32), (3,), ("sequence",))
    assert model.graph.nodes[0].type == wanted and messages(model) == []
    assert read(write(model)).graph.outputs == [
        ValueInfo("y", "optional", np.dtype(np.float32), (3,), ("sequence",))
    ]


def test_an_operator_that_a_newer_onnx_has_gets_a_class():
    code = (
        "import onnx.defs as d; from onnx.defs import OpSchema as S; "
        "d.register_schema(S('Novel', 'some.domain', 3, "
        "inputs=[S.FormalParameter('X', 'T')], outputs=[S.FormalParameter('Y', 'T')], "
        "type_constraints=[('T', ['tensor(float)'], '')], "
        "attributes=[S.Attribute('alpha', S.AttrType.FLOAT, 'a factor', required=False)])); "
        "from nnl.converters.onnx.file.operators import operator_class as c; "
        "n = c('Novel', domain='some.domain')('x', outputs='y', alpha=2.0); "
        "print(type(n).__name__, n.since, n.i_X, n.o_Y, n.alpha)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Novel 3 x y 2.0\n"


def test_visitors_meet_inputs_initializers_nodes_and_outputs_in_this_order():
    met = []

    class All(Visitor):
        def visit_input(self, info, log):
            log.append(info.name)

        def visit_initializer(self, name, value, log):
            log.append((name, value.shape))

        def visit_output(self, info, log):
            log.append(info.name)

        def visit_MatMul(self, node, log):
            log.append(node.i_A)

        def missing(self, node, log):
            log.append(node.op_type)

    All().visit(models.linear(), met)
    assert met == ["x", ("w", (3, 2)), ("b", (2,)), "x", "Add", "y"]
    node = models.linear().graph.nodes[0]
    assert node.accept(All(), met) is None and met[-1] == "x"


def test_a_strict_visitor_fails_with_the_name_of_what_it_lacks():
    class Some(StrictVisitor):
        def visit_MatMul(self, node):
            pass

    with pytest.raises(UnsupportedOperator, match="node Add 'y': Some knows no operator 'Add'"):
        Some().visit(models.linear())


def test_operators_of_ones_own_are_nodes_of_files(tmp_path):
    net = d5.network(models.linear(), "reference")
    net.add_node(contract.Cube("y", outputs="z", factor=3.0))
    net.add_output("z")
    net.save(tmp_path / "cube.onnx")
    node = read(tmp_path / "cube.onnx").graph.nodes[-1]
    assert type(node) is contract.Cube and node.factor == 3.0
    assert (node.i_X, node.o_Y) == ("y", "z")
    again = d5.network(tmp_path / "cube.onnx", "reference").inference({"x": np.ones((1, 3))})
    np.testing.assert_allclose(again["z"], 3 * again["y"] ** 3, rtol=1e-6)


def test_operators_of_ones_own_check_what_they_are_given():
    with pytest.raises(OnnxError, match=r"Cube has no attribute 'faktor', it has \['factor'\]"):
        contract.Cube("x", outputs="y", faktor=1)
    with pytest.raises(OnnxError, match=r"has 2 inputs and 1 outputs, wanted 1 \('X',\)"):
        contract.Cube("x", "z", outputs="y")
    with pytest.raises(ValueError, match="ONNX has an operator 'Relu' in the domain 'ai.onnx'"):
        type("Relu", (d5.Operation,), {"domain": ""})


def test_what_the_compiler_says_about_a_body_is_shown():
    need_compiler()

    class Broken(d5.CppOperation):
        source = 'extern "C" void forward(const Tensor*, Tensor*, const double*) { nonsense; }'

    with pytest.raises(ValueError, match=r"(?s)Broken: the compiler refuses its body:.*nonsense"):
        Broken("x", outputs="y").forward(np.ones(3, np.float32))


def test_a_missing_compiler_is_named(monkeypatch):
    class NoCompiler(d5.CppOperation):
        source = "int none;"

    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ModuleNotFoundError, match="there is no compiler: install g.., or set CXX"):
        NoCompiler("x", outputs="y").forward(np.ones(3, np.float32))


def test_a_class_that_is_already_defined_is_the_one_that_files_get():
    assert operators.operator_class("Cube", 1, "user") is contract.Cube


def test_values_are_dropped_after_their_last_use():
    """What a node gives is gone before the next but one runs, but for outputs."""
    import weakref

    from nnl.deep500.program import Call, program

    net, seen = d5.network(models.lenet(), "reference"), []

    class Value:
        pass

    def call(*inputs):
        alive = [r for r in seen if r() is not None]
        made = Value()
        seen.append(weakref.ref(made))
        counts.append(len(alive))
        return made

    counts = []
    run = program(net.graph, lambda node: Call(call), None)
    given = {n: Value() for n in (*net.graph.initializers, *[v.name for v in net.graph.inputs])}
    outs = run(given)
    assert len(outs) == len(net.graph.outputs) and len(counts) == len(net.graph.nodes)
    assert max(counts) == 1 and counts[0] == 0
