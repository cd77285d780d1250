# SPDX-License-Identifier: Apache-2.0
"""Where each buffer of a plan lies in one arena; buffers of different times share memory."""

from __future__ import annotations

from bisect import bisect, insort
from collections.abc import Hashable, Mapping
from heapq import heappop, heappush
from typing import TypeVar

ALIGN = 64  # bytes: a cache line, and one AVX-512 load

K = TypeVar("K", bound=Hashable)


def plan_memory(intervals: Mapping[K, tuple[int, int, int]]) -> tuple[dict[K, int], int]:
    """Offsets for {key: (first step, last step, bytes)}: in order of time, smallest gap that fits.

    Two intervals that overlap in time never overlap in space. O(n g) for g gaps, which are few.

    Returns:
        ({key: offset in bytes}, arena size in bytes).
    """
    busy: list[tuple[int, int, int]] = []  # heap of (last step, low, high)
    gaps: list[tuple[int, int]] = []  # (low, high), by address; no two of them touch
    offsets: dict[K, int] = {}
    arena = 0
    for key, (first, last, size) in sorted(intervals.items(), key=lambda kv: (kv[1][0], -kv[1][2])):
        size = -(-size // ALIGN) * ALIGN
        while busy and busy[0][0] < first:
            _, low, high = heappop(busy)
            i = bisect(gaps, (low, high))
            if i < len(gaps) and gaps[i][0] == high:
                high = gaps.pop(i)[1]
            if i and gaps[i - 1][1] == low:
                low = gaps.pop(i - 1)[0]
            if high > low:
                insort(gaps, (low, high))
        fits = [(high - low, low, high) for low, high in gaps if high - low >= size]
        if fits:
            _, low, high = min(fits)
            gaps.remove((low, high))
        else:
            low = high = gaps.pop()[0] if gaps and gaps[-1][1] == arena else arena
        offsets[key] = low
        if low + size < high:
            insort(gaps, (low + size, high))
        arena = max(arena, low + size)
        heappush(busy, (last, low, low + size))
    return offsets, arena
