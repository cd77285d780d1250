# SPDX-License-Identifier: Apache-2.0
"""Parameters in a binary NNablaProtoBuf message, found without parsing their numbers.

The protobuf package makes a list of Python floats, or a copy, of what is one run of float32 in the
file. Here the run is read into the array that the parameter will have, and only the rest of the
message is parsed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from nnl.converters.nnp.members import Member, Place
from nnl.converters.nnp.messages import messages
from nnl.core.spec import ShapeError

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5  # the wire types of protobuf
_PARAMETER = 200  # field of NNablaProtoBuf
_DATA, _NEED_GRAD = 100, 101  # fields of Parameter

_HEAD = 20  # bytes: two numbers of at most ten, the tag of a field and its length
_WINDOW = 128  # bytes that are looked at together: the fields before a parameter's numbers

Found = tuple[str, "np.ndarray[Any, Any]", bool]


def split_parameters(file: Member) -> tuple[bytes, list[Found]]:
    """The message without its parameters, and (name, value, need_grad) of each of them.

    The values may still be read: wait for the file before you use them.

    Raises:
        ValueError: It is no message; ShapeError: a parameter has too many or too few numbers.
    """
    rest: list[bytes] = []
    heads: list[tuple[Any, tuple[int, ...], int]] = []  # message, shape, number of runs
    places: list[Place] = []
    try:
        for field, kind, start, begin, end in _fields(file, 0, file.size):
            if field == _PARAMETER and kind == _LENGTH:
                message, shape, runs = _parameter(file, begin, end)
                heads.append((message, shape, len(runs)))
                places += runs
            else:
                rest.append(file.peek(start, end - start))
    except ValueError:
        file.verify()  # if it is damaged, that is what there is to say
        raise
    arrays = iter(file.arrays(places))
    found = []
    for message, shape, count in heads:
        parts = [next(arrays) for _ in range(count)]
        if count == 1:
            value = parts[0]
        else:
            file.wait()
            value = np.concatenate([*parts, np.empty(0, "<f4")])
        found.append((message.variable_name, value.reshape(shape), message.need_grad))
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
            body += [number(_DATA << 3 | _LENGTH), number(len(data)), data]
        if need_grad:
            body += [number(_NEED_GRAD << 3 | _VARINT), b"\1"]
        parts += [number(_PARAMETER << 3 | _LENGTH), number(sum(map(len, body))), *body]
    return b"".join(parts)


def _parameter(file: Member, begin: int, end: int) -> tuple[Any, tuple[int, ...], list[Place]]:
    """A Parameter message without its numbers, its shape, and where the numbers are."""
    runs: list[Place] = []
    small: list[bytes] = []  # everything but the numbers
    for field, kind, start, b, e in _fields(file, begin, end):
        if field == _DATA and kind in (_LENGTH, _FIXED32):
            if (e - b) % 4:
                raise ValueError(f"{file.name}: a parameter has {e - b} bytes of float32 numbers")
            runs.append(Place(b, np.dtype("<f4"), ((e - b) // 4,)))
        else:
            small.append(file.peek(start, e - start))
    message = messages()["Parameter"]()
    from google.protobuf.message import DecodeError

    try:
        message.ParseFromString(b"".join(small))
    except DecodeError as error:
        raise ValueError(f"{file.name}: no Parameter message: {error}") from error
    shape, size = tuple(message.shape.dim), sum(r.shape[0] for r in runs)
    if min(shape, default=0) < 0 or size != math.prod(shape):
        raise ShapeError(
            f"{file.name}: {message.variable_name!r} has {size} values for the shape {shape}"
        )
    return message, shape, runs


def _fields(file: Member, at: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """(field, wire type, begin of its tag, begin and end of its value) of a message's fields."""
    no = f"{file.name}: no NNablaProtoBuf message"
    head, first = b"", at
    while at < end:
        i = at - first
        if i + _HEAD > len(head) and first + len(head) < end:
            first, head, i = at, file.peek(at, min(_WINDOW, end - at)), 0
        start = at
        tag, i = _varint(head, i, no)
        field, kind = tag >> 3, tag & 7
        at = first + i
        if kind == _LENGTH:
            length, i = _varint(head, i, no)
            at = first + i
            i += length
        elif kind == _VARINT:
            i = _varint(head, i, no)[1]
        elif kind in (_FIXED32, _FIXED64):
            i += 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"{no}: wire type {kind}")
        stop = first + i
        if not field:
            raise ValueError(f"{no}: there is no field 0")
        if stop > end:
            raise ValueError(f"{no}: the field {field} ends {stop - end} bytes behind it")
        yield field, kind, start, at, stop
        at = stop


def number(value: int) -> bytes:
    """A number that is not negative, seven bits per byte."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def _varint(head: bytes, at: int, no: str) -> tuple[int, int]:
    if at < len(head) and head[at] < 0x80:
        return head[at], at + 1
    value = shift = 0
    for byte in head[at : at + 10]:
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError(f"{no}: a number does not end")
