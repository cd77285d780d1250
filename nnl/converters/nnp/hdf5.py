# SPDX-License-Identifier: Apache-2.0
"""Where the arrays of an HDF5 file lie, if it is as simple as files of parameters are.

The HDF5 library takes 0.1 ms for every dataset, as long as reading a megabyte. This reader knows
what h5py writes by default: groups with symbol tables, datasets of numbers in one run, attributes
that are one integer. Everything else is left to h5py.
Source: HDF5 File Format Specification Version 1.1, sections II to IV.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

MAX_DEPTH = 64  # of groups in groups

_SUPERBLOCK = struct.Struct("<8sB4xBB9xQ8xQ16xQ24x")  # sizes, base, end of the file, root
_TREE = struct.Struct("<4sBBH16x")
_TABLE = struct.Struct("<4sBxH")
_SYMBOL = struct.Struct("<QQI20x")  # name in the heap, object header, kind of link
_HEAP = struct.Struct("<4sB3xQ8xQ")
_HEADER = struct.Struct("<Bx2x4xI4x")
_MESSAGE = struct.Struct("<HHB3x")
_TWO = struct.Struct("<QQ")
_SPACE = struct.Struct("<BBB5x")
_RUN = struct.Struct("<BBQQ")
_ATTRIBUTE = struct.Struct("<BxHHH")
_SCALAR = _SPACE.pack(1, 0, 0)

# Messages of an object header by their numbers.
_IS_SPACE, _IS_TYPE, _IS_LAYOUT, _IS_ATTRIBUTE, _IS_MORE, _IS_GROUP = 0x1, 0x3, 0x8, 0xC, 0x10, 0x11
_SKIPPED = (0x0, 0x4, 0x5, 0xE, 0x12)  # nothing, fill values, times of modification


class Unusual(Exception):
    """The file has something that only the HDF5 library understands, or is damaged."""


class Bytes(Protocol):
    """Random access to a file."""

    @property
    def size(self) -> int: ...

    def peek(self, at: int, size: int) -> bytes:
        """That many bytes from `at` on; ValueError if there are fewer."""
        ...


class Dataset(NamedTuple):
    """An array in the file.

    Attributes:
        name: Its path.
        dtype, shape: What it is.
        start: Where its numbers begin.
        attributes: Integers beside it, by name.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    attributes: dict[bytes, int]


def datasets(file: Bytes) -> list[Dataset]:
    """All datasets of a file.

    Raises:
        Unusual: The HDF5 library should have a look.
    """
    try:
        found = _Reader(file).found
    except (struct.error, ValueError) as error:
        raise Unusual(str(error)) from error
    end = 0
    for start, size in sorted((d.start, d.dtype.itemsize * math.prod(d.shape)) for d in found):
        if start < end:
            raise Unusual("one run of numbers under two names")
        end = start + size
    return found


