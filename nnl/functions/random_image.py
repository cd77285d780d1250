# SPDX-License-Identifier: Apache-2.0
"""Random crops, flips, shifts, erased rectangles and affine distortions of images.

Samples are the indices of the axes before base_axis; each has draws of its own. seed=-1 draws
from the stream that `nnl.seed` restarts, another seed from a stream of the call's own.
"""

from __future__ import annotations

import numpy as np

from nnl.core.arrays.spec import ShapeError, Spec, check_axes
from nnl.core.ops import random as nnl_random
from nnl.core.ops.op import Cost, Sample, op
from nnl.functions.dropout import masked_scale
from nnl.functions.random import index_scatter, require

CATEGORY = "Random"

__all__ = ["random_crop", "random_flip", "random_shift", "random_erase"]


class Moved:
    """Common to functions that move elements along axes: forward and gradient.

    A subclass gives moves(xp, rng, x), pairs (axis, source): source has the shape
    (*samples, size of the result), and holds positions of x along axis, negative ones for
    `constant_value`. The axes before min(axis, base_axis) are the samples.
    """

    constant_value = 0.0

    def forward(self, xp, x, rng):
        y_shape = self.infer(Spec.of(x.shape, x.dtype), rng)[0].shape
        rank = len(y_shape)
        moves = dict(self.moves(xp, rng, x))
        index = xp.zeros((1,) * rank, np.int64)
        outside = xp.zeros((1,) * rank, np.bool_)
        stride = 1
        for axis in reversed(range(rank)):
            if axis in moves:
                source = moves[axis]
                lead = source.shape[:-1]
                ones = (1,) * (axis - len(lead)), (1,) * (rank - axis - 1)
                source = source.reshape(*lead, *ones[0], source.shape[-1], *ones[1])
                outside = outside | (source < 0)
            else:
                source = xp.arange(y_shape[axis]).reshape((-1,) + (1,) * (rank - axis - 1))
            index = index + source * stride
            stride *= x.shape[axis]
        index = xp.ascontiguousarray(xp.broadcast_to(xp.where(outside, -1, index), y_shape))
        y = x.reshape(-1)[index]
        xp.copyto(y, self.constant_value, where=index < 0)
        return y, index

    def vjp(self, gy, _, *, index, x_spec):
        return index_scatter(gy, index, shape=x_spec.shape)

    def cost(self, x, rng):
        y, index = self.infer(x, rng)
        return Cost(flops=4 * y.size, bytes=2 * y.nbytes + index.nbytes)

    def samples_before(self, x, axis):
        """Sizes of the axes that have draws of their own for a move along axis."""
        return x.shape[: min(axis, self.base_axis)]

    def check_base_axis(self, x):
        if not 0 <= self.base_axis <= len(x.shape):
            name = self.op.name
            raise ShapeError(
                f"{name}: base_axis {self.base_axis} is outside [0, {len(x.shape)}] for x {x}"
            )


def from_front(base_axis, x):
    """base_axis counted from the front, if it is negative and an axis of x."""
    rank = len(x.shape)
    return base_axis + rank if -rank <= base_axis < 0 else base_axis


def draw_integers(xp, rng, shape, low, high):
    """Integers in [low, high], uniformly."""
    u = nnl_random.uniform(rng, shape, np.float64, xp)
    return xp.floor(u * (high - low + 1)).astype(np.int64) + low


@op("random_crop", nnp="RandomCrop", outputs=("y", "index"), hidden=1)
class random_crop(Moved):
    """Cut a piece of the given size out of each sample, at a random position s: $y_i = x_{i + s}$.

    Args:
        x: Any shape.
        shape: Sizes of the piece along the last axes; the size of x where left out.
        base_axis: Axes from here on belong to one sample; negative ones count from the end.
        seed: -1 for the stream that `nnl.seed` restarts, else a stream of its own.
    Raises:
        ShapeError: A size is larger than that of x, or there are more sizes than axes.
    """

    shape: tuple[int, ...] | None = None
    base_axis: int = 1
    seed: int = -1

    def resolve(self, x, rng):
        shape = x.shape if self.shape is None else self.shape
        return {"shape": shape, "base_axis": from_front(self.base_axis, x)}

    def infer(self, x, rng):
        self.check_base_axis(x)
        lead = len(x.shape) - len(self.shape)
        if lead < 0 or any(
            not 0 <= n <= m for n, m in zip(self.shape, x.shape[lead:], strict=True)
        ):
            raise ShapeError(f"random_crop: shape {self.shape} is no part of x {x}")
        y = x.with_shape(x.shape[:lead] + self.shape)
        return y, y.with_dtype(np.int64)

    def moves(self, xp, rng, x):
        lead = len(x.shape) - len(self.shape)
        for axis, n in enumerate(self.shape, lead):
            if n < x.shape[axis]:
                start = draw_integers(xp, rng, self.samples_before(x, axis), 0, x.shape[axis] - n)
                yield axis, start[..., None] + xp.arange(n)

    def samples(rng):
        yield Sample(rng.normal(size=(2, 3, 4, 5)), shape=(2, 3), seed=3)
        yield Sample(rng.normal(size=(2, 4)), shape=(3,), base_axis=0, seed=3)
        yield Sample(rng.normal(size=(2, 4)), seed=3)


