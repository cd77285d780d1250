# SPDX-License-Identifier: Apache-2.0
"""Reading elements at positions that are themselves data."""

from __future__ import annotations

import math

import numpy as np

from nnl.core.arrays.array import NdArray
from nnl.core.arrays.spec import ShapeError, check_axis
from nnl.core.graph.node import Value
from nnl.core.graph.variable import Variable
from nnl.core.ops.op import OPS, Sample, op
from nnl.functions.layout import MovesData, check_indices
from nnl.functions.on_device import add_at, take

CATEGORY = "Array manipulation"

__all__ = ["gather", "gather_nd"]


def index_array(name, indices):
    """Indices of a call: Variables and NdArrays as they are, lists and arrays as constants."""
    if isinstance(indices, (Variable, NdArray)):
        return indices
    try:
        a = np.asarray(indices)
    except ValueError:
        raise TypeError(
            f"{name}: indices has rows of different lengths, wanted one array"
        ) from None
    if a.dtype.kind not in "iu" and a.size:
        raise TypeError(f"{name}: indices has the dtype {a.dtype}, wanted integers")
    nd = NdArray.from_numpy_array(a.astype(np.int64))
    return Variable.of_edge(Value.leaf(nd), nd)


def add_rows(xp, n, at, values):
    """An array of n rows: row i is the sum of the values[j] with at[j] == i.

    Args:
        at: (m,) integers in [0, n).
        values: (m, k) with any k.
    """
    m, k = values.shape
    if k == 1 and values.dtype.kind in "fV":
        return add_at(xp, at, values[:, 0], n).astype(values.dtype).reshape(n, 1)
    y = xp.zeros((n, k), values.dtype)
    if xp is not np:
        xp.add.at(y, at, values)
    elif m:
        order = xp.argsort(at, kind="stable")
        ordered = at[order]
        first = xp.flatnonzero(xp.concatenate((xp.ones(1, bool), ordered[1:] != ordered[:-1])))
        if len(first) == m:
            y[at] = values
        else:
            y[ordered[first]] = xp.add.reduceat(values[order], first, axis=0)
    return y


class Along:
    """Common to gather and its gradient: x as (batch, outer, size of axis, inner)."""

    def four_sizes(self, shape):
        b, a = self.batch_dims, self.axis
        return (
            math.prod(shape[:b]),
            math.prod(shape[b:a]),
            shape[a],
            math.prod(shape[a + 1 :]),
        )


@op("gather", nnp="Gather", integer=("Indices",))
class gather(Along, MovesData):
    r"""Elements of an axis at given indices.

    $y_{b, o, j, i} = x_{b, o, Indices_{b, j}, i}$, where b stands for batch_dims axes, o for those
    between them and axis, j for the other axes of Indices, i for the axes after axis.

    Args:
        x: Any shape with at least one axis.
        Indices: Integers in [0, x.shape[axis]); floats must be whole numbers. The first batch_dims
            sizes equal those of x.
        axis: The axis to read along; 0 if left out. Negative ones count from the end.
        batch_dims: How many leading axes x and Indices share; 0 if left out, at most axis.
            Negative ones count from the end of Indices.
    Raises:
        ShapeError: axis or batch_dims is out of range, or the shared sizes differ.
        ValueError: An index is out of range.
    Example:
        >>> F.gather(array([10, 20, 30]), array([2, 0, 2], int)).d
        array([30., 10., 30.], dtype=float32)
    """

    axis: int | None = None
    batch_dims: int | None = None

    def resolve(self, x, Indices):
        axis = check_axis("gather", self.axis or 0, x)
        b = self.batch_dims or 0
        if b < 0:
            b += Indices.ndim
        if not 0 <= b <= min(axis, Indices.ndim):
            raise ShapeError(
                f"gather: batch_dims {self.batch_dims} is outside [0, {min(axis, Indices.ndim)}], "
                f"with axis {axis} of x {x} and Indices {Indices}"
            )
        return {"axis": axis, "batch_dims": b}

    def infer(self, x, Indices):
        a, b = self.axis, self.batch_dims
        if x.shape[:b] != Indices.shape[:b]:
            raise ShapeError(
                f"gather: x {x} and Indices {Indices} must have the same first {b} sizes"
            )
        return x.with_shape(x.shape[:a] + Indices.shape[b:] + x.shape[a + 1 :])

    def forward(self, xp, x, indices, out=None):
        a, b = self.axis, self.batch_dims
        check_indices("gather", "Indices", indices, 0, x.shape[a])
        indices = indices.astype(np.int64, copy=False)
        if b == 0:
            return take(xp, x, indices, a, out)
        batch, outer, n, inner = self.four_sizes(x.shape)
        i = xp.arange(batch)[:, None, None]
        o = xp.arange(outer)[None, :, None]
        y = x.reshape(batch, outer, n, inner)[
            i, o, indices.reshape(batch, 1, math.prod(indices.shape[b:]))
        ]
        y = y.reshape(x.shape[:a] + indices.shape[b:] + x.shape[a + 1 :])
        if out is None:
            return y
        xp.copyto(out, y)
        return out

    def vjp(self, gy, *, Indices, x_spec):
        g = gather_backward(
            gy, Indices, shape=x_spec.shape, axis=self.axis, batch_dims=self.batch_dims
        )
        return g, None

    def samples(rng):
        x = rng.normal(size=(2, 3, 4))
        for size, n, axis, batch in (
            ((3,), 2, 0, 0),
            ((2, 2), 3, 1, None),
            ((2, 5), 4, -1, 0),
            ((2, 2), 3, 1, 1),
            ((2, 3), 4, 2, 1),
            ((2, 3, 2), 4, 2, 2),
            ((), 2, None, None),
        ):
            indices = np.asarray(rng.integers(0, n, size))
            yield Sample(x, indices, axis=axis, batch_dims=batch)


