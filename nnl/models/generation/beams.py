# SPDX-License-Identifier: Apache-2.0
"""Beam search: the most probable texts among those that a few kept ones lead to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnl.models.generation.cached import Array, Cached
from nnl.models.generation.sampling import Sampling

Beam = tuple[float, list[int]]  # its score, and its new tokens


class Search:
    """The search for one text.

    A beam that ends competes with its logarithm of probability by tokens to the power of
    `length_penalty`. The search is over when no running beam could become better than the worst of
    the ended ones, if it ended now.

    Args:
        beams: How many are kept, running and ended.
        ends: Tokens that end a text. most: New tokens at most.
        early: Be over as soon as so many beams have ended.
    """

    def __init__(
        self, beams: int, ends: Sequence[int], most: int, length_penalty: float, early: bool
    ) -> None:
        self.beams, self.ends, self.most = beams, set(ends), most
        self.length_penalty, self.early = length_penalty, early
        self.running: list[Beam] = [(0.0, [])]
        self.ended: list[Beam] = []
        self.over = False

    def advance(self, logarithms: Array) -> list[int]:
        """Take the next tokens.

        Args:
            logarithms: (running beams, vocabulary), of the probabilities of what follows.
        Returns:
            Which of the beams each of the new running ones goes on from.
        """
        vocabulary = logarithms.shape[1]
        total = logarithms + np.array([[score] for score, _ in self.running])
        count = min(max(2, 1 + len(self.ends)) * self.beams, total.size)
        best = np.argpartition(-total.ravel(), count - 1)[:count]
        best = best[np.argsort(-total.ravel()[best], kind="stable")]
        length = len(self.running[0][1]) + 1
        running: list[Beam] = []
        came: list[int] = []
        for rank, place in enumerate(best):
            beam, token = divmod(int(place), vocabulary)
            found = (float(total[beam, token]), [*self.running[beam][1], token])
            if token in self.ends or length == self.most:
                if rank < self.beams:
                    self.ended.append((found[0] / length**self.length_penalty, found[1]))
            elif len(running) < self.beams:
                running.append(found)
                came.append(beam)
        self.ended = sorted(self.ended, key=lambda beam: -beam[0])[: self.beams]
        self.running = running
        full = len(self.ended) == self.beams
        hopeless = (
            full
            and bool(running)
            and (running[0][0] / length**self.length_penalty <= self.ended[-1][0])
        )
        self.over = not running or hopeless or (full and self.early)
        return came

    def found(self, ends: bool = False) -> list[int]:
        """The best text, without what ends it."""
        tokens = self.ended[0][1]
        return tokens[:-1] if tokens and tokens[-1] in self.ends else tokens


def search(
    cached: Cached, prompts: Sequence[Sequence[int]], how: Sampling, searches: Sequence[Search]
) -> list[list[int]]:
    """The best text for each prompt; rows of the cache are the beams of the first, and so on."""
    n = searches[0].beams
    empty: list[int] = []
    scores = cached.start([p for prompt in prompts for p in (prompt, *[empty] * (n - 1))])
    scores = np.repeat(scores[::n], n, axis=0)
    cached.arrange([i // n * n for i in range(cached.batch)])
    while not all(s.over for s in searches):
        index = list(range(cached.batch))
        rows: list[list[int]] = [[] for _ in index]
        for i, s in enumerate(searches):
            if s.over:
                continue
            texts = [[*prompts[i], *new] for _, new in s.running]
            own = scores[i * n : i * n + len(texts)]
            own = np.array([how.scores(log(r), t) for r, t in zip(own, texts, strict=True)])
            for k, beam in enumerate(s.advance(own)):
                index[i * n + k] = i * n + beam
                rows[i * n + k] = s.running[k][1][-1:]
            if s.over:
                rows[i * n : i * n + n] = [[] for _ in range(n)]
        cached.arrange(index)
        scores = cached.feed(rows)
    return [s.found() for s in searches]


def log(scores: Any) -> Array:
    """Logarithms of the softmax of scores (V,), as float64."""
    s: Array = scores.astype(np.float64)
    s -= s.max()
    return s - np.log(np.exp(s).sum())
