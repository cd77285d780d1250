# SPDX-License-Identifier: Apache-2.0
"""EfficientNet-B0 to B7."""

from __future__ import annotations

import math
from typing import Any

from nnl import functions as F
from nnl import parametric_functions as PF
from nnl.models.convolution import conv_bn, divisible, pooled, squeeze_excite

__all__ = ["efficientnet"]

# expansion, kernel, stride, channels out, blocks: the seven stages of B0
STAGES = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)
# factor of the channels, factor of the blocks, dropout: B0 to B7
SCALES = (
    (1.0, 1.0, 0.2),
    (1.0, 1.1, 0.2),
    (1.1, 1.2, 0.3),
    (1.2, 1.4, 0.3),
    (1.4, 1.8, 0.4),
    (1.6, 2.2, 0.4),
    (1.8, 2.6, 0.5),
    (2.0, 3.1, 0.5),
)


def efficientnet(
    x: Any,
    variant: int = 0,
    num_classes: int = 1000,
    test: bool = False,
    dropout: float | None = None,
    drop_path: float = 0.2,
) -> Any:
    """EfficientNet.

    Args:
        x: (B, 3, H, W); B0 was made for 224 x 224, B1 240, B2 260, B3 300, B4 380, B5 456, B6 528,
            B7 600.
        variant: 0 to 7.
        num_classes: Number of scores.
        test: Normalise with the running statistics, without dropout and dropped paths.
        dropout: Probability of 0 before the last layer; that of the paper if left out.
        drop_path: Probability with which the last block is skipped for a sample; it grows linearly
            from 0 at the first block.
    Returns:
        Scores, (B, num_classes).
    Raises:
        ValueError: There is no such variant.
    Source: Tan and Le, EfficientNet, arXiv:1905.11946, table 1.
    Example:
        >>> x = nn.Variable((1, 3, 64, 64))
        >>> with nn.parameter_scope("efficientnet"):
        ...     models.efficientnet(x, num_classes=10).shape
        (1, 10)
    """
    if variant not in range(len(SCALES)):
        raise ValueError(f"efficientnet: variant is {variant!r}, wanted 0 to {len(SCALES) - 1}")
    wide, deep, default = SCALES[variant]
    dropout = default if dropout is None else dropout
    stages = [
        (expansion, kernel, stride, divisible(wide * channels), math.ceil(deep * blocks))
        for expansion, kernel, stride, channels, blocks in STAGES
    ]
    total, done = sum(stage[-1] for stage in stages), 0
    h = conv_bn(x, divisible(wide * 32), 3, "stem", test, stride=2, activation=F.swish)
    for s, (expansion, kernel, stride, channels, blocks) in enumerate(stages, 1):
        for i in range(blocks):
            drop = 0.0 if test else drop_path * done / total
            once = stride if i == 0 else 1
            h = _block(h, expansion, kernel, once, channels, f"stage{s}/block{i + 1}", test, drop)
            done += 1
    h = conv_bn(h, divisible(wide * 1280), 1, "last", test, activation=F.swish)
    h = pooled(h)
    if dropout > 0 and not test:
        h = F.dropout(h, dropout)
    return PF.affine(h, num_classes, name="classifier")


def _block(
    x: Any,
    expansion: int,
    kernel: int,
    stride: int,
    outer: int,
    name: str,
    test: bool,
    drop: float,
) -> Any:
    """Expand, convolve every channel by itself, weigh the channels, project; add x if it fits."""
    inputs = x.shape[1]
    inner = inputs * expansion
    h = x
    if expansion != 1:
        h = conv_bn(h, inner, 1, f"{name}/expand", test, activation=F.swish)
    h = conv_bn(h, inner, kernel, f"{name}/depthwise", test, stride, inner, F.swish)
    h = squeeze_excite(h, max(1, inputs // 4), f"{name}/se", F.swish, F.sigmoid)
    h = conv_bn(h, outer, 1, f"{name}/project", test, activation=None)
    if stride != 1 or outer != inputs:
        return h
    if drop > 0:  # the whole path of a sample, not single elements
        h = h * F.dropout(F.constant(1.0, (x.shape[0], 1, 1, 1)), drop)
    return h + x
