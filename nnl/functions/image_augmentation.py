# SPDX-License-Identifier: Apache-2.0
"""image_augmentation: random geometry and colour of whole images in one pass."""

from __future__ import annotations

import math

import numpy as np

from nnl.core.arrays.spec import ShapeError
from nnl.core.ops import random as nnl_random
from nnl.core.ops.op import Cost, Sample, op
from nnl.functions.random import require

CATEGORY = "Random"

__all__ = ["image_augmentation"]


@op("image_augmentation", nnp="ImageAugmentation")
class image_augmentation:
    r"""Distort images at random: position, scale, rotation, aspect, lens, flips, light and noise.

    Each image is padded, scaled, stretched, turned about its centre and distorted, and the result
    is cut out at a random position, by bilinear interpolation; positions outside take the nearest
    border element. Then $y = (y - c)\,\mathit{contrast} + c + \mathit{brightness} + noise$. Random
    numbers are independent for each image; a draw of $r \ge 1$ means $r^u$, a draw of $\pm a$ means
    $a u$, with u uniform in [-1, 1]. There is no gradient, as in NNabla.

    Args:
        x: (..., H, W) or (..., C, H, W).
        shape: Sizes of the result along the last axes, at least (H, W); those of x if left out.
        pad: Elements added at (top and bottom, left and right).
        min_scale, max_scale: Limits of the magnification, drawn evenly on a logarithmic scale.
        angle: Largest rotation either way, radians.
        aspect_ratio: Largest ratio of width to height, drawn in [1/r, r].
        distortion: Largest radial distortion either way: a position at distance d from the centre
            (1 is half the diagonal) is read at the distance d (1 + k d^2).
        flip_lr, flip_ud: Whether half of the images are reversed along W, along H.
        brightness: Largest number added either way.
        brightness_each, contrast_each: Whether every channel has its own draw.
        contrast: Largest factor, drawn in [1/r, r].
        contrast_center: The value c that contrast does not change.
        noise: Standard deviation of normal noise added to every element.
        seed: -1 for the stream that `nnl.seed` restarts, else a stream of its own.
    Raises:
        ShapeError: x has fewer than two axes, or shape changes another axis than H and W.
        ValueError: pad is not two numbers, or a scale or ratio is not positive.
    """

    shape: tuple[int, ...] | None = None
    pad: tuple[int, ...] = (0, 0)
    min_scale: float = 1.0
    max_scale: float = 1.0
    angle: float = 0.0
    aspect_ratio: float = 1.0
    distortion: float = 0.0
    flip_lr: bool = False
    flip_ud: bool = False
    brightness: float = 0.0
    brightness_each: bool = False
    contrast: float = 1.0
    contrast_center: float = 0.0
    contrast_each: bool = False
    noise: float = 0.0
    seed: int = -1

    def resolve(self, x, rng):
        return {"shape": x.shape if self.shape is None else self.shape}

    def infer(self, x, rng):
        name, rank, n = "image_augmentation", len(x.shape), len(self.shape)
        if rank < 2 or not 2 <= n <= rank or self.shape[:-2] != x.shape[rank - n : -2]:
            raise ShapeError(f"{name}: shape {self.shape} is no height and width for x {x}")
        if 0 in x.shape[-2:]:
            raise ShapeError(f"{name}: x {x} has no pixels")
        require(
            name, "pad", self.pad, "two numbers >= 0", len(self.pad) == 2 and min(self.pad) >= 0
        )
        for argument in ("min_scale", "max_scale", "aspect_ratio", "contrast"):
            value = getattr(self, argument)
            require(name, argument, value, "more than 0 and finite", 0 < value < np.inf)
        return x.with_shape(x.shape[: rank - n] + self.shape)

    def forward(self, xp, x, rng):
        y_shape = self.infer_shape(x)
        channels = x.shape[-3] if x.ndim > 2 else 1
        n = int(np.prod(x.shape[:-3], dtype=np.int64))
        images = x.reshape(n, channels, *x.shape[-2:])
        rows, columns = self._positions(xp, n, x.shape[-2:], y_shape[-2:], rng)
        y = _bilinear(xp, images, rows, columns)
        if self.contrast != 1.0:
            factor = self.contrast ** _symmetric(
                xp, rng, (n, channels if self.contrast_each else 1, 1, 1)
            )
            y = (y - self.contrast_center) * factor + self.contrast_center
        if self.brightness:
            shape = (n, channels if self.brightness_each else 1, 1, 1)
            y = y + self.brightness * _symmetric(xp, rng, shape)
        if self.noise:
            y = y + self.noise * nnl_random.normal(rng, y.shape, np.float32, xp)
        return y.astype(x.dtype, copy=False).reshape(y_shape)

    def infer_shape(self, x):
        """Sizes of the result."""
        return x.shape[: x.ndim - len(self.shape)] + self.shape

    def _positions(self, xp, n, size, y_size, rng):
        """Where each pixel of the n results lies in x: rows and columns, (n, H, W) each."""
        u = nnl_random.uniform(rng, (9, n, 1, 1), np.float64, xp)
        low, high = np.log(self.min_scale), np.log(self.max_scale)
        scale = xp.exp(low + (high - low) * u[0])
        stretch = np.sqrt(self.aspect_ratio) ** (2 * u[1] - 1)
        angle = self.angle * (2 * u[2] - 1)
        lens = self.distortion * (2 * u[3] - 1)
        steps = []
        for axis, magnified in ((0, scale / stretch), (1, scale * stretch)):
            centred = xp.arange(y_size[axis]) - (y_size[axis] - 1) / 2
            margin = (size[axis] + 2 * self.pad[axis]) * magnified - y_size[axis]
            step = centred + (u[4 + axis] - 0.5) * xp.abs(margin)
            steps.append(step.reshape(n, y_size[axis]) / magnified.reshape(n, 1))
        v, h = steps[0][:, :, None], steps[1][:, None, :]  # from the centre, in pixels of x
        sine, cosine = xp.sin(angle), xp.cos(angle)
        v, h = cosine * v - sine * h, sine * v + cosine * h
        if self.distortion:
            bend = 1 + lens * (v * v + h * h) / max((size[0] ** 2 + size[1] ** 2) / 4, 1)
            v, h = v * bend, h * bend
        if self.flip_ud:
            v = xp.where(u[6] < 0.5, v, -v)
        if self.flip_lr:
            h = xp.where(u[7] < 0.5, h, -h)
        return v + (size[0] - 1) / 2, h + (size[1] - 1) / 2

    def cost(self, x, rng):
        y = self.infer(x, rng)
        return Cost(flops=40 * y.size, bytes=x.nbytes + 5 * y.nbytes)

    def samples(rng):
        yield Sample(
            rng.normal(size=(2, 3, 5, 6)), shape=(3, 4, 4), pad=(1, 1), flip_lr=True, seed=3
        )
        yield Sample(
            rng.normal(size=(2, 3, 5, 6)),
            min_scale=0.8,
            max_scale=1.2,
            angle=0.3,
            aspect_ratio=1.3,
            distortion=0.1,
            flip_ud=True,
            brightness=0.1,
            contrast=1.2,
            contrast_each=True,
            noise=0.1,
            seed=3,
        )


def _symmetric(xp, rng, shape):
    return 2 * nnl_random.uniform(rng, shape, np.float64, xp) - 1


def _bilinear(xp, x, rows, columns):
    """Values of the images x (N, C, H, W) at fractional rows and columns (N, h, w)."""
    height, width = x.shape[-2:]
    rows, columns = xp.clip(rows, 0, height - 1), xp.clip(columns, 0, width - 1)
    top, left = xp.floor(rows).astype(np.int64), xp.floor(columns).astype(np.int64)
    bottom, right = xp.minimum(top + 1, height - 1), xp.minimum(left + 1, width - 1)
    down, across = (rows - top).astype(x.dtype)[:, None], (columns - left).astype(x.dtype)[:, None]
    flat = x.reshape(*x.shape[:2], height * width)

    def at(r, c):
        index = (r * width + c).reshape(len(x), 1, math.prod(r.shape[1:]))
        return xp.take_along_axis(flat, index, 2).reshape(*x.shape[:2], *r.shape[1:])

    upper = at(top, left) * (1 - across) + at(top, right) * across
    lower = at(bottom, left) * (1 - across) + at(bottom, right) * across
    return upper * (1 - down) + lower * down
