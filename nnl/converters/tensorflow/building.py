# SPDX-License-Identifier: Apache-2.0
"""Nodes of a GraphDef, from Python values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnl.converters.tensorflow.messages import messages
from nnl.converters.tensorflow.tensors import code_of_dtype, proto_of


def add_node(graph: Any, op: str, name: str, inputs: Sequence[str] = (), **attributes: Any) -> str:
    """Add a node to a GraphDef or FunctionDef; gives its name.

    Args:
        attributes: Numbers, texts, lists of them; a numpy type is a type, a tuple a shape, an
            array a constant, and a one-entry dict {"func": NAME} a function.
    """
    nodes = graph.node_def if hasattr(graph, "node_def") else graph.node
    node = nodes.add(op=op, name=name, input=inputs)
    for key, value in attributes.items():
        set_attribute(node.attr[key], value)
    return name


def set_attribute(attribute: Any, value: Any) -> None:
    """Give an AttrValue a value."""
    if isinstance(value, (bool, np.bool_)):
        attribute.b = bool(value)
    elif isinstance(value, int):
        attribute.i = value
    elif isinstance(value, float):
        attribute.f = value
    elif isinstance(value, str):
        attribute.s = value.encode()
    elif isinstance(value, np.ndarray):
        attribute.tensor.CopyFrom(proto_of(value))
    elif isinstance(value, tuple):
        attribute.shape.CopyFrom(shape_proto(value))
    elif isinstance(value, dict):
        attribute.func.name = value["func"]
    elif isinstance(value, list):
        attribute.list.SetInParent()
        if value and isinstance(value[0], np.dtype):
            attribute.list.type.extend(map(code_of_dtype, value))
            return
        kind = {str: "s", float: "f", bool: "b"}.get(type(value[0]) if value else int, "i")
        getattr(attribute.list, kind).extend([v.encode() if kind == "s" else v for v in value])
    else:
        attribute.type = code_of_dtype(value)


def shape_proto(sizes: Sequence[int | None]) -> Any:
    """A TensorShapeProto; None is an unknown size."""
    shape = messages()["TensorShapeProto"]()
    for n in sizes:
        shape.dim.add(size=-1 if n is None else n)
    return shape
