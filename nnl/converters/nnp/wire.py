# SPDX-License-Identifier: Apache-2.0
"""Parameters in a binary NNablaProtoBuf message, found without parsing their numbers.

The protobuf package makes a list of Python floats, or a copy, of what is one run of float32 in the
file. Here the run stays where it is, and only the rest of the message is parsed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from nnl.converters.nnp.messages import messages
from nnl.core.spec import ShapeError

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5  # the wire types of protobuf
_PARAMETER = 200  # field of NNablaProtoBuf
_DATA, _NEED_GRAD = 100, 101  # fields of Parameter

Bytes = np.ndarray[Any, Any]
Found = tuple[str, "np.ndarray[Any, Any]", bool]


def split_parameters(data: Bytes, where: str) -> tuple[bytes, list[Found]]:
    """The message without its parameters, and (name, value, need_grad) of each of them.

    Raises:
        ValueError: It is no message; ShapeError: a parameter has too many or too few numbers.
    """
    rest: list[bytes] = []
    found: list[Found] = []
    view = data.data
    for field, kind, start, begin, end in _fields(view, 0, len(view), where):
        if field == _PARAMETER and kind == _LENGTH:
            found.append(_parameter(data, begin, end, where))
        else:
            rest.append(bytes(view[start:end]))
    return b"".join(rest), found


def join_parameters(parameters: Iterable[Found]) -> bytes:
    """A binary NNablaProtoBuf message of parameters, as float32."""
    parts: list[bytes] = []
    for name, value, need_grad in parameters:
        head = messages()["Parameter"](variable_name=name)
        head.shape.SetInParent()
        head.shape.dim.extend(value.shape)
        data = np.ascontiguousarray(value, "<f4").tobytes()
        body = [head.SerializeToString()]
        if data:
            body += [_number(_DATA << 3 | _LENGTH), _number(len(data)), data]
        if need_grad:
            body += [_number(_NEED_GRAD << 3 | _VARINT), b"\1"]
        parts += [_number(_PARAMETER << 3 | _LENGTH), _number(sum(map(len, body))), *body]
    return b"".join(parts)


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def _parameter(data: Bytes, begin: int, end: int, where: str) -> Found:
    runs: list[Bytes] = []
    small: list[bytes] = []  # everything but the numbers
    view = data.data
    for field, kind, start, b, e in _fields(view, begin, end, where):
        if field == _DATA and kind in (_LENGTH, _FIXED32):
            if (e - b) % 4:
                raise ValueError(f"{where}: a parameter has {e - b} bytes of float32 numbers")
            runs.append(data[b:e])
        else:
            small.append(bytes(view[start:e]))
    message = messages()["Parameter"]()
    from google.protobuf.message import DecodeError

    try:
        message.ParseFromString(b"".join(small))
    except DecodeError as error:
        raise ValueError(f"{where}: no Parameter message: {error}") from error
    raw = runs[0] if len(runs) == 1 else np.concatenate([*runs, np.empty(0, np.uint8)])
    shape = tuple(message.shape.dim)
    if min(shape, default=0) < 0 or raw.size != 4 * math.prod(shape):
        raise ShapeError(
            f"{where}: {message.variable_name!r} has {raw.size // 4} values for the shape {shape}"
        )
    aligned = raw if raw.ctypes.data % 4 == 0 else raw.copy()
    return message.variable_name, aligned.view("<f4").reshape(shape), message.need_grad


def _fields(
    view: memoryview, at: int, end: int, where: str
) -> Iterator[tuple[int, int, int, int, int]]:
    """(field, wire type, begin of its tag, begin and end of its value) of a message's fields."""
    while at < end:
        start = at
        tag, at = _varint(view, at, end, where)
        field, kind = tag >> 3, tag & 7
        if kind == _LENGTH:
            length, at = _varint(view, at, end, where)
            stop = at + length
        elif kind == _VARINT:
            stop = _varint(view, at, end, where)[1]
        elif kind in (_FIXED32, _FIXED64):
            stop = at + (4 if kind == _FIXED32 else 8)
        else:
            raise ValueError(f"{where}: no NNablaProtoBuf message: wire type {kind}")
        if stop > end or not field:
            raise ValueError(
                f"{where}: no NNablaProtoBuf message: the field {field} ends {stop - end} bytes "
                "behind it"
            )
        yield field, kind, start, at, stop
        at = stop


def _varint(view: memoryview, at: int, end: int, where: str) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError(f"{where}: no NNablaProtoBuf message: a number does not end")