@op("gather_backward", integer=("indices",))
class gather_backward(Along, MovesData):
    """The gradient of gather: gy added up where the elements came from."""

    shape: tuple[int, ...]
    axis: int
    batch_dims: int

    def infer(self, gy, indices):
        return gy.with_shape(self.shape)

    def forward(self, xp, gy, indices):
        batch, outer, n, inner = self.four_sizes(self.shape)
        rows = xp.arange(batch * outer).reshape(batch, outer, 1) * n
        count = math.prod(indices.shape[self.batch_dims :])
        at = rows + indices.reshape(batch, 1, count).astype(np.int64)
        y = add_rows(xp, batch * outer * n, at.ravel(), gy.reshape(at.size, inner))
        return y.reshape(self.shape)

    def vjp(self, gy, *, indices):
        return gather(gy, indices, axis=self.axis, batch_dims=self.batch_dims), None

    def samples(rng):
        for g, size, n, axis, batch in (
            ((5, 4), (5,), 3, 0, 0),
            ((3, 2, 2), (2, 2), 4, 1, 0),
            ((3, 2), (3, 2), 4, 1, 1),
        ):
            yield Sample(
                rng.normal(size=g),
                rng.integers(0, n, size),
                shape=(3, 4),
                axis=axis,
                batch_dims=batch,
            )


def positions_rank(name, indices, arg, x):
    """How many axes of x the indices name; a ShapeError if they have the wrong shape."""
    if indices.ndim < 2 or not 1 <= indices.shape[0] <= x.ndim:
        raise ShapeError(
            f"{name}: indices {indices} must have the shape (m, ...) with at least two axes and m "
            f"from 1 to the rank of {arg} {x}"
        )
    return indices.shape[0]


def check_positions(name, indices, shape):
    """Raise unless row i of indices is a valid index of axis i."""
    for i, row in enumerate(indices):
        check_indices(name, f"indices[{i}]", row, -shape[i], shape[i])


@op("gather_nd", nnp="GatherNd", integer=("indices",))
class gather_nd_op(MovesData):
    """Elements or slices at given positions."""

    def infer(self, data, indices):
        m = positions_rank("gather_nd", indices, "data", data)
        return data.with_shape(indices.shape[1:] + data.shape[m:])

    def forward(self, xp, data, indices):
        check_positions("gather_nd", indices, data.shape)
        return data[tuple(indices)]

    def vjp(self, gy, *, indices, data_spec):
        g = OPS["scatter_nd"](gy, indices, shape=data_spec.shape, add=True)
        return g, None

    def samples(rng):
        x = rng.normal(size=(2, 3, 4))
        for indices in (
            [[1, 0, 1]],
            [[0, 1, 1, 0], [2, 0, -1, 2]],
            [[[0, -2], [1, 1]], [[2, 0], [0, 1]], [[3, 0], [0, 0]]],
        ):
            yield Sample(x, np.array(indices))


def gather_nd(data, indices):
    r"""Elements or slices at given positions: data[indices[0], indices[1], ...].

    $$y_{j, r} = \mathit{data}_{I_{0 j}, \ldots, I_{m - 1, j},\, r}$$ for all positions j, with the
    indices I and the rest r of the axes of data.

    Args:
        data: Any shape.
        indices: (m, ...) integers with m at most the rank of data; indices[i] is in
            [-n, n) for the size n of axis i. Variable, NdArray, list or numpy array.
    Returns:
        indices.shape[1:] + data.shape[m:].
    Raises:
        ShapeError: indices has fewer than two axes, or m is larger than the rank.
        ValueError: An index is out of range.
    Example:
        >>> F.gather_nd(array([[1, 2], [3, 4]]), array([[0, 1], [1, 0]], int)).d  # (0, 1), (1, 0)
        array([2., 3.], dtype=float32)
    """
    return gather_nd_op(data, index_array("gather_nd", indices))
