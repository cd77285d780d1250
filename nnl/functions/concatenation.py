# SPDX-License-Identifier: Apache-2.0
"""Joining arrays along an axis, taking them apart again, and coordinate grids."""

from __future__ import annotations

from itertools import accumulate

from nnl.core.arrays.spec import ShapeError, check_axis
from nnl.core.ops.op import OPS, Onnx, Sample, op
from nnl.functions.layout import MovesData
from nnl.functions.reduction import sum as sum_over

CATEGORY = "Array manipulation"

__all__ = ["concatenate", "stack", "split", "meshgrid"]


def check_given(name, x):
    """Raise unless a variadic function got at least one input."""
    if not x:
        raise TypeError(f"{name}: got no inputs, wanted at least one")


@op("concatenate", nnp="Concatenate", onnx=Onnx("Concat", since=13, axis="axis"))
class concatenate(MovesData):
    r"""Join arrays along an existing axis.

    $$y_{\ldots i \ldots} = x^{(k)}_{\ldots, i - s, \ldots}$$ for $s \le i < s + n_k$, where
    $n_k$ is the size of $x^{(k)}$ along the axis and s the sum of those before it.

    Args:
        x: Any number of arrays; all sizes but that of `axis` are equal.
        axis: By keyword; the last one if left out. Negative ones count from the end.
    Raises:
        TypeError: No array is given.
        ShapeError: Ranks or sizes differ, or axis is out of range.
    Example:
        >>> F.concatenate(array([[1, 2]]), array([[3, 4]]), axis=0).d
        array([[1., 2.],
               [3., 4.]], dtype=float32)
    """

    axis: int | None = None
    follows_order = True

    def resolve(self, *x):
        check_given("concatenate", x)
        axis = -1 if self.axis is None else self.axis
        return {"axis": check_axis("concatenate", axis, x[0], "x[0]")}

    def infer(self, *x):
        a, first = self.axis, x[0].shape
        total = 0
        for i, xi in enumerate(x):
            s = xi.shape
            if len(s) != len(first) or s[:a] != first[:a] or s[a + 1 :] != first[a + 1 :]:
                raise ShapeError(
                    f"concatenate: x[{i}] {xi} and x[0] {x[0]} differ in more than axis {a}"
                )
            total += s[a]
        return x[0].with_shape(first[:a] + (total,) + first[a + 1 :])

    def forward(self, xp, *x, out=None):
        return xp.concatenate(x, axis=self.axis, out=out)

    def vjp(self, gy, *, x_spec, need):
        a = self.axis
        ends = list(accumulate(s.shape[a] for s in x_spec))
        return tuple(
            _part(gy, a, end - s.shape[a], end) if n else None
            for s, end, n in zip(x_spec, ends, need, strict=True)
        )

    def samples(rng):
        for axis in (None, 0, 1, -2):
            yield Sample(rng.normal(size=(2, 3)), rng.normal(size=(2, 3)), axis=axis)
        yield Sample(*(rng.normal(size=(2, n, 3)) for n in (1, 3, 2)), axis=1)
        yield Sample(rng.normal(size=(0, 3)), rng.normal(size=(2, 3)), axis=0)


def _part(x, axis, start, stop):
    n = len(x.shape)
    if (start, stop) == (0, x.shape[axis]):
        return x
    begin, end = [0] * n, list(x.shape)
    begin[axis], end[axis] = start, stop
    return OPS["slice"](x, start=tuple(begin), stop=tuple(end), step=(1,) * n)


@op("stack", nnp="Stack")
class stack(MovesData):
    r"""Join arrays of one shape along a new axis: $y_{\ldots k \ldots} = x^{(k)}_{\ldots}$.

    Args:
        x: Any number of arrays of one shape.
        axis: By keyword; position of the new axis in the result. Negative ones count from its end.
    Raises:
        TypeError: No array is given.
        ShapeError: The shapes differ, or axis is out of range.
    Example:
        >>> F.stack(array([1, 2]), array([3, 4]), axis=1).d
        array([[1., 3.],
               [2., 4.]], dtype=float32)
    """

    axis: int = 0

    def resolve(self, *x):
        check_given("stack", x)
        n = x[0].ndim
        if not -n - 1 <= self.axis <= n:
            raise ShapeError(f"stack: axis {self.axis} is outside [-{n + 1}, {n}] for x[0] {x[0]}")
        return {"axis": self.axis + n + 1 if self.axis < 0 else self.axis}

    def infer(self, *x):
        for i, xi in enumerate(x):
            if xi.shape != x[0].shape:
                raise ShapeError(f"stack: x[{i}] {xi} and x[0] {x[0]} must have the same shape")
        s = x[0].shape
        return x[0].with_shape(s[: self.axis] + (len(x),) + s[self.axis :])

    def forward(self, xp, *x, out=None):
        return xp.stack(x, axis=self.axis, out=out)

    def vjp(self, gy):
        return split_op(gy, axis=self.axis)

    def samples(rng):
        for axis in (0, 1, 2, -1):
            yield Sample(rng.normal(size=(2, 3)), rng.normal(size=(2, 3)), axis=axis)
        yield Sample(*(rng.normal(size=()) for _ in range(3)))
        yield Sample(rng.normal(size=(0, 2)), rng.normal(size=(0, 2)), axis=1)


