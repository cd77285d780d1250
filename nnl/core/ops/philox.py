# SPDX-License-Identifier: Apache-2.0
"""Philox 4x64-10 in operations on whole arrays: the words that numpy's generator gives.

For devices whose array module has no such generator. Nothing here looks at a value.

Source: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011.
"""

from __future__ import annotations

from typing import Any

import numpy as np

MULTIPLIERS = 0xD2E7470EE14C6C93, 0xCA5A826395121157
WEYL = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B
ROUNDS = 10
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


def words_on_device(xp: Any, rng: Any, n: int) -> Any:
    """n random uint64 words of the stream `rng` (key, counter), whose counter is advanced."""
    blocks = (n + 3) // 4
    key = [rng[0] + np.uint64(0), xp.zeros((), np.uint64)]
    counter = xp.arange(1, blocks + 1, dtype=np.uint64) + rng[1]
    zero = xp.zeros(blocks, np.uint64)
    c = [counter, zero, zero, zero]
    for r in range(ROUNDS):
        high0, low0 = _product(c[0], MULTIPLIERS[0])
        high1, low1 = _product(c[2], MULTIPLIERS[1])
        step = [np.uint64(r * w & 0xFFFFFFFFFFFFFFFF) for w in WEYL]
        c = [high1 ^ c[1] ^ (key[0] + step[0]), low1, high0 ^ c[3] ^ (key[1] + step[1]), low0]
    rng[1] += np.uint64(blocks)
    return xp.stack(c, axis=1).reshape(-1)[:n]


def _product(a: Any, b: int) -> tuple[Any, Any]:
    """The high and the low word of a b, from products of halves."""
    b_low, b_high = np.uint64(b & 0xFFFFFFFF), np.uint64(b >> 32)
    a_low, a_high = a & _LOW, a >> _HALF
    middle = a_high * b_low + ((a_low * b_low) >> _HALF)
    cross = a_low * b_high + (middle & _LOW)
    return a_high * b_high + (middle >> _HALF) + (cross >> _HALF), a * np.uint64(b)
