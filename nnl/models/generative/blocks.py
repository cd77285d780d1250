# SPDX-License-Identifier: Apache-2.0
"""What U-Nets and autoencoders of diffusion models share: residual blocks, attention, sizes."""

from __future__ import annotations

from typing import Any

from nnl import functions as F
from nnl.core.parameters.parameter import parameter_scope
from nnl.models.generative.layers import (
    attention,
    convolution,
    doubled,
    group_norm,
    linear,
    silu,
)
from nnl.models.stack import as_layer, dropped


@as_layer
def residual(
    x: Any, channels: int, name: str, groups: int, eps: float, time: Any = None, dropout: float = 0
) -> Any:
    """Two convolutions beside a shortcut; a vector of the time is added between them."""
    h = convolution(silu(group_norm(x, groups, "norm1", eps)), channels, 3, "conv1")
    if time is not None:
        shift = linear(silu(time), channels, "time_emb_proj")
        h = h + F.reshape(shift, (*shift.shape, 1, 1))
    h = dropped(silu(group_norm(h, groups, "norm2", eps)), dropout)
    h = convolution(h, channels, 3, "conv2")
    if x.shape[1] != channels:
        x = convolution(x, channels, 1, "conv_shortcut")
    return x + h


def self_attention(x: Any, heads: int, name: str, groups: int, eps: float) -> Any:
    """Attention between all places of (B, C, H, W), beside a shortcut."""
    with parameter_scope(name):
        rows = as_rows(group_norm(x, groups, "group_norm", eps))
    return x + as_map(attention(rows, heads, name), x.shape)


@as_layer
def downsampled(x: Any, name: str, asymmetric: bool = False) -> Any:
    """A convolution of stride 2; asymmetric: padded below and at the right alone."""
    if asymmetric:
        x = F.pad(x, (0, 0, 0, 0, 0, 1, 0, 1))
    return convolution(x, x.shape[1], 3, "conv", stride=2, pad=0 if asymmetric else 1)


@as_layer
def upsampled(x: Any, name: str) -> Any:
    """Twice the size, and a convolution."""
    return convolution(doubled(x), x.shape[1], 3, "conv")


def as_rows(x: Any) -> Any:
    """(B, C, H, W) -> (B, H W, C)."""
    b, c, h, w = x.shape
    return F.transpose(F.reshape(x, (b, c, h * w)), (0, 2, 1))


def as_map(x: Any, shape: tuple[int, ...]) -> Any:
    """(B, H W, C) -> (B, C, H, W)."""
    return F.reshape(F.transpose(x, (0, 2, 1)), (shape[0], x.shape[2], *shape[2:]))
