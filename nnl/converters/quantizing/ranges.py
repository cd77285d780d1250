# SPDX-License-Identifier: Apache-2.0
"""Ranges of values, and the scale and zero point of whole numbers of 8 bits that stand for them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
METHODS = ("min_max", "percentile", "entropy")
BINS = 2048  # of a histogram
LEVELS = 128  # that one sign has


class Scale(NamedTuple):
    """A real number is scale (stored - zero)."""

    scale: float
    zero: int
    dtype: Any

    @classmethod
    def of(cls, low: float, high: float, symmetric: bool) -> Scale:
        """For numbers in a range, and for 0, which is exact."""
        low, high = min(low, 0.0), max(high, 0.0)
        if symmetric:
            return cls(_step(max(-low, high), 127), 0, np.int8)
        scale = _step(high - low, 255)
        return cls(scale, int(np.clip(np.rint(-low / scale), 0, 255)), np.uint8)


def _step(width: float, levels: int) -> float:
    return float(np.float32(max(width, 1e-8) / levels))


class Range:
    """What is known of the values of an edge.

    Attributes:
        low, high: The smallest and the largest.
        counts: How many there are in each part of [low, high], once these are known.
    """

    def __init__(self) -> None:
        self.low, self.high = np.inf, -np.inf
        self.counts: Array | None = None

    def widen(self, values: Array) -> None:
        self.low = min(self.low, float(values.min()))
        self.high = max(self.high, float(values.max()))

    def count(self, values: Array) -> None:
        if self.counts is None:
            self.counts = np.zeros(BINS)
        self.counts += np.histogram(values, BINS, (self.low, max(self.high, self.low + 1e-8)))[0]

    def scale(self, method: str, percentile: float, symmetric: bool) -> Scale:
        low, high = self.low, self.high
        if self.counts is not None and high > low:
            cut = _percentile if method == "percentile" else _entropy
            low, high = cut(self.counts, low, high, percentile)
        return Scale.of(low, high, symmetric)


def _percentile(counts: Array, low: float, high: float, percent: float) -> tuple[float, float]:
    """The range without the same part at both ends; where all have one sign, 0 is the one end."""
    total, width = np.cumsum(counts) / counts.sum(), (high - low) / BINS
    rest = (100 - percent) / 100
    if low < 0 < high:
        rest /= 2
    first = int(np.searchsorted(total, rest)) if low < 0 else 0
    last = int(np.searchsorted(total, 1 - rest)) if high > 0 else BINS - 1
    return low + first * width, low + (min(last, BINS - 1) + 1) * width


def _entropy(counts: Array, low: float, high: float, _: float) -> tuple[float, float]:
    """The range around 0 whose 8 bits lose least of the distribution, by its divergence.

    Source: Migacz, 8-bit Inference with TensorRT, GPU Technology Conference 2017.
    """
    middles = low + (np.arange(BINS) + 0.5) * (high - low) / BINS
    largest = max(-low, high)
    sizes = np.histogram(np.abs(middles), BINS, (0, largest), weights=counts)[0]
    sizes[0] = sizes[1]  # zeros are exact, however many there are
    best, found = np.inf, BINS
    for n in range(LEVELS, BINS + 1, LEVELS // 8):
        part = sizes[:n].copy()
        part[-1] += sizes[n:].sum()
        groups = np.arange(n) * LEVELS // n
        there = sizes[:n] > 0
        total = np.bincount(groups, sizes[:n], LEVELS)
        number = np.maximum(np.bincount(groups, there, LEVELS), 1)
        told = np.where(there, (total / number)[groups], 0.0)
        loss = _divergence(part, told)
        if loss < best:
            best, found = loss, n
    bound = largest * found / BINS
    return max(low, -bound), min(high, bound)


def _divergence(p: Array, q: Array) -> float:
    if not q.sum() or not p.sum():
        return np.inf
    p, q = p / p.sum(), q / q.sum()
    q = np.maximum(q, 1e-9)
    some = p > 0
    return float((p[some] * np.log(p[some] / q[some])).sum())
