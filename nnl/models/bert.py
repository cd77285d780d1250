# SPDX-License-Identifier: Apache-2.0
"""BERT."""

from __future__ import annotations

from typing import Any

from nnl import functions as F
from nnl import parametric_functions as PF
from nnl.models.transformer import (
    check_sequence,
    dropped,
    embedding,
    exact_gelu,
    feed_forward,
    linear,
    normalized,
    padding_mask,
    scores_by,
    self_attention,
)
from nnl.models.transformer import positions as position_numbers
from nnl.parametric_functions.initializer import ConstantInitializer

__all__ = ["bert", "bert_masked_language_model"]

EPS = 1e-12  # of the layer normalisations


def bert(
    tokens: Any,
    segments: Any = None,
    keep: Any = None,
    vocabulary: int = 30522,
    width: int = 768,
    layers: int = 12,
    heads: int = 12,
    longest: int = 512,
    dropout: float = 0.1,
    test: bool = False,
    intermediate_size: int | None = None,
) -> tuple[Any, Any]:
    """BERT; the defaults are BERT-base.

    Args:
        tokens: (B, T), integers in [0, vocabulary).
        segments: (B, T), 0 for tokens of the first sentence and 1 for those of the second; all 0
            if left out.
        keep: (B, T), 1 for tokens and 0 for padding; all 1 if left out.
        width, layers, heads: Sizes of the network; heads divides width.
        longest: Number of positions that have an embedding.
        dropout: Probability of 0 after every layer and for the attention's weights.
        test: Without dropout.
        intermediate_size: Width between the two affine layers of a block; left out 4 times width.
    Returns:
        The sequence (B, T, width), and a summary made from its first position, (B, width).
    Raises:
        ValueError: tokens has another rank or is too long, or heads does not divide width.
    Source: Devlin et al., arXiv:1810.04805.
    Example:
        >>> tokens = nn.Variable((2, 5))
        >>> with nn.parameter_scope("bert"):
        ...     y = models.bert(tokens, vocabulary=50, width=16, layers=1, heads=2)
        >>> [part.shape for part in y]
        [(2, 5, 16), (2, 16)]
    """
    p = 0.0 if test else dropout
    between = intermediate_size
    h = _sequence(
        "bert", tokens, segments, keep, vocabulary, width, layers, heads, longest, p, between
    )
    first = F.reshape(F.slice(h, (0, 0, 0), (h.shape[0], 1, width)), (h.shape[0], width))
    return h, F.tanh(PF.affine(first, width, name="summary"))


def bert_masked_language_model(
    tokens: Any,
    segments: Any = None,
    keep: Any = None,
    vocabulary: int = 30522,
    width: int = 768,
    layers: int = 12,
    heads: int = 12,
    longest: int = 512,
    dropout: float = 0.1,
    test: bool = False,
    intermediate_size: int | None = None,
) -> Any:
    """Scores of the token at every position: the task that BERT is trained with.

    The arguments and errors are those of `bert`.

    Returns:
        (B, T, vocabulary). Their weights are the token embedding.
    Example:
        >>> tokens = nn.Variable((2, 5))
        >>> with nn.parameter_scope("bert_masked_language_model"):
        ...     models.bert_masked_language_model(
        ...         tokens, vocabulary=50, width=16, layers=1, heads=2
        ...     ).shape
        (2, 5, 50)
    """
    name = "bert_masked_language_model"
    p = 0.0 if test else dropout
    between = intermediate_size
    h = _sequence(
        name, tokens, segments, keep, vocabulary, width, layers, heads, longest, p, between
    )
    h = normalized(exact_gelu(linear(h, width, "head")), EPS, "head")
    table = PF.get_parameter_or_create("tokens/embed/W", (vocabulary, width))
    bias = PF.get_parameter_or_create("head/b", (1, 1, vocabulary), ConstantInitializer(0))
    return scores_by(h, table) + bias


def _sequence(
    function: str,
    tokens: Any,
    segments: Any,
    keep: Any,
    vocabulary: int,
    width: int,
    layers: int,
    heads: int,
    longest: int,
    p: float,
    between: int | None,
) -> Any:
    """The embeddings and all layers: (B, T) to (B, T, width)."""
    check_sequence(function, tokens, longest, width, heads)
    if segments is None:
        segments = F.constant(0, tokens.shape)
    h = embedding(tokens, vocabulary, width, "tokens")
    h = h + embedding(position_numbers(tokens.shape[1]), longest, width, "positions")
    h = h + embedding(segments, 2, width, "segments")
    h = dropped(normalized(h, EPS, "embeddings"), p)
    mask = None if keep is None else padding_mask(keep)
    for i in range(1, layers + 1):
        y = dropped(self_attention(h, heads, mask, p, f"layer{i}/attention"), p)
        h = normalized(h + y, EPS, f"layer{i}/attention")
        y = dropped(feed_forward(h, exact_gelu, f"layer{i}", between), p)
        h = normalized(h + y, EPS, f"layer{i}/out")
    return h
