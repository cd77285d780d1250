# SPDX-License-Identifier: Apache-2.0
"""Bytes of files and of members of .nnp archives, read once into memory of our own.

Weights are views of that memory: nothing is copied between the file and the parameter.
"""

from __future__ import annotations

import io
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from nnl.converters.nnp.checksum import PART, Checksum, threads

MAX_RATIO = 200  # what is larger than this times its compressed size, and than SUSPICIOUS,
SUSPICIOUS = 2**28  # bytes, is no network: weights hardly get smaller
LARGE = 2**24  # bytes; checksums of larger members are computed while they are read and parsed
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")  # of a member, before its name

Bytes = np.ndarray[Any, Any]  # uint8, writable


def read_all(file: Any) -> Bytes:
    """Everything that a file open for reading has left."""
    if isinstance(file, io.FileIO | io.BufferedReader):
        return read_exactly(file, os.fstat(file.fileno()).st_size - file.tell())
    data = file.read()
    data = data.encode() if isinstance(data, str) else data
    return np.frombuffer(bytearray(data), np.uint8)


def read_exactly(file: Any, size: int, check: Checksum | None = None) -> Bytes:
    """The next `size` bytes, which are also given to the checksum.

    Raises:
        EOFError: The file ends before.
    """
    buffer = np.empty(size, np.uint8)
    view, done = buffer.data, 0
    while done < size:
        step = size if check is None else done + PART
        n = file.readinto(view[done:step]) if hasattr(file, "readinto") else 0
        if not n:
            raise EOFError(f"the file ends {size - done} bytes too early")
        if check is not None:
            check.add(view[done : done + n])
        done += n
    return buffer


def members(file: BinaryIO, where: str, kind: str = ".nnp archive") -> Iterator[tuple[str, Bytes]]:
    """Names and contents of a zip archive's members, in its order.

    Names and sizes are checked before anything is unpacked. The checksums of large members are
    compared at the end, so go through all of them before anything is made of one.

    Raises:
        ValueError: It is no archive, is damaged, or has members that point outside or claim to be
            far larger than the file; the text starts with `where`.
    """
    try:
        with zipfile.ZipFile(file) as archive, threads() as pool:
            checks: list[tuple[zipfile.ZipInfo, Checksum]] = []
            entries = archive.infolist()
            _check(entries, where)
            size = file.seek(0, os.SEEK_END)
            for entry in entries:
                if entry.is_dir():
                    continue
                if entry.compress_type == zipfile.ZIP_STORED and not entry.flag_bits & 1:
                    check = Checksum(pool)
                    data = _stored(file, entry, size, check)
                    if data.size > LARGE:
                        checks.append((entry, check))
                    else:
                        _compare(entry, zlib.crc32(data.data))
                    yield entry.filename, data
                else:
                    yield entry.filename, np.frombuffer(bytearray(archive.read(entry)), np.uint8)
            for entry, check in checks:
                _compare(entry, check.value())
    except _BROKEN as error:
        if str(error).startswith(where):
            raise
        raise ValueError(f"{where}: not a {kind}: {error}") from error


_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    RuntimeError,  # encrypted; NotImplementedError is one: an unknown compression
    OSError,
    ValueError,
)


def _compare(entry: zipfile.ZipInfo, found: int) -> None:
    if found != entry.CRC:
        raise zipfile.BadZipFile(f"the member {entry.filename!r} is damaged (CRC-32)")


def _stored(file: BinaryIO, entry: zipfile.ZipInfo, file_size: int, check: Checksum) -> Bytes:
    file.seek(entry.header_offset)
    header = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    if header[0] != b"PK\3\4":
        raise zipfile.BadZipFile(f"the member {entry.filename!r} does not begin where it should")
    start = entry.header_offset + _LOCAL_HEADER.size + header[9] + header[10]
    if entry.file_size != entry.compress_size or start + entry.file_size > file_size:
        raise zipfile.BadZipFile(
            f"the member {entry.filename!r} claims {entry.file_size} bytes, more than there are"
        )
    file.seek(start)
    return read_exactly(file, entry.file_size, check if entry.file_size > LARGE else None)


def _check(entries: list[zipfile.ZipInfo], where: str) -> None:
    for entry in entries:
        parts = entry.filename.replace("\\", "/").split("/")
        if ".." in parts or entry.filename.startswith(("/", "\\")):
            raise ValueError(f"{where}: the member {entry.filename!r} points outside the archive")
        if entry.file_size > max(SUSPICIOUS, MAX_RATIO * entry.compress_size):
            raise ValueError(
                f"{where}: the member {entry.filename!r} claims {entry.file_size} bytes out of "
                f"{entry.compress_size}"
            )
    claimed = sum(e.file_size for e in entries)
    there = sum(e.compress_size for e in entries)
    if claimed > max(SUSPICIOUS, MAX_RATIO * there):
        raise ValueError(f"{where}: the members claim {claimed} bytes out of {there}")


class BytesFile(io.RawIOBase):
    """A file over memory that is not copied, as io.BytesIO would."""

    def __init__(self, data: Bytes) -> None:
        self._data, self._at = data.data, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = (0, self._at, len(self._data))[whence]
        self._at = max(base + offset, 0)
        return self._at

    def readinto(self, target: Any) -> int:
        part = self._data[self._at : self._at + len(target)]
        target[: len(part)] = part
        self._at += len(part)
        return len(part)
