# SPDX-License-Identifier: Apache-2.0
"""Language models of LSTM or GRU layers."""

from __future__ import annotations

from typing import Any

from nnl import functions as F
from nnl import parametric_functions as PF

__all__ = ["recurrent_language_model"]


def recurrent_language_model(
    tokens: Any,
    vocabulary: int,
    cell: str = "lstm",
    width: int = 256,
    layers: int = 1,
    dropout: float = 0.0,
    test: bool = False,
) -> Any:
    """Scores of the next token at every position. The state starts at zero.

    Args:
        tokens: (T, B), integers in [0, vocabulary): T steps of B sequences.
        vocabulary: Number of different tokens.
        cell: "lstm" or "gru".
        width: Of the embedding and of the states.
        layers: Number of recurrent layers.
        dropout: Probability of 0 between the layers and around them.
        test: Without dropout.
    Returns:
        (T, B, vocabulary).
    Raises:
        ValueError: There is no such cell.
    Source: Zaremba, Sutskever and Vinyals, arXiv:1409.2329.
    Example:
        >>> tokens = nn.Variable((2, 5))
        >>> with nn.parameter_scope("recurrent_language_model"):
        ...     models.recurrent_language_model(tokens, vocabulary=50, width=16).shape
        (2, 5, 50)
    """
    if cell not in ("lstm", "gru"):
        raise ValueError(f"recurrent_language_model: cell is {cell!r}, wanted 'lstm' or 'gru'")
    p = 0.0 if test else dropout
    x = _dropped(PF.embed(tokens, vocabulary, width, name="embedding"), p)
    start = F.constant(0.0, (layers, 1, tokens.shape[1], width))
    if cell == "lstm":
        h, _, _ = PF.lstm(
            x, start, start, num_layers=layers, dropout=p, training=not test, name="layers"
        )
    else:
        h, _ = PF.gru(x, start, num_layers=layers, dropout=p, training=not test, name="layers")
    return PF.affine(_dropped(h, p), vocabulary, base_axis=2, name="classifier")


def _dropped(x: Any, p: float) -> Any:
    return F.dropout(x, p) if p > 0 else x
