# SPDX-License-Identifier: Apache-2.0
"""Progressive GAN: networks that grow with the size of images."""

from __future__ import annotations

from math import log2, sqrt
from typing import Any

from nnl import functions as F
from nnl.core.arrays.spec import ShapeError
from nnl.models.adapters import parameter
from nnl.models.generative.layers import doubled
from nnl.models.generative.stylegan2 import spread
from nnl.models.stack import as_layer
from nnl.parametric_functions.initializer import ConstantInitializer, NormalInitializer

__all__ = ["progressive_discriminator", "progressive_generator"]


def progressive_generator(
    z: Any, size: int, fade: Any = None, base: int = 8192, most: int = 512, colors: int = 3
) -> Any:
    """Images of a size; fading in, they are mixed with doubled ones of half the size.

    Args:
        z: (B, n), normal numbers.
        size: Of images, a power of 2 from 4. Networks of smaller sizes share their parameters.
        fade: A Variable (1,): the share of the new layers, growing from 0 to 1; None: 1.
        base, most: Channels at a size are 2 base / size, at most `most`.
    Returns:
        (B, colors, size, size), about in [-1, 1].
    Raises:
        ValueError: size is no such power.
    Source: Karras et al., Progressive Growing of GANs, arXiv:1710.10196, appendix A.
    Example:
        >>> with nn.parameter_scope("progressive_generator"):
        ...     progressive_generator(nn.Variable((2, 8)), 16, base=64, most=8).shape
        (2, 3, 16, 16)
    """
    sizes = _sizes("progressive_generator", size)
    width = _width(4, base, most)
    h = z * F.pow_scalar(F.mean(z * z, axis=1, keepdims=True) + 1e-8, -0.5)
    h = _scaled(F.reshape(h, (*z.shape, 1, 1)), width, 4, "b4/first", pad=3, gain=sqrt(2) / 4)
    h = _normed(F.leaky_relu(h, 0.2))
    h = _normed(F.leaky_relu(_scaled(h, width, 3, "b4/second"), 0.2))
    before = h
    for n in sizes[1:]:
        before, h = h, doubled(h)
        for part in ("first", "second"):
            h = _normed(F.leaky_relu(_scaled(h, _width(n, base, most), 3, f"b{n}/{part}"), 0.2))
    y = _scaled(h, colors, 1, f"b{size}/colors", gain=1)
    if fade is None or len(sizes) == 1:
        return y
    old = doubled(_scaled(before, colors, 1, f"b{size // 2}/colors", gain=1))
    fade = F.reshape(fade, (1, 1, 1, 1))
    return old + fade * (y - old)


def progressive_discriminator(x: Any, fade: Any = None, base: int = 8192, most: int = 512) -> Any:
    """How real images look.

    Args:
        x: (B, C, size, size); B is below 5 or a multiple of 4, of which the spread is seen.
        fade, base, most: As of `progressive_generator`.
    Returns:
        Scores, (B, 1).
    Raises:
        ShapeError, ValueError: x has no such shape.
    Source: As of `progressive_generator`.
    Example:
        >>> with nn.parameter_scope("progressive_discriminator"):
        ...     progressive_discriminator(nn.Variable((2, 3, 16, 16)), base=64, most=8).shape
        (2, 1)
    """
    b, _, size, other = x.shape
    if size != other or b % min(4, b):
        raise ShapeError(
            f"progressive_discriminator: x has the shape {x.shape}, wanted squares, and a batch "
            "below 5 or a multiple of 4"
        )
    sizes = _sizes("progressive_discriminator", size)
    h = F.leaky_relu(_scaled(x, _width(size, base, most), 1, f"b{size}/colors"), 0.2)
    for n in reversed(sizes[1:]):
        h = F.leaky_relu(_scaled(h, _width(n, base, most), 3, f"b{n}/first"), 0.2)
        h = F.leaky_relu(_scaled(h, _width(n // 2, base, most), 3, f"b{n}/second"), 0.2)
        h = F.average_pooling(h, (2, 2))
        if n == size and fade is not None:
            old = F.average_pooling(x, (2, 2))
            old = _scaled(old, _width(n // 2, base, most), 1, f"b{n // 2}/colors")
            old = F.leaky_relu(old, 0.2)
            h = old + F.reshape(fade, (1, 1, 1, 1)) * (h - old)
    h = F.concatenate(h, spread(h), axis=1)
    width = _width(4, base, most)
    h = F.leaky_relu(_scaled(h, width, 3, "b4/first"), 0.2)
    h = F.leaky_relu(_scaled(h, width, 4, "b4/second", pad=0), 0.2)
    return F.reshape(_scaled(h, 1, 1, "b4/score", gain=1), (b, 1))


def _sizes(where: str, size: int) -> list[int]:
    if size < 4 or size & (size - 1):
        raise ValueError(f"{where}: images have {size} pixels a side, wanted a power of 2 from 4")
    return [2**i for i in range(2, int(log2(size)) + 1)]


def _width(size: int, base: int, most: int) -> int:
    return min(2 * base // size, most)


def _normed(x: Any) -> Any:
    return x * F.pow_scalar(F.mean(x * x, axis=1, keepdims=True) + 1e-8, -0.5)


@as_layer
def _scaled(
    x: Any, channels: int, kernel: int, name: str, pad: int | None = None, gain: float = sqrt(2)
) -> Any:
    """A convolution whose weights, drawn from N(0, 1), are scaled when they are used."""
    w = parameter("weight", (channels, x.shape[1], kernel, kernel), NormalInitializer(1))
    b = parameter("bias", (channels,), ConstantInitializer(0))
    n = kernel // 2 if pad is None else pad
    return F.convolution(x, w * (gain / sqrt(x.shape[1] * kernel**2)), b, pad=(n, n))
