# SPDX-License-Identifier: Apache-2.0
"""FlatBuffers, written from and read into plain dicts by a table of their fields.

A table begins with the distance to its vtable, which has the places of its fields. Whatever is no
number lies elsewhere, behind the place that holds the distance to it. Parents are written before
their children. A reader looks whether every place is inside the file before it looks there, and
reads no more in all than the file could hold without saying things often.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

NUMBERS = {
    "bool": ("<?", 1),
    "i8": ("<b", 1),
    "u8": ("<B", 1),
    "i16": ("<h", 2),
    "u16": ("<H", 2),
    "i32": ("<i", 4),
    "u32": ("<I", 4),
    "f32": ("<f", 4),
    "i64": ("<q", 8),
    "u64": ("<Q", 8),
}
LIMIT = 2**31 - 1  # bytes that an offset reaches
DATA_ALIGNMENT = 16  # bytes, of vectors of bytes: kernels read them as they lie
REPEATS = 16  # how often parts of a file may be referred to, on average


class Field(NamedTuple):
    """One field of a table.

    Attributes:
        kind: A number's, "str", the name of a table, or "any": a table whose name stands elsewhere.
        many: Whether it is a vector of these.
    """

    name: str
    kind: str
    many: bool = False
    default: Any = 0


Tables = Mapping[str, Sequence[Field]]


class Damaged(ValueError):
    """The bytes are no FlatBuffer of these tables."""


def fields(text: str) -> list[Field]:
    """The fields that a text such as "stride:i32=1 inputs:[i32]" tells of, in order."""
    found = []
    for word in text.split():
        name, kind = word.split(":")
        kind, _, default = kind.partition("=")
        many = kind.startswith("[")
        number = int(default or 0)
        found.append(Field(name, kind.strip("[]"), many, number))
    return found


# ---- writing ----


def pack(tables: Tables, name: str, value: Mapping[str, Any], identifier: bytes) -> bytearray:
    """The bytes of a table and of all that is below it.

    Args:
        value: Of the fields by name, as far as they are given; name and value of an "any".
    Raises:
        ValueError: They are too many for the format.
    """
    writer = _Writer(tables)
    writer.out += bytes(4) + identifier
    writer.refer(0, writer.table(name, value))
    if len(writer.out) > LIMIT:
        raise ValueError(f"it has {len(writer.out)} bytes, the format has room for {LIMIT}")
    return writer.out


class _Writer:
    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.out = bytearray()
        self.vtables: dict[bytes, int] = {}

    def align(self, size: int, more: int = 0) -> None:
        """Let what comes after `more` bytes begin at a multiple of size."""
        self.out += bytes(-(len(self.out) + more) % size)

    def refer(self, place: int, at: int) -> None:
        struct.pack_into("<I", self.out, place, (at - place) & 0xFFFFFFFF)

    def table(self, name: str, value: Mapping[str, Any]) -> int:
        slots, wide = [0] * len(self.tables[name]), []
        size = 4
        for i, f in enumerate(self.tables[name]):
            given = value.get(f.name)
            is_number = f.kind in NUMBERS and not f.many
            if given is None or (is_number and given == f.default):
                continue
            form, width = NUMBERS[f.kind] if is_number else ("<I", 4)
            size += -size % width
            slots[i] = size
            wide.append((size, form, f, given))
            size += width
        while slots and not slots[-1]:
            slots.pop()
        vtable = struct.pack(f"<{len(slots) + 2}H", 4 + 2 * len(slots), size, *slots)
        if vtable not in self.vtables:
            self.align(2)
            self.vtables[vtable] = len(self.out)
            self.out += vtable
        self.align(8)
        start = len(self.out)
        self.out += struct.pack("<i", start - self.vtables[vtable]) + bytes(size - 4)
        for at, form, f, given in wide:
            if f.kind in NUMBERS and not f.many:
                struct.pack_into(form, self.out, start + at, given)
        for at, _, f, given in wide:
            if f.kind not in NUMBERS or f.many:
                self.refer(start + at, self.below(f, given))
        return start

    def below(self, f: Field, given: Any) -> int:
        """The place of something that is no number."""
        if f.kind == "str":
            return self.vector(given.encode(), 1, b"\0")
        if f.kind in NUMBERS:
            form, width = NUMBERS[f.kind]
            array = np.ascontiguousarray(given, np.dtype(form))
            width = DATA_ALIGNMENT if f.kind == "u8" else width
            return self.vector(array.tobytes(), width, b"", array.size)
        if f.kind == "any":
            return self.table(*given)
        if not f.many:
            return self.table(f.kind, given)
        start = self.vector(bytes(4 * len(given)), 4, b"", len(given))
        for i, part in enumerate(given):
            place = start + 4 + 4 * i
            self.refer(place, self.table(f.kind, part))
        return start

    def vector(self, content: bytes, width: int, end: bytes, count: int | None = None) -> int:
        self.align(max(width, 4), 4)
        start = len(self.out)
        self.out += struct.pack("<I", len(content) if count is None else count)
        self.out += content
        self.out += end
        return start


# ---- reading ----


def unpack(tables: Tables, name: str, data: bytes) -> dict[str, Any]:
    """The table at the root, with all that is below it; fields left out have their defaults.

    Vectors of bytes are views of the data, other vectors of numbers are lists. "any" is a function
    from the name of a table to the table.

    Raises:
        Damaged: It is none, as far as that can be seen.
    """
    reader = _Reader(tables, data)
    return reader.table(name, reader.target(0))


class _Reader:
    def __init__(self, tables: Tables, data: bytes) -> None:
        self.tables, self.data = tables, data
        self.left = REPEATS * len(data) + 1024

    def number(self, kind: str, at: int) -> Any:
        form, width = NUMBERS[kind]
        self.check(at, width)
        return struct.unpack_from(form, self.data, at)[0]

    def check(self, at: int, size: int) -> None:
        if at < 0 or at + size > len(self.data):
            raise Damaged(f"damaged: {size} bytes at {at} are outside of its {len(self.data)}")
        self.left -= size
        if self.left < 0:
            raise Damaged("damaged: it refers to its parts too often")

    def target(self, place: int) -> int:
        return place + int(self.number("u32", place))

    def table(self, name: str, start: int) -> dict[str, Any]:
        vtable = start - self.number("i32", start)
        size = self.number("u16", vtable)
        found: dict[str, Any] = {}
        for i, f in enumerate(self.tables[name]):
            at = self.number("u16", vtable + 4 + 2 * i) if 4 + 2 * i + 2 <= size else 0
            if f.kind in NUMBERS and not f.many:
                found[f.name] = self.number(f.kind, start + at) if at else f.default
            elif at:
                found[f.name] = self.below(f, self.target(start + at))
            else:
                found[f.name] = [] if f.many else None
        return found

    def below(self, f: Field, at: int) -> Any:
        if f.kind == "any":
            return lambda name: self.table(name, at)
        if f.kind not in NUMBERS and f.kind != "str" and not f.many:
            return self.table(f.kind, at)
        count = self.number("u32", at)
        form, width = NUMBERS.get(f.kind, ("<I", 1 if f.kind == "str" else 4))
        self.check(at + 4, width * count)
        if f.kind == "str":
            return self.data[at + 4 : at + 4 + count].decode(errors="replace")
        if f.kind == "u8":
            return np.frombuffer(self.data, np.uint8, count, at + 4)
        if f.kind in NUMBERS:
            return np.frombuffer(self.data, np.dtype(form), count, at + 4).tolist()
        return [self.table(f.kind, self.target(at + 4 + 4 * i)) for i in range(count)]
