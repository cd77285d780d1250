# SPDX-License-Identifier: Apache-2.0
"""Take the weights out of a serialised ONNX model without parsing or copying them.

A model file is a protobuf message in which the weights are byte strings. The parser would copy
each of them twice. `split` walks the few outer fields by hand (model -> graph -> initializer ->
raw_data), notes where the long byte strings lie, and returns the message without them.
Format: Protocol Buffers encoding, https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

from collections.abc import Iterator

from nnl.converters.onnx.errors import OnnxError

_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9  # field numbers in ModelProto, GraphProto, TensorProto
_SHORT = 256  # bytes; shorter weights stay in the message

Span = tuple[int, int]


def varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """The unsigned integer at `at`, and where it ends."""
    value = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise OnnxError(f"a number at byte {at} has more than 10 bytes: not an ONNX file")
    raise OnnxError(f"the file ends inside a number at byte {at}: it is truncated or damaged")


def fields(data: memoryview, at: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Fields of a message: (number, wire type, start of the field, start and end of its value)."""
    while at < end:
        start = at
        key, at = varint(data, at, end)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise OnnxError(f"field number 0 at byte {start}: not an ONNX file")
        if kind == 0:
            value = at
            _, at = varint(data, at, end)
        elif kind == 2:
            size, value = varint(data, at, end)
            at = value + size
        elif kind in (1, 5):
            value = at
            at += 8 if kind == 1 else 4
        else:
            raise OnnxError(f"wire type {kind} at byte {start}: not an ONNX file")
        if at > end:
            raise OnnxError(
                f"field {number} at byte {start} says it ends at byte {at}, its message ends at "
                f"{end}: the file is truncated or damaged"
            )
        yield number, kind, start, value, at


def _key(number: int, size: int) -> bytes:
    out = bytearray()
    for value in (number << 3 | 2, size):
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)
    return bytes(out)


def split(data: memoryview) -> tuple[bytes, list[Span | None]]:
    """The model without long weights, and for every initializer where its bytes lie.

    Args:
        data: A serialised ModelProto.
    Returns:
        Bytes that parse as a ModelProto, and one entry per `graph.initializer`: (start, end) of
        its raw_data in `data`, or None where it stayed in the message.
    Raises:
        OnnxError: A size or a number does not fit into the file.
    """
    spans: list[Span | None] = []
    out: list[bytes] = []
    for number, kind, start, value, end in fields(data, 0, len(data)):
        if number == _GRAPH and kind == 2:
            graph = _without_weights(data, value, end, spans)
            out += [_key(_GRAPH, sum(map(len, graph))), *graph]
        else:
            out.append(bytes(data[start:end]))
    return b"".join(out), spans


def _without_weights(
    data: memoryview, start: int, end: int, spans: list[Span | None]
) -> list[bytes]:
    out: list[bytes] = []
    kept = start  # everything before this byte is in `out`
    for number, kind, at, value, stop in fields(data, start, end):
        if number != _INITIALIZER or kind != 2:
            continue
        spans.append(None)
        if stop - value < _SHORT:
            continue
        raw = [f for f in fields(data, value, stop) if f[0] == _RAW_DATA and f[1] == 2]
        if len(raw) != 1 or raw[0][4] - raw[0][3] < _SHORT:
            continue
        _, _, cut, first, last = raw[0]
        spans[-1] = (first, last)
        rest = bytes(data[value:cut]) + bytes(data[last:stop])
        out += [bytes(data[kept:at]), _key(_INITIALIZER, len(rest)), rest]
        kept = stop
    out.append(bytes(data[kept:end]))
    return out
