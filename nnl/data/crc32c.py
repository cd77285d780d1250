# SPDX-License-Identifier: Apache-2.0
"""The checksums of TensorFlow's files: CRC-32C (RFC 3720, appendix B.4), as it masks them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from nnl.ext.native import library

_POLYNOMIAL = np.uint32(0x82F63B78)  # reflected
_CHUNK = 1024  # bytes that one lane takes, when there are many


@cache
def _table() -> Any:
    found = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        found = np.where(found & 1, (found >> 1) ^ _POLYNOMIAL, found >> 1)
    return found


@cache
def _behind() -> list[list[int]]:
    """What _CHUNK zero bytes make of a register, for each value of each of its bytes."""
    registers = np.arange(256, dtype=np.uint32) << (8 * np.arange(4, dtype=np.uint32))[:, None]
    for _ in range(_CHUNK):
        registers = _table()[registers & 255] ^ (registers >> np.uint32(8))
    return [[int(n) for n in row] for row in registers]


def crc32c(data: bytes | memoryview) -> int:
    """The checksum. Without the native engine, chunks of long data go side by side."""
    native = library()
    if native is not None:
        found: int = native.crc32c(data)
        return found
    array = np.frombuffer(data, np.uint8)
    count = len(array) // _CHUNK if len(array) >= 4 * _CHUNK else 0
    register, table = 0xFFFFFFFF, _table()
    if count:
        lanes = np.zeros(count, np.uint32)
        rows = array[: count * _CHUNK].reshape(count, _CHUNK)
        for column in np.ascontiguousarray(rows.T):
            lanes = table[(lanes ^ column) & 255] ^ (lanes >> np.uint32(8))
        a, b, c, d = _behind()
        for lane in lanes.tolist():
            moved = a[register & 255] ^ b[register >> 8 & 255]
            register = moved ^ c[register >> 16 & 255] ^ d[register >> 24] ^ lane
    numbers = table.tolist()
    for byte in array[count * _CHUNK :].tolist():
        register = numbers[(register ^ byte) & 255] ^ (register >> 8)
    return register ^ 0xFFFFFFFF


def masked(data: bytes | memoryview) -> int:
    """As files have it, so that checksums of checksums are no special numbers."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
