# SPDX-License-Identifier: Apache-2.0
"""Reductions over axes, and the shape functions that their gradients are made of.

This module is the base of all others: it imports none of them. A rule that needs another function
looks it up by name when it is called.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from nnl.core.arguments.annotations import Input, checked
from nnl.core.arrays.spec import ShapeError, Spec, check_axes
from nnl.core.ops.op import OPS, Cost, Sample, op

CATEGORY = "Reduction"

__all__ = [
    "sum",
    "mean",
    "max",
    "min",
    "prod",
    "reduce",
    "reduce_sum",
    "reduce_mean",
    "reshape",
    "broadcast",
]


def kept_shape(x, axes):
    """The shape of x with the axes set to 1."""
    return tuple(1 if i in axes else n for i, n in enumerate(x.shape))


def count(shape, axes):
    """How many elements are reduced to one."""
    return math.prod(shape[i] for i in axes)


def as_rows(x, axes):
    """x with the axes moved to the end, in their order in x, and merged there."""
    kept = [i for i in range(x.ndim) if i not in axes]
    rows = x.transpose((*kept, *sorted(axes)))
    return rows.reshape((*rows.shape[: len(kept)], count(x.shape, axes)))


MANY = 1024  # numbers that float32 may add one after the other


def added(xp, x, axes, keep_dims=False, out=None):
    """xp.sum, in float64 where numpy adds many numbers of float32 one after the other.

    It adds in pairs along the axes at the end alone: the sum of 3 million rows would be 3 % wrong.
    """
    inner = x.ndim
    while inner - 1 in axes:
        inner -= 1
    one_by_one = count(x.shape, [i for i in axes if i < inner])
    if xp is not np or x.dtype != np.float32 or one_by_one <= MANY:
        return xp.sum(x, axis=axes, keepdims=keep_dims, out=out)
    y = np.sum(x, axis=axes, keepdims=keep_dims, dtype=np.float64, out=out)
    return y if out is not None else y.astype(np.float32)


class Reduction:
    """Common to functions that reduce axes: attributes, the shape rule and cost."""

    axes: tuple[int, ...] | None = None
    keep_dims: bool = False
    follows_order = True

    def resolve(self, x):
        axes = range(len(x.shape)) if self.axes is None else self.axes
        return {"axes": check_axes(self.op.name, axes, x)}

    def infer(self, x):
        if self.keep_dims:
            return x.with_shape(kept_shape(x, self.axes))
        return x.with_shape([n for i, n in enumerate(x.shape) if i not in self.axes])

    def cost(self, x):
        found = self.infer(x)
        nbytes = x.nbytes
        for y in found if isinstance(found, tuple) else (found,):
            nbytes += y.nbytes
        return Cost(flops=x.size, bytes=nbytes)

    def samples(rng):
        for axes in (None, (0,), (-1,), (0, 2), (1,)):
            for keep in (False, True):
                yield Sample(rng.normal(size=(2, 3, 4)), axes=axes, keep_dims=keep)


@op("sum", wide=True, nnp="Sum")
class sum_op(Reduction):
    r"""$y = \sum_i x_i$, the sum over axes."""

    def forward(self, xp, x, out=None):
        return added(xp, x, self.axes, self.keep_dims, out)

    def vjp(self, gy, *, x_spec):
        return spread(gy, x_spec, self.axes)


def sum(x, axis=None, keepdims=False):
    r"""Sum over axes: $y = \sum_i x_i$.

    Args:
        x: Any shape.
        axis: An int or several; all axes if left out. Negative ones count from the end.
        keepdims: Keep reduced axes with size 1.
    Raises:
        ShapeError: An axis is out of range or given twice.
    Example:
        >>> F.sum(array([[1, 2], [3, 4]]), axis=0).d
        array([4., 6.], dtype=float32)
    """
    return sum_op(x, axes=axis, keep_dims=keepdims)


def spread(gy, x_spec, axes):
    """The gradient of a reduced array, stretched back to the shape of what was reduced."""
    return stretched(reshape(gy, kept_shape(x_spec, axes)), x_spec.shape)


@op("mean", wide=True, nnp="Mean")
class mean_op(Reduction):
    """Mean over axes; not a number where there is nothing to average."""

    def forward(self, xp, x, out=None):
        y = added(xp, x, self.axes, self.keep_dims, out)
        n = count(x.shape, self.axes)
        y *= 1.0 / n if n else math.nan
        return y

    def vjp(self, gy, *, x_spec):
        n = count(x_spec.shape, self.axes)
        return spread(OPS["mul_scalar"](gy, 1.0 / n if n else math.nan), x_spec, self.axes)


def mean(x, axis=None, keepdims=False):
    r"""$y = \frac{1}{n} \sum_i x_i$, the mean over axes.

    Args:
        x: Any shape.
        axis: An int or several; all axes if left out. Negative ones count from the end.
        keepdims: Keep reduced axes with size 1.
    Raises:
        ShapeError: An axis is out of range or given twice.
    Example:
        >>> F.mean(array([[1, 2], [3, 4]]), axis=1).d
        array([1.5, 3.5], dtype=float32)
    """
    return mean_op(x, axes=axis, keep_dims=keepdims)


class Extremum(Reduction):
    """Common to max and min: which of values and positions they return, and the gradient rule."""

    with_index: bool = False
    only_index: bool = False

    def infer(self, x):
        y = Reduction.infer(self, x)
        if y.size and not x.size:
            raise ShapeError(f"{self.op.name}: x {x} has no element along the axes {self.axes}")
        index = y.with_dtype(np.uint64)  # NNabla's type of positions
        if self.only_index:
            return index
        return (y, index) if self.with_index else y

    def position(self, xp, x):
        """Where the first extreme element is, among those that are reduced to one."""
        arg = getattr(xp, "arg" + self.op.name)
        if not x.size:
            i = xp.zeros([n for k, n in enumerate(x.shape) if k not in self.axes], np.uint64)
        elif len(self.axes) == 1:
            i = arg(x, axis=self.axes[0])
        else:
            i = arg(as_rows(x, self.axes), axis=-1)
        if self.keep_dims:
            i = i.reshape(kept_shape(x, self.axes))
        return i.astype(np.uint64)

    def forward(self, xp, x):
        if self.only_index:
            return self.position(xp, x)
        y = getattr(xp, self.op.name)(x, axis=self.axes, keepdims=self.keep_dims)
        if self.axes == ():
            y = x.copy()
        return (y, self.position(xp, x)) if self.with_index else y

    def portable(self, x):
        if not self.with_index or self.only_index:
            raise NotImplementedError
        at = {"axes": self.axes, "keep_dims": self.keep_dims}
        return self.op(x, **at), self.op(x, **at, only_index=True)

    def vjp(self, gy, *rest, x):
        if self.only_index:
            return None
        index = self.op(x, axes=self.axes, keep_dims=self.keep_dims, only_index=True)
        return OPS["place"](gy, index, shape=x.shape, axes=self.axes)

    def samples(rng):
        x = rng.permutation(24).reshape(2, 3, 4) / 8
        for axes in (None, (0,), (-1,), (0, 2), (1,)):
            for keep in (False, True):
                yield Sample(x, axes=axes, keep_dims=keep)
        yield Sample(x, axes=(2, 0), with_index=True)
        yield Sample(x, axes=(1,), keep_dims=True, with_index=True)
        ties = np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 4.0]])
        for axes in ((1,), (0,), (0, 1)):
            yield Sample(ties, axes=axes, only_index=True, grad=(False,))


@op("max", outputs=("*y",), nnp="Max")
class max_op(Extremum):
    """Largest element over axes; its gradient goes to the first one that is as large."""


@op("min", outputs=("*y",), nnp="Min")
class min_op(Extremum):
    """Smallest element over axes; its gradient goes to the first one that is as small."""


def max(x, axis=None, keepdims=False, with_index=False, only_index=False):
    r"""$y = \max_i x_i$ over axes; a NaN counts as the largest.

    Args:
        x: Any shape.
        axis: An int or several; all axes if left out.
        keepdims: Keep reduced axes with size 1.
        with_index: Also return positions: uint64, counted through the reduced axes in their order
            in x, of the first of equal elements.
        only_index: Return the positions alone.
    Raises:
        ShapeError: An axis is out of range or given twice, or there is no element to choose from.
    Example:
        >>> F.max(array([[1, 5], [7, 3]]), axis=1).d
        array([5., 7.], dtype=float32)
    """
    return max_op(x, axis, keepdims, with_index, only_index)


def min(x, axis=None, keepdims=False, with_index=False, only_index=False):
    r"""$y = \min_i x_i$ over axes; a NaN counts as the smallest.

    Arguments and errors are those of `max`.

    Example:
        >>> F.min(array([[1, 5], [7, 3]]), axis=1).d
        array([1., 3.], dtype=float32)
    """
    return min_op(x, axis, keepdims, with_index, only_index)


@op("prod", wide=True, nnp="Prod")
class prod_op(Reduction):
    r"""$y = \prod_i x_i$, the product over axes. The gradient is exact where elements are zero."""

    def forward(self, xp, x, out=None):
        return xp.prod(x, axis=self.axes, keepdims=self.keep_dims, out=out)

    def vjp(self, gy, *, x):
        # in one line: the product of all others is before times after
        product, moved = OPS["product_before"], OPS["transpose"]
        kept = [i for i in range(len(x.shape)) if i not in self.axes]
        order = [*kept, *self.axes]
        shape = [x.shape[i] for i in order]
        line = reshape(moved(x, order), (*shape[: len(kept)], count(x.shape, self.axes)))
        before, after = (product(line, axis=len(kept), reverse=r) for r in (False, True))
        others = reshape(OPS["absorbing_mul"](before, after), shape)
        back = [order.index(i) for i in range(len(order))]
        return OPS["mul2"](spread(gy, x, self.axes), moved(others, back))


def prod(x, axis=None, keepdims=False):
    r"""Product over axes: $y = \prod_i x_i$.

    Args:
        x: Any shape.
        axis: An int or several; all axes if left out. Negative ones count from the end.
        keepdims: Keep reduced axes with size 1.
    Raises:
        ShapeError: An axis is out of range or given twice.
    Example:
        >>> F.prod(array([[1, 2], [3, 4]]), axis=0).d
        array([3., 8.], dtype=float32)
    """
    return prod_op(x, axes=axis, keep_dims=keepdims)


class Total:
    """Common to reduce_sum and reduce_mean, which have no attributes."""

    def infer(self, x):
        return x.with_shape(())

    def cost(self, x):
        return Cost(flops=x.size, bytes=x.nbytes)

    def samples(rng):
        for shape in ((2, 3), (), (4,)):
            yield Sample(rng.normal(size=shape))


@op("reduce_sum", wide=True, nnp="ReduceSum")
class reduce_sum(Total):
    r"""$y = \sum_i x_i$, the sum of all elements; `sum` also takes axes."""

    def forward(self, xp, x):
        return xp.sum(x)

    def vjp(self, gy, *, x_spec):
        return spread(gy, x_spec, range(len(x_spec.shape)))


@op("reduce_mean", wide=True, nnp="ReduceMean")
class reduce_mean(Total):
    r"""$y = \frac{1}{n} \sum_i x_i$, the mean of all elements; `mean` also takes axes."""

    def forward(self, xp, x):
        return xp.sum(x) / x.size if x.size else xp.full((), math.nan, x.dtype)

    def vjp(self, gy, *, x_spec):
        g = OPS["mul_scalar"](gy, 1.0 / x_spec.size if x_spec.size else math.nan)
        return spread(g, x_spec, range(len(x_spec.shape)))


def reduce(x, op="sum"):
    r"""$y = \sum_i x_i$, or $y = \frac{1}{n} \sum_i x_i$; kept from NNabla, where it is deprecated.

    Raises:
        ValueError: op is neither "sum" nor "mean".
    Example:
        >>> F.reduce(array([1, 2, 3]), op="mean").d
        array(2., dtype=float32)
    """
    if op == "sum":
        return reduce_sum(x)
    if op == "mean":
        return reduce_mean(x)
    raise ValueError(f'reduce: op is {op!r}, wanted "sum" or "mean"')


@op("reshape", nnp="Reshape", view=True, keep=("x",), onnx=None)
class reshape_op:
    """The same elements in another shape."""

    shape: tuple[int, ...]
    inplace: bool = True

    def resolve(self, x):
        shape = self.shape
        if -1 in shape:
            rest = 1
            for n in shape:
                rest *= n if n != -1 else 1
            if shape.count(-1) > 1 or rest == 0 or x.size % rest:
                raise ShapeError(f"reshape: x {x} does not fit the shape {shape}")
            shape = tuple(x.size // rest if n == -1 else n for n in shape)
        return {"shape": shape}

    def infer(self, x):
        y = x.with_shape(self.shape)
        if y.size != x.size:
            raise ShapeError(
                f"reshape: x {x} has {x.size} elements, shape {self.shape} has {y.size}"
            )
        return y

    def forward(self, xp, x):
        y = x.reshape(self.shape)
        return y if self.inplace else y.copy()

    def vjp(self, gy, *, x_spec):
        return reshape(gy, x_spec.shape)

    def cost(self, x):
        return Cost(flops=0, bytes=0)

    def samples(rng):
        for shape in ((6, 4), (-1, 4), (24,), (2, 1, 12)):
            yield Sample(rng.normal(size=(2, 3, 4)), shape=shape)


def reshape(x, shape, inplace=True, n_outputs=-1, outputs=None):
    r"""The same elements in another shape: $y_j = x_i$ where i and j are equal in row-major order.

    Args:
        x: Any shape.
        shape: Sizes; one may be -1 and is then inferred.
        inplace: Share the memory of x; False makes a copy.
    Raises:
        ShapeError: The sizes do not multiply to that of x.
    Example:
        >>> F.reshape(array([[1, 2, 3], [4, 5, 6]]), (3, -1)).d
        array([[1., 2.],
               [3., 4.],
               [5., 6.]], dtype=float32)
    """
    return reshape_op(x, shape=shape, inplace=inplace, outputs=outputs)


@op("broadcast", nnp="Broadcast", onnx=None)
class broadcast_op:
    """Stretch axes of size 1."""

    shape: tuple[int, ...]

    def infer(self, x):
        n = len(x.shape)
        tail = self.shape[len(self.shape) - n :]
        if n > len(self.shape) or any(
            a != b and a != 1 for a, b in zip(x.shape, tail, strict=True)
        ):
            raise ShapeError(f"broadcast: x {x} does not stretch to the shape {self.shape}")
        return Spec.of(self.shape, x.dtype)

    def forward(self, xp, x, out=None):
        if out is None:
            out = xp.empty(self.shape, x.dtype)
        out[...] = x
        return out

    def elementwise(self, w):
        w.shapes[0] = (1,) * (len(self.shape) - len(w.shapes[0])) + w.shapes[0]
        w("copy")

    def vjp(self, gy, *, x_spec):
        return sum_to(gy, x_spec.shape)

    def cost(self, x):
        return Cost(flops=0, bytes=x.nbytes + self.infer(x).nbytes)

    def samples(rng):
        yield Sample(rng.normal(size=(2, 1, 3)), shape=(2, 4, 3))
        yield Sample(rng.normal(size=()), shape=(2, 2))
        yield Sample(rng.normal(size=(1, 3)), shape=(2, 3))


@checked
def broadcast(x: Input, shape: Sequence[int], n_outputs=-1, outputs=None):
    r"""Stretch axes of size 1 to `shape`; missing leading axes are added.

    $$y_{i_1 \ldots i_n} = x_{j_1 \ldots j_n}$$ with $j_k = 0$ where the size of x
    is 1, else $j_k = i_k$.

    Raises:
        ShapeError: A size differs and is not 1.
    Example:
        >>> F.broadcast(array([[1], [2]]), (2, 3)).d
        array([[1., 1., 1.],
               [2., 2., 2.]], dtype=float32)
    """
    return broadcast_op(x, shape=shape, outputs=outputs)


def stretched(x, shape):
    """x broadcast to a shape; itself if it has that shape."""
    return x if x.shape == shape else broadcast_op(x, shape=shape)


def sum_to(x, shape):
    """Sum a gradient back to the shape that was broadcast to x's shape."""
    if x.shape == shape:
        return x
    lead = len(x.shape) - len(shape)
    axes = tuple(range(lead)) + tuple(
        i + lead for i, n in enumerate(shape) if n == 1 and x.shape[i + lead] != 1
    )
    y = sum_op(x, axes=axes, keep_dims=True)
    return y if y.shape == shape else reshape(y, shape)
