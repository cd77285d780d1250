# SPDX-License-Identifier: Apache-2.0
"""Writing elements at positions that are themselves data."""

from __future__ import annotations

import math

import numpy as np

from nnl.core.arrays.spec import ShapeError, Spec, check_axis
from nnl.core.ops.op import OPS, Sample, op
from nnl.functions.arithmetic import add2
from nnl.functions.assign import store
from nnl.functions.gather import (
    add_rows,
    check_positions,
    gather_nd_op,
    index_array,
    positions_rank,
)
from nnl.functions.layout import MovesData, check_indices

CATEGORY = "Array manipulation"

__all__ = ["scatter_nd", "scatter_add"]


def flat_positions(xp, indices, sizes):
    """Row-major position of every index tuple in an array of these sizes; negative ones wrap."""
    at = xp.zeros(indices.shape[1:], np.int64)
    for row, n in zip(indices.astype(np.int64, copy=False), sizes, strict=True):
        at = at * n + xp.where(row < 0, row + n, row)
    return at.ravel()


@op("scatter_nd", nnp="ScatterNd", integer=("indices",))
class scatter_nd_op(MovesData):
    """data at given positions of zeros, or of a copy of out."""

    shape: tuple[int, ...] | None = None
    add: bool = False

    def resolve(self, data, indices, out=None):
        return {"shape": out.shape if self.shape is None and out is not None else self.shape}

    def infer(self, data, indices, out=None):
        if self.shape is None or (out is not None and out.shape != self.shape):
            raise ShapeError(
                f"scatter_nd: shape is {self.shape}, wanted that of out {out}, or any without out"
            )
        y = Spec.of(self.shape, data.dtype)
        m = positions_rank("scatter_nd", indices, "the result", y)
        wanted = indices.shape[1:] + y.shape[m:]
        if data.shape != wanted:
            raise ShapeError(
                f"scatter_nd: data {data} must have the shape {wanted}, from indices {indices} and "
                f"the result's shape {y.shape}"
            )
        return y

    def forward(self, xp, data, indices, base=None):
        shape = self.shape
        check_positions("scatter_nd", indices, shape)
        if self.add:
            m = len(indices)
            rows, width = math.prod(shape[:m]), math.prod(shape[m:])
            at = flat_positions(xp, indices, shape[:m])
            y = add_rows(xp, rows, at, data.reshape(at.size, width)).reshape(shape)
            if base is not None:
                y += base
            return y
        y = xp.zeros(shape, data.dtype) if base is None else base.copy()
        y[tuple(indices)] = data  # the last of several writes to one position stays
        return y

    def vjp(self, gy, *, indices, need):
        g_data = g_out = None
        if need[0]:
            g_data = (gather_nd_op if self.add else scatter_nd_backward)(gy, indices)
        if len(need) > 2 and need[2]:
            g_out = gy if self.add else scatter_clear(gy, indices)
        return g_data, None, g_out

    def samples(rng):
        indices = np.array([[0, 1, 1], [2, 0, -1]])
        for add in (False, True):
            yield Sample(rng.normal(size=(3, 4)), indices, shape=(2, 3, 4), add=add)
        repeated = np.array([[4, 4, 1, 7]])
        yield Sample(rng.normal(size=(4,)), repeated, shape=(8,), add=True)
        for add in (False, True):
            yield Sample(rng.normal(size=(3,)), indices, rng.normal(size=(2, 3)), add=add)


