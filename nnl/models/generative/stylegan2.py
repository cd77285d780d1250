# SPDX-License-Identifier: Apache-2.0
"""StyleGAN2: styles from noise, images from styles, and a residual discriminator.

Weights learn at an equal pace: they are drawn from N(0, 1) and scaled when they are used.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2, sqrt
from typing import Any

import numpy as np

from nnl import functions as F
from nnl.core.arrays.spec import ShapeError
from nnl.core.graph.variable import Variable
from nnl.core.parameters.parameter import get_parameter_or_create, parameter_scope
from nnl.models.adapters import parameter
from nnl.models.stack import as_layer
from nnl.parametric_functions.initializer import ConstantInitializer, NormalInitializer

__all__ = ["StyleGAN2", "stylegan2_discriminator", "stylegan2_mapping", "stylegan2_synthesis"]

TAPS = np.array([1, 3, 3, 1], np.float32)
TAPS = np.outer(TAPS, TAPS) / 64  # smooths what is halved or doubled
GAIN = sqrt(2)  # of the leaky relu
SLOPE = 0.2


@dataclass(frozen=True)
class StyleGAN2:
    """Sizes of a StyleGAN2; the default ones are those of config F for FFHQ.

    Attributes:
        resolution: Height and width of images, a power of 2 from 8.
        latent: Width of noise and styles.
        mapping: Layers from noise to styles.
        base, most: Channels at a size are base / size, at most `most`.
        colors: Channels of images.
        clamp: Limit of what layers give, 256 in published networks that had 16 bits; None: none.
    Example:
        >>> StyleGAN2(256, base=16384).styles
        14
    """

    resolution: int = 1024
    latent: int = 512
    mapping: int = 8
    base: int = 32768
    most: int = 512
    colors: int = 3
    clamp: float | None = None

    def __post_init__(self) -> None:
        if self.resolution < 8 or self.resolution & (self.resolution - 1):
            raise ValueError(
                f"StyleGAN2: resolution is {self.resolution}, wanted a power of 2 from 8"
            )

    @property
    def sizes(self) -> list[int]:
        """4, 8, ..., resolution."""
        return [2**i for i in range(2, int(log2(self.resolution)) + 1)]

    @property
    def styles(self) -> int:
        """How many layers take one."""
        return 2 * len(self.sizes)

    def channels(self, size: int) -> int:
        """Of maps of a size."""
        return min(self.base // size, self.most)


def stylegan2_mapping(z: Any, config: StyleGAN2, truncation: float = 1.0) -> Any:
    r"""Styles of noise, one for each layer; $w \leftarrow \bar w + \psi (w - \bar w)$.

    Parameters of the three functions are called as those of stylegan2-ada-pytorch: "mapping/fc0",
    "synthesis/b4/conv1", "b1024/fromrgb".

    Args:
        z: (B, latent), normal numbers.
        truncation: $\psi$; below 1 images vary less. The mean $\bar w$ is the parameter
            "mapping/w_avg", which the training loop moves.
    Returns:
        (B, styles, latent).
    Raises:
        ShapeError: z has another width.
    Source: Karras et al., Analyzing and Improving the Image Quality of StyleGAN, arXiv:1912.04958;
        Karras et al., arXiv:2006.06676.
    Example:
        >>> config = StyleGAN2(8, 16, 2, base=64)
        >>> with nn.parameter_scope("stylegan2"):
        ...     stylegan2_mapping(nn.Variable((2, 16)), config).shape
        (2, 4, 16)
    """
    if z.ndim != 2 or z.shape[1] != config.latent:
        raise ShapeError(
            f"stylegan2_mapping: z has the shape {z.shape}, wanted (B, {config.latent})"
        )
    with parameter_scope("mapping"):
        h = z * F.pow_scalar(F.mean(z * z, axis=1, keepdims=True) + 1e-8, -0.5)
        for i in range(config.mapping):
            h = _activated(_linear(h, config.latent, f"fc{i}", pace=0.01))
        mean = get_parameter_or_create("w_avg", (config.latent,), ConstantInitializer(0), False)
        if truncation != 1:
            mean = F.reshape(mean, (1, config.latent))
            h = mean + truncation * (h - mean)
    h = F.reshape(h, (z.shape[0], 1, config.latent))
    return F.broadcast(h, (z.shape[0], config.styles, config.latent))


def stylegan2_synthesis(w: Any, config: StyleGAN2, noise: str = "random") -> Any:
    """Images of styles.

    Args:
        w: (B, styles, latent). Styles of several sources may be mixed: the first ones say how
            things stand, the last ones colours.
        noise: "random", "const" for the same at every call, or "none".
    Returns:
        (B, colors, resolution, resolution), about in [-1, 1].
    Raises:
        ShapeError: w has another shape.
        ValueError: noise is none of these.
    Source: As of `stylegan2_mapping`.
    Example:
        >>> config = StyleGAN2(8, 16, 2, base=64)
        >>> with nn.parameter_scope("stylegan2"):
        ...     stylegan2_synthesis(nn.Variable((2, 4, 16)), config).shape
        (2, 3, 8, 8)
    """
    c = config
    if w.shape[1:] != (c.styles, c.latent):
        raise ShapeError(
            f"stylegan2_synthesis: w has the shape {w.shape}, wanted (B, {c.styles}, {c.latent})"
        )
    if noise not in ("random", "const", "none"):
        raise ValueError(f"stylegan2_synthesis: noise is {noise!r}, wanted random, const or none")
    batch, styles = w.shape[0], [w[:, i] for i in range(c.styles)]
    h = image = None
    place = 0
    for size in c.sizes:
        with parameter_scope(f"synthesis/b{size}"):
            width = c.channels(size)
            if h is None:
                first = parameter("const", (width, 4, 4), NormalInitializer(1))
                h = F.broadcast(F.reshape(first, (1, width, 4, 4)), (batch, width, 4, 4))
            else:
                h = _styled(h, styles[place], width, "conv0", c, noise, up=True)
                place += 1
            h = _styled(h, styles[place], width, "conv1", c, noise)
            place += 1
            colors = _colored(h, styles[place], c, "torgb")
            image = colors if image is None else colors + _doubled(image)
    return image


def stylegan2_discriminator(x: Any, config: StyleGAN2) -> Any:
    """How real images look.

    Args:
        x: (B, colors, resolution, resolution); of every four images the spread is seen too, so B is
            below 5 or a multiple of 4.
    Returns:
        Scores, (B, 1).
    Raises:
        ShapeError: x has another shape.
    Source: As of `stylegan2_mapping`.
    Example:
        >>> config = StyleGAN2(8, 16, 2, base=64)
        >>> with nn.parameter_scope("stylegan2_discriminator"):
        ...     stylegan2_discriminator(nn.Variable((2, 3, 8, 8)), config).shape
        (2, 1)
    """
    c = config
    b = x.shape[0]
    if x.shape[1:] != (c.colors, c.resolution, c.resolution) or b % min(4, b):
        raise ShapeError(
            f"stylegan2_discriminator: x has the shape {x.shape}, wanted (B, {c.colors}, "
            f"{c.resolution}, {c.resolution}) with B below 5 or a multiple of 4"
        )
    h = x
    for size in reversed(c.sizes[1:]):
        with parameter_scope(f"b{size}"):
            if size == c.resolution:
                h = _clamped(_activated(_convolution(h, c.channels(size), 1, "fromrgb")), c)
            less = c.channels(size // 2)
            side = _halved(h, 1)
            side = _convolution(side, less, 1, "skip", bias=False) * sqrt(0.5)
            h = _clamped(_activated(_convolution(h, h.shape[1], 3, "conv0")), c)
            h = _convolution(_smoothed(h, 2), less, 3, "conv1", stride=2, pad=0)
            limit = None if c.clamp is None else c.clamp * sqrt(0.5)
            h = side + _clamped(_activated(h) * sqrt(0.5), c, limit)
    with parameter_scope("b4"):
        h = F.concatenate(h, spread(h), axis=1)
        h = _clamped(_activated(_convolution(h, c.channels(4), 3, "conv")), c)
        h = F.reshape(h, (b, c.channels(4) * 16))
        h = _activated(_linear(h, c.channels(4), "fc"))
        return _linear(h, 1, "out")


@as_layer
def _linear(x: Any, width: int, name: str, pace: float = 1.0, bias: float = 0.0) -> Any:
    w = parameter("weight", (width, x.shape[1]), NormalInitializer(1 / pace))
    b = parameter("bias", (width,), ConstantInitializer(bias))
    y = F.batch_matmul(x, w * (pace / sqrt(x.shape[1])), transpose_b=True)
    return y + F.reshape(b * pace, (1, width))


@as_layer
def _convolution(
    x: Any, channels: int, kernel: int, name: str, bias: bool = True, stride: int = 1,
    pad: int | None = None,
) -> Any:  # fmt: skip
    shape = channels, x.shape[1], kernel, kernel
    w = parameter("weight", shape, NormalInitializer(1)) * (1 / sqrt(x.shape[1] * kernel**2))
    b = parameter("bias", (channels,), ConstantInitializer(0)) if bias else None
    n = kernel // 2 if pad is None else pad
    return F.convolution(x, w, b, pad=(n, n), stride=(stride, stride))


@as_layer
def _styled(
    x: Any, style: Any, channels: int, name: str, c: StyleGAN2, noise: str, up: bool = False
) -> Any:
    """A convolution whose inputs are scaled by the style, and outputs to the length 1."""
    b, inputs = x.shape[:2]
    w = parameter("weight", (channels, inputs, 3, 3), NormalInitializer(1))
    scale = _linear(style, inputs, "affine", bias=1.0)
    # the length of a row of scaled weights, without these: (B, inputs) (inputs, channels)
    squares = F.sum(w * w, axis=(2, 3))
    length = F.pow_scalar(F.batch_matmul(scale * scale, squares, transpose_b=True) + 1e-8, -0.5)
    h = x * F.reshape(scale, (b, inputs, 1, 1))
    if up:
        h = F.deconvolution(h, F.transpose(w, (1, 0, 2, 3)), stride=(2, 2))
        h = _smoothed(h, 1, 4.0)
    else:
        h = F.convolution(h, w, pad=(1, 1))
    h = h * F.reshape(length, (b, channels, 1, 1))
    size = h.shape[2:]
    strength = parameter("noise_strength", (), ConstantInitializer(0))
    fixed = get_parameter_or_create("noise_const", size, NormalInitializer(1), False)
    if noise != "none":
        drawn = (
            F.randn(shape=(b, 1, *size)) if noise == "random" else F.reshape(fixed, (1, 1, *size))
        )
        h = h + drawn * F.reshape(strength, (1, 1, 1, 1))
    bias = parameter("bias", (channels,), ConstantInitializer(0))
    return _clamped(_activated(h + F.reshape(bias, (1, channels, 1, 1))), c)


@as_layer
def _colored(x: Any, style: Any, c: StyleGAN2, name: str) -> Any:
    b, inputs = x.shape[:2]
    scale = _linear(style, inputs, "affine", bias=1.0) * (1 / sqrt(inputs))
    w = parameter("weight", (c.colors, inputs, 1, 1), NormalInitializer(1))
    bias = parameter("bias", (c.colors,), ConstantInitializer(0))
    return _clamped(F.convolution(x * F.reshape(scale, (b, inputs, 1, 1)), w, bias), c)


def _activated(x: Any) -> Any:
    return F.leaky_relu(x, SLOPE) * GAIN


def _clamped(x: Any, c: StyleGAN2, limit: float | None = None) -> Any:
    limit = c.clamp if limit is None else limit
    return x if limit is None else F.clip_by_value(x, -limit, limit)


def _by_channel(x: Any, f: Any) -> Any:
    """f of maps of one channel, of all channels."""
    b, channels, *size = x.shape
    y = f(F.reshape(x, (b * channels, 1, *size)))
    return F.reshape(y, (b, channels, *y.shape[2:]))


def _taps(gain: float = 1.0) -> Any:
    return Variable.from_numpy_array(TAPS[None, None] * np.float32(gain))


def _smoothed(x: Any, pad: int, gain: float = 1.0) -> Any:
    return _by_channel(x, lambda v: F.convolution(v, _taps(gain), pad=(pad, pad)))


def _halved(x: Any, pad: int) -> Any:
    return _by_channel(x, lambda v: F.convolution(v, _taps(), pad=(pad, pad), stride=(2, 2)))


def _doubled(x: Any) -> Any:
    return _by_channel(x, lambda v: F.deconvolution(v, _taps(4.0), pad=(1, 1), stride=(2, 2)))


def spread(x: Any) -> Any:
    """The mean standard deviation of groups of four images, as one more channel."""
    b, channels, h, w = x.shape
    n = min(4, b)
    y = F.reshape(x, (n, b // n, channels, h, w))
    y = y - F.mean(y, axis=0, keepdims=True)
    y = F.pow_scalar(F.mean(y * y, axis=0) + 1e-8, 0.5)
    y = F.reshape(F.mean(y, axis=(1, 2, 3)), (1, b // n, 1, 1, 1))
    return F.reshape(F.broadcast(y, (n, b // n, 1, h, w)), (b, 1, h, w))
