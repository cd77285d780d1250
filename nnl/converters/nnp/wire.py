# SPDX-License-Identifier: Apache-2.0
"""Parameters in a binary NNablaProtoBuf message, without parsing their numbers.

The protobuf package makes a list of Python floats, or a copy, of what is one run of float32 in the
file. Here the run is read into the array that the parameter will have, and only the rest of the
message is parsed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from nnl.converters.nnp.members import ArrayLocation, Member
from nnl.converters.nnp.messages import messages, parse
from nnl.core.arrays.spec import ShapeError

_VARINT, _LENGTH = 0, 2  # wire types of protobuf
_PARAMETER = 200  # field of NNablaProtoBuf
_DATA, _NEED_GRAD = 100, 101  # fields of Parameter

MOST = 2**31 - 1  # bytes of a message; nobody reads larger ones

Found = tuple[str, "np.ndarray[Any, Any]", bool]


def split_parameters(file: Member) -> tuple[Any, list[Found]]:
    """The message without its parameters, and (name, value, need_grad) of each of them.

    The values may still be read: wait for the file before you use them.

    Raises:
        ValueError: It is not a message; ShapeError: a parameter has too many or too few numbers.
    """
    try:
        data, runs = file.split_message((_PARAMETER, _DATA))
        proto = parse("NNablaProtoBuf", data, False, file.name)
    except ValueError as error:
        file.verify()  # if it is damaged, that is what there is to say
        if str(error).startswith(file.name):
            raise
        raise ValueError(f"{file.name}: no NNablaProtoBuf message: {error}") from None
    values: list[Any] = []
    places = []
    for i, p in enumerate(proto.parameter):
        shape = tuple(p.shape.dim)
        begin, end = runs.get(i, (0, 4 * len(p.data)))
        if (end - begin) % 4:
            raise ValueError(f"{file.name}: a parameter has {end - begin} bytes of float32 numbers")
        size = (end - begin) // 4
        if min(shape, default=0) < 0 or size != math.prod(shape):
            raise ShapeError(
                f"{file.name}: {p.variable_name!r} has {size} values for the shape {shape}"
            )
        if i in runs:
            places.append(ArrayLocation(begin, np.dtype("<f4"), shape))
        values.append(None if i in runs else np.array(p.data, np.float32).reshape(shape))
    read = iter(file.arrays(places))
    found = [
        (p.variable_name, next(read) if value is None else value, p.need_grad)
        for p, value in zip(proto.parameter, values, strict=True)
    ]
    del proto.parameter[:]
    return proto, found


def check_size(where: str, arrays: Iterable[tuple[str, Any]]) -> None:
    """Refuse to write arrays, by name, that do not fit into one message.

    Raises:
        ValueError: They take more bytes, as float32.
    """
    nbytes = sum(4 * value.size + 5 * value.ndim + len(name) + 64 for name, value in arrays)
    if nbytes > MOST:
        raise ValueError(
            f"{where}: {nbytes} bytes of numbers, and a protobuf message has at most {MOST}: .h5 "
            "holds more"
        )


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
            body += [varint(_DATA << 3 | _LENGTH), varint(len(data)), data]
        if need_grad:
            body += [varint(_NEED_GRAD << 3 | _VARINT), b"\1"]
        parts += [varint(_PARAMETER << 3 | _LENGTH), varint(sum(map(len, body))), *body]
    return b"".join(parts)


def varint(value: int) -> bytes:
    """A number that is not negative as protobuf writes it, seven bits per byte."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))
