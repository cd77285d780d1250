# SPDX-License-Identifier: Apache-2.0
"""Rounding of exact numbers to formats of floating point, with fractions alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np

BITS = {"float16": (11, -14, 15), "bfloat16": (8, -126, 127), "float32": (24, -126, 127)}
BITS["float64"] = (53, -1022, 1023)  # digits, least and greatest exponent
DTYPES = {n: np.dtype(getattr(ml_dtypes, n, None) or n) for n in BITS}
WAYS: dict[str, Callable[[Fraction], int]] = {
    "rn": round,  # to even
    "rz": math.trunc,
    "rm": math.floor,
    "rp": math.ceil,
}


def rounded(x: Fraction, name: str, way: str = "rn") -> float:
    """The number of a format that an exact number is rounded to, which is not zero."""
    digits, least, most = BITS[name]
    sign = 1 if x > 0 else -1
    if x == 0:
        return 0.0
    exponent = max(_exponent(abs(x)), least)
    unit = Fraction(2) ** (exponent - digits + 1)
    y = WAYS[way](x / unit) * unit
    largest = (2 - Fraction(2) ** (1 - digits)) * Fraction(2) ** most
    if abs(y) <= largest:
        return math.copysign(float(y), sign)
    stays = way == "rz" or (way == "rm" and x > 0) or (way == "rp" and x < 0)
    return sign * (float(largest) if stays else math.inf)


def _exponent(x: Fraction) -> int:
    e = x.numerator.bit_length() - x.denominator.bit_length()
    return e if x >= Fraction(2) ** e else e - 1


def samples(name: str, n: int, seed: int) -> np.ndarray:
    """Finite numbers of all exponents, with those at the edges of the format."""
    digits, least, most = BITS[name]
    rng = np.random.default_rng(seed)
    size = DTYPES[name].itemsize
    words = rng.integers(0, 1 << 8 * size, n, dtype=np.uint64).astype(f"u{size}")
    x = words.view(DTYPES[name])
    near = rng.uniform(-4, 4, n).astype(DTYPES[name])  # so that sums cancel
    small = rng.uniform(-1, 1, n) * 2.0**least * rng.choice([0.25, 1, 4], n)
    edges = np.array([0, -0.0, 1, -1, 2.0**least, 2.0 ** (least - digits + 1), 1.5, 0.5])
    parts: list[Any] = [x, near, small.astype(DTYPES[name]), edges.astype(DTYPES[name])]
    every = np.concatenate(parts)
    with np.errstate(invalid="ignore"):
        every = every[np.isfinite(every.astype(np.float64))]
    return rng.permutation(every)[:n]
