# SPDX-License-Identifier: Apache-2.0
"""TensorProto -> numpy array and back, with every size checked before memory is touched."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nnl.converters.onnx.values.values import check_size
from nnl.converters.tensorflow.messages import TensorFlowError, messages

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