MOST_PARTS = 1 << 22  # a file may ask for any number


@op("split", nnp="Split", outputs=("*y",))
class split_op(MovesData):
    """One array for every index of an axis, which is removed."""

    axis: int = 0

    def resolve(self, x):
        return {"axis": check_axis("split", self.axis, x)}

    def infer(self, x):
        a = self.axis
        if not 1 <= x.shape[a] <= MOST_PARTS:
            raise ShapeError(
                f"split: axis {a} of x {x} has the size {x.shape[a]}, wanted 1 to {MOST_PARTS}"
            )
        return (x.with_shape(x.shape[:a] + x.shape[a + 1 :]),) * x.shape[a]

    def forward(self, xp, x):
        return tuple(xp.array(part) for part in xp.moveaxis(x, self.axis, 0))

    def vjp(self, *gys):
        return stack(*gys, axis=self.axis)

    def samples(rng):
        for axis in (0, 1, -1):
            yield Sample(rng.normal(size=(2, 3, 4)), axis=axis)
        yield Sample(rng.normal(size=(3,)))
        yield Sample(rng.normal(size=(2, 0)))


def split(x, axis=0):
    r"""An array for each index k of an axis, which goes: $y^{(k)}_{\ldots} = x_{\ldots k \ldots}$.

    Args:
        x: Any shape with at least one axis.
        axis: The axis to take apart; negative ones count from the end.
    Returns:
        A tuple of x.shape[axis] arrays.
    Raises:
        ShapeError: axis is out of range or has the size 0.
    Example:
        >>> [y.d.tolist() for y in F.split(array([[1, 2], [3, 4]]), axis=1)]
        [[1.0, 3.0], [2.0, 4.0]]
    """
    return split_op(x, axis=axis)


@op("meshgrid", nnp="Meshgrid", outputs=("*y",))
class meshgrid_op(MovesData):
    """Coordinate arrays of a grid."""

    ij_indexing: bool = False

    def resolve(self, *x):
        check_given("meshgrid", x)
        return {}

    def infer(self, *x):
        for i, xi in enumerate(x):
            if xi.ndim != 1:
                raise ShapeError(f"meshgrid: x[{i}] {xi} has rank {xi.ndim}, wanted 1")
        shape = [s.shape[0] for s in x]
        if not self.ij_indexing and len(x) > 1:
            shape[0], shape[1] = shape[1], shape[0]
        return (x[0].with_shape(shape),) * len(x)

    def _axis(self, i):
        """The axis of the grid along which coordinate i runs."""
        return i if self.ij_indexing or i > 1 else 1 - i

    def forward(self, xp, *x):
        if len(x) == 1:
            return (xp.array(x[0]),)
        indexing = "ij" if self.ij_indexing else "xy"
        return tuple(xp.meshgrid(*x, indexing=indexing, copy=True))

    def vjp(self, *gys):
        n = len(gys)
        if n == 1:
            return (gys[0],)
        return tuple(
            sum_over(g, axis=tuple(a for a in range(n) if a != self._axis(i)))
            for i, g in enumerate(gys)
        )

    def samples(rng):
        for ij in (False, True):
            yield Sample(rng.normal(size=(2,)), rng.normal(size=(3,)), ij_indexing=ij)
            yield Sample(*(rng.normal(size=(n,)) for n in (2, 3, 4)), ij_indexing=ij)


def meshgrid(*x, ij_indexing=False):
    r"""Coordinate arrays of a grid, one for each vector given.

    $$y^{(k)}_{i_1 \ldots i_n} = x^{(k)}_{i_k}$$ for the vectors $x^{(1)}$ to $x^{(n)}$.

    Args:
        x: Vectors.
        ij_indexing: The grid has the axes in the order of the vectors. Otherwise the first two are
            swapped, so that the first coordinate runs along columns, as in an image.
    Returns:
        A tuple of arrays of one shape; the array itself if one vector is given.
    Raises:
        TypeError: No vector is given.
        ShapeError: An argument is not a vector.
    Example:
        >>> [y.d.tolist() for y in F.meshgrid(array([1, 2, 3]), array([5, 6]))]
        [[[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]], [[5.0, 5.0, 5.0], [6.0, 6.0, 6.0]]]
    """
    y = meshgrid_op(*x, ij_indexing=ij_indexing)
    return y[0] if len(y) == 1 else y
