# SPDX-License-Identifier: Apache-2.0
"""Where in one arena each buffer of a plan lies, so that buffers of different times share memory."""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable, Mapping
from typing import TypeVar

ALIGN = 64  # bytes: a cache line, and one AVX-512 load

K = TypeVar("K", bound=Hashable)


def plan_memory(intervals: Mapping[K, tuple[int, int, int]]) -> tuple[dict[K, int], int]:
    """Offsets for {key: (first step, last step, bytes)}: largest first, lowest gap that fits.

    Two intervals that overlap in time never overlap in space. O(n^2) worst, run once per plan.

    Returns:
        ({key: offset in bytes}, arena size in bytes).
    Source: Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net Inference,
        arXiv:2001.03288, greedy by size.
    """
    placed: list[tuple[int, int, int, int]] = []  # (low, high, first, last), by low address
    offsets: dict[K, int] = {}
    arena = 0
    for key, (first, last, size) in sorted(intervals.items(), key=lambda kv: -kv[1][2]):
        size = -(-size // ALIGN) * ALIGN
        at = 0
        for low, high, a, b in placed:
            if a <= last and first <= b:
                if at + size <= low:
                    break
                at = max(at, high)
        offsets[key] = at
        insort(placed, (at, at + size, first, last))
        arena = max(arena, at + size)
    return offsets, arena
