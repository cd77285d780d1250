# SPDX-License-Identifier: Apache-2.0
"""Taking a regular part of an array, reversing axes, repeating an array."""

from __future__ import annotations

import builtins

import numpy as np

from nnl.core.arguments.annotations import Input, checked, shown
from nnl.core.arrays.spec import ShapeError, check_axis
from nnl.core.ops.op import Sample, op
from nnl.functions.layout import MovesData
from nnl.functions.reduction import reshape
from nnl.functions.reduction import sum as sum_over

CATEGORY = "Array manipulation"

__all__ = ["slice", "flip", "tile"]


class Region:
    """Common to slice and its gradient: which part of an array start, stop and step name."""

    follows_order = True

    def region(self, shape):
        """Index tuple of numpy, one slice per axis; the arguments belong to the last axes."""
        n = len(shape) - len(self.start)
        named = zip(self.start, self.stop, self.step, strict=True)
        parts = [builtins.slice(None)] * n
        for size, (start, stop, step) in zip(shape[n:], named, strict=True):
            first, end, step = builtins.slice(start, stop, step).indices(size)
            parts.append(builtins.slice(first, None if end < 0 else end, step))
        return tuple(parts)

    def region_shape(self, shape):
        return tuple(
            len(range(*part.indices(n))) for part, n in zip(self.region(shape), shape, strict=True)
        )


@op("slice", nnp="Slice")
class slice_op(Region, MovesData):
    """A regular part of an array."""

    start: tuple[int, ...] | None = None
    stop: tuple[int, ...] | None = None
    step: tuple[int, ...] | None = None

    def resolve(self, x):
        n = x.ndim
        return {
            "start": (0,) * n if self.start is None else self.start,
            "stop": x.shape if self.stop is None else self.stop,
            "step": (1,) * n if self.step is None else self.step,
        }

    def infer(self, x):
        lengths = {len(self.start), len(self.stop), len(self.step)}
        if len(lengths) > 1 or max(lengths) > x.ndim:
            raise ShapeError(
                f"slice: start {self.start}, stop {self.stop} and step {self.step} must have the "
                f"same length, at most the {x.ndim} axes of x {x}"
            )
        if 0 in self.step:
            raise ValueError(f"slice: step {self.step} has a 0, wanted other numbers")
        return x.with_shape(self.region_shape(x.shape))

    def forward(self, xp, x, out=None):
        y = x[self.region(x.shape)]
        if out is None:
            return y.copy()
        xp.copyto(out, y)
        return out

    def vjp(self, gy, *, x_spec):
        return slice_backward(
            gy, shape=x_spec.shape, start=self.start, stop=self.stop, step=self.step
        )

    def samples(rng):
        x = rng.normal(size=(3, 4, 5))
        for start, stop, step in (
            ((0, 1, 2), (3, 3, 5), (1, 1, 2)),
            ((-2, -3, -1), (3, -1, -6), (1, 1, -2)),
            ((0, 3, 4), (9, 0, 1), (2, -1, -1)),
            ((1, 2), (3, 4), (1, 1)),
            ((2, 2, 2), (1, 2, 4), (1, 1, 1)),
        ):
            yield Sample(x, start=start, stop=stop, step=step)
        yield Sample(x)


@op("slice_backward")
class slice_backward(Region, MovesData):
    """The gradient of slice: gy in that part of a zero array."""

    shape: tuple[int, ...]
    start: tuple[int, ...]
    stop: tuple[int, ...]
    step: tuple[int, ...]

    def infer(self, gy):
        return gy.with_shape(self.shape)

    def forward(self, xp, gy, out=None):
        if out is None:
            out = xp.zeros(self.shape, gy.dtype)
        else:
            out.fill(0)
        out[self.region(self.shape)] = gy
        return out

    def vjp(self, gy):
        return slice_op(gy, start=self.start, stop=self.stop, step=self.step)

    def samples(rng):
        yield Sample(rng.normal(size=(2, 2)), shape=(3, 4), start=(1, 3), stop=(3, 0), step=(1, -2))
        yield Sample(rng.normal(size=(3, 2)), shape=(3, 4), start=(1,), stop=(3,), step=(1,))


