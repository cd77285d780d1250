# SPDX-License-Identifier: Apache-2.0
"""What BERT and GPT-2 are made of."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from nnl import functions as F
from nnl import parametric_functions as PF
from nnl.core.modes import recompute
from nnl.core.variable import Variable
from nnl.parametric_functions.initializer import NormalInitializer

HIDDEN = -1e9  # added to the score of a position that is not attended to
SIGMA = 0.02  # standard deviation of the first weights, BERT and GPT-2


def exact_gelu(x: Any) -> Any:
    r"""$x \Phi(x)$; `F.gelu` is the approximation by tanh.

    Backward computes what it needs of it again from x: reading that would take longer.
    """
    with recompute():
        twice = F.erf(x * sqrt(0.5)) + 1.0
    return x * twice * 0.5


def linear(x: Any, width: int, name: str) -> Any:
    """Affine over the last axis of x (B, T, n)."""
    return PF.affine(x, width, base_axis=2, w_init=NormalInitializer(SIGMA), name=name)


def normalized(x: Any, eps: float, name: str) -> Any:
    """Layer normalisation over the last axis of x (B, T, n)."""
    return PF.layer_normalization(x, batch_axis=(0, 1), eps=eps, name=name)


def dropped(x: Any, p: float) -> Any:
    """x with dropout, or x itself where p is 0."""
    return F.dropout(x, p) if p > 0 else x


def embedding(x: Any, rows: int, width: int, name: str) -> Any:
    """A row of a table of (rows, width) for each integer of x."""
    return PF.embed(x, rows, width, initializer=NormalInitializer(SIGMA), name=name)


def positions(length: int) -> Any:
    """0, 1, ..., length - 1 as (1, length)."""
    return Variable.from_numpy_array(np.arange(length)[None])


def causal_mask(length: int) -> Any:
    """(1, 1, length, length): 0 where the source is not after the target, else HIDDEN.

    Made by functions, not given as numbers, so that plans see what it is.
    """
    return F.trilu(F.constant(HIDDEN, (1, 1, length, length)), k=1)


def padding_mask(keep: Any) -> Any:
    """(B, T), 1 for tokens and 0 for padding, as (B, 1, 1, T): 0 and HIDDEN."""
    batch, length = keep.shape
    return F.reshape((1.0 - keep) * HIDDEN, (batch, 1, 1, length))


def self_attention(x: Any, heads: int, mask: Any, p: float, name: str) -> Any:
    r"""Attention of a sequence to itself, with the projections before and after it.

    Args:
        x: (B, T, n).
        heads: Number of heads; divides n.
        mask: Added to the scores (B, heads, T, T); may have axes of size 1. None adds nothing.
        p: Probability of 0 for the weights.
    Returns:
        (B, T, n).
    Source: Vaswani et al., Attention Is All You Need, arXiv:1706.03762, section 3.2.
    """
    batch, length, width = x.shape
    h = linear(x, 3 * width, f"{name}/qkv")
    h = F.reshape(h, (batch, length, 3, heads, width // heads))
    q, k, v = F.split(F.transpose(h, (2, 0, 3, 1, 4)), axis=0)  # each (B, heads, T, n / heads)
    scores = F.batch_matmul(q, k, transpose_b=True) * (width // heads) ** -0.5
    if mask is not None:
        scores = scores + mask
    weights = dropped(F.softmax(scores, axis=3), p)
    y = F.transpose(F.batch_matmul(weights, v), (0, 2, 1, 3))
    return linear(F.reshape(y, (batch, length, width)), width, f"{name}/out")


def feed_forward(x: Any, activation: Any, name: str, between: int | None = None) -> Any:
    """Two affine layers; `between` them four times as wide if nothing is said."""
    width = x.shape[2]
    inner = linear(x, 4 * width if between is None else between, f"{name}/up")
    return linear(activation(inner), width, f"{name}/down")


def scores_by(x: Any, table: Any) -> Any:
    """Products with the rows of an embedding: (B, T, n) and (V, n) to (B, T, V)."""
    batch, length, width = x.shape
    x = F.reshape(x, (1, batch * length, width))
    y = F.batch_matmul(x, F.reshape(table, (1, *table.shape)), transpose_b=True)
    return F.reshape(y, (batch, length, table.shape[0]))


def check_sequence(function: str, tokens: Any, longest: int, width: int, heads: int) -> None:
    """Raise ValueError unless tokens and sizes fit."""
    if len(tokens.shape) != 2 or tokens.shape[1] > longest:
        raise ValueError(
            f"{function}: tokens has the shape {tokens.shape}, wanted (B, T) with T at most "
            f"{longest}"
        )
    if width % heads:
        raise ValueError(f"{function}: width {width} is not a multiple of heads {heads}")
