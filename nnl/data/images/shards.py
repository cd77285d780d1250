# SPDX-License-Identifier: Apache-2.0
"""Many pictures in few large files: WebDataset's tar archives and TensorFlow's record files.

A shard is looked through once, without its pictures; a picture is then read from where it lies. All
sizes are compared with the file before anything is read.
"""

from __future__ import annotations

import glob
import mmap
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from nnl.data.damage import naming
from nnl.data.images.sources import PICTURES, Piece, numbered_classes
from nnl.data.record_files import HEAD, spans
from nnl.data.urls import local_files

RECORDS = re.compile(r"\.tfrecords?\b|-\d{5}-of-\d{5}$")
BLOCK = 512  # bytes of a tar archive that go together
LONGEST = 4096  # bytes of a name in one
PAX_PATH = re.compile(rb"\d+ path=([^\n]{1,4096})\n")
# Of a record: what the picture and its label are called, and the number of the first class.
KEYS = ((b"image/encoded", b"image/class/label", 1), (b"image", b"label", 0))


class Entry(NamedTuple):
    """A picture of a shard: where it lies, and the record it is in, if it is in one."""

    offset: int
    length: int
    label: int
    record: int = 0
    record_length: int = 0


def shard_files(path: str) -> list[str]:
    """The shards that a path names: a folder's, one file, or those of a pattern.

    In a pattern, {000..127} is each number from 000 to 127, and * is anything. It may be an address
    as in local_files.

    Raises:
        FileNotFoundError: There are none.
    """
    if os.path.isdir(path):
        names = sorted(n for n in os.listdir(path) if n.endswith(".tar") or RECORDS.search(n))
        return [os.path.join(path, name) for name in names]
    found: list[str] = []
    if "://" in path:
        with ThreadPoolExecutor(8) as pool:
            fetch = partial(local_files, "open_images")
            return [file for files in pool.map(fetch, _expanded(path)) for file in files]
    for pattern in _expanded(path):
        files = sorted(glob.glob(pattern)) if "*" in pattern else [pattern]
        if not files or not os.path.isfile(files[0]):
            raise FileNotFoundError(
                f"open_images: path={path!r}: there is no such folder or file: {pattern}"
            )
        found += files
    return found


def _expanded(pattern: str) -> Iterator[str]:
    numbers = re.search(r"\{(\d+)\.\.(\d+)\}", pattern)
    if numbers is None:
        yield pattern
        return
    first, last = numbers.groups()
    before, after = pattern[: numbers.start()], pattern[numbers.end() :]
    for n in range(int(first), int(last) + 1):
        yield from _expanded(f"{before}{n:0{len(first)}}{after}")


class Shards:
    """The pictures of several shards; labels are numbers.

    Raises:
        ValueError: A shard is damaged, or a picture has no label.
    """

    def __init__(self, path: str, files: list[str], classes: Any) -> None:
        self._files = files
        with ThreadPoolExecutor(8) as pool:  # a disk answers several questions at a time
            entries = list(pool.map(_entries, files))
        self._begins = np.cumsum([0] + [len(found) for found in entries])
        self._entries = np.concatenate(entries)
        labels = self._entries[:, Entry._fields.index("label")]
        self.classes = numbered_classes(path, labels, classes)
        self.labels = labels.astype(np.int32)

    def _file(self, index: int) -> str:
        return self._files[int(np.searchsorted(self._begins, index, "right")) - 1]

    def piece(self, index: int) -> Piece:
        entry, file = Entry(*self._entries[index].tolist()), self._file(index)
        if not entry.record_length:
            return Piece(file, entry.offset, entry.length)
        inside = entry.offset - entry.record, entry.length
        return Piece(file, entry.record, entry.record_length, inside)

    def name(self, index: int) -> str:
        return f"{self._file(index)}, the picture at byte {self._entries[index, 0]}"


def _entries(path: str) -> np.ndarray[Any, Any]:
    with naming(f"open_images: the shard {path}"), open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise ValueError("it has 0 bytes")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            found = list(_of_tar(data) if path.endswith(".tar") else _of_records(data))
        if not found:
            raise ValueError("it has no pictures")
        return np.array(found, np.int64)


# ---- tar archives ----


