# SPDX-License-Identifier: Apache-2.0
"""CRC-32 of large members, computed by other threads while this one reads on.

zlib takes longer for the checksum than the system for the reading, so parts are given to several
threads and their checksums are put together.
"""

from __future__ import annotations

import os
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

PART = 2**23  # bytes; what was just read is still in the cache
_POLYNOMIAL = 0xEDB88320  # of CRC-32, lowest power in the highest bit
_ONE = 1 << 31


class Checksum:
    """The CRC-32 of what is given to `add`, part by part."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._parts: list[tuple[Future[int], int]] = []

    def add(self, part: Any) -> None:
        """Take the next bytes into account; they must stay as they are until `value`."""
        self._parts.append((self._pool.submit(zlib.crc32, part), len(part)))

    def value(self) -> int:
        """The CRC-32 of all parts in their order."""
        total, shifts = 0, {}
        for future, size in self._parts:
            if size not in shifts:
                shifts[size] = _power(8 * size)
            total = _product(shifts[size], total) ^ future.result()
        return total


def threads() -> ThreadPoolExecutor:
    """As many threads as are worth it."""
    return ThreadPoolExecutor(min(4, os.cpu_count() or 1), "nnl checksum")


def _product(a: int, b: int) -> int:
    """a b modulo the polynomial of CRC-32, over GF(2)."""
    total = 0
    while a:
        if a & _ONE:
            total ^= b
        a = a << 1 & 0xFFFFFFFF
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return total


def _power(n: int) -> int:
    """x^n modulo the polynomial."""
    total, square = _ONE, _ONE >> 1
    while n:
        if n & 1:
            total = _product(total, square)
        square = _product(square, square)
        n >>= 1
    return total
