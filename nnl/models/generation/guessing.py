# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding: a small model guesses some tokens, the large one judges them in one run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from nnl.models.generation.cached import Array, Cached
from nnl.models.generation.sampling import Sampling, drawn


def speculate(
    large: Cached,
    small: Cached,
    prompt: Sequence[int],
    how: Sampling,
    rng: np.random.Generator,
    guesses: int,
) -> Iterator[int]:
    r"""Tokens of the large model, with the distribution that it has alone.

    A guess x of the small model is taken with the probability $\min(1, p(x) / q(x))$; instead of
    the first that is not, one is drawn from $\max(0, p - q)$. After guesses that were all taken
    comes one that the large model draws itself.

    Args:
        large, small: Of one text each; they know nothing else.
        guesses: How many tokens are guessed at a time.
    Source: Leviathan, Kalman and Matias, arXiv:2211.17192, algorithm 1.
    """
    text = list(prompt)
    large.start([text])
    large.keep(0, len(text) - 1)
    while True:
        count = min(guesses, min(large.capacity, small.capacity) - len(text))
        ahead, q = [], []
        scores = small.start([text])[0] if count else None
        for _ in range(count):
            assert scores is not None
            q.append(how.probabilities(scores, [*text, *ahead]))
            ahead.append(drawn(q[-1], rng))
            if len(ahead) < count:
                scores = small.feed([ahead[-1:]])[0]
        judged = large.feed_all([[*text[-1:], *ahead]])[0]
        p = [how.probabilities(s, [*text, *ahead[:i]]) for i, s in enumerate(judged)]
        taken = _taken(ahead, p, q, rng)
        new = [*ahead[:taken], drawn(_rest(p, q, taken), rng)]
        text += new
        large.keep(0, len(text) - 1)
        yield from new


def _taken(
    ahead: Sequence[int], p: Sequence[Array], q: Sequence[Array], rng: np.random.Generator
) -> int:
    for i, token in enumerate(ahead):
        if rng.random() * q[i][token] >= p[i][token]:
            return i
    return len(ahead)


def _rest(p: Sequence[Array], q: Sequence[Array], taken: int) -> Array:
    """What the token after those that were taken is drawn by."""
    if taken == len(q):
        return p[taken]
    rest = np.maximum(p[taken] - q[taken], 0)
    return rest if rest.sum() > 0 else p[taken]
