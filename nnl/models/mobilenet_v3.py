# SPDX-License-Identifier: Apache-2.0
"""MobileNetV3."""

from __future__ import annotations

from typing import Any

from nnl import functions as F
from nnl import parametric_functions as PF
from nnl.models.convolution import (
    conv_bn,
    divisible,
    hard_sigmoid,
    hard_swish,
    pooled,
    squeeze_excite,
)

__all__ = ["mobilenet_v3"]

# kernel, channels within, channels out, squeeze-and-excitation, hard swish (else ReLU), stride
LARGE = (
    (3, 16, 16, False, False, 1),
    (3, 64, 24, False, False, 2),
    (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2),
    (5, 120, 40, True, False, 1),
    (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2),
    (3, 200, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 480, 112, True, True, 1),
    (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2),
    (5, 960, 160, True, True, 1),
    (5, 960, 160, True, True, 1),
)
SMALL = (
    (3, 16, 16, True, False, 2),
    (3, 72, 24, False, False, 2),
    (3, 88, 24, False, False, 1),
    (5, 96, 40, True, True, 2),
    (5, 240, 40, True, True, 1),
    (5, 240, 40, True, True, 1),
    (5, 120, 48, True, True, 1),
    (5, 144, 48, True, True, 1),
    (5, 288, 96, True, True, 2),
    (5, 576, 96, True, True, 1),
    (5, 576, 96, True, True, 1),
)
SIZES = {"large": (LARGE, 1280), "small": (SMALL, 1024)}  # and the width before the scores
NORM = {"decay": 0.99, "eps": 1e-3}  # of every batch normalisation


def mobilenet_v3(
    x: Any,
    size: str = "large",
    num_classes: int = 1000,
    test: bool = False,
    dropout: float = 0.2,
) -> Any:
    """MobileNetV3.

    Args:
        x: (B, 3, H, W).
        size: "large" or "small".
        num_classes: Number of scores.
        test: Normalise with the running statistics, without dropout.
        dropout: Probability of 0 before the last layer.
    Returns:
        Scores, (B, num_classes).
    Raises:
        ValueError: There is no such size.
    Source: Howard et al., Searching for MobileNetV3, arXiv:1905.02244, tables 1 and 2.
    Example:
        >>> x = nn.Variable((1, 3, 64, 64))
        >>> with nn.parameter_scope("mobilenet_v3"):
        ...     models.mobilenet_v3(x, "small", num_classes=10).shape
        (1, 10)
    """
    if size not in SIZES:
        raise ValueError(f"mobilenet_v3: size is {size!r}, wanted one of {sorted(SIZES)}")
    blocks, width = SIZES[size]
    h = conv_bn(x, 16, 3, "stem", test, stride=2, activation=hard_swish, **NORM)
    for i, block in enumerate(blocks, 1):
        h = _inverted_residual(h, *block, name=f"block{i}", test=test)
    h = conv_bn(h, 6 * h.shape[1], 1, "last", test, activation=hard_swish, **NORM)
    h = hard_swish(PF.affine(pooled(h), width, name="affine"))
    if dropout > 0 and not test:
        h = F.dropout(h, dropout)
    return PF.affine(h, num_classes, name="classifier")


def _inverted_residual(
    x: Any,
    kernel: int,
    inner: int,
    outer: int,
    excite: bool,
    swish: bool,
    stride: int,
    name: str,
    test: bool,
) -> Any:
    """Expand, convolve every channel by itself, weigh the channels, project; add x if it fits."""
    act = hard_swish if swish else F.relu
    h = x
    if inner != x.shape[1]:
        h = conv_bn(h, inner, 1, f"{name}/expand", test, activation=act, **NORM)
    h = conv_bn(h, inner, kernel, f"{name}/depthwise", test, stride, inner, act, **NORM)
    if excite:
        h = squeeze_excite(h, divisible(inner / 4), f"{name}/se", F.relu, hard_sigmoid)
    h = conv_bn(h, outer, 1, f"{name}/project", test, activation=None, **NORM)
    return h + x if stride == 1 and outer == x.shape[1] else h