@op("random_flip", nnp="RandomFlip", outputs=("y", "index"), hidden=1)
class random_flip(Moved):
    """Reverse each sample along each of some axes with probability 1/2: $y_i = x_{n - 1 - i}$.

    Args:
        x: Any shape.
        axes: Axes to reverse; the last one if left out.
        base_axis: Axes from here on belong to one sample; negative ones count from the end.
        seed: -1 for the stream that `nnl.seed` restarts, else a stream of its own.
    Raises:
        ShapeError: An axis is out of range or given twice.
    """

    axes: tuple[int, ...] | None = None
    base_axis: int = 1
    seed: int = -1

    def resolve(self, x, rng):
        axes = (len(x.shape) - 1,) if self.axes is None else self.axes
        return {
            "axes": check_axes("random_flip", axes, x),
            "base_axis": from_front(self.base_axis, x),
        }

    def infer(self, x, rng):
        self.check_base_axis(x)
        return x, x.with_dtype(np.int64)

    def moves(self, xp, rng, x):
        for axis in self.axes:
            n = x.shape[axis]
            flip = draw_integers(xp, rng, self.samples_before(x, axis), 0, 1)[..., None]
            yield axis, xp.where(flip == 1, xp.arange(n)[::-1], xp.arange(n))

    def samples(rng):
        yield Sample(rng.normal(size=(3, 2, 3)), seed=3)
        yield Sample(rng.normal(size=(3, 2, 3)), axes=(1, -1), seed=3)
        yield Sample(rng.normal(size=(3, 2)), axes=(1,), base_axis=0, seed=3)


@op("random_shift", nnp="RandomShift", outputs=("y", "index"), hidden=1)
class random_shift(Moved):
    r"""Move each sample by random whole numbers of elements, at most shifts[i] either way.

    $$y_i = x_{i - s}, \quad s \in \{-\mathit{shifts}, \ldots, \mathit{shifts}\}$$

    Args:
        x: Any shape.
        shifts: Largest moves along the last axes; 0 for every axis if left out.
        border_mode: What comes in from outside: "nearest" the border element, "reflect" the mirror
            image with the border element twice (d c b a | a b c d), "constant" constant_value.
        constant_value: See border_mode.
        base_axis: Axes from here on belong to one sample; negative ones count from the end.
        seed: -1 for the stream that `nnl.seed` restarts, else a stream of its own.
    Raises:
        ShapeError: There are more shifts than axes.
        ValueError: A shift is negative, or border_mode another word.
    """

    shifts: tuple[int, ...] | None = None
    border_mode: str = "nearest"
    constant_value: float = 0.0
    base_axis: int = 1
    seed: int = -1

    def resolve(self, x, rng):
        shifts = (0,) * len(x.shape) if self.shifts is None else self.shifts
        return {"shifts": shifts, "base_axis": from_front(self.base_axis, x)}

    def infer(self, x, rng):
        self.check_base_axis(x)
        if len(self.shifts) > len(x.shape):
            raise ShapeError(f"random_shift: shifts {self.shifts} has more axes than x {x}")
        require(
            "random_shift", "shifts", self.shifts, "numbers >= 0", all(s >= 0 for s in self.shifts)
        )
        modes = ("nearest", "reflect", "constant")
        mode = self.border_mode
        require("random_shift", "border_mode", repr(mode), f"one of {modes}", mode in modes)
        return x, x.with_dtype(np.int64)

    def moves(self, xp, rng, x):
        for axis, most in enumerate(self.shifts, len(x.shape) - len(self.shifts)):
            n = x.shape[axis]
            if not most or not n:
                continue
            shift = draw_integers(xp, rng, self.samples_before(x, axis), -most, most)
            source = xp.arange(n) - shift[..., None]
            if self.border_mode == "nearest":
                source = xp.clip(source, 0, n - 1)
            elif self.border_mode == "reflect":
                source = source % (2 * n)
                source = xp.where(source < n, source, 2 * n - 1 - source)
            else:
                source = xp.where((source < 0) | (source >= n), -1, source)
            yield axis, source

    def samples(rng):
        for mode in ("nearest", "reflect", "constant"):
            yield Sample(
                rng.normal(size=(3, 2, 4, 5)),
                shifts=(1, 2),
                border_mode=mode,
                constant_value=2.0,
                seed=3,
            )
        yield Sample(rng.normal(size=(3, 4)), seed=3)


