# SPDX-License-Identifier: Apache-2.0
"""Layers whose parameters are called as PyTorch's modules call them, so that files of it fit."""

from __future__ import annotations

from math import log, sqrt
from typing import Any

import numpy as np

from nnl import functions as F
from nnl.core.graph.variable import Variable
from nnl.core.parameters.parameter import parameter_scope
from nnl.models.adapters import parameter
from nnl.models.stack import as_layer
from nnl.parametric_functions.initializer import ConstantInitializer, UniformInitializer

ZERO, ONE = ConstantInitializer(0), ConstantInitializer(1)


def _even(fan_in: int) -> Any:
    limit = 1 / sqrt(fan_in)
    return UniformInitializer((-limit, limit))


@as_layer
def convolution(
    x: Any,
    channels: int,
    kernel: int,
    name: str,
    stride: int = 1,
    pad: int | None = None,
    bias: bool = True,
    init: Any = None,
    apply: Any = None,
) -> Any:
    """A convolution of (B, C, H, W); pad None keeps the size at stride 1.

    Args:
        init: Of the weights; None is PyTorch's.
        apply: Changes the weights before their use, as PF.spectral_norm does.
    """
    first = _even(x.shape[1] * kernel**2)
    w = parameter("weight", (channels, x.shape[1], kernel, kernel), init or first)
    b = parameter("bias", (channels,), first if init is None else ZERO) if bias else None
    pad = kernel // 2 if pad is None else pad
    w = w if apply is None else apply(w)
    return F.convolution(x, w, b, pad=(pad, pad), stride=(stride, stride))


@as_layer
def deconvolution(
    x: Any,
    channels: int,
    kernel: int,
    name: str,
    stride: int = 2,
    pad: int = 1,
    bias: bool = True,
    init: Any = None,
    output_padding: int = 0,
) -> Any:
    """A transposed convolution of (B, C, H, W)."""
    first = _even(channels * kernel**2)
    w = parameter("weight", (x.shape[1], channels, kernel, kernel), init or first)
    b = parameter("bias", (channels,), first if init is None else ZERO) if bias else None
    more = (output_padding, output_padding)
    return F.deconvolution(x, w, b, pad=(pad, pad), stride=(stride, stride), output_padding=more)


@as_layer
def linear(x: Any, width: int, name: str, bias: bool = True, init: Any = None) -> Any:
    """$x W^T + b$ over the last axis."""
    n = x.shape[-1]
    first = _even(n)
    w = parameter("weight", (width, n), init or first)
    y = F.batch_matmul(F.reshape(x, (x.size // n, n)), w, transpose_b=True)
    if bias:
        b = parameter("bias", (width,), first if init is None else ZERO)
        y = y + F.reshape(b, (1, width))
    return F.reshape(y, (*x.shape[:-1], width))


@as_layer
def embedding(x: Any, rows: int, width: int, name: str, init: Any = None) -> Any:
    """Rows of a table: (B,) integers -> (B, width)."""
    return F.embed(x, parameter("weight", (rows, width), init or UniformInitializer((-0.1, 0.1))))


@as_layer
def group_norm(x: Any, groups: int, name: str, eps: float = 1e-5) -> Any:
    """Group normalisation of (B, C, H, W) with scale and shift."""
    shape = (1, x.shape[1], *(1 for _ in x.shape[2:]))
    gamma, beta = (
        F.reshape(parameter(n, x.shape[1:2], i), shape)
        for n, i in (("weight", ONE), ("bias", ZERO))
    )
    return F.group_normalization(x, beta, gamma, groups, eps=eps)


@as_layer
def layer_norm(x: Any, name: str, eps: float = 1e-5) -> Any:
    """Normalisation over the last axis with scale and shift."""
    shape = (*(1 for _ in x.shape[1:]), x.shape[-1])
    gamma, beta = (
        F.reshape(parameter(n, x.shape[-1:], i), shape)
        for n, i in (("weight", ONE), ("bias", ZERO))
    )
    return F.layer_normalization(x, beta, gamma, batch_axis=range(x.ndim - 1), eps=eps)


def attention(
    x: Any,
    heads: int,
    name: str,
    context: Any = None,
    bias: bool = True,
    names: tuple[str, str, str, str] = ("to_q", "to_k", "to_v", "to_out/0"),
) -> Any:
    """Attention of x (B, T, D) to itself, or to context (B, S, E); D is shared by the heads."""
    b, t, width = x.shape
    other = x if context is None else context

    def apart(of: Any, part: str) -> Any:
        h = F.reshape(linear(of, width, part, bias), (b, of.shape[1], heads, width // heads))
        return F.transpose(h, (0, 2, 1, 3))

    with parameter_scope(name):
        q, k, v = apart(x, names[0]), apart(other, names[1]), apart(other, names[2])
        y = F.transpose(attended(q, k, v), (0, 2, 1, 3))
        return linear(F.reshape(y, (b, t, width)), width, names[3])


def attended(q: Any, k: Any, v: Any) -> Any:
    """Attention of (B, H, T, D) in functions that .nnp files have; plans make one step of them."""
    scores = F.batch_matmul(q, k, transpose_b=True) * (1 / sqrt(q.shape[-1]))
    return F.batch_matmul(F.softmax(scores, axis=3), v)


def sinusoids(t: Any, width: int, cosine_first: bool = True, shift: float = 0.0) -> Any:
    r"""Times as vectors: sines and cosines of $t\,10000^{-i / (d/2 - s)}$, (B,) -> (B, width)."""
    half = width // 2
    rates = np.exp(-log(10000) * np.arange(half) / (half - shift)).astype(np.float32)
    angles = F.reshape(t, (t.shape[0], 1)) * Variable.from_numpy_array(rates[None])
    parts = (F.cos(angles), F.sin(angles)) if cosine_first else (F.sin(angles), F.cos(angles))
    return F.concatenate(*parts, axis=1)


def silu(x: Any) -> Any:
    """$x \\sigma(x)$."""
    return F.swish(x)


def doubled(x: Any) -> Any:
    """(B, C, H, W) -> (B, C, 2 H, 2 W), each pixel four times."""
    return F.unpooling(x, (2, 2))
