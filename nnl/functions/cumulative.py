# SPDX-License-Identifier: Apache-2.0
"""Running sums and products along an axis, and the linear recurrence that is their gradient."""

from __future__ import annotations

import numpy as np

from nnl.core.arrays.spec import check_axis, check_same_shape
from nnl.core.ops.op import Cost, Sample, op
from nnl.functions.arithmetic import absorbed, absorbing_mul

CATEGORY = "Reduction"

__all__ = ["cumsum", "cumprod"]


def part(x, axis, start, stop):
    """The slice start:stop of x along an axis, a view."""
    return x[(slice(None),) * axis + (slice(start, stop),)]


class Cumulative:
    """Common to running results: the passage along the axis."""

    def resolve(self, x):
        axis = 0 if self.axis is None else self.axis
        return {"axis": check_axis(self.op.name, axis, x)}

    def infer(self, x):
        return x

    def forward(self, xp, x, out=None):
        y = xp.empty(x.shape, x.dtype) if out is None else out
        self.run(xp, x, y, self.exclusive)
        return y

    def run(self, xp, x, y, exclusive):
        """Write the running results of x to y."""
        a, n = self.axis, x.shape[self.axis]
        x_, y_ = (xp.flip(x, a), xp.flip(y, a)) if self.reverse else (x, y)
        if exclusive:
            part(y_, a, 0, 1)[...] = self.first
            x_, y_ = part(x_, a, 0, n - 1 if n else 0), part(y_, a, 1, n)
        if self.total == "cumsum" and x.dtype.kind == "f" and x.dtype.itemsize < 8:
            y_[...] = xp.cumsum(x_, axis=a, dtype=np.float64)  # long sums lose digits of float32
        else:
            getattr(xp, self.total)(x_, axis=a, out=y_)

    def cost(self, x):
        return Cost(flops=x.size, bytes=2 * x.nbytes)

    def samples(rng):
        for axis in (None, 1, -1):
            yield Sample(rng.normal(size=(2, 3, 4)), axis=axis)
        for exclusive in (False, True):
            for reverse in (False, True):
                x = with_zeros()
                yield Sample(x, axis=1, exclusive=exclusive, reverse=reverse)
        yield Sample(rng.normal(size=(0, 2)), axis=0, exclusive=True)


def with_zeros():
    """Rows with no zero, one, several, at either end."""
    return np.array([[1.0, 2.0, 3.0], [2.0, 0.0, 3.0], [0.0, 0.0, 3.0], [1.5, -1.0, 0.0]])


@op("cumsum", nnp="CumSum")
class cumsum(Cumulative):
    """Running sum along an axis: $y_i = x_0 + ... + x_i$, rounded from sums in float64.

    Args:
        x: At least one axis.
        axis: 0 if left out.
        exclusive: Leave $x_i$ out of $y_i$, so that the first is 0.
        reverse: Run from the end.
    Raises:
        ShapeError: axis is out of range.
    Example:
        >>> F.cumsum(array([1, 2, 3])).d
        array([1., 3., 6.], dtype=float32)
    """

    axis: int | None = None
    exclusive: bool = False
    reverse: bool = False
    first, total = 0, "cumsum"

    def vjp(self, gy):
        return cumsum(gy, self.axis, self.exclusive, not self.reverse)


@op("cumprod", nnp="CumProd")
class cumprod(Cumulative):
    """Running product along an axis: $y_i = x_0 ... x_i$. The gradient is exact at zeros.

    Args:
        x: At least one axis.
        axis: 0 if left out.
        exclusive: Leave $x_i$ out of $y_i$, so that the first is 1.
        reverse: Run from the end.
    Raises:
        ShapeError: axis is out of range.
    """

    axis: int | None = None
    exclusive: bool = False
    reverse: bool = False
    first, total = 1, "cumprod"

    def vjp(self, gy, *, x):
        g = delay(gy, self.axis, not self.reverse) if self.exclusive else gy
        return through_products(g, x, self.axis, self.reverse)


