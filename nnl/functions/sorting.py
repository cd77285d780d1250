# SPDX-License-Identifier: Apache-2.0
"""Sorting along an axis, and the k largest elements."""

from __future__ import annotations

import math

import numpy as np

from nnl.core.arrays.spec import check_axis
from nnl.core.ops.op import OPS, Cost, Sample, op
from nnl.functions.layout import MovesData
from nnl.functions.reduction import reshape
from nnl.functions.scatter import scatter_along, take_along

CATEGORY = "Random"

__all__ = ["sort", "top_k_data", "top_k_grad"]


@op("sort", nnp="Sort", outputs=("*y",))
class sort_op(MovesData):
    """Elements in order along an axis, their indices, or both."""

    axis: int = -1
    reverse: bool = False
    with_index: bool = False
    only_index: bool = False

    def resolve(self, x):
        return {"axis": check_axis("sort", self.axis, x)}

    def infer(self, x):
        index = x.with_dtype(np.uint64)
        if self.only_index:
            return (index,)
        return (x, index) if self.with_index else (x,)

    def forward(self, xp, x):
        if not (self.with_index or self.only_index or self.reverse):
            return (xp.sort(x, axis=self.axis),)
        index = xp.argsort(-x if self.reverse else x, axis=self.axis, kind="stable")
        if self.only_index:
            return (index.astype(np.uint64),)
        y = xp.take_along_axis(x, index, axis=self.axis)
        return (y, index.astype(np.uint64)) if self.with_index else (y,)

    def vjp(self, gy, *gindex, x):
        if gy is None or self.only_index:
            return None
        index = sort_op(x, axis=self.axis, reverse=self.reverse, only_index=True)[0]
        return scatter_along(gy, index, shape=x.shape, axis=self.axis)

    def cost(self, x):
        n = max(x.shape[self.axis], 1)
        moved = sum(s.nbytes for s in (x, *self.infer(x)))
        return Cost(flops=x.size * math.ceil(math.log2(n)), bytes=moved)

    def samples(rng):
        x = rng.permutation(24).reshape(2, 3, 4) * 0.5
        for axis in (0, 1, -1):
            for reverse in (False, True):
                yield Sample(x, axis=axis, reverse=reverse)
        yield Sample(x, with_index=True)
        yield Sample(x, grad=(False,), only_index=True)
        yield Sample(rng.normal(size=(0, 2)), axis=0)


def sort(x, axis=-1, reverse=False, with_index=False, only_index=False):
    r"""Elements in ascending order along an axis.

    $$y_i = x_{k_i}$$ with the permutation k for which $x_{k_0} \le x_{k_1} \le \ldots$; k is the
    index.

    Args:
        x: Any shape with at least one axis.
        axis: Negative ones count from the end.
        reverse: In descending order. Equal elements keep their order either way.
        with_index: Also return where the elements come from, uint64.
        only_index: Return only that.
    Returns:
        y, (y, index) or index, each of the shape of x.
    Raises:
        ShapeError: axis is out of range.
    Example:
        >>> values, places = F.sort(array([3, 1, 2]), with_index=True)
        >>> values.d, places.d
        (array([1., 2., 3.], dtype=float32), array([1, 2, 0], dtype=uint64))
    """
    y = sort_op(x, axis=axis, reverse=reverse, with_index=with_index, only_index=only_index)
    return y[0] if len(y) == 1 else y


class TopK(MovesData):
    """Common to functions of the k largest elements of every sample."""

    def check(self, x):
        name = self.op.name
        size = math.prod(x.shape[self.base_axis :])
        if not 1 <= self.k <= size:
            raise ValueError(f"{name}: k is {self.k}, wanted 1 to {size}, the sample size of x {x}")

    def rows(self, x_shape):
        b = self.base_axis
        return math.prod(x_shape[:b]), math.prod(x_shape[b:])


def largest_first(xp, keys, k):
    """(rows, k) indices of the k largest keys of each row, in descending order of the keys."""
    n = keys.shape[1]
    if 8 * k < n:  # leave out most elements before sorting
        candidates = xp.sort(xp.argpartition(keys, n - k, axis=1)[:, n - k :], axis=1)
        order = xp.argsort(-xp.take_along_axis(keys, candidates, axis=1), axis=1, kind="stable")
        return xp.take_along_axis(candidates, order, axis=1)
    return xp.argsort(-keys, axis=1, kind="stable")[:, :k]


