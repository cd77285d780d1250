# SPDX-License-Identifier: Apache-2.0
"""DCGAN: a generator and a discriminator of 64 x 64 images."""

from __future__ import annotations

from typing import Any

from nnl import functions as F
from nnl import parametric_functions as PF
from nnl.parametric_functions.initializer import NormalInitializer

__all__ = ["dcgan_generator", "dcgan_discriminator"]

KERNEL = (4, 4)
SIGMA = 0.02  # standard deviation of the first weights, section 4


def dcgan_generator(z: Any, channels: int = 64, colors: int = 3, test: bool = False) -> Any:
    """Images from noise.

    Args:
        z: (B, n), the noise.
        channels: Before the last layer; each layer further in has twice as many.
        colors: Channels of the images.
        test: Normalise with the running statistics.
    Returns:
        (B, colors, 64, 64), in [-1, 1].
    Source: Radford, Metz and Chintala, arXiv:1511.06434, section 4 and figure 1.
    Example:
        >>> z = nn.Variable((1, 10))
        >>> with nn.parameter_scope("dcgan_generator"):
        ...     models.dcgan_generator(z, channels=4).shape
        (1, 3, 64, 64)
    """
    h = F.reshape(z, (*z.shape, 1, 1))
    for i, factor in enumerate((8, 4, 2, 1), 1):
        pad, stride = ((0, 0), (1, 1)) if i == 1 else ((1, 1), (2, 2))
        h = _layer(PF.deconvolution, h, factor * channels, pad, stride, f"deconv{i}")
        h = F.relu(PF.batch_normalization(h, batch_stat=not test, name=f"deconv{i}"))
    return F.tanh(_layer(PF.deconvolution, h, colors, (1, 1), (2, 2), "deconv5"))


def dcgan_discriminator(x: Any, channels: int = 64, test: bool = False) -> Any:
    """How real images look.

    Args:
        x: (B, colors, 64, 64).
        channels: Of the first layer; each further layer has twice as many.
        test: Normalise with the running statistics.
    Returns:
        Scores before the sigmoid, (B, 1).
    Source: as of `dcgan_generator`.
    Example:
        >>> x = nn.Variable((1, 3, 64, 64))
        >>> with nn.parameter_scope("dcgan_discriminator"):
        ...     models.dcgan_discriminator(x, channels=4).shape
        (1, 1)
    """
    h = x
    for i, factor in enumerate((1, 2, 4, 8), 1):
        h = _layer(PF.convolution, h, factor * channels, (1, 1), (2, 2), f"conv{i}")
        if i > 1:
            h = PF.batch_normalization(h, batch_stat=not test, name=f"conv{i}")
        h = F.leaky_relu(h, 0.2)
    h = _layer(PF.convolution, h, 1, (0, 0), (1, 1), "conv5")
    return F.reshape(h, (x.shape[0], 1))


def _layer(function: Any, x: Any, channels: int, pad: Any, stride: Any, name: str) -> Any:
    init = NormalInitializer(SIGMA)
    return function(
        x, channels, KERNEL, pad=pad, stride=stride, w_init=init, with_bias=False, name=name
    )
