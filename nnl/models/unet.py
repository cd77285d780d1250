# SPDX-License-Identifier: Apache-2.0
"""U-Net, for the segmentation of images."""

from __future__ import annotations

from typing import Any

from nnl import functions as F
from nnl import parametric_functions as PF
from nnl.models.convolution import conv_bn

__all__ = ["unet"]


def unet(
    x: Any, num_classes: int = 2, channels: int = 64, depth: int = 4, test: bool = False
) -> Any:
    """U-Net with padded convolutions and batch normalisation, so the output has the input's size.

    Args:
        x: (B, C, H, W); H and W are multiples of 2 to the power of depth.
        num_classes: Scores of each pixel.
        channels: At full size; each halving of the size doubles them.
        depth: Number of halvings.
        test: Normalise with the running statistics.
    Returns:
        (B, num_classes, H, W).
    Raises:
        ValueError: H or W is not such a multiple.
    Source: Ronneberger, Fischer and Brox, arXiv:1505.04597, figure 1.
    Example:
        >>> x = nn.Variable((1, 3, 64, 64))
        >>> with nn.parameter_scope("unet"):
        ...     models.unet(x, channels=4).shape
        (1, 2, 64, 64)
    """
    if x.shape[2] % 2**depth or x.shape[3] % 2**depth:
        raise ValueError(
            f"unet: x has the shape {x.shape}, wanted height and width in multiples of {2**depth}"
        )
    h = _twice(x, channels, "down0", test)
    skipped = [h]
    for i in range(1, depth + 1):
        h = _twice(F.max_pooling(h, (2, 2)), channels * 2**i, f"down{i}", test)
        skipped.append(h)
    skipped.pop()
    for i in reversed(range(depth)):
        h = PF.deconvolution(h, channels * 2**i, (2, 2), stride=(2, 2), name=f"up{i}")
        h = F.concatenate(skipped.pop(), h, axis=1)
        h = _twice(h, channels * 2**i, f"up{i}", test)
    return PF.convolution(h, num_classes, (1, 1), name="classifier")


def _twice(x: Any, channels: int, name: str, test: bool) -> Any:
    h = conv_bn(x, channels, 3, f"{name}/conv1", test)
    return conv_bn(h, channels, 3, f"{name}/conv2", test)