@op("scatter_nd_backward", integer=("indices",))
class scatter_nd_backward(MovesData):
    """The gradient of scatter_nd for data: gy where it was written and not written over."""

    def infer(self, gy, indices):
        m = positions_rank("scatter_nd_backward", indices, "gy", gy)
        return gy.with_shape(indices.shape[1:] + gy.shape[m:])

    def forward(self, xp, gy, indices):
        sizes = gy.shape[: len(indices)]
        at = flat_positions(xp, indices, sizes)
        j = xp.arange(at.size)
        last = xp.zeros(math.prod(sizes), np.int64)
        last[at] = j
        y = gy[tuple(indices)]
        written = (last[at] == j).reshape(indices.shape[1:] + (1,) * (y.ndim - indices.ndim + 1))
        xp.copyto(y, 0, where=~written)
        return y

    def vjp(self, gy, *, indices, gy_spec):
        return scatter_nd_op(gy, indices, shape=gy_spec.shape), None

    def samples(rng):
        yield Sample(rng.normal(size=(3, 2)), np.array([[0, 2, 0]]))
        yield Sample(rng.normal(size=(3, 2)), np.array([[0, 2, 0], [1, -1, 0]]))


@op("scatter_clear", integer=("indices",))
class scatter_clear(MovesData):
    """x with zeros at the positions that indices names."""

    def infer(self, x, indices):
        positions_rank("scatter_clear", indices, "x", x)
        return x

    def forward(self, xp, x, indices):
        y = x.copy()
        y[tuple(indices)] = 0
        return y

    def vjp(self, gy, *, indices):
        return scatter_clear(gy, indices), None

    def samples(rng):
        yield Sample(rng.normal(size=(3, 2)), np.array([[0, 2, 0]]))


def scatter_nd(data, indices, shape=None, out=None, add=False):
    r"""Write data at given positions: y[indices[0], indices[1], ...] = data.

    $$y_{I_{0 j}, \ldots, I_{m - 1, j},\, r} = \mathit{data}_{j, r}$$ for all positions j, with the
    indices I and the rest r of the axes of y.

    Args:
        data: indices.shape[1:] + (the sizes of y after the first m).
        indices: (m, ...) integers with m at most the rank of y; indices[i] is in [-n, n) for the
            size n of axis i. Variable, NdArray, list or numpy array.
        shape: Shape of y, which is zero where nothing is written.
        out: Instead of shape: the array to write into. y starts from its values, and they are
            overwritten with the result.
        add: Add to what is there. Otherwise the last of several writes to a position counts, and
            only that one gets a gradient.
    Raises:
        TypeError: Both or none of shape and out are given.
        ShapeError: data or indices do not have the shape described.
        ValueError: An index is out of range; nothing is written then.
    Example:
        >>> F.scatter_nd(array([7, 9]), [[0, 1], [1, 0]], shape=(2, 2)).d  # at (0, 1) and (1, 0)
        array([[0., 7.],
               [9., 0.]], dtype=float32)
    """
    if (shape is None) == (out is None):
        raise TypeError(
            f"scatter_nd: got {'neither' if out is None else 'both'} of shape and out, wanted one"
        )
    indices = index_array("scatter_nd", indices)
    y = scatter_nd_op(data, indices, out, shape=shape, add=add)
    return y if out is None else store(out, y)


class AlongAxis(MovesData):
    """Common to functions that replace one coordinate of a position by an index."""

    def places(self, xp, indices, shape):
        """Row-major position in `shape` of every element of indices."""
        at = xp.zeros((1,) * indices.ndim, np.int64)
        for d, n in enumerate(shape):
            if d == self.axis:
                i = indices.astype(np.int64, copy=False)
            else:
                i = xp.arange(indices.shape[d]).reshape((-1,) + (1,) * (indices.ndim - d - 1))
            at = at * n + i
        return at


@op("scatter_along", integer=("indices",))
class scatter_along(AlongAxis):
    """Zeros with x added at positions of which indices gives the coordinate along one axis."""

    shape: tuple[int, ...]
    axis: int

    def infer(self, x, indices):
        return x.with_shape(self.shape)

    def forward(self, xp, x, indices):
        check_indices("scatter_add", "indices", indices, 0, self.shape[self.axis])
        at = self.places(xp, indices, self.shape)
        return add_rows(xp, math.prod(self.shape), at.ravel(), x.reshape(-1, 1)).reshape(self.shape)

    def vjp(self, gy, *, indices):
        return take_along(gy, indices, axis=self.axis), None

    def samples(rng):
        for axis, n in ((0, 3), (1, 4)):
            yield Sample(
                rng.normal(size=(2, 3)), rng.integers(0, n, (2, 3)), shape=(3, 4), axis=axis
            )


