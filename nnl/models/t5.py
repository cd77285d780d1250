# SPDX-License-Identifier: Apache-2.0
"""T5: a text that is read as a whole, and one that is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np

from nnl import functions as F
from nnl.core.graph.variable import Variable
from nnl.core.parameters.parameter import parameter_scope
from nnl.models.stack import (
    Cache,
    Stack,
    Where,
    crossed,
    dropped,
    embedding,
    last_rows,
    linear,
    norm,
    padding_mask,
    stack,
)

__all__ = ["T5", "t5"]


@dataclass(frozen=True)
class T5:
    """Sizes and kinds of a `t5`.

    Attributes:
        vocabulary: Number of tokens.
        reader, writer: Layers of the two parts.
        buckets, farthest: Of distances, which have a weight for each head; all from `farthest` on
            have one.
        tied: Whether the scores' weights are the embedding of the tokens.
        scaled: Whether the scores are divided by the root of the width.
        longest: The most that is written.
    Example:
        >>> part = models.Stack(16, 2, 32, (models.Layer(),), norm="rms", bias=(), scale=1.0)
        >>> models.T5(50, part, part).buckets
        32
    """

    vocabulary: int
    reader: Stack
    writer: Stack
    buckets: int = 32
    farthest: int = 128
    tied: bool = True
    scaled: bool = True
    longest: int = 512

    @property
    def stack(self) -> Stack:
        """The layers that write."""
        return self.writer


def t5(source: Any, tokens: Any, config: T5, keep: Any = None) -> Any:
    """Scores of the token that follows each position of an answer.

    Args:
        source: (B, S), integers in [0, vocabulary).
        tokens: (B, T), the answer, which begins with a token that says so.
        keep: (B, S), 1 for tokens of the source and 0 for padding; all 1 if left out.
    Returns:
        (B, T, vocabulary).
    Source: Raffel et al., arXiv:1910.10683.
    Example:
        >>> from dataclasses import replace
        >>> source, answer = nn.Variable((2, 7)), nn.Variable((2, 5))
        >>> part = models.Stack(16, 2, 32, (models.Layer(),), norm="rms", bias=(), scale=1.0)
        >>> writer = replace(part, causal=True, cross=True)
        >>> with nn.parameter_scope("t5"):
        ...     y = models.t5(source, answer, models.T5(50, part, writer))
        >>> y.shape
        (2, 5, 50)
    """
    return written(tokens, config, read(source, config, keep), keep)


def read(source: Any, c: T5, keep: Any = None) -> list[Cache]:
    """What the writing part attends to: keys and values of each of its layers."""
    h = dropped(embedding(source, c.vocabulary, c.reader.width, "tokens"), c.reader.dropout)
    length = source.shape[1]
    away = np.arange(length) - np.arange(length)[:, None]
    with parameter_scope("reader"):
        weights = _weights(Variable.from_numpy_array(bucket(away, c, True)), c, c.reader)
        mask = F.transpose(F.reshape(weights, (1, *weights.shape)), (0, 3, 1, 2))
        mask = mask if keep is None else mask + padding_mask(keep)
        h = norm(stack(h, c.reader, Where(mask=mask)), c.reader, "out")
    with parameter_scope("writer"):
        return crossed(h, c.writer)


def written(
    tokens: Any,
    c: T5,
    crossed: Sequence[Cache],
    keep: Any = None,
    caches: Sequence[Cache] | None = None,
    before: Any = None,
    counts: Any = None,
    slots: Any = None,
    last: bool = False,
) -> Any:
    """Scores of the token that follows each position, or the last; see `decoder`."""
    h = dropped(embedding(tokens, c.vocabulary, c.writer.width, "tokens"), c.writer.dropout)
    length = tokens.shape[1]
    with parameter_scope("writer"):
        if caches is None:
            away = np.arange(length) - np.arange(length)[:, None]
            weights = _weights(Variable.from_numpy_array(bucket(away, c, False)), c, c.writer)
            mask = F.transpose(F.reshape(weights, (1, *weights.shape)), (0, 3, 1, 2))
        else:
            capacity = caches[0].keys.shape[2]
            near = bucket(-np.arange(capacity), c, False)  # of each distance back
            weights = _weights(Variable.from_numpy_array(near), c, c.writer)
            away = Variable.from_numpy_array(np.arange(length)[:, None] - np.arange(capacity))
            away = F.reshape(before, (-1, 1, 1)) + F.reshape(away, (1, *away.shape))
            away = F.minimum_scalar(F.maximum_scalar(away, 0), capacity - 1)
            mask = F.transpose(F.embed(away, weights), (0, 3, 1, 2))
        hidden = None if keep is None else padding_mask(keep)
        at = Where(
            caches=caches, before=before, counts=counts, slots=slots, mask=mask,
            crossed=crossed, crossed_mask=hidden,
        )  # fmt: skip
        h = norm(stack(h, c.writer, at), c.writer, "out")
    h = last_rows(h, counts) if last else h
    if c.scaled:
        h = h * c.writer.width**-0.5
    y = linear(h, c.vocabulary, "tokens" if c.tied else "head", bias=False)
    return F.reshape(y, (y.shape[0], c.vocabulary)) if last else y


def _weights(buckets: Any, c: T5, part: Stack) -> Any:
    return embedding(buckets, c.buckets, part.heads, "distances")


def bucket(away: Any, c: T5, both: bool) -> Any:
    """Which weight keys have that are so far after a query; those before it are negative.

    Args:
        both: Whether keys after the query have weights of their own.
    """
    away = np.asarray(away)
    count = c.buckets // 2 if both else c.buckets
    first = np.where(away > 0, count, 0) if both else 0
    n = np.abs(away) if both else np.maximum(-away, 0)
    exact = count // 2
    with np.errstate(divide="ignore"):  # float32, in which models were trained
        far = np.log(n.astype(np.float32) / np.float32(exact)) / np.float32(log(c.farthest / exact))
    far = exact + np.where(n < exact, 0, far * np.float32(count - exact)).astype(np.int64)
    return first + np.where(n < exact, n, np.minimum(far, count - 1))
