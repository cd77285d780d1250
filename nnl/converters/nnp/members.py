# SPDX-License-Identifier: Apache-2.0
"""Files and members of .nnp archives: looked into here and there, then read once, from beginning to
the end, into the arrays that the weights will have, while the network is built from others.
"""

from __future__ import annotations

import io
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from nnl.ext.native import empty, library


def crc32(data: Any, before: int = 0) -> int:
    """The CRC-32 of bytes that follow others whose CRC-32 is `before`."""
    native = library()
    found: int = (zlib if native is None else native).crc32(data, before)
    return found


MAX_RATIO = 200  # what is larger than this times its compressed size, and than SUSPICIOUS,
SUSPICIOUS = 2**28  # bytes, is no network: weights hardly get smaller
PART = 2**20  # bytes; what was just read is still in the cache when its checksum is computed
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")  # of a member, before its name

# Name, dtype, shape, first byte, and integers beside it, by name.
Hdf5Array = tuple[str, str, tuple[int, ...], int, dict[str, int]]
Bytes = np.ndarray[Any, Any]  # uint8
Parts = list[memoryview | int]  # where consecutive bytes go, or how many of them to skip


class ArrayLocation(NamedTuple):
    """Where an array lies: its first byte, and what it is."""

    start: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class Member:
    """A file, or a part of one, nothing of which is trusted before all of it has been read.

    Args:
        file: Open for reading bytes at any place.
        start, size: The part of it.
        name: For messages.
        checksum: CRC-32 of all bytes, if there is one.
    """

    def __init__(
        self, file: Any, start: int, size: int, name: str, checksum: int | None = None
    ) -> None:
        self.file, self.start, self.size = file, start, size
        self.name, self.checksum = name, checksum
        self._reading: Any = None
        self._verified = False  # or will be, by what reads

    def hdf5_arrays(self) -> list[Hdf5Array] | None:
        """Where the arrays of an HDF5 file lie; None where the HDF5 library should read it.

        The library takes 0.1 ms for every array, as long as reading a megabyte.
        """
        native = library()
        try:
            return None if native is None else native.hdf5_arrays(*self._place())
        except ValueError:
            return None

    def split_message(self, path: Sequence[int]) -> tuple[bytes, dict[int, tuple[int, int]]]:
        """A protobuf message without the weights in it, which the protobuf package would copy.

        Args:
            path: Numbers of fields: of messages in messages, and last of byte strings.
        Returns:
            The message without the byte strings that are long and the only one of their field, and
            (begin, end) of them by the number of the message they were in. Without the native
            engine the whole message.
        Raises:
            ValueError: A size in the message does not fit into the file.
        """
        native = library()
        if native is None:
            return self.read().tobytes(), {}
        found: tuple[bytes, dict[int, tuple[int, int]]]
        found = native.split_message(*self._place(), path)
        return found

    def _place(self) -> tuple[Any, int, int]:
        """What the native engine looks into."""
        if isinstance(self.file, io.FileIO):
            return self.file.fileno(), self.start, self.size
        return self.read(), 0, self.size

    def read(self) -> Bytes:
        """All bytes.

        Raises:
            ValueError: They are damaged, or the file ends before.
        """
        buffer = self.begin()
        self.wait()
        return buffer

    def begin(self) -> Bytes:
        """Memory for all bytes, which may still be filled: `wait` before you use them."""
        if isinstance(self.file, BytesFile):
            return self.file.data[self.start : self.start + self.size]
        buffer = empty((self.size,), np.uint8)
        self._begin([buffer.data])
        return buffer

    def arrays(
        self, places: Sequence[ArrayLocation], into: Mapping[int, Bytes] | None = None
    ) -> list[Bytes]:
        """The arrays in places that do not overlap, each in memory of its own.

        They may still be filled: `wait` before you use them.

        Args:
            into: Contiguous arrays of these types and sizes to be filled, by numbers of places.
        """
        there = into or {}
        made = [there[i] if i in there else empty(p.shape, p.dtype) for i, p in enumerate(places)]
        views = [y.reshape(-1).view(np.uint8).data for y in made]
        parts: Parts = []
        at = 0
        for i in sorted(range(len(places)), key=lambda i: places[i].start):
            parts += (places[i].start - at, views[i])
            at = places[i].start + len(views[i])
        parts.append(self.size - at)
        self._begin(parts)
        return made

    def wait(self) -> None:
        """Come back when the arrays are there.

        Raises:
            As `read`.
        """
        if self._reading is not None:
            try:
                found = self._reading.wait()
            except ValueError as error:
                raise ValueError(f"{self.name} {error}") from None
            self._check(found)
            self._reading = None  # it holds the memory

    def verify(self) -> None:
        """Raise an error if the bytes are damaged and nobody has looked yet."""
        if self.checksum is not None and not self._verified:
            self._begin([self.size])
            self.wait()

    def _begin(self, parts: Parts) -> None:
        """Begin to read; without the native engine, or if it is not a real file, read all of it."""
        self._verified, native = True, library()
        if native is not None and isinstance(self.file, io.FileIO):
            checked = self.checksum is not None
            self._reading = native.Reading(self.file.fileno(), self.start, parts, checked)
        else:
            self._check(self._read_slowly(parts))

    def _check(self, found: int) -> None:
        if self.checksum is not None and found != self.checksum:
            raise ValueError(f"{self.name} is damaged (CRC-32)")

    def _read_slowly(self, parts: Parts) -> int:
        self.file.seek(self.start)
        checksum, checked = 0, self.checksum is not None
        for part in parts:
            size = part if isinstance(part, int) else len(part)
            memory = memoryview(bytearray(min(size, PART))) if isinstance(part, int) else part
            for at in range(0, size, PART):
                view = memory[: size - at] if isinstance(part, int) else memory[at : at + PART]
                self._fill(view)
                checksum = crc32(view, checksum) if checked else 0
        return checksum

    def _fill(self, view: memoryview) -> None:
        done = 0
        while done < len(view):
            n = self.file.readinto(view[done:])
            if not n:
                raise ValueError(f"{self.name} ends {len(view) - done} bytes too early")
            done += n


