# SPDX-License-Identifier: Apache-2.0
"""Operators that are functions: the model's own, and those that ONNX defines by other operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnl.converters.onnx.file.errors import UnsupportedOperator
from nnl.converters.onnx.file.model import Function, Graph, ValueInfo
from nnl.converters.onnx.file.operators import Node, default_of
from nnl.converters.onnx.file.reader import Reader, check_names, opsets_of
from nnl.converters.onnx.file.tensors import code_of_dtype
from nnl.converters.onnx.file.writer import node_message
from nnl.converters.onnx.values.values import dtype_of, shape_of

Body = tuple[Graph, dict[str, int]]


def body_of_function(ctx: Any, node: Node, function: Function) -> Body:
    """The body of a model's own function, with the attributes of the node that calls it."""
    key = function.domain, function.name, _frozen(node.attributes)
    found: Body | None = ctx.bodies.get(key)
    if found is None:
        from onnx import FunctionProto

        bound = dict(node.attributes)
        reader = Reader(function.opsets, None)
        proto = FunctionProto.FromString(function.body)
        for a in proto.attribute_proto:
            bound.setdefault(a.name, reader.attribute(a, frozenset()))
        found = ctx.bodies[key] = _body(proto, function.opsets, bound)
    return found


def body_of_schema(ctx: Any, node: Node, values: Sequence[Any]) -> Body:
    """The body that ONNX's schema gives an operator.

    Raises:
        UnsupportedOperator: It has none for this version.
    """
    from onnx import FunctionProto

    schema = node.schema
    version = ctx.opsets.get(node.domain, 1)
    bound = {n: default_of(a) for n, a in schema.attributes.items()}
    bound = {n: v for n, v in bound.items() if v is not None} | node.attributes
    proto = FunctionProto()
    plain = [v for v in schema.function_opset_versions if v <= version]
    dependent = [v for v in schema.context_dependent_function_opset_versions if v <= version]
    if plain:
        key: Any = (node.domain, node.op_type, node.since, max(plain), _frozen(bound))
        if key in ctx.bodies:
            found: Body = ctx.bodies[key]
            return found
        got = schema.get_function_with_opset_version(max(plain))
        proto.ParseFromString(got) if isinstance(got, bytes) else proto.CopyFrom(got)
    elif dependent:
        key = None
        proto.ParseFromString(
            schema.get_context_dependent_function_with_opset_version(
                max(dependent), node_message(node).SerializeToString(), [_type(v) for v in values]
            )
        )
    else:
        raise UnsupportedOperator(
            f"{node.op_type}-{node.since} has no body for version {version}", node=node.label
        )
    opsets = {**ctx.opsets, **opsets_of(proto.opset_import, 8)}
    body = _body(proto, opsets, bound)
    if key is not None:
        ctx.bodies[key] = body
    return body


def _body(proto: Any, opsets: dict[str, int], bound: dict[str, Any]) -> Body:
    reader = Reader(opsets, None, bound)
    known = frozenset(proto.input) | {o for n in proto.node for o in n.output}
    nodes = [reader.node(n, known) for n in proto.node]
    outputs = [ValueInfo(n if n in known else "") for n in proto.output]  # "": not made
    graph = Graph(proto.name, nodes, [ValueInfo(n) for n in proto.input], outputs)
    check_names(graph, known)
    graph.sort()
    return graph, opsets


def _frozen(attributes: dict[str, Any]) -> Any:
    return tuple(
        (k, (v.dtype.str, v.shape, v.tobytes()) if isinstance(v, np.ndarray) else _hashable(v))
        for k, v in sorted(attributes.items())
    )


def _hashable(value: Any) -> Any:
    if isinstance(value, tuple) and any(isinstance(v, np.ndarray) for v in value):
        return tuple(v.tobytes() for v in value)
    return value if value.__hash__ is not None else id(value)


def _type(value: Any) -> bytes:
    from onnx import TypeProto, helper

    if value is None:
        return bytes(TypeProto().SerializeToString())
    if isinstance(value, list):
        inner = TypeProto()
        if value:
            inner.ParseFromString(_type(value[0]))
        return bytes(helper.make_sequence_type_proto(inner).SerializeToString())
    made = helper.make_tensor_type_proto(code_of_dtype(dtype_of(value)), shape_of(value))
    return bytes(made.SerializeToString())
