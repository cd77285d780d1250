# SPDX-License-Identifier: Apache-2.0
"""BERT."""

from __future__ import annotations

from typing import Any

from nnl.models.encoder import Encoder, encoder, summary
from nnl.models.stack import Layer, Stack

__all__ = ["bert", "bert_masked_language_model"]


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
    p, between = 0.0 if test else dropout, intermediate_size
    c = _sizes(vocabulary, width, layers, heads, longest, p, between, "summary")
    h = encoder(tokens, c, segments, keep)
    return h, summary(h, c)


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
    p, between = 0.0 if test else dropout, intermediate_size
    c = _sizes(vocabulary, width, layers, heads, longest, p, between, "masked")
    return encoder(tokens, c, segments, keep, "masked")


def _sizes(
    vocabulary: int, width: int, layers: int, heads: int, longest: int, dropout: float,
    between: int | None, head: str,
) -> Encoder:  # fmt: skip
    part = Stack(
        width,
        heads,
        4 * width if between is None else between,
        (Layer(),) * layers,
        eps=1e-12,
        order="after",
        joined=True,
        dropout=dropout,
    )
    return Encoder(vocabulary, longest, part, heads=(head,))