@op("random_erase", at_most={"n": 10_000}, nnp="RandomErase", outputs=("y", "kept"), hidden=1)
class random_erase:
    r"""Overwrite random rectangles R of images with random numbers.

    $$y_{c i j} = u_{c i j} \text{ if } (i, j) \in R, \text{ else } x_{c i j}, \quad
      u \sim U[\mathit{low}, \mathit{high})$$

    A rectangle has an area of area_ratios times that of the image and a ratio height / width of
    aspect_ratios, both uniformly drawn, and is cut to the size of the image.

    Args:
        x: (samples..., C, H, W), or (samples..., H, W, C) with channel_last.
        prob: Probability of each rectangle to be erased.
        area_ratios, aspect_ratios: (lowest, highest).
        replacements: (lowest, highest) of the uniform numbers written.
        n: Number of rectangles.
        share: Whether the channels of an image have the same rectangles.
        inplace: Ignored.
        base_axis: Axes from here on belong to one sample; there must be three. Negative ones count
            from the end.
        channel_last: Where the channels are.
        ste_fine_grained: Whether erased elements have no gradient; without, the gradient passes.
        seed: -1 for the stream that `nnl.seed` restarts, else a stream of its own.
    Raises:
        ShapeError: There are not three axes from base_axis on.
        ValueError: prob is outside [0, 1], a range is not two numbers, or n is below 1.
    Source: Zhong et al., Random Erasing Data Augmentation, arXiv:1708.04896.
    """

    prob: float = 0.5
    area_ratios: tuple[float, ...] = (0.02, 0.4)
    aspect_ratios: tuple[float, ...] = (0.3, 3.3333)
    replacements: tuple[float, ...] = (0.0, 255.0)
    n: int | None = None
    share: bool = True
    inplace: bool = False
    base_axis: int = 1
    seed: int = -1
    channel_last: bool = False
    ste_fine_grained: bool = True
    host = "as many numbers are drawn as elements are erased"

    def resolve(self, x, rng):
        return {
            "n": 1 if self.n is None else self.n,
            "base_axis": from_front(self.base_axis, x),
        }

    def infer(self, x, rng):
        if len(x.shape) - self.base_axis != 3 or self.base_axis < 0:
            raise ShapeError(
                f"random_erase: x {x} has {len(x.shape) - self.base_axis} axes from base_axis "
                f"{self.base_axis} on, wanted 3: channels, height and width"
            )
        require("random_erase", "prob", self.prob, "0 <= prob <= 1", 0.0 <= self.prob <= 1.0)
        require("random_erase", "n", self.n, "at least 1", self.n >= 1)
        for name in ("area_ratios", "aspect_ratios", "replacements"):
            value = getattr(self, name)
            require("random_erase", name, value, "(lowest, highest)", len(value) == 2)
        return x, x.with_dtype(np.bool_)

    def forward(self, xp, x, rng):
        kept = np.broadcast_to(~self._erased(x.shape, rng), x.shape)
        kept = xp.asarray(np.ascontiguousarray(kept))
        low, high = self.replacements
        y = x.copy()
        erased = ~kept
        y[erased] = nnl_random.uniform(rng, (int(erased.sum()),), x.dtype) * (high - low) + low
        return y, kept

    def _erased(self, shape, rng):
        """Booleans of the shape of x, with a size of 1 for channels that share."""
        samples = shape[: self.base_axis]
        height, width, channels = (
            shape[self.base_axis :] if self.channel_last else (*shape[-2:], shape[-3])
        )
        lead = (*samples, 1 if self.share else channels)
        erased = np.zeros((*lead, height, width), np.bool_)
        for _ in range(self.n):
            u = nnl_random.uniform(rng, (5, *lead), np.float64)
            area = height * width * _between(u[0], self.area_ratios)
            aspect = _between(u[1], self.aspect_ratios)
            h = np.minimum(np.rint(np.sqrt(area * aspect)), height)
            w = np.minimum(np.rint(np.sqrt(area / aspect)), width)
            top = np.floor(u[2] * (height - h + 1))
            left = np.floor(u[3] * (width - w + 1))
            use = (u[4] < self.prob)[..., None]
            rows = _inside(np.arange(height), top, h) & use
            columns = _inside(np.arange(width), left, w)
            erased |= rows[..., :, None] & columns[..., None, :]
        return np.moveaxis(erased, -3, -1) if self.channel_last else erased

    def vjp(self, gy, _, *, kept):
        return masked_scale(gy, kept) if self.ste_fine_grained else gy

    def cost(self, x, rng):
        return Cost(flops=4 * x.size, bytes=2 * x.nbytes + x.size)

    def samples(rng):
        x = rng.normal(size=(2, 3, 4, 5))
        yield Sample(x, prob=1.0, n=2, seed=3)
        yield Sample(x, prob=1.0, share=False, seed=3)


def _between(u, limits):
    return limits[0] + u * (limits[1] - limits[0])


def _inside(position, start, length):
    start = start[..., None]
    return (position >= start) & (position < start + length[..., None])
