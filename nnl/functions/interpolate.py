# SPDX-License-Identifier: Apache-2.0
"""Resizing of signals, images and volumes by nearest pixel or by linear interpolation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from nnl.core.arguments.annotations import Input, checked
from nnl.core.arguments.convert import wanted_instead
from nnl.core.arrays.spec import ShapeError
from nnl.core.ops.op import Cost, Sample, op

CATEGORY = "Signal processing"

__all__ = ["interpolate"]


class Resizing:
    """Attributes of interpolate and of its gradient."""

    output_size: tuple[int, ...]
    mode: str
    align_corners: bool = True
    half_pixel: bool = False
    half_pixel_for_nn: bool = False
    channel_last: bool = False
    follows_order = True


def split(a, shape):
    """(leading axes, spatial sizes, trailing axes) of a shape of data."""
    end = len(shape) - a.channel_last
    start = end - len(a.output_size)
    return shape[:start], shape[start:end], shape[end:]


def check(a, arg, x):
    """Raise unless the attributes fit data of spec x."""
    name, n = a.op.name, len(a.output_size)
    if a.mode not in ("linear", "nearest"):
        raise ValueError(f"{name}: mode is {a.mode!r}, wanted 'linear' or 'nearest'")
    if a.align_corners and a.half_pixel:
        raise ValueError(f"{name}: align_corners and half_pixel exclude each other")
    if n < 1 or n + a.channel_last > len(x.shape):
        raise ShapeError(
            f"{name}: {arg} {x} has rank {len(x.shape)}, wanted >= {max(n, 1) + a.channel_last} "
            f"for output_size {a.output_size}"
        )
    if min(a.output_size) < 1:
        raise ValueError(f"{name}: output_size {a.output_size} must be >= 1")
    if 0 in split(a, x.shape)[1]:
        raise ShapeError(f"{name}: {arg} {x} has no pixels")


@lru_cache(maxsize=256)
def taps(size: int, out: int, mode: str, align: bool, half: bool, half_nn: bool) -> Any:
    """Which pixels every output pixel is made of along one axis, and with which weights.

    Returns:
        index (out, 1 or 2) and weight of the same shape, float64.
    """
    i = np.arange(out)
    if mode == "nearest" and half_nn:
        # In integers: a product in floating point may fall just below the pixel's border.
        return ((2 * i + 1) * size // (2 * out))[:, None], np.ones((out, 1))
    if out == 1:
        at = np.zeros(1)
    elif align:
        at = i * (size - 1) / (out - 1)
    elif half:
        at = np.maximum((2 * i + 1) * size / (2 * out) - 0.5, 0)
    else:
        at = i * size / out
    low = np.minimum(at.astype(np.int64), size - 1)
    if mode == "nearest":
        return low[:, None], np.ones((out, 1))
    high = np.minimum(low + 1, size - 1)
    part = at - low
    return np.stack((low, high), 1), np.stack((1 - part, part), 1)


@lru_cache(maxsize=256)
def transposed_taps(size: int, out: int, mode: str, align: bool, half: bool, half_nn: bool) -> Any:
    """The taps of the transpose: which output pixels every input pixel has gone into."""
    return transpose(*taps(size, out, mode, align, half, half_nn), size)


def transpose(index: Any, weight: Any, size: int) -> Any:
    """Index and weight of the transpose, a map to `size` pixels.

    Rows are filled up with a weight of 0 to the length of the longest.
    """
    pixel, source, weight = (
        index.reshape(-1),
        np.repeat(np.arange(len(index)), index.shape[1]),
        weight.reshape(-1),
    )
    order = np.argsort(pixel, kind="stable")
    pixel, source, weight = pixel[order], source[order], weight[order]
    counts = np.bincount(pixel, minlength=size)
    slot = np.arange(len(pixel)) - np.repeat(np.cumsum(counts) - counts, counts)
    to_index = np.zeros((size, counts.max()), np.int64)
    to_weight = np.zeros(to_index.shape)
    to_index[pixel, slot], to_weight[pixel, slot] = source, weight
    return to_index, to_weight


def combine(xp: Any, x: Any, axis: int, index: Any, weight: Any) -> Any:
    """Weighted sum of pixels along an axis: y_i = sum_j weight_ij x_index_ij."""
    y = None
    shape = [1] * x.ndim
    shape[axis] = len(index)
    for j in range(index.shape[1]):
        part = xp.take(x, xp.asarray(index[:, j]), axis=axis)
        if not (weight[:, j] == 1).all():
            part *= xp.asarray(weight[:, j], x.dtype).reshape(shape)
        if y is None:
            y = part
        else:
            y += part
    return y


@op("interpolate", nnp="Interpolate")
class interpolate_op(Resizing):
    """Resize the last axes (those before the channels if channel_last) to output_size."""

    def infer(self, x):
        check(self, "x", x)
        lead, _, tail = split(self, x.shape)
        return x.with_shape((*lead, *self.output_size, *tail))

    def forward(self, xp, x):
        start = len(split(self, x.shape)[0])
        changed = False
        for axis, out in enumerate(self.output_size, start):
            if out != x.shape[axis]:
                x, changed = combine(xp, x, axis, *taps(x.shape[axis], out, *settings(self))), True
        return x if changed else x.copy()

    def vjp(self, gy, *, x_spec):
        at = dict(zip(self.op.fields, self.values, strict=True))
        return interpolate_backward(gy, shape=x_spec.shape, **at)

    def cost(self, x):
        y = self.infer(x)
        per_pixel = 3 * len(self.output_size) if self.mode == "linear" else 0
        return Cost(per_pixel * y.size, x.nbytes + y.nbytes)

    def samples(rng):
        x = rng.normal(size=(2, 3, 4, 5))
        for mode in ("linear", "nearest"):
            for align, half in ((True, False), (False, False), (False, True)):
                at = {"mode": mode, "align_corners": align, "half_pixel": half}
                yield Sample(x, output_size=(7, 3), **at)
                yield Sample(x, output_size=(1, 9), **at)
            yield Sample(
                rng.normal(size=(2, 3, 4)), output_size=(6,), mode=mode, align_corners=False
            )
            yield Sample(rng.normal(size=(2, 2, 3, 2)), output_size=(3, 4, 1), mode=mode)
        yield Sample(
            x, output_size=(7, 3), mode="nearest", align_corners=False, half_pixel_for_nn=True
        )
        yield Sample(np.zeros((0, 3, 4, 5)), output_size=(8, 8), mode="linear")


def settings(a):
    """What the taps of an axis depend on, other than its sizes."""
    return a.mode, a.align_corners, a.half_pixel, a.half_pixel_for_nn


@op("interpolate_backward", outputs=("gx",))
class interpolate_backward(Resizing):
    """Gradient of interpolate for data of the given shape: the transposed linear map."""

    shape: tuple[int, ...] = ()

    def infer(self, gy):
        gx = gy.with_shape(self.shape)
        check(self, "x", gx)
        lead, _, tail = split(self, self.shape)
        if gy.shape != (*lead, *self.output_size, *tail):
            raise ShapeError(
                f"interpolate_backward: gy {gy} must have the shape "
                f"{(*lead, *self.output_size, *tail)} that resizing x {gx} gives"
            )
        return gx

    def forward(self, xp, gy):
        lead, size, _ = split(self, self.shape)
        changed = False
        for axis, (n, out) in enumerate(zip(size, self.output_size, strict=True), len(lead)):
            if n != out:
                table = transposed_taps(n, out, *settings(self))
                gy, changed = combine(xp, gy, axis, *table), True
        return gy if changed else gy.copy()

    def vjp(self, ggx):
        at = dict(zip(self.op.fields, self.values, strict=True))
        del at["shape"]
        return interpolate_op(ggx, **at)

    def cost(self, gy):
        gx = self.infer(gy)
        per_pixel = 3 * len(self.output_size) if self.mode == "linear" else 0
        return Cost(per_pixel * gy.size, gx.nbytes + gy.nbytes)

    def samples(rng):
        gy = rng.normal(size=(2, 7, 3))
        for mode in ("linear", "nearest"):
            yield Sample(gy, output_size=(7, 3), mode=mode, shape=(2, 4, 5))
            yield Sample(
                gy,
                output_size=(7,),
                mode=mode,
                align_corners=False,
                channel_last=True,
                shape=(2, 4, 3),
            )


@checked
def interpolate(
    x: Input,
    scale: Sequence[float] | None = None,
    output_size: Sequence[int] | None = None,
    mode: str = "linear",
    align_corners: bool = False,
    half_pixel: bool = False,
    half_pixel_for_nn: bool = False,
    channel_last: bool = False,
) -> Any:
    r"""Resize signals, images or volumes along their last axes, one axis after the other.

    $$y_i = \sum_j k(p_i - j)\, x_j, \quad p_i = i\, S / O$$
    where an axis of S pixels gets O. For "linear" $k(t) = \max(0, 1 - |t|)$; for "nearest" k is 1
    at the pixel $j = \lfloor p_i \rfloor$. Pixels beyond the last one have its value. Two settings
    place pixel i elsewhere: `align_corners` at $$p_i = i\,(S - 1) / (O - 1),$$ so that the first
    and last pixels keep their place; `half_pixel` at
    $$p_i = \max((i + 1/2)\, S / O - 1/2,\ 0),$$ so that the borders of the pixels do.

    Args:
        x: (*batch, *S), or (*batch, *S, C) if channel_last.
        scale: Factor for each of the resized axes, the last ones; sizes are rounded down.
        output_size: Their sizes in pixels; wins over scale.
        mode: "linear", or "nearest": the pixel at the position rounded down.
        half_pixel_for_nn: With "nearest", round (i + 0.5) S / out down instead.
        channel_last: Channels are the last axis.
    Returns:
        (*batch, *output_size).
    Raises:
        ValueError: Neither scale nor output_size is given, mode is unknown, a size is below 1, or
            align_corners and half_pixel are both set.
        ShapeError: x has fewer axes than there are sizes.
    Example:
        >>> F.interpolate(array([[1, 2, 4]]), scale=(2,), mode="linear", align_corners=True).d
        array([[1. , 1.4, 1.8, 2.4, 3.2, 4. ]], dtype=float32)
    """
    end = len(x.shape) - bool(channel_last)
    for name, value, kind in (
        ("output_size", output_size, "an int"),
        ("scale", scale, "a number"),
    ):
        if isinstance(value, (int, float, np.number)):
            wanted = wanted_instead(value, max(end - 2 + bool(channel_last), 1), kind)
            raise TypeError(f"interpolate: {name} is {value!r}, {wanted}")
    if output_size is None:
        if scale is None:
            raise ValueError("interpolate: neither scale nor output_size is given")
        try:
            factors = [float(f) for f in scale]
        except (TypeError, ValueError):
            raise TypeError(
                f"interpolate: scale is {scale!r}, wanted a sequence of numbers"
            ) from None
        if not all(0 < f < 2**31 for f in factors):
            raise ValueError(f"interpolate: scale is {tuple(scale)}, wanted factors above 0")
        n = len(factors)
        if n > end:
            raise ShapeError(
                f"interpolate: scale {tuple(scale)} has {n} entries, "
                f"x {x.spec} has {end} axes to resize"
            )
        size = x.shape[end - n : end]
        output_size = tuple(math.floor(s * f) for s, f in zip(size, scale, strict=True))
    return interpolate_op(
        x,
        output_size=output_size,
        mode=mode,
        align_corners=align_corners,
        half_pixel=half_pixel,
        half_pixel_for_nn=half_pixel_for_nn,
        channel_last=channel_last,
    )