def whole(file: Any, name: str) -> Member:
    """Everything in a file open for reading, also what was read or written before.

    Raises:
        ValueError: There is nothing in it, or `sealed` says that it is not all there.
    """
    if isinstance(file, io.FileIO | io.BufferedReader):
        member = Member(file, 0, os.fstat(file.fileno()).st_size, name)
    else:
        if hasattr(file, "seekable") and file.seekable():
            file.seek(0)
        data = file.read()
        member = in_memory(data.encode() if isinstance(data, str) else data, name)
    return _unsealed(member)


# A field of protobuf that no message has, so that readers skip it: 8 bytes, of type fixed64.
_SEAL = b"\xf9\xff\xff\xff\x0f"
_SEALED = struct.Struct("<5sQ")


def sealed(message: bytes) -> bytes:
    """A binary message that begins with its length: one that was cut between two of its fields is
    a good message, too."""
    return _SEALED.pack(_SEAL, len(message)) + message


def _unsealed(member: Member) -> Member:
    if member.size == 0:
        raise ValueError(f"{member.name} is empty")
    if member.size >= _SEALED.size:
        member.file.seek(member.start)
        seal, size = _SEALED.unpack(member.file.read(_SEALED.size))
        if seal == _SEAL:
            there = member.size - _SEALED.size
            if there != size:
                raise ValueError(f"{member.name} is damaged: {there} bytes of {size} are there")
            return Member(member.file, member.start + _SEALED.size, there, member.name)
        member.file.seek(member.start)
    return member


def in_memory(data: Any, name: str) -> Member:
    """Bytes that were read before; they are not copied."""
    return Member(BytesFile(np.frombuffer(data, np.uint8)), 0, len(data), name)


def members(file: BinaryIO, where: str, kind: str = ".nnp archive") -> Iterator[tuple[str, Member]]:
    """Names and contents of a zip archive's members, in its order.

    Names and sizes are checked before anything is unpacked. Checksums are compared when a member is
    read, and before the next one is given if it was not.

    Raises:
        ValueError: It is not an archive, is damaged, or has members that point outside or claim
            to be far larger than the file; the text starts with `where`.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            size = file.seek(0, os.SEEK_END)
            _check(entries, size, where)
            for entry in entries:
                if not entry.is_dir():
                    member = _member(archive, file, entry, size, where)
                    yield entry.filename, member
                    member.verify()
    except _BROKEN as error:
        if str(error).startswith(where):
            raise
        raise ValueError(f"{where}: not a {kind}: {error}") from error


def _member(
    archive: zipfile.ZipFile, file: BinaryIO, entry: zipfile.ZipInfo, size: int, where: str
) -> Member:
    name = f"{where}: the member {entry.filename!r}"
    stored = entry.compress_type == zipfile.ZIP_STORED and not entry.flag_bits & 1
    if not stored or not hasattr(file, "readinto"):
        return in_memory(archive.read(entry), name)
    file.seek(entry.header_offset)
    header = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    if header[0] != b"PK\3\4":
        raise zipfile.BadZipFile(f"the member {entry.filename!r} does not begin where it should")
    start = entry.header_offset + _LOCAL_HEADER.size + header[9] + header[10]
    if entry.file_size != entry.compress_size or start + entry.file_size > size:
        raise zipfile.BadZipFile(
            f"the member {entry.filename!r} claims {entry.file_size} bytes, more than there are"
        )
    return Member(file, start, entry.file_size, name, entry.CRC)


_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    RuntimeError,  # encrypted; NotImplementedError is one: an unknown compression
    OSError,
    OverflowError,  # an offset beyond 2**63
    ValueError,
)


def _check(entries: list[zipfile.ZipInfo], size: int, where: str) -> None:
    for entry in entries:
        if not entry.filename:
            raise ValueError(f"{where}: a member has no name")
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
    if len(entries) > 1 and there > size:  # entries share bytes: a bomb without compression
        raise ValueError(f"{where}: the members take {there} bytes of a file of {size}")
    if claimed > max(SUSPICIOUS, MAX_RATIO * there):
        raise ValueError(f"{where}: the members claim {claimed} bytes out of {there}")


class BytesFile(io.RawIOBase):
    """A file over memory that is not copied, as io.BytesIO would."""

    def __init__(self, data: Bytes) -> None:
        self.data, self._at = data, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = (0, self._at, len(self.data))[whence]
        self._at = max(base + offset, 0)
        return self._at

    def readinto(self, target: Any) -> int:
        part = self.data.data[self._at : self._at + len(target)]
        target[: len(part)] = part
        self._at += len(part)
        return len(part)
