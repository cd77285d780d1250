# SPDX-License-Identifier: Apache-2.0
"""Padding and shifting: every element of the result is one element of x, or a constant.

For each axis a vector says which index of x an index of the result reads. The gradient adds up
along the same vectors.
"""

from __future__ import annotations

import numpy as np

from nnl.core.arrays.spec import ShapeError
from nnl.core.ops.op import Sample, op
from nnl.functions.layout import MovesData
from nnl.functions.slicing import slice_op

CATEGORY = "Array manipulation"

__all__ = ["pad", "shift"]


def read_along(xp, x, sources):
    """x with axis a replaced by the elements sources[a]; axes with None are left alone."""
    y = x
    for axis, source in enumerate(sources):
        if source is not None:
            y = xp.take(y, source, axis=axis)
    return y.copy() if y is x else y


def add_along(xp, g, sources, shape):
    """The transpose of read_along: g added up into an array of the given shape."""
    for axis, source in enumerate(sources):
        if source is None:
            continue
        size = list(g.shape)
        size[axis] = shape[axis]
        y = xp.zeros(size, g.dtype)
        if xp is not np:
            xp.add.at(y, (slice(None),) * axis + (source,), g)
        elif g.size:
            order = xp.argsort(source, kind="stable")
            ordered = source[order]
            first = xp.flatnonzero(xp.concatenate((xp.ones(1, bool), ordered[1:] != ordered[:-1])))
            at = (slice(None),) * axis + (ordered[first],)
            y[at] = xp.add.reduceat(xp.take(g, order, axis=axis), first, axis=axis)
        g = y
    return g


class FromSources(MovesData):
    """Common to pad, shift and their gradients; `sources(xp, shape of x)` is theirs to give."""

    def read(self, xp, x):
        return read_along(xp, x, self.sources(xp, x.shape))

    def add(self, xp, g, shape):
        y = add_along(xp, g, self.sources(xp, shape), shape)
        return y.copy() if y is g else y


class Padding(FromSources):
    """Which elements pad reads."""

    follows_order = True

    def widths(self, rank):
        """(before, after) of every axis."""
        pairs = list(zip(self.pad_width[::2], self.pad_width[1::2], strict=True))
        return [(0, 0)] * (rank - len(pairs)) + pairs

    def sources(self, xp, shape):
        out = []
        for n, (before, after) in zip(shape, self.widths(len(shape)), strict=True):
            i = xp.arange(-before, n + after)
            if not before and not after:
                out.append(None)
            elif self.mode == "repeat":
                out.append(xp.clip(i, 0, n - 1))
            elif n == 1:
                out.append(xp.zeros_like(i))
            else:
                i = i % (2 * n - 2)  # the mirrors at 0 and n - 1 repeat with this period
                out.append(xp.where(i < n, i, 2 * n - 2 - i))
        return out


@op("pad", nnp="Pad")
class pad(Padding):
    r"""Enlarge an array at the ends of its axes.

    $$y_i = x_{i - b}$$ for $b \le i < b + n$, along an axis of size n with b elements before.

    Args:
        x: Any shape.
        pad_width: (before, after) of the last axes, in the order of the axes, as one flat sequence:
            two numbers for each padded axis.
        mode: "constant": fill with constant_value. "reflect": mirror at the first and last
            element, which are not repeated; again and again if the width is larger than the axis.
            "repeat": repeat the first and last element.
        constant_value: The value of mode "constant".
    Raises:
        ShapeError: pad_width has an odd length, or more pairs than x has axes; or an empty axis is
            to be padded with its own elements.
        ValueError: A width is negative, or mode is none of the three.
    Example:
        >>> F.pad(array([[1, 2]]), (1, 2)).d
        array([[0., 1., 2., 0., 0.]], dtype=float32)
    """

    pad_width: tuple[int, ...]
    mode: str = "constant"
    constant_value: float = 0.0

    def infer(self, x):
        w = self.pad_width
        if len(w) % 2 or len(w) > 2 * x.ndim:
            raise ShapeError(
                f"pad: pad_width {w} has {len(w)} numbers, wanted two for each of at most "
                f"{x.ndim} axes of x {x}"
            )
        if any(n < 0 for n in w):
            raise ValueError(f"pad: pad_width is {w}, wanted numbers of at least 0")
        if self.mode not in ("constant", "reflect", "repeat"):
            raise ValueError(
                f"pad: mode is {self.mode!r}, wanted 'constant', 'reflect' or 'repeat'"
            )
        pairs = self.widths(x.ndim)
        if self.mode != "constant" and any(
            n == 0 and sum(p) for n, p in zip(x.shape, pairs, strict=True)
        ):
            raise ShapeError(f"pad: x {x} has an empty axis, which mode {self.mode!r} cannot pad")
        return x.with_shape([a + n + b for n, (a, b) in zip(x.shape, pairs, strict=True)])

    def forward(self, xp, x, out=None):
        if self.mode != "constant":
            y = self.read(xp, x)
            if out is None:
                return y
            xp.copyto(out, y)
            return out
        pairs = self.widths(x.ndim)
        if out is None:
            out = xp.empty([a + n + b for n, (a, b) in zip(x.shape, pairs, strict=True)], x.dtype)
        inside = tuple(slice(a, a + n) for n, (a, _) in zip(x.shape, pairs, strict=True))
        out.fill(self.constant_value)
        out[inside] = x
        return out

    def vjp(self, gy, *, x_spec):
        if self.mode == "constant":
            start = tuple(a for a, _ in self.widths(x_spec.ndim))
            stop = tuple(a + n for a, n in zip(start, x_spec.shape, strict=True))
            return slice_op(gy, start=start, stop=stop, step=(1,) * x_spec.ndim)
        return pad_backward(gy, shape=x_spec.shape, pad_width=self.pad_width, mode=self.mode)

    def samples(rng):
        x = rng.normal(size=(2, 3, 4))
        for mode in ("constant", "reflect", "repeat"):
            for width in ((1, 2), (0, 1, 2, 0), (1, 1, 0, 0, 3, 2)):
                yield Sample(x, pad_width=width, mode=mode, constant_value=1.5)
        yield Sample(x, pad_width=(5, 9), mode="reflect")
        yield Sample(rng.normal(size=(0, 2)), pad_width=(1, 0, 1, 1))


