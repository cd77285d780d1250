# SPDX-License-Identifier: Apache-2.0
"""LevelDB's tables, which the files of checkpoints are: sorted keys and values in blocks.

Format: https://github.com/google/leveldb/blob/main/doc/table_format.md
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from nnl.converters.tensorflow.messages import TensorFlowError
from nnl.data.crc32c import masked

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48  # bytes
_TRAILER = 5  # bytes behind a block: its compression, its checksum
_ROOM = 2**24  # bytes that keys may take, and 64 times the file more


def read(content: bytes) -> dict[bytes, bytes]:
    """Keys and values of a table.

    Raises:
        TensorFlowError: It is none, is damaged, or is compressed.
    """
    if len(content) < _FOOTER or struct.unpack_from("<Q", content, len(content) - 8)[0] != _MAGIC:
        raise TensorFlowError("it is no table of a checkpoint")
    footer = content[-_FOOTER:]
    _, at = _handle(footer, 0)
    index, _ = _handle(footer, at)
    found: dict[bytes, bytes] = {}
    end, room = 0, _ROOM + 64 * len(content)
    for _, value in _entries(_block(content, index)):
        handle, _ = _handle(value, 0)
        if handle[0] < end:
            raise TensorFlowError("two blocks of the table are in one place")
        end = handle[0] + handle[1]
        for key, record in _entries(_block(content, handle)):
            room -= len(key)
            if room < 0:
                raise TensorFlowError("the keys of the table are too long")
            found[key] = record
    return found


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number in groups of seven bits, and where the next one is."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise TensorFlowError("the table ends inside a number")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise TensorFlowError("a number of the table has no end")


def _handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    offset, at = _number(data, at)
    size, at = _number(data, at)
    return (offset, size), at


def _block(content: bytes, handle: tuple[int, int]) -> bytes:
    offset, size = handle
    if offset + size + _TRAILER > len(content):
        raise TensorFlowError("a block of the table lies outside the file")
    block = content[offset : offset + size + 1]
    if block[-1]:
        raise TensorFlowError("a block of the table is compressed")
    (stored,) = struct.unpack_from("<I", content, offset + size + 1)
    if stored != masked(block):
        raise TensorFlowError("a block of the table does not have its checksum")
    return block[:-1]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys, of which only the end is stored that differs from the key before, and values."""
    if len(block) < 4:
        raise TensorFlowError("a block of the table is too short")
    (restarts,) = struct.unpack_from("<I", block, len(block) - 4)
    end = len(block) - 4 * (restarts + 1)
    if end < 0:
        raise TensorFlowError("a block of the table is too short")
    at, key = 0, b""
    while at < end:
        shared, at = _number(block, at)
        more, at = _number(block, at)
        size, at = _number(block, at)
        if shared > len(key) or at + more + size > end:
            raise TensorFlowError("an entry of the table is longer than its block")
        key = key[:shared] + block[at : at + more]
        yield key, block[at + more : at + more + size]
        at += more + size


# ---- writing: one entry after the other, every key in full ----


def _varint(n: int) -> bytes:
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def write(entries: Mapping[bytes, bytes]) -> bytes:
    """A table; its keys are sorted here."""
    out, index = bytearray(), []
    block, last, starts = bytearray(), b"", []

    def end_block() -> None:
        index.append((last, _varint(len(out)) + _varint(_closed(block, starts, out))))
        block.clear()
        starts.clear()

    for key in sorted(entries):
        starts.append(len(block))
        block += b"\0" + _varint(len(key)) + _varint(len(entries[key])) + key + entries[key]
        last = key
        if len(block) > 4096:
            end_block()
    if block:
        end_block()
    meta = len(out), _closed(bytearray(), [0], out)
    rows, starts = bytearray(), []
    for key, handle in index:
        starts.append(len(rows))
        rows += b"\0" + _varint(len(key)) + _varint(len(handle)) + key + handle
    top = len(out), _closed(rows, starts or [0], out)
    footer = b"".join(_varint(n) for n in (*meta, *top))
    return bytes(out) + footer.ljust(_FOOTER - 8, b"\0") + struct.pack("<Q", _MAGIC)


def _closed(block: bytearray, starts: list[int], out: bytearray) -> int:
    """Append a block with the places of its entries and its trailer; gives its size."""
    whole = bytes(block) + struct.pack(f"<{len(starts) + 1}I", *starts, len(starts))
    out += whole + b"\0" + struct.pack("<I", masked(whole + b"\0"))
    return len(whole)
