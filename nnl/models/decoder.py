# SPDX-License-Identifier: Apache-2.0
"""One network for language models that write: GPT-2, Llama, Mistral, Qwen, Gemma, Phi, OLMo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnl import functions as F
from nnl.core.graph.variable import Variable
from nnl.models.stack import (
    Cache,
    Stack,
    Where,
    dropped,
    embedding,
    last_rows,
    linear,
    losses,
    norm,
    stack,
)

__all__ = ["Decoder", "decoder"]


@dataclass(frozen=True)
class Decoder:
    """Sizes and kinds of a `decoder`.

    Attributes:
        vocabulary: Number of tokens.
        longest: Number of positions.
        stack: The layers.
        learned: Whether positions have an embedding.
        tied: Whether the scores' weights are the embedding of the tokens.
        factor: Of the embedding.
        cap: Soft cap of the scores; 0 for none.
        divisor: Of the scores.
    Example:
        >>> layers = models.Stack(16, 2, 32, (models.Layer(),), norm="rms", causal=True)
        >>> models.Decoder(50, 12, layers, tied=True).stack.head_width
        8
    """

    vocabulary: int
    longest: int
    stack: Stack
    learned: bool = False
    tied: bool = False
    factor: float = 1.0
    cap: float = 0.0
    divisor: float = 1.0


def decoder(
    tokens: Any,
    config: Decoder,
    caches: Sequence[Cache] | None = None,
    before: Any = None,
    counts: Any = None,
    slots: Any = None,
    last: bool = False,
    crossed: Sequence[Cache] = (),
    positions: Any = None,
    labels: Any = None,
) -> Any:
    """Scores of the token that follows each position, or what they cost.

    Args:
        tokens: (B, T), integers in [0, vocabulary).
        caches: Keys and values of each layer, to which those of the tokens are added.
        before: (B,), integers: how many tokens of each text are in the caches.
        counts: (B,), integers: how many of the T are new ones, the others fill up; all if left out.
        slots: (B,), different integers: which text of the caches each one is; in order if left out.
        last: Only the last new token of each text gets scores.
        crossed: Of each layer that attends to another sequence: its keys and values of that.
        positions: (B, T), integers: where each token stands in its text, where several follow each
            other in a row. A 0 begins a text, which sees only itself.
        labels: (B, T), integers: the token that follows each position, or -100 where that does not
            count. Cross entropies come back then; the scores are never held whole.
    Returns:
        (B, T, vocabulary), or (B, vocabulary) with `last`; with labels (B, T), 0 where they are
        -100.
    Raises:
        ValueError: tokens has another rank, or more positions than there are, or positions or
            labels are given with caches.
    Source: Radford et al., Language Models are Unsupervised Multitask Learners, 2019; Touvron et
        al., Llama, arXiv:2302.13971.
    Example:
        >>> layers = models.Stack(16, 2, 32, (models.Layer(),) * 2, causal=True)
        >>> config = models.Decoder(50, 12, layers, learned=True, tied=True)
        >>> with nn.parameter_scope("decoder"):
        ...     models.decoder(nn.Variable((2, 5)), config).shape
        (2, 5, 50)
    """
    c, layers = config, config.stack
    if tokens.ndim != 2 or tokens.shape[1] > c.longest:
        raise ValueError(
            f"decoder: tokens has the shape {tokens.shape}, wanted (B, T) with T at most "
            f"{c.longest}"
        )
    batch, length = tokens.shape
    for name, given in (("positions", positions), ("labels", labels)):
        if given is not None and (given.shape != tokens.shape or caches is not None or last):
            raise ValueError(
                f"decoder: {name} has the shape {given.shape}, wanted that of tokens, "
                f"{tokens.shape}, without caches and last"
            )
    segments = None
    if positions is not None:
        segments = F.cumsum(F.equal_scalar(positions, 0), axis=1)
    else:
        positions = Variable.from_numpy_array(np.arange(length))
    if caches is not None:
        positions = F.reshape(before, (batch, 1)) + F.reshape(positions, (1, length))
    h = embedding(tokens, c.vocabulary, layers.width, "tokens")
    if c.factor != 1:
        h = h * c.factor
    if c.learned:  # of what fills up, a position may be behind the last
        rows = F.minimum_scalar(positions, c.longest - 1) if caches is not None else positions
        p = embedding(rows, c.longest, layers.width, "positions")
        h = h + F.reshape(p, (-1, length, layers.width))
    full = length if caches is None else caches[0].keys.shape[2]
    at = Where(
        positions, caches, before, counts, slots, segments=segments, length=full, crossed=crossed
    )
    h = norm(stack(dropped(h, layers.dropout), layers, at), layers, "out")
    h = last_rows(h, counts) if last else h
    head = "tokens" if c.tied else "head"
    if labels is not None:
        h = h if c.divisor == 1 else h * (1 / c.divisor)
        return losses(h, c.vocabulary, labels, c.cap, head)
    y = linear(h, c.vocabulary, head, False)
    if c.divisor != 1:
        y = y * (1 / c.divisor)
    if c.cap:
        y = F.tanh(y * (1 / c.cap)) * c.cap
    return F.reshape(y, (batch, c.vocabulary)) if last else y