@checked
def slice(x: Input, start=None, stop=None, step=None, n_outputs=-1, outputs=None):
    r"""A regular part of an array: x[start[0]:stop[0]:step[0], start[1]:stop[1]:step[1], ...].

    $$y_{i j \ldots} = x_{\,a_0 + s_0 i,\, a_1 + s_1 j, \ldots}$$ with start a and step s.

    Args:
        x: Any shape.
        start, stop, step: One int or None for each axis, with the meaning that they have in a
            Python slice: negative positions count from the end, positions outside are cut off,
            None is the end that step comes from or goes to. All three have one length; if that is
            less than the number of axes, they belong to the last axes. Left out, start is 0, stop
            the shape, step 1.
    Raises:
        ShapeError: The lengths differ, or are larger than the number of axes.
        ValueError: A step is 0.
    Example:
        >>> F.slice(array([[1, 2, 3], [4, 5, 6]]), start=(0, 1), stop=(2, 3)).d
        array([[2., 3.],
               [5., 6.]], dtype=float32)
    """
    for name, given in (("start", start), ("stop", stop), ("step", step)):
        if given is not None and not isinstance(given, (list, tuple, np.ndarray)):
            raise TypeError(f"slice: {name} is {shown(given)}, wanted an int or None for each axis")
    if step is not None:
        step = tuple(1 if v is None else v for v in step)
    signs = (1,) * len(x.shape) if step is None else step
    if start is not None and None in start:
        start = _complete(start, signs, x.shape, 0, -1)
    if stop is not None and None in stop:
        stop = _complete(stop, signs, x.shape, None, None)
    return slice_op(x, start=start, stop=stop, step=step, outputs=outputs)


def _complete(given, signs, shape, forwards, backwards):
    """`given` with None replaced; by the ends of the axes where the replacement is None."""
    lead = len(shape) - len(given)
    if lead < 0 or len(signs) < len(given):
        return tuple(0 if v is None else v for v in given)  # an error that infer words
    out = []
    for i, v in enumerate(given):
        n, positive = shape[lead + i], signs[len(signs) - len(given) + i] > 0
        if v is None:
            v = forwards if positive else backwards
        if v is None:
            v = n if positive else -n - 1
        out.append(v)
    return tuple(out)


@op("flip", nnp="Flip")
class flip(MovesData):
    """Reverse the order along axes: $y_i = x_{n - 1 - i}$ for an axis of size n.

    Args:
        x: Any shape.
        axes: The axes; the last one if left out. Negative ones count from the end; an axis named
            twice is reversed once.
    Raises:
        ShapeError: An axis is out of range.
    """

    axes: tuple[int, ...] | None = None

    def resolve(self, x):
        axes = (-1,) if self.axes is None else self.axes
        return {"axes": tuple(check_axis("flip", a, x) for a in axes)}

    def infer(self, x):
        return x

    def forward(self, xp, x, out=None):
        y = xp.flip(x, tuple(set(self.axes)))
        if out is None:
            return y.copy()
        xp.copyto(out, y)
        return out

    def vjp(self, gy):
        return flip(gy, axes=self.axes)

    def samples(rng):
        for axes in (None, (0,), (-2,), (0, 2), (0, 1, 2)):
            yield Sample(rng.normal(size=(2, 3, 4)), axes=axes)
        yield Sample(rng.normal(size=(0, 3)))


@op("tile", nnp="Tile")
class tile_op(MovesData):
    """Repeat an array along its axes."""

    reps: tuple[int, ...]

    def _aligned(self, shape):
        """Shape and repetitions with ones in front, so that both have one length."""
        n = max(len(shape), len(self.reps))
        return (1,) * (n - len(shape)) + shape, (1,) * (n - len(self.reps)) + self.reps

    def infer(self, x):
        if not all(1 <= r < 2**31 for r in self.reps):
            raise ValueError(f"tile: reps is {self.reps}, wanted numbers in [1, 2^31)")
        return x.with_shape([n * r for n, r in zip(*self._aligned(x.shape), strict=True)])

    def forward(self, xp, x, out=None):
        shape, reps = self._aligned(x.shape)
        if out is None:
            out = xp.empty([n * r for n, r in zip(shape, reps, strict=True)], x.dtype)
        # (r0, n0, r1, n1, ...): every axis split into which copy and where in it
        pairs = [v for pair in zip(reps, shape, strict=True) for v in pair]
        out.reshape(pairs)[...] = x.reshape([v for n in shape for v in (1, n)])
        return out

    def vjp(self, gy, *, x_spec):
        shape, reps = self._aligned(x_spec.shape)
        pairs = tuple(v for pair in zip(reps, shape, strict=True) for v in pair)
        axes = tuple(range(0, len(pairs), 2))
        g = sum_over(reshape(gy, pairs), axis=axes) if axes else gy
        return reshape(g, x_spec.shape)

    def samples(rng):
        x = rng.normal(size=(2, 3))
        for reps in ((2, 2), (3,), (2, 1, 2), (1, 1)):
            yield Sample(x, reps=reps)
        yield Sample(rng.normal(size=(0, 2)), reps=(2, 2))


def tile(x, reps):
    r"""Repeat an array along its axes: $y_{i \ldots} = x_{\,i \bmod n, \ldots}$ for sizes n of x.

    Args:
        x: Any shape.
        reps: How often along each axis: an int, or one int per axis. If there are fewer than axes
            they belong to the last ones; if there are more, x gets new axes in front.
    Raises:
        ValueError: A number is less than 1, or 2^31 or more.
    Example:
        >>> F.tile(array([1, 2]), 3).d
        array([1., 2., 1., 2., 1., 2.], dtype=float32)
    """
    return tile_op(x, reps=reps)