@op("take_along", integer=("indices",))
class take_along(AlongAxis):
    """The elements of x at positions of which indices gives the coordinate along one axis."""

    axis: int

    def infer(self, x, indices):
        fits = len(indices.shape) == x.ndim and all(
            d == self.axis or n <= x.shape[d] for d, n in enumerate(indices.shape)
        )
        if not fits:
            raise ShapeError(
                f"take_along: indices {indices} must have the rank of x {x} and no larger size, "
                f"except along axis {self.axis}"
            )
        return x.with_shape(indices.shape)

    def forward(self, xp, x, indices):
        return xp.take(x.reshape(-1), self.places(xp, indices, x.shape))

    def vjp(self, gy, *, indices, x_spec):
        return scatter_along(gy, indices, shape=x_spec.shape, axis=self.axis), None

    def samples(rng):
        for axis, n in ((0, 3), (1, 4)):
            yield Sample(rng.normal(size=(3, 4)), rng.integers(0, n, (2, 3)), axis=axis)


@op("scatter_add", nnp="ScatterAdd", integer=("indices",))
class scatter_add_op(MovesData):
    """x0 plus elements of x1 at places that indices gives."""

    axis: int = 0

    def resolve(self, x0, indices, x1):
        return {"axis": check_axis("scatter_add", self.axis, x0, "x0")}

    def infer(self, x0, indices, x1):
        s = indices.shape
        fits = len(s) == x0.ndim == x1.ndim and all(
            n <= x1.shape[d] and (d == self.axis or n <= x0.shape[d]) for d, n in enumerate(s)
        )
        if not fits:
            raise ShapeError(
                f"scatter_add: indices {indices} must have the rank of x0 {x0} and x1 {x1} and no "
                f"size above that of x1, or of x0 except along axis {self.axis}"
            )
        return x0

    def decompose(self, x0, indices, x1):
        n = indices.shape
        if x1.shape != n:
            x1 = OPS["slice"](x1, start=(0,) * len(n), stop=n, step=(1,) * len(n))
        return add2(x0, scatter_along(x1, indices, shape=x0.shape, axis=self.axis))

    def samples(rng):
        x0 = rng.normal(size=(3, 3))
        for axis in (0, 1, -1):
            yield Sample(x0, rng.integers(0, 3, (2, 3)), rng.normal(size=(2, 3)), axis=axis)
        yield Sample(x0, rng.integers(0, 3, (5, 2)), rng.normal(size=(5, 4)), axis=0)


def scatter_add(x0, indices, x1, axis=None):
    r"""x0 plus elements of x1 at given positions.

    $$y_{k j} = x^0_{k j} + \sum_{i:\ I_{i j} = k} x^1_{i j}$$ for axis 0, with I for indices; for
    another axis the sum runs along that.

    Args:
        x0: Any shape with at least one axis; it is not changed.
        indices: Integers in [0, x0.shape[axis]), of the rank of x0, with no size above that of x1,
            nor above that of x0 except along axis.
        x1: Of the rank of x0; elements beyond the sizes of indices are not used.
        axis: The axis that indices counts along; 0 if left out.
    Raises:
        ShapeError: Ranks or sizes do not fit, or axis is out of range.
        ValueError: An index is out of range.
    Example:
        >>> F.scatter_add(array([1, 1, 1]), array([2, 2], int), array([5, 7])).d
        array([ 1.,  1., 13.], dtype=float32)
    """
    return scatter_add_op(x0, indices, x1, axis=0 if axis is None else axis)
