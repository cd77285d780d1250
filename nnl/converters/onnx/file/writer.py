# SPDX-License-Identifier: Apache-2.0
"""The typed view -> ONNX file. What the file had beside it, such as shapes inside, is not kept."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from nnl.converters.onnx.file.model import Graph, Model, ValueInfo
from nnl.converters.onnx.file.operators import Node
from nnl.converters.onnx.file.tensors import code_of_dtype
from nnl.core.parameters.atomic import replacing


def write(model: Model, path: str | os.PathLike[str] | None = None) -> bytes:
    """The bytes of a model, which are also written to `path` if it is given.

    Raises:
        ValueError: It is larger than 2 GB, the most that one file can hold.
    """
    from onnx import FunctionProto, defs, helper

    # the reader adds ONNX's own domain, as it is now, where a file names only others
    used = bool(model.functions) or any(not n.domain for n in model.walk())
    used = used or model.opsets[""] != defs.onnx_opset_version()
    opsets = {d: v for d, v in model.opsets.items() if d or used}
    message = helper.make_model(
        graph_message(model.graph),
        producer_name="nnl",
        doc_string=model.doc,
        opset_imports=[helper.make_opsetid(d, v) for d, v in opsets.items()],
        functions=[FunctionProto.FromString(f.body) for f in model.functions.values()],
    )
    message.ir_version = max(model.ir_version, 4)  # initializers that are not inputs
    helper.set_model_props(message, model.metadata)
    data = bytes(message.SerializeToString())
    if path is not None:
        with replacing(path) as whole:
            whole.write_bytes(data)
    return data


def graph_message(graph: Graph) -> Any:
    """A graph as a GraphProto."""
    from onnx import helper

    return helper.make_graph(
        [node_message(n) for n in graph.nodes],
        graph.name or "graph",
        [_value(v) for v in graph.inputs],
        [_value(v) for v in graph.outputs],
        [_tensor(a, n) for n, a in graph.initializers.items()],
    )


def node_message(node: Node) -> Any:
    """A node as a NodeProto; None among its attributes means left out."""
    from onnx import helper

    message = helper.make_node(
        node.op_type, node.inputs, node.outputs, node.name, domain=node.domain
    )
    known = {} if node.schema is None else node.schema.attributes
    for name, value in node.attributes.items():
        kind = known[name].type if name in known else None
        if value is not None:
            message.attribute.append(_attribute(name, value, kind))
    return message


def _attribute(name: str, value: Any, kind: Any) -> Any:
    from onnx import helper

    # the kind is what the schema says: an empty tuple does not tell
    number = None if kind is None else int(kind.value)
    many = isinstance(value, (list, tuple))
    values = [_content(v) for v in value] if many else _content(value)
    return helper.make_attribute(name, values, attr_type=number)


def _content(value: Any) -> Any:
    if isinstance(value, Graph):
        return graph_message(value)
    if isinstance(value, ValueInfo):
        return _type(value)
    return _tensor(value, "") if isinstance(value, np.ndarray) else value


def _tensor(array: Any, name: str) -> Any:
    from onnx import helper, numpy_helper

    array = np.asarray(array)
    if array.dtype == object:
        texts = [str(t).encode() for t in array.reshape(-1)]
        return helper.make_tensor(name, code_of_dtype(object), array.shape, texts)
    return numpy_helper.from_array(array, name)


def _value(info: ValueInfo) -> Any:
    from onnx import ValueInfoProto, helper

    known = info.kind != "tensor" or info.dtype is not None
    if not known:
        return ValueInfoProto(name=info.name)
    return helper.make_value_info(info.name, _type(info))


def _type(info: ValueInfo) -> Any:
    from onnx import TypeProto, helper

    kinds = [info.kind, *info.inside]
    code = 0 if info.dtype is None else code_of_dtype(info.dtype)
    made = TypeProto()
    if "other" not in kinds and "map" not in kinds:
        made = helper.make_tensor_type_proto(code, info.shape)
    for kind in reversed(kinds):
        if kind == "sequence":
            made = helper.make_sequence_type_proto(made)
        elif kind == "optional":
            made = helper.make_optional_type_proto(made)
    return made