class _Reader:
    """One walk through a file."""

    def __init__(self, file: Bytes) -> None:
        self.file = file
        self.found: list[Dataset] = []
        # In a good file nothing overlaps, so what is read, names included, is no larger than it.
        self.left = file.size
        signature, *rest, end, root = _SUPERBLOCK.unpack(self.take(0, _SUPERBLOCK.size))
        if signature != b"\x89HDF\r\n\x1a\n" or rest != [0, 8, 8, 0] or end > file.size:
            raise Unusual("superblock")
        self.visit("", root, 0)

    def take(self, at: int, size: int) -> bytes:
        self.left -= size
        if self.left < 0:
            raise Unusual("more structure than file")
        return self.file.peek(at, size)

    def visit(self, path: str, at: int, depth: int) -> None:
        """Find the dataset there, or those of the group."""
        dtype = shape = run = None
        attributes: dict[bytes, int] = {}
        for kind, data in self.messages(at):
            if kind == _IS_SPACE:
                shape = _shape(data)
            elif kind == _IS_TYPE:
                dtype = _DTYPES.get(_key(data))
            elif kind == _IS_LAYOUT:
                run = _RUN.unpack_from(data)
            elif kind == _IS_ATTRIBUTE:
                name, value = _attribute(data)
                attributes[name] = value
            elif kind == _IS_GROUP:
                tree, heap = _TWO.unpack_from(data)
                return self.group(path, tree, heap, depth)
            else:
                raise Unusual(f"message {kind}")
        if dtype is None or shape is None or run is None or run[:2] != (3, 1):
            raise Unusual("no run of numbers")
        _, _, start, size = run
        wanted = math.prod(shape) * dtype.itemsize
        if wanted and (wanted > size or start + wanted > self.file.size):
            raise Unusual("an array larger than its place")
        self.found.append(Dataset(path, dtype, shape, start if wanted else 0, attributes))

    def messages(self, at: int) -> Iterator[tuple[int, bytes]]:
        """Kinds and contents of an object header's messages."""
        version, size = _HEADER.unpack(self.take(at, _HEADER.size))
        if version != 1:
            raise Unusual("object header")
        parts = [(at + _HEADER.size, size)]
        unpack, head = _MESSAGE.unpack_from, _MESSAGE.size
        for start, size in parts:
            block, i = self.take(start, size), 0
            while i < size:
                kind, length, flags = unpack(block, i)
                i += head + length
                if flags & 2 or i > size:  # shared with other objects; cut off
                    raise Unusual("message")
                if kind == _IS_MORE:
                    parts.append(_TWO.unpack(block[i - length : i]))
                elif kind not in _SKIPPED:
                    yield kind, block[i - length : i]

    def group(self, path: str, tree: int, heap: int, depth: int) -> None:
        """Find the datasets of a group."""
        signature, version, size, start = _HEAP.unpack(self.take(heap, _HEAP.size))
        if signature != b"HEAP" or version or depth == MAX_DEPTH:
            raise Unusual("group")
        names = self.take(start, size)
        for table in self.tables(tree, depth):
            signature, version, n = _TABLE.unpack(self.take(table, _TABLE.size))
            if signature != b"SNOD" or version != 1:
                raise Unusual("symbol table")
            entries = self.take(table + _TABLE.size, n * _SYMBOL.size)
            for at, header, kind in _SYMBOL.iter_unpack(entries):
                name = names[at : names.index(b"\0", at)]
                if not name or b"/" in name or kind == 2:  # a link to another name
                    raise Unusual("link")
                here = f"{path}/{name.decode()}" if path else name.decode()
                self.left -= len(here)
                self.visit(here, header, depth + 1)

    def tables(self, at: int, depth: int) -> Iterator[int]:
        """Where the symbol tables of a group lie: the leaves of a tree."""
        signature, kind, level, n = _TREE.unpack(self.take(at, _TREE.size))
        if signature != b"TREE" or kind or depth == MAX_DEPTH:
            raise Unusual("tree")
        places = self.take(at + _TREE.size, n * _TWO.size)
        for _, place in _TWO.iter_unpack(places):  # before each one a name, to search by
            if level:
                yield from self.tables(place, depth + 1)
            else:
                yield place


def _shape(data: bytes) -> tuple[int, ...]:
    version, rank, flags = _SPACE.unpack_from(data)
    if version != 1 or flags & ~1:  # with or without the largest sizes there may be
        raise Unusual("dataspace")
    return struct.unpack_from(f"<{rank}Q", data, _SPACE.size)


def _attribute(data: bytes) -> tuple[bytes, int]:
    version, *sizes = _ATTRIBUTE.unpack_from(data)
    at, parts = _ATTRIBUTE.size, []
    for size in sizes:
        parts.append(data[at : at + size])
        at += -(-size // 8) * 8
    dtype = _INTEGERS.get(_key(parts[1]))
    if version != 1 or dtype is None or parts[2] != _SCALAR:
        raise Unusual("attribute")
    value = data[at : at + dtype.itemsize]
    return _key(parts[0]), int.from_bytes(value, "little", signed=dtype.kind == "i")


def _key(described: bytes) -> bytes:
    return described.rstrip(b"\0")  # what is padded and what is not


def _integer(size: int, signed: bool) -> bytes:
    return struct.pack("<BBxxIHH", 0x10, 8 * signed, size, 0, 8 * size)


def _real(size: int, exponent: int, mantissa: int) -> bytes:
    head = struct.pack("<BBBxIHH", 0x11, 0x20, 8 * size - 1, size, 0, 8 * size)
    return head + struct.pack("<BBBBI", mantissa, exponent, 0, mantissa, 2 ** (exponent - 1) - 1)


# dtypes by their description in a file: class, version, order of bytes and so on
_INTEGERS = {
    _key(_integer(size, kind == "i")): np.dtype(f"<{kind}{size}")
    for size in (1, 2, 4, 8)
    for kind in "iu"
}
_DTYPES = _INTEGERS | {
    _key(_real(*sizes)): np.dtype(f"<f{sizes[0]}")
    for sizes in ((2, 5, 10), (4, 8, 23), (8, 11, 52))
}
_BOOL = struct.pack("<BBxxI", 0x18, 2, 1) + _integer(1, True) + b"FALSE\0\0\0TRUE\0\0\0\0\0\1"
_INTEGERS[_BOOL] = np.dtype("i1")
