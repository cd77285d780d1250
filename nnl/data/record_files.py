# SPDX-License-Identifier: Apache-2.0
"""Files of records, as TensorFlow has them (TFRecords, event files).

A record is its length, a checksum of that, its bytes and a checksum of them.
Source: tensorflow/core/lib/io/record_writer.h.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator

from nnl.data.crc32c import masked

HEAD = 12  # bytes before those of a record


def framed(record: bytes) -> bytes:
    """A record as a file has it."""
    length = struct.pack("<Q", len(record))
    return b"".join((length, _checksum(length), record, _checksum(record)))


def spans(data: bytes | mmap.mmap) -> Iterator[tuple[int, int]]:
    """(begin, end) of the records of a file. Their own checksums are not looked at.

    Raises:
        ValueError: A length is damaged, or the file ends within a record.
    """
    at = 0
    while at < len(data):
        head = data[at : at + HEAD]
        if len(head) < HEAD or head[8:] != _checksum(head[:8]):
            raise ValueError(f"the length of the record at byte {at} has another checksum")
        length, begin = int.from_bytes(head[:8], "little"), at + HEAD
        if length > len(data) - begin - 4:
            raise ValueError(f"the record at byte {at} has {length} bytes, more than are there")
        yield begin, begin + length
        at = begin + length + 4


def records(data: bytes | mmap.mmap) -> Iterator[bytes]:
    """The records of a file.

    Raises:
        ValueError: The file is damaged.
    """
    for begin, end in spans(data):
        record = data[begin:end]
        if data[end : end + 4] != _checksum(record):
            raise ValueError(f"the record at byte {begin - HEAD} has another checksum")
        yield record


def _checksum(data: bytes) -> bytes:
    return struct.pack("<I", masked(data))