@op("top_k_data", nnp="TopKData", outputs=("*y",))
class top_k_data(TopK):
    r"""The k largest elements of every sample.

    $$y_i = x_{k_i}$$ for the i-th largest element $x_{k_0} \ge x_{k_1} \ge \ldots$, i below k.

    Args:
        x: Samples with the sizes from base_axis on.
        k: How many.
        abs: Compare absolute values; the elements keep their sign.
        reduce: Return the k elements, largest first. Otherwise all of x, zero where an element is
            not among them.
        base_axis: First axis of a sample. Negative ones count from the end.
        largest: Take the largest; the smallest, smallest first, if False.
        with_index: Also return their row-major positions in the sample, uint64. Needs reduce.
    Returns:
        x.shape[:base_axis] + (k,), or the shape of x.
    Raises:
        ShapeError: base_axis is out of range.
        ValueError: k is not in [1, sample size]; with_index without reduce.
    """

    k: int
    abs: bool = False
    reduce: bool = True
    base_axis: int = 1
    largest: bool = True
    with_index: bool = False

    def resolve(self, x):
        return {"base_axis": check_axis("top_k_data", self.base_axis, x)}

    def infer(self, x):
        self.check(x)
        if self.with_index and not self.reduce:
            raise ValueError("top_k_data: with_index is True, which needs reduce=True")
        y = x.with_shape(x.shape[: self.base_axis] + (self.k,)) if self.reduce else x
        return (y, y.with_dtype(np.uint64)) if self.with_index else y

    def find(self, xp, rows):
        keys = xp.abs(rows) if self.abs else rows
        return largest_first(xp, keys if self.largest else -keys, self.k)

    def forward(self, xp, x):
        rows = x.reshape(self.rows(x.shape))
        index = self.find(xp, rows)
        y = xp.take_along_axis(rows, index, axis=1)
        if not self.reduce:
            full = xp.zeros_like(rows)
            xp.put_along_axis(full, index, y, axis=1)
            return full.reshape(x.shape)
        shape = x.shape[: self.base_axis] + (self.k,)
        y = y.reshape(shape)
        return (y, index.astype(np.uint64).reshape(shape)) if self.with_index else y

    def portable(self, x):
        rows = self.rows(x.shape)
        keys = flat = reshape(x, rows)
        keys = OPS["abs"](keys) if self.abs else keys
        (index,) = sort_op(keys, axis=1, reverse=self.largest, only_index=True)
        index = OPS["slice"](index, start=(0, 0), stop=(rows[0], self.k), step=(1, 1))
        y = take_along(flat, index, axis=1)
        if not self.reduce:
            return reshape(scatter_along(y, index, shape=rows, axis=1), x.shape)
        shape = x.shape[: self.base_axis] + (self.k,)
        return (reshape(y, shape), reshape(index, shape)) if self.with_index else reshape(y, shape)

    def vjp(self, gy, *gindex, x):
        rows = self.rows(x.shape)
        at = {"base_axis": self.base_axis, "abs": self.abs, "largest": self.largest}
        index = reshape(top_k_data(x, k=self.k, **at, with_index=True)[1], (rows[0], self.k))
        if self.reduce:
            g = reshape(gy, (rows[0], self.k))
        else:
            g = take_along(reshape(gy, rows), index, axis=1)
        return reshape(scatter_along(g, index, shape=rows, axis=1), x.shape)

    def samples(rng):
        # distinct absolute values, so that the choice is the same next to this point
        x = (rng.permutation(24) + 1).reshape(2, 3, 4) * rng.choice([-0.5, 0.5], (2, 3, 4))
        for reduce in (True, False):
            for base_axis in (0, 1, 2):
                yield Sample(x, k=3, reduce=reduce, base_axis=base_axis)
            yield Sample(x, k=2, abs=True, reduce=reduce)
            yield Sample(x, k=2, largest=False, reduce=reduce)
        yield Sample(x, k=1, base_axis=-2, with_index=True)
        yield Sample(x, k=12, with_index=True)


@op("top_k_grad", nnp="TopKGrad")
class top_k_grad(TopK):
    r"""x itself; of its gradient only the k largest elements of every sample go on.

    $$y = x, \quad gx_i = gy_i \text{ if } gy_i \text{ is among the k largest, else } 0$$

    Args:
        x: Samples with the sizes from base_axis on.
        k: How many.
        abs: Compare absolute values of the gradient.
        base_axis: First axis of a sample. Negative ones count from the end.
    Raises:
        ShapeError: base_axis is out of range.
        ValueError: k is not in [1, sample size].
    Source: Sun et al., meProp: Sparsified Back Propagation, arXiv:1706.06197.
    """

    k: int
    abs: bool = False
    base_axis: int = 1

    def resolve(self, x):
        return {"base_axis": check_axis("top_k_grad", self.base_axis, x)}

    def infer(self, x):
        self.check(x)
        return x

    def forward(self, xp, x):
        return x.copy()

    def portable(self, x):
        return OPS["identity"](x)

    def vjp(self, gy):
        return top_k_data(gy, k=self.k, abs=self.abs, reduce=False, base_axis=self.base_axis)

    def samples(rng):
        # order 0: the gradient is thinned out on purpose
        for base_axis in (0, 1):
            yield Sample(rng.normal(size=(2, 3)), k=2, base_axis=base_axis, order=0)
        yield Sample(rng.normal(size=(2, 3)), k=1, abs=True, order=0)
