# SPDX-License-Identifier: Apache-2.0
"""Choosing the next token from its scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen, in this order.

    Attributes:
        repetition_penalty: Scores of tokens that are in the text are divided by it, or multiplied
            where they are negative.
        temperature: Divides the scores; 0 chooses the best one.
        top_k: Only so many of the best; 0 for all.
        top_p: Only the fewest of the best whose probabilities sum to so much.
        min_p: Only those with at least this share of the best one's probability.
    Raises:
        ValueError: One of them is out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        wanted = (
            ("temperature", self.temperature >= 0, "at least 0"),
            ("top_k", self.top_k >= 0, "at least 0"),
            ("top_p", 0 < self.top_p <= 1, "more than 0 and at most 1"),
            ("min_p", 0 <= self.min_p <= 1, "0 to 1"),
            ("repetition_penalty", self.repetition_penalty > 0, "more than 0"),
        )
        for name, fits, what in wanted:
            if not fits:
                raise ValueError(f"generate: {name} is {getattr(self, name)}, wanted {what}")

    def scores(self, scores: Array, text: Sequence[int]) -> Array:
        """Scores (V,) as float64, with the penalty for what is in the text."""
        found = scores.astype(np.float64)
        if self.repetition_penalty != 1 and len(text):
            seen = np.unique(np.asarray(text))
            s = found[seen]
            found[seen] = np.where(s < 0, s * self.repetition_penalty, s / self.repetition_penalty)
        return found

    def probabilities(self, scores: Array, text: Sequence[int]) -> Array:
        """Probability of each token; 1 for the best one where temperature is 0."""
        s = self.scores(scores, text)
        if self.temperature == 0:
            p = np.zeros_like(s)
            p[np.argmax(s)] = 1
            return p
        s /= self.temperature
        if 0 < self.top_k < s.size:
            s[s < np.partition(s, -self.top_k)[-self.top_k]] = -np.inf
        p = np.exp((s - s.max()).astype(np.float32)).astype(np.float64)  # a tenth of its time
        p /= p.sum()
        if self.top_p < 1:
            kept = _nucleus(p, self.top_p)
            rest, p = p, np.zeros_like(p)
            p[kept] = rest[kept]
        if self.min_p > 0:
            p[p < self.min_p * p.max()] = 0
        return p / p.sum()

    def choose(self, scores: Array, text: Sequence[int], rng: np.random.Generator) -> int:
        """A token, drawn by its probability."""
        if self.temperature == 0:
            return int(np.argmax(self.scores(scores, text)))
        return drawn(self.probabilities(scores, text), rng)


def _nucleus(p: Array, enough: float, most: int = 1024) -> Array:
    """The fewest of the most probable tokens whose probabilities sum to `enough`.

    Only `most` are sorted where these are enough, which is a small part of a large vocabulary.
    """
    least = np.partition(p, -most)[-most] if most < p.size else 0.0
    among = np.flatnonzero(p >= least if least > 0 else p)
    order = among[np.argsort(-p[among], kind="stable")]
    before = np.cumsum(p[order]) - p[order]  # of those that are better
    if before[-1] < enough and least > 0:
        return _nucleus(p, enough, p.size)
    return order[before < enough]


def drawn(p: Array, rng: np.random.Generator) -> int:
    """An index, drawn by probabilities p (V,), whose sum is not exactly 1."""
    total = np.cumsum(p)
    index = int(np.searchsorted(total, rng.random() * total[-1], side="right"))
    return index if index < p.size else int(np.flatnonzero(p)[-1])


def generators(seed: int | None, count: int) -> list[np.random.Generator]:
    """A stream of random numbers for each text: a text draws the same ones, whatever is beside it.

    Raises:
        ValueError: The seed is negative.
    """
    if seed is not None and seed < 0:
        raise ValueError(f"generate: seed is {seed}, wanted at least 0, or None")
    first = np.random.SeedSequence(seed)
    return [
        np.random.Generator(np.random.Philox(np.random.SeedSequence(first.entropy, spawn_key=(i,))))
        for i in range(count)
    ]
