# SPDX-License-Identifier: Apache-2.0
"""GPT-2."""

from __future__ import annotations

from typing import Any

from nnl.models.decoder import Decoder, decoder
from nnl.models.stack import Layer, Stack

__all__ = ["gpt2"]


def gpt2(
    tokens: Any,
    vocabulary: int = 50257,
    width: int = 768,
    layers: int = 12,
    heads: int = 12,
    longest: int = 1024,
    dropout: float = 0.1,
    test: bool = False,
) -> Any:
    """GPT-2; the defaults are the small one. Medium, large and XL have (width, layers, heads) of
    (1024, 24, 16), (1280, 36, 20) and (1600, 48, 25).

    Args:
        tokens: (B, T), integers in [0, vocabulary).
        width, layers, heads: Sizes of the network; heads divides width.
        longest: Number of positions that have an embedding.
        dropout: Probability of 0 after every layer and for the attention's weights.
        test: Without dropout.
    Returns:
        Scores of the token that follows each position, (B, T, vocabulary). Their weights are the
        token embedding.
    Raises:
        ValueError: tokens has another rank or is too long, or heads does not divide width.
    Source: Radford et al., Language Models are Unsupervised Multitask Learners, 2019.
    Example:
        >>> tokens = nn.Variable((2, 5))
        >>> with nn.parameter_scope("gpt2"):
        ...     models.gpt2(tokens, vocabulary=50, width=16, layers=1, heads=2).shape
        (2, 5, 50)
    """
    part = Stack(
        width,
        heads,
        4 * width,
        (Layer(),) * layers,
        activation="gelu_tanh",
        joined=True,
        causal=True,
        dropout=0.0 if test else dropout,
    )
    return decoder(tokens, Decoder(vocabulary, longest, part, learned=True, tied=True))
