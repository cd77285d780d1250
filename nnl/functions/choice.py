# SPDX-License-Identifier: Apache-2.0
"""Take one element of each row, or put one there: what losses by label and max are made of."""

from __future__ import annotations

import numpy as np

from nnl.core.arrays.spec import ShapeError
from nnl.core.ops.op import Cost, Sample, op
from nnl.functions.reduction import as_rows, count, kept_shape, reshape

CATEGORY = "Random"

__all__: list[str] = []


class Choice:
    """Common to pick and place: one position among the reduced axes, for each kept one."""

    def check(self, index, x):
        shape = [n for i, n in enumerate(x.shape) if i not in self.axes]
        if index.shape != tuple(shape) and index.shape != kept_shape(x, self.axes):
            raise ShapeError(
                f"{self.op.name}: index {index} does not choose from the axes {self.axes} of {x}"
            )


@op("pick", integer=("index",))
class pick(Choice):
    """The chosen element out of those that share the kept axes; 0 where the index is negative.

    The output has the shape of index: that of x with the axes left out, or of size 1.
    """

    axes: tuple[int, ...]

    def infer(self, x, index):
        self.check(index, x)
        return x.with_shape(index.shape)

    def forward(self, xp, x, index):
        flat = as_rows(x, self.axes)
        i = index.reshape((*flat.shape[:-1], 1)).astype(np.int64)
        y = xp.take_along_axis(flat, xp.maximum(i, 0), -1)
        xp.copyto(y, 0, where=i < 0)
        return y.reshape(index.shape).copy()

    def vjp(self, gy, *, x_spec, index):
        return place(gy, index, shape=x_spec.shape, axes=self.axes), None

    def cost(self, x, index):
        return Cost(flops=0, bytes=index.nbytes + 2 * index.size * x.dtype.itemsize)

    def samples(rng):
        x = rng.normal(size=(2, 3, 4))
        yield Sample(x, np.array([[1, 0, -1], [3, 2, 0]]), axes=(2,))
        yield Sample(x, np.array([[[1, 0, -1, 2]], [[2, 2, 0, 1]]]), axes=(1,))
        yield Sample(x, np.array([7, 0, -3]), axes=(0, 2))


@op("place", integer=("index",))
class place(Choice):
    """Zeros with each element at its chosen position; nowhere if the index is negative."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]

    def infer(self, gy, index):
        x = gy.with_shape(self.shape)
        self.check(index, x)
        return x

    def forward(self, xp, gy, index):
        kept = [i for i in range(len(self.shape)) if i not in self.axes]
        order = (*kept, *sorted(self.axes))
        rows = xp.zeros((*(self.shape[i] for i in kept), count(self.shape, self.axes)), gy.dtype)
        shape = (*rows.shape[: len(kept)], 1)
        i, gy = index.reshape(shape).astype(np.int64), gy.reshape(shape)
        xp.put_along_axis(rows, xp.maximum(i, 0), xp.where(i < 0, 0, gy), -1)
        moved = rows.reshape([self.shape[k] for k in order])
        return xp.ascontiguousarray(moved.transpose([order.index(k) for k in range(len(order))]))

    def vjp(self, ggx, *, gy_spec, index):
        return reshape(pick(ggx, index, axes=self.axes), gy_spec.shape), None

    def cost(self, gy, index):
        return Cost(flops=0, bytes=index.nbytes + gy.nbytes + self.infer(gy, index).nbytes)

    def samples(rng):
        gy = rng.normal(size=(2, 3))
        yield Sample(gy, np.array([[1, 0, -1], [3, 2, 0]]), shape=(2, 3, 4), axes=(2,))
        yield Sample(rng.normal(size=3), np.array([7, 0, -3]), shape=(2, 3, 4), axes=(0, 2))