def through_products(gy, x, axis, reverse):
    """The gradient of running products: (product before i) (gy_i + x_{i+1} (gy_{i+1} + ...)).

    A zero absorbs what has overflowed on the other side of it.
    """
    rest = transposed_recurrence(gy, x, axis, not reverse)
    return absorbing_mul(product_before(x, axis, reverse), rest)


@op("product_before")
class product_before(Cumulative):
    """$y_i = x_0 ... x_{i-1}$ along an axis, or from its end, where a zero absorbs an overflow."""

    axis: int
    reverse: bool = False
    first, total = 1, "cumprod"

    def forward(self, xp, x):
        y, without_zeros = xp.empty(x.shape, x.dtype), xp.empty(x.shape, x.dtype)
        with np.errstate(invalid="ignore", over="ignore"):
            self.run(xp, x, y, True)
            self.run(xp, xp.where(x == 0, xp.ones_like(x), x), without_zeros, True)
        return xp.where(xp.isnan(y) & ~xp.isnan(without_zeros), xp.zeros_like(y), y)

    def vjp(self, gy, *, x):
        g = delay(gy, self.axis, not self.reverse)
        return through_products(g, x, self.axis, self.reverse)

    def samples(rng):
        for reverse in (False, True):
            yield Sample(with_zeros(), axis=1, reverse=reverse)
        yield Sample(rng.normal(size=(0, 2)), axis=0)


@op("delay")
class delay:
    """Move elements one place along an axis, a zero first: $y_i = x_{i-1}$."""

    axis: int
    reverse: bool = False

    def infer(self, x):
        return x

    def forward(self, xp, x, out=None):
        y = xp.empty(x.shape, x.dtype) if out is None else out
        a, n = self.axis, x.shape[self.axis]
        lead, into, of = (n - 1, 0, 1) if self.reverse else (0, 1, 0)
        if n:
            part(y, a, lead, lead + 1)[...] = 0
            part(y, a, into, into + n - 1)[...] = part(x, a, of, of + n - 1)
        return y

    def vjp(self, gy):
        return delay(gy, self.axis, not self.reverse)

    def cost(self, x):
        return Cost(flops=0, bytes=2 * x.nbytes)

    def samples(rng):
        for reverse in (False, True):
            yield Sample(rng.normal(size=(2, 3)), axis=1, reverse=reverse)
        yield Sample(rng.normal(size=(0, 3)), axis=0)


class Recurrence:
    """Common to recurrence and its transpose; each is the gradient of the other.

    A factor 0 makes 0 of what has overflowed.
    """

    axis: int
    reverse: bool = False

    def infer(self, g, x):
        check_same_shape(self.op.name, "g", g, "x", x)
        return g

    def forward(self, xp, g, x):
        h = g.copy()
        h_, x_ = xp.moveaxis(h, self.axis, 0), xp.moveaxis(x, self.axis, 0)
        if self.reverse:
            h_, x_ = h_[::-1], x_[::-1]
        shift = self.shift
        for i in range(1, len(h_)):
            h_[i] += absorbed(xp, x_[i - shift], h_[i - 1])
        return h

    def cost(self, g, x):
        return Cost(flops=2 * g.size, bytes=3 * g.nbytes)

    def samples(rng):
        for reverse in (False, True):
            g, x = rng.normal(size=(2, 2, 4))
            yield Sample(g, x, axis=1, reverse=reverse)


@op("recurrence")
class recurrence(Recurrence):
    """$h_i = g_i + x_i h_{i-1}$ along an axis, or from its end."""

    shift = 0

    def vjp(self, gh, *, x, y):
        gg = transposed_recurrence(gh, x, self.axis, not self.reverse)
        return gg, absorbing_mul(gg, delay(y, self.axis, self.reverse))


@op("transposed_recurrence")
class transposed_recurrence(Recurrence):
    """$h_i = g_i + x_{i-1} h_{i-1}$ along an axis, or from its end."""

    shift = 1

    def vjp(self, gh, *, x, y):
        gg = recurrence(gh, x, self.axis, not self.reverse)
        return gg, absorbing_mul(delay(gg, self.axis, not self.reverse), y)
