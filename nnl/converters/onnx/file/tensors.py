# SPDX-License-Identifier: Apache-2.0
"""TensorProto -> numpy array, with every size checked before memory is touched."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from nnl.converters.onnx.file.errors import OnnxError

MAX_ELEMENTS = 2**33  # of one tensor; a file that says more lies
_PACKED = {"int4", "uint4", "float4_e2m1fn", "int2", "uint2"}  # several values in one byte


def dtype_of_code(code: int, what: str) -> np.dtype[Any]:
    """numpy's dtype of an ONNX element type; strings are object arrays of str.

    Raises:
        OnnxError: There is no such element type.
    """
    from onnx import TensorProto, helper

    if code == TensorProto.STRING:
        return np.dtype(object)
    try:
        return np.dtype(helper.tensor_dtype_to_np_dtype(code))
    except KeyError:
        raise OnnxError(f"{what} has the element type {code}, which ONNX does not define") from None


def code_of_dtype(dtype: Any) -> int:
    """The ONNX element type of a numpy dtype."""
    from onnx import TensorProto, helper

    if np.dtype(dtype) == object:
        return int(TensorProto.STRING)
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def array_of(tensor: Any, folder: Path | None = None, raw: memoryview | None = None) -> Any:
    """The values of a TensorProto; a view of its bytes where they are stored as such.

    Args:
        folder: Where files of external data lie; None allows none.
        raw: Its bytes, when they were taken out of the message.
    Raises:
        OnnxError: Sizes, type or place of the data are not what the tensor says.
    """
    from onnx import TensorProto, numpy_helper

    what = f"tensor {tensor.name!r}"
    dtype = dtype_of_code(tensor.data_type, what)
    shape = tuple(tensor.dims)
    size = math.prod(shape)
    if any(n < 0 for n in shape) or size > MAX_ELEMENTS:
        raise OnnxError(f"{what} has the shape {shape}: sizes must be >= 0 and add up to something")
    if tensor.data_location == TensorProto.EXTERNAL:
        return _external(tensor, what, dtype, shape, folder)
    if raw is None and tensor.HasField("raw_data"):
        raw = memoryview(tensor.raw_data)
    if dtype.kind == "O":
        _check(what, shape, len(tensor.string_data), size, "strings")
        values = [_text(what, s) for s in tensor.string_data]
        return np.array(values, dtype=object).reshape(shape)
    if _is_packed(dtype):
        return _packed(tensor, what, dtype, shape, raw)
    if raw is not None:
        return view(what, raw, dtype, shape)
    stored = {
        np.dtype(np.float32): tensor.float_data,
        np.dtype(np.complex64): tensor.float_data,
        np.dtype(np.float64): tensor.double_data,
        np.dtype(np.complex128): tensor.double_data,
        np.dtype(np.int64): tensor.int64_data,
        np.dtype(np.uint32): tensor.uint64_data,
        np.dtype(np.uint64): tensor.uint64_data,
    }.get(dtype, tensor.int32_data)
    _check(what, shape, len(stored) // (2 if dtype.kind == "c" else 1), size, "values")
    return numpy_helper.to_array(tensor)


@cache
def _is_packed(dtype: np.dtype[Any]) -> bool:
    return dtype.name in _PACKED  # numpy puts the name together every time


def view(what: str, raw: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    """An array on bytes, after a check that they are as many as its shape needs."""
    wanted = math.prod(shape) * dtype.itemsize
    if len(raw) != wanted:
        raise OnnxError(
            f"{what} is {dtype.name}{list(shape)}, which is {wanted} bytes, and holds {len(raw)}"
        )
    return np.frombuffer(raw, dtype).reshape(shape)


def _packed(tensor: Any, what: str, dtype: Any, shape: tuple[int, ...], raw: Any) -> Any:
    from onnx import TensorProto, numpy_helper

    per_byte = 4 if dtype.name.endswith("int2") else 2
    size = -(-math.prod(shape) // per_byte)
    data = bytes(raw) if raw is not None else bytes(v & 0xFF for v in tensor.int32_data)
    _check(what, shape, len(data), size, "bytes")
    whole = TensorProto(data_type=tensor.data_type, dims=shape, raw_data=data)
    return numpy_helper.to_array(whole)


def _check(what: str, shape: tuple[int, ...], stored: int, wanted: int, unit: str) -> None:
    if stored != wanted:
        raise OnnxError(f"{what} has the shape {shape}, {wanted} {unit}, and holds {stored}")


def _text(what: str, value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        raise OnnxError(f"{what} holds a string that is not UTF-8") from None


def _external(
    tensor: Any, what: str, dtype: Any, shape: tuple[int, ...], folder: Path | None
) -> Any:
    entries = {e.key: e.value for e in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise OnnxError(f"{what} lies in the file {location!r}, and this model has no folder")
    path = Path(location)
    if not location or path.is_absolute() or ".." in path.parts or "\\" in location:
        raise OnnxError(
            f"{what} lies in the file {location!r}; wanted a name inside the model's folder"
        )
    full = folder / path
    if not full.resolve().is_relative_to(folder.resolve()):
        raise OnnxError(f"{what} lies in {location!r}, a link that leaves the model's folder")
    if not full.is_file():
        raise OnnxError(f"{what} lies in the file {location!r}, which is not in {str(folder)!r}")
    stored = full.stat().st_size
    try:
        offset = int(entries.get("offset", "0"))
        length = int(entries.get("length", str(stored - offset)))
    except ValueError:
        raise OnnxError(f"{what}: offset or length of its external data is no number") from None
    if offset < 0 or length < 0 or offset + length > stored:
        raise OnnxError(
            f"{what} is bytes {offset} to {offset + length} of {location!r}, which has {stored}"
        )
    if dtype.kind == "O":
        raise OnnxError(f"{what} holds strings, which cannot lie in another file")
    if length == 0:
        return view(what, b"", dtype, shape)
    raw = memoryview(np.memmap(full, np.uint8, "r", offset, (length,)))
    if _is_packed(dtype):
        return _packed(tensor, what, dtype, shape, raw)
    return view(what, raw, dtype, shape)
