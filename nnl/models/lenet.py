# SPDX-License-Identifier: Apache-2.0
"""Small classifiers: LeNet and a multi-layer perceptron."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nnl import functions as F
from nnl import parametric_functions as PF

__all__ = ["lenet", "mlp"]


def lenet(x: Any, num_classes: int = 10) -> Any:
    """Two convolutions and two affine layers.

    Args:
        x: (B, C, H, W); 28 x 28 pixels give 256 inputs to the affine layers.
        num_classes: Number of scores.
    Returns:
        Scores, (B, num_classes).
    Source: after LeCun et al., Gradient-based learning applied to document recognition, 1998, in
        the form of NNabla's MNIST example.
    Example:
        >>> x = nn.Variable((1, 1, 28, 28))
        >>> with nn.parameter_scope("lenet"):
        ...     models.lenet(x).shape
        (1, 10)
    """
    h = F.relu(F.max_pooling(PF.convolution(x, 16, (5, 5), name="conv1"), (2, 2)))
    h = F.relu(F.max_pooling(PF.convolution(h, 16, (5, 5), name="conv2"), (2, 2)))
    h = F.relu(PF.affine(h, 50, name="affine3"))
    return PF.affine(h, num_classes, name="affine4")


def mlp(x: Any, hidden: Sequence[int] = (256, 256), num_classes: int = 10) -> Any:
    """Affine layers with ReLU between them.

    Args:
        x: (B, features...).
        hidden: Widths of the layers before the last.
        num_classes: Number of scores.
    Returns:
        Scores, (B, num_classes).
    Example:
        >>> x = nn.Variable((1, 20))
        >>> with nn.parameter_scope("mlp"):
        ...     models.mlp(x).shape
        (1, 10)
    """
    h = x
    for i, width in enumerate(hidden, 1):
        h = F.relu(PF.affine(h, width, name=f"affine{i}"))
    return PF.affine(h, num_classes, name=f"affine{len(hidden) + 1}")
