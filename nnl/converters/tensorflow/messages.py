# SPDX-License-Identifier: Apache-2.0
"""The protobuf messages of TensorFlow's files, built at run time from the table `messages.tsv`, and
the constants and nodes in them. Every size is checked before memory is touched."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from nnl.converters.nnp.messages import build, rows
from nnl.converters.onnx.values.values import check_size

SERVING = "serving_default"  # what users of a SavedModel call


class TensorFlowError(ValueError):
    """A file of TensorFlow, or a node in it, that cannot be read."""


@cache
def messages() -> dict[str, Any]:
    """The message classes of the table by name, built once; enums are numbers."""
    text = resources.files(__package__).joinpath("messages.tsv").read_text("utf-8")
    return build(rows(text.partition("\n")[2]))


def parse(name: str, content: bytes, where: str) -> Any:
    """A message from its binary form; what the table does not know is skipped.

    Raises:
        TensorFlowError: The content is not such a message.
    """
    from google.protobuf.message import DecodeError

    message = messages()[name]()
    try:
        message.ParseFromString(content)
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TensorFlowError(f"{where}: no {name} message: {error}") from None
    return message


# ---- constants ----


_DTYPES = {
    1: "float32",
    2: "float64",
    3: "int32",
    4: "uint8",
    5: "int16",
    6: "int8",
    7: "object",
    9: "int64",
    10: "bool",
    14: "bfloat16",
    17: "uint16",
    19: "float16",
    22: "uint32",
    23: "uint64",
}
STRING, RESOURCE, VARIANT = 7, 20, 21
# The field that has numbers of a type which are not stored as bytes.
_FIELDS = {
    "float32": "float_val",
    "float64": "double_val",
    "object": "string_val",
    "int64": "int64_val",
    "bool": "bool_val",
    "float16": "half_val",
    "bfloat16": "half_val",
    "uint32": "uint32_val",
    "uint64": "uint64_val",
}


def dtype_of_code(code: int) -> np.dtype[Any]:
    """numpy's type of a TensorFlow type; strings are objects, references what they refer to.

    Raises:
        TensorFlowError: nnl has no numbers of this type.
    """
    name = _DTYPES.get(code - 100 if code > 100 else code)
    if name is None:
        raise TensorFlowError(f"the type {code} is not one of numbers and strings")
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def code_of_dtype(dtype: Any) -> int:
    """The TensorFlow type of a numpy type."""
    return next(code for code, name in _DTYPES.items() if name == np.dtype(dtype).name)


def sizes_of(shape: Any) -> tuple[int, ...] | None:
    """Sizes of a TensorShapeProto, -1 for unknown ones; None if even their number is unknown."""
    return None if shape.unknown_rank else tuple([d.size for d in shape.dim])


def array_of(tensor: Any) -> np.ndarray[Any, Any]:
    """The values of a TensorProto; a view of few numbers where the last one is repeated.

    Raises:
        TensorFlowError: Sizes, type and data do not fit each other.
    """
    dtype, shape = dtype_of_code(tensor.dtype), sizes_of(tensor.tensor_shape)
    if shape is None:
        raise TensorFlowError("a constant has no shape")
    check_size(shape, max(dtype.itemsize, 1))
    if tensor.tensor_content and dtype.kind != "O":
        wanted = math.prod(shape) * dtype.itemsize
        if len(tensor.tensor_content) != wanted:
            raise TensorFlowError(
                f"a constant of shape {shape} has {len(tensor.tensor_content)} bytes, "
                f"wanted {wanted}"
            )
        return np.frombuffer(tensor.tensor_content, dtype).reshape(shape)
    given = getattr(tensor, _FIELDS.get(dtype.name, "int_val"))
    if dtype.itemsize == 2 and dtype.kind not in "iu":
        values = np.array(given, np.int64).astype(np.uint16).view(dtype)
    elif dtype.kind in "iu":
        values = np.array(given, np.uint64 if dtype.kind == "u" else np.int64).astype(dtype)
    else:
        values = np.array(given, dtype)
    count = math.prod(shape)
    if len(values) > count:
        raise TensorFlowError(f"a constant of shape {shape} has {len(values)} numbers")
    if len(values) == count:
        return values.reshape(shape)
    last = values[-1:] if len(values) else np.zeros(1, dtype)
    if len(values) <= 1:
        return np.broadcast_to(last.reshape((1,) * len(shape)), shape)
    return np.concatenate([values, np.broadcast_to(last, count - len(values))]).reshape(shape)


def proto_of(array: np.ndarray[Any, Any]) -> Any:
    """A TensorProto with the values as bytes; strings as such."""
    tensor = messages()["TensorProto"](dtype=code_of_dtype(array.dtype))
    for n in array.shape:
        tensor.tensor_shape.dim.add(size=n)
    if array.dtype.kind == "O":
        tensor.string_val.extend(array.reshape(-1).tolist())
    else:
        tensor.tensor_content = np.ascontiguousarray(array).tobytes()
    return tensor


# ---- nodes from Python values ----


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