def _members(data: mmap.mmap) -> Iterator[tuple[str, int, int]]:
    """(name, offset, length) of the files in an archive.

    Source: POSIX.1-2001, pax Interchange Format, and the long names of GNU tar.
    """
    at, name = 0, ""
    while at < len(data) and data[at]:
        header = data[at : at + BLOCK]
        if len(header) < BLOCK:
            raise ValueError(f"it ends within the header at byte {at}")
        blank = header[:148] + b" " * 8 + header[156:]
        if sum(blank) != _octal(header[148:156]):
            raise ValueError(f"the header at byte {at} has another checksum")
        big = header[124] & 0x80  # more than 8 GiB are written in binary
        length = int.from_bytes(header[125:136], "big") if big else _octal(header[124:136])
        begin = at + BLOCK
        if not 0 <= length <= len(data) - begin:
            raise ValueError(f"the file at byte {at} has {length} bytes, which are not there")
        kind = header[156:157]
        if kind == b"L":
            name = data[begin : begin + min(length, LONGEST)].rstrip(b"\0").decode(errors="replace")
        elif kind == b"x":
            found = PAX_PATH.search(data, begin, begin + length)
            name = found[1].decode(errors="replace") if found else name
        else:
            if kind in b"0\0":
                name = name or header[:100].rstrip(b"\0").decode(errors="replace")
                yield name, begin, length
            name = ""
        at = begin + -(-length // BLOCK) * BLOCK


def _octal(field: bytes) -> int:
    return int(field.strip(b" \0") or b"0", 8)


def _of_tar(data: mmap.mmap) -> Iterator[Entry]:
    """Files of one sample follow each other; their names are the same up to the first dot."""
    sample, picture, label = ("", ""), None, None
    for name, begin, length in chain(_members(data), [("/", 0, 0)]):
        folder, file = os.path.split(name)
        key, _, ending = file.partition(".")
        if (folder, key) != sample:
            if picture is not None:
                if label is None:
                    raise ValueError(f"{'/'.join(sample)} has no label, a file that ends in .cls")
                yield Entry(*picture, label)
            sample, picture, label = (folder, key), None, None
        if f".{ending.lower()}".endswith(PICTURES):
            picture = begin, length
        elif ending == "cls":
            label = int(data[begin : begin + min(length, 20)])


# ---- records ----


def _of_records(data: mmap.mmap) -> Iterator[Entry]:
    """The pictures of a file of records, each a tf.train.Example."""
    for begin, end in spans(data):
        features = dict(_features(data, begin, end))
        for picture, label, first in KEYS:
            if picture in features and label in features:
                offset, last = _only(data, features[picture], 1)
                number = _only(data, features[label], 3)
                value = number if isinstance(number, int) else _number(data, *number)[0]
                yield Entry(offset, last - offset, value - first, begin, end - begin)
                break
        else:
            raise ValueError(
                f"the record at byte {begin - HEAD} has no {KEYS[0][0].decode()} with "
                f"{KEYS[0][1].decode()}, and no {KEYS[1][0].decode()} with {KEYS[1][1].decode()}"
            )


def _features(data: mmap.mmap, begin: int, end: int) -> Iterator[tuple[bytes, tuple[int, int]]]:
    """(name, where its value lies) of a tf.train.Example."""
    for number, features in _fields(data, begin, end):
        if number == 1 and not isinstance(features, int):
            for _, entry in _fields(data, *features):
                if not isinstance(entry, int):
                    parts = dict(_fields(data, *entry))
                    key, value = parts.get(1), parts.get(2)
                    if isinstance(key, tuple) and isinstance(value, tuple):
                        yield data[slice(*key)], value


def _only(data: mmap.mmap, feature: tuple[int, int], kind: int) -> Any:
    """The first value of a list of bytes (1) or of whole numbers (3)."""
    for number, values in _fields(data, *feature):
        if number == kind and isinstance(values, tuple):
            for _, value in _fields(data, *values):
                return value
    raise ValueError("a picture or a label has another type, or no value")


def _number(data: mmap.mmap, at: int, end: int) -> tuple[int, int]:
    """A number of up to 64 bits, 7 in each byte, and the place after it."""
    value = 0
    for i, byte in enumerate(data[at : min(at + 10, end)]):
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value, at + i + 1
    raise ValueError(f"the number at byte {at} does not end")


def _fields(data: mmap.mmap, at: int, end: int) -> Iterator[tuple[int, Any]]:
    """(number, value or where it lies) of the fields of a message.

    Source: https://protobuf.dev/programming-guides/encoding
    """
    while at < end:
        tag, at = _number(data, at, end)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = _number(data, at, end)
            yield number, value
            continue
        if kind not in (1, 2, 5):
            raise ValueError(f"the field at byte {at} is of no known type")
        size = {1: 8, 5: 4}.get(kind, 0)
        if kind == 2:
            size, at = _number(data, at, end)
        if size > end - at:
            raise ValueError(f"the field at byte {at} has {size} bytes, more than are there")
        yield number, (at, at + size)
        at += size
