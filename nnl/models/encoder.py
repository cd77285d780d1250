# SPDX-License-Identifier: Apache-2.0
"""One network for models that read text as a whole: BERT, RoBERTa, DistilBERT, MiniLM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nnl import functions as F
from nnl.core.graph.variable import Variable
from nnl.models.adapters import parameter
from nnl.models.stack import (
    ACTIVATIONS,
    Stack,
    Where,
    dropped,
    embedding,
    linear,
    norm,
    padding_mask,
    scores_by,
    stack,
    table,
)
from nnl.parametric_functions.initializer import ConstantInitializer

__all__ = ["Encoder", "encoder", "sentence_vectors"]

POOLINGS = ("mean", "first", "max")


@dataclass(frozen=True)
class Encoder:
    """Sizes and kinds of an `encoder`.

    Attributes:
        vocabulary, longest: Numbers of tokens and of rows for positions.
        segments: Rows for kinds of text; 0 for none.
        padding: Number of a token whose position is not counted, as in RoBERTa: the first position
            has the row after it then; None for 0, 1, 2, ...
        heads: What there is besides the sequence, of "summary", "masked" and "classes".
        bend: What is between the first position and the classes: "summary" (BERT's), or an
            activation after a product of their own.
        classes: Their number.
    Example:
        >>> layers = models.Stack(16, 2, 32, (models.Layer(),) * 2, order="after")
        >>> models.Encoder(50, 12, layers).heads
        ('summary',)
    """

    vocabulary: int
    longest: int
    stack: Stack
    segments: int = 2
    padding: int | None = None
    heads: tuple[str, ...] = ("summary",)
    bend: str = "summary"
    classes: int = 2


def encoder(
    tokens: Any, config: Encoder, segments: Any = None, keep: Any = None, head: str = ""
) -> Any:
    """A sequence that says what each token is in its text, or what a head makes of it.

    Args:
        tokens: (B, T), integers in [0, vocabulary).
        segments: (B, T), kinds of text; 0 if left out.
        keep: (B, T), 1 for tokens and 0 for padding; all 1 if left out.
        head: "" for the sequence, (B, T, width); "summary": of the first position, (B, width);
            "masked": scores of the token at each position, (B, T, vocabulary); "classes": scores of
            the text, (B, classes).
    Raises:
        ValueError: tokens has another rank or more positions than there are, or there is no such
            head.
    Source: Devlin et al., BERT, arXiv:1810.04805; Liu et al., RoBERTa, arXiv:1907.11692.
    Example:
        >>> layers = models.Stack(16, 2, 32, (models.Layer(),) * 2, order="after")
        >>> with nn.parameter_scope("encoder"):
        ...     y = models.encoder(nn.Variable((2, 5)), models.Encoder(50, 12, layers))
        >>> y.shape
        (2, 5, 16)
    """
    c, layers = config, config.stack
    first = 0 if c.padding is None else c.padding + 1
    if tokens.ndim != 2 or tokens.shape[1] > c.longest - first:
        raise ValueError(
            f"encoder: tokens has the shape {tokens.shape}, wanted (B, T) with T at most "
            f"{c.longest - first}"
        )
    if head and head not in c.heads:
        raise ValueError(
            f"encoder: head is {head!r}, this network has {', '.join(c.heads) or 'none'}"
        )
    if c.padding is None:
        positions = Variable.from_numpy_array(np.arange(tokens.shape[1])[None])
    else:
        counts = F.not_equal_scalar(tokens, c.padding)
        positions = F.cumsum(counts, axis=1) * counts + c.padding
    h = embedding(tokens, c.vocabulary, layers.width, "tokens")
    h = h + embedding(positions, c.longest, layers.width, "positions")
    if c.segments:
        kinds = F.constant(0, tokens.shape) if segments is None else segments
        h = h + embedding(kinds, c.segments, layers.width, "segments")
    h = dropped(norm(h, layers, "embeddings"), layers.dropout)
    h = stack(h, layers, Where(mask=None if keep is None else padding_mask(keep)))
    return _HEADS[head](h, c)


def _first(h: Any) -> Any:
    return F.reshape(F.slice(h, (0, 0, 0), (h.shape[0], 1, h.shape[2])), (h.shape[0], h.shape[2]))


def summary(h: Any, c: Encoder) -> Any:
    """What the first position becomes: (B, width)."""
    return F.tanh(linear(_first(h), c.stack.width, "summary"))


def _masked(h: Any, c: Encoder) -> Any:
    bend = ACTIVATIONS[c.stack.activation]
    h = norm(bend(linear(h, c.stack.width, "masked/dense")), c.stack, "masked/norm")
    rows = table(c.vocabulary, c.stack.width, "tokens")
    bias = parameter("masked/b", (c.vocabulary,), ConstantInitializer(0))
    return scores_by(h, rows) + F.reshape(bias, (1, 1, c.vocabulary))


def _classes(h: Any, c: Encoder) -> Any:
    if c.bend == "summary":
        y = summary(h, c)
    else:
        y = ACTIVATIONS[c.bend](linear(_first(h), c.stack.width, "classes/dense"))
    return linear(dropped(y, c.stack.dropout), c.classes, "classes")


_HEADS = {"": lambda h, c: h, "summary": summary, "masked": _masked, "classes": _classes}


def sentence_vectors(h: Any, keep: Any, pooling: str = "mean", normalized: bool = True) -> Any:
    """One vector for each text, from the sequence of an `encoder`.

    Args:
        h: (B, T, width).
        keep: (B, T), 1 for tokens and 0 for padding.
        pooling: "mean" or "max" of the tokens, or the "first" one.
        normalized: Divide by the length of the vector.
    Returns:
        (B, width).
    Raises:
        ValueError: pooling is none of these.
    Source: Reimers and Gurevych, Sentence-BERT, arXiv:1908.10084.
    Example:
        >>> h, keep = array([[[1, 0], [3, 4], [9, 9]]]), array([[1, 1, 0]])
        >>> y = models.sentence_vectors(h, keep, normalized=False)
        >>> y.forward()
        >>> y.d
        array([[2., 2.]], dtype=float32)
    """
    if pooling not in POOLINGS:
        raise ValueError(
            f"sentence_vectors: pooling is {pooling!r}, wanted one of {', '.join(POOLINGS)}"
        )
    weight = F.reshape(keep, (*keep.shape, 1))
    if pooling == "mean":
        y = F.sum(h * weight, axis=1) / F.maximum_scalar(F.sum(weight, axis=1), 1e-9)
    elif pooling == "max":
        y = F.max(h + (weight - 1.0) * 1e9, axis=1)
    else:
        y = _first(h)
    return F.norm_normalization(y, p=2, axes=1, eps=1e-12) if normalized else y