@op("pad_backward")
class pad_backward(Padding):
    """The gradient of pad in the modes "reflect" and "repeat"."""

    shape: tuple[int, ...]
    pad_width: tuple[int, ...]
    mode: str

    def infer(self, gy):
        return gy.with_shape(self.shape)

    def forward(self, xp, gy):
        return self.add(xp, gy, self.shape)

    def vjp(self, gy):
        return pad(gy, pad_width=self.pad_width, mode=self.mode)

    def samples(rng):
        for mode in ("reflect", "repeat"):
            yield Sample(rng.normal(size=(2, 9)), shape=(2, 4), pad_width=(2, 3), mode=mode)


class Shifting(FromSources):
    """Which elements shift reads."""

    def sources(self, xp, shape):
        out = [None] * (len(shape) - len(self.shifts))
        for n, s in zip(shape[len(out) :], self.shifts, strict=True):
            i = xp.arange(n) - s
            if s == 0 or n == 0:
                out.append(None)
            elif self.border_mode == "nearest":
                out.append(xp.clip(i, 0, n - 1))
            else:
                i = i % (2 * n)
                out.append(xp.where(i < n, i, 2 * n - 1 - i))
        return out


@op("shift", nnp="Shift")
class shift(Shifting):
    """Move the elements along axes by s: $y_i = x_{i - s}$; the shape stays.

    Args:
        x: Any shape.
        shifts: By how many elements, towards higher indices if positive, for the last axes; no
            shift if left out.
        border_mode: What comes in: "nearest": the first or last element again and again.
            "reflect": the mirror image, in which the first or last element is repeated.
    Raises:
        ShapeError: There are more shifts than axes.
        ValueError: border_mode is neither.
    """

    shifts: tuple[int, ...] | None = None
    border_mode: str = "nearest"

    def resolve(self, x):
        return {"shifts": (0,) * x.ndim if self.shifts is None else self.shifts}

    def infer(self, x):
        if len(self.shifts) > x.ndim:
            raise ShapeError(
                f"shift: shifts {self.shifts} has {len(self.shifts)} numbers, "
                f"wanted at most the rank of x {x}"
            )
        if self.border_mode not in ("nearest", "reflect"):
            raise ValueError(
                f"shift: border_mode is {self.border_mode!r}, wanted 'nearest' or 'reflect'"
            )
        return x

    def forward(self, xp, x):
        return self.read(xp, x)

    def vjp(self, gy):
        return shift_backward(gy, shifts=self.shifts, border_mode=self.border_mode)

    def samples(rng):
        x = rng.normal(size=(3, 4))
        for mode in ("nearest", "reflect"):
            for shifts in ((1, -1), (-2, 3), (2,), (0, 0), (-4, 6)):
                yield Sample(x, shifts=shifts, border_mode=mode)
        yield Sample(x)


@op("shift_backward")
class shift_backward(Shifting):
    """The gradient of shift."""

    shifts: tuple[int, ...]
    border_mode: str

    def infer(self, gy):
        return gy

    def forward(self, xp, gy):
        return self.add(xp, gy, gy.shape)

    def vjp(self, gy):
        return shift(gy, shifts=self.shifts, border_mode=self.border_mode)

    def samples(rng):
        for mode in ("nearest", "reflect"):
            yield Sample(rng.normal(size=(3, 4)), shifts=(1, -2), border_mode=mode)
