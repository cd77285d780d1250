# SPDX-License-Identifier: Apache-2.0
"""Matrix products: affine, batch_matmul, dot, and the look-up of rows, embed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nnl.core.arrays.array import NdArray
from nnl.core.arrays.spec import ShapeError, check_axis
from nnl.core.graph.variable import Variable
from nnl.core.ops.op import OPS, Cost, Sample, op
from nnl.functions.arithmetic import mul2
from nnl.functions.on_device import on_host
from nnl.functions.reduction import reshape, stretched, sum_op, sum_to

CATEGORY = "Layer"

__all__ = ["affine", "batch_matmul", "dot", "embed"]


@op("affine", narrow=True, nnp="Affine")
class affine:
    r"""Matrix product plus bias: $y = x W + b$.

    Args:
        x: (*batch, *in); the axes from `base_axis` on are flattened to K values.
        weight: (K, *out).
        bias: Shape of *out, optional.
        base_axis: Number of batch axes; negative counts from the end.
    Returns:
        (*batch, *out).
    Raises:
        ShapeError: base_axis is out of range, or the sizes do not fit.
    Example:
        >>> F.affine(array([[1, 2]]), array([[1, 0], [0, 10]]), array([0.5, 0.5])).d
        array([[ 1.5, 20.5]], dtype=float32)
    """

    base_axis: int = 1

    def resolve(self, x, weight, bias=None):
        return {"base_axis": check_axis("affine", self.base_axis, x)}

    def infer(self, x, weight, bias=None):
        base = self.base_axis
        inner = math.prod(x.shape[base:])
        if len(weight.shape) < 2:
            raise ShapeError(f"affine: weight {weight} has rank {len(weight.shape)}, wanted >= 2")
        if weight.shape[0] != inner:
            raise ShapeError(
                f"affine: x {x} has {inner} values from axis {base} on, "
                f"weight {weight} takes {weight.shape[0]}"
            )
        if bias is not None and bias.shape != weight.shape[1:]:
            raise ShapeError(f"affine: bias {bias} must have the shape {weight.shape[1:]}")
        return x.with_shape((*x.shape[:base], *weight.shape[1:]))

    def forward(self, xp, x, weight, bias=None, out=None):
        lead = x.shape[: self.base_axis]
        if out is None:
            out = xp.empty((*lead, *weight.shape[1:]), x.dtype)
        rows, (inner, columns) = math.prod(lead), matrix_shape(weight)
        y = out.reshape(rows, columns)
        xp.matmul(x.reshape(rows, inner), weight.reshape(inner, columns), out=y)
        if bias is not None:
            y += bias.reshape(-1)
        return out

    def vjp(self, gy, *, x, weight, need):
        inner, columns = matrix_shape(weight)
        rows = math.prod(x.shape[: self.base_axis])
        gy = as_shape(gy, (rows, columns))
        gx = gw = gb = None
        if need[0]:
            w = as_shape(weight, (inner, columns))
            gx = as_shape(batch_matmul(gy, w, transpose_b=True), x.shape)
        if need[1]:
            flat = as_shape(x, (rows, inner))
            gw = as_shape(affine_weight(flat, gy), weight.shape)
        if need[2]:
            gb = as_shape(sum_op(gy, axes=(0,), keep_dims=False), weight.shape[1:])
        return gx, gw, gb

    def cost(self, x, weight, bias=None):
        y = self.infer(x, weight)
        return Cost(2 * y.size * weight.shape[0], x.nbytes + weight.nbytes + y.nbytes)

    def samples(rng):
        x, w, b = rng.normal(size=(2, 3, 4)), rng.normal(size=(12, 5)), rng.normal(size=5)
        yield Sample(x, w, b)
        yield Sample(x, w, None)
        yield Sample(x, rng.normal(size=(4, 2, 3)), rng.normal(size=(2, 3)), base_axis=2)
        yield Sample(x, rng.normal(size=(4, 5)), b, base_axis=-1)
        yield Sample(x, rng.normal(size=(24, 5)), b, base_axis=0)
        yield Sample(np.zeros((0, 12)), w, b)


def matrix_shape(weight):
    """Shape of weights (K, *out) as a matrix."""
    return weight.shape[0], math.prod(weight.shape[1:])


def as_shape(x, shape):
    """x in another shape; x itself if it has it."""
    return x if x.shape == shape else reshape(x, shape)


@op("affine_weight", wide=True, outputs=("gw",))
class affine_weight:
    """$x^T g$: the gradient of affine's weight, which like every parameter's stays float32 where
    results are stored in 16 bits."""

    def infer(self, x, gy):
        return x.with_shape((x.shape[1], gy.shape[1]))

    def forward(self, xp, x, gy, out=None):
        return xp.matmul(x.T, gy, out=out)

    def vjp(self, gg, *, x, gy, need):
        return (
            batch_matmul(gy, gg, transpose_b=True) if need[0] else None,
            batch_matmul(x, gg) if need[1] else None,
        )

    def cost(self, x, gy):
        y = self.infer(x, gy)
        return Cost(2 * y.size * x.shape[0], x.nbytes + gy.nbytes + y.nbytes)

    def samples(rng):
        yield Sample(rng.normal(size=(5, 3)), rng.normal(size=(5, 4)))
        yield Sample(rng.normal(size=(0, 3)), rng.normal(size=(0, 4)))


@op("batch_matmul", narrow=True, nnp="BatchMatmul")
class batch_matmul:
    r"""Matrix product of the last two axes: $y_i = a_i b_i$ for every index i of the others.

    Args:
        a: (*batch, M, K), or (*batch, K, M) if transpose_a.
        b: (*batch, K, N), or (*batch, N, K) if transpose_b. Batch sizes of 1 stretch.
        transpose_a, transpose_b: Swap the last two axes first.
    Returns:
        (*batch, M, N).
    Raises:
        ShapeError: The ranks differ or are below 2, or sizes do not fit.
    Example:
        >>> F.batch_matmul(array([[[1, 2]], [[3, 4]]]), array([[[1], [1]], [[1], [10]]])).d.ravel()
        array([ 3., 43.], dtype=float32)
    """

    transpose_a: bool = False
    transpose_b: bool = False

    def infer(self, a, b):
        if len(a.shape) != len(b.shape) or len(a.shape) < 2:
            raise ShapeError(f"batch_matmul: a {a} and b {b} must have the same rank, at least 2")
        m, ka = swapped(a.shape[-2:], self.transpose_a)
        kb, n = swapped(b.shape[-2:], self.transpose_b)
        if ka != kb:
            raise ShapeError(
                f"batch_matmul: a {a} has inner size {ka}, b {b} has {kb} "
                f"(transpose_a={self.transpose_a}, transpose_b={self.transpose_b})"
            )
        batch = []
        for i, j in zip(a.shape[:-2], b.shape[:-2], strict=True):
            if i != j and i != 1 and j != 1:
                raise ShapeError(
                    f"batch_matmul: the batch axes of a {a} and b {b} do not broadcast"
                )
            batch.append(j if i == 1 else i)
        return a.with_shape((*batch, m, n))

    def forward(self, xp, a, b, out=None):
        a = a.swapaxes(-1, -2) if self.transpose_a else a
        b = b.swapaxes(-1, -2) if self.transpose_b else b
        return xp.matmul(a, b, out=out)

    def vjp(self, gy, *, a, b, need):
        ta, tb = self.transpose_a, self.transpose_b
        ga = gb = None
        if need[0]:
            if ta:
                ga = batch_matmul(b, gy, transpose_a=tb, transpose_b=True)
            else:
                ga = batch_matmul(gy, b, transpose_b=not tb)
            ga = sum_to(ga, a.shape)
        if need[1]:
            if tb:
                gb = batch_matmul(gy, a, transpose_a=True, transpose_b=ta)
            else:
                gb = batch_matmul(a, gy, transpose_a=not ta)
            gb = sum_to(gb, b.shape)
        return ga, gb

    def cost(self, a, b):
        y = self.infer(a, b)
        inner = a.shape[-2 if self.transpose_a else -1]
        return Cost(2 * y.size * inner, a.nbytes + b.nbytes + y.nbytes)

    def samples(rng):
        for ta in (False, True):
            for tb in (False, True):
                a, b = swapped((2, 3), ta), swapped((3, 4), tb)
                yield Sample(
                    rng.normal(size=(5, *a)),
                    rng.normal(size=(5, *b)),
                    transpose_a=ta,
                    transpose_b=tb,
                )
                yield Sample(
                    rng.normal(size=(1, 3, *a)),
                    rng.normal(size=(2, 1, *b)),
                    transpose_a=ta,
                    transpose_b=tb,
                )


def swapped(pair, swap):
    """The two sizes, the other way round if asked."""
    return (pair[1], pair[0]) if swap else tuple(pair)


@op("embed", narrow=True, nnp="Embed", integer=("x0",))
class embed:
    """Rows of w by index: $y_i = w_{x_i}$.

    Args:
        x0: Indices of rows, any shape; floats must be whole numbers.
        w: (rows, *features).
    Returns:
        (*shape of x0, *features).
    Raises:
        ShapeError: w has no axis.
        ValueError: An index is outside [0, rows).
    Source: Bengio et al., A Neural Probabilistic Language Model, JMLR 3, 2003.
    Example:
        >>> F.embed(array([2, 0], int), array([[1, 1], [2, 2], [3, 3]])).d
        array([[3., 3.],
               [1., 1.]], dtype=float32)
    """

    def infer(self, x0, w):
        if not w.shape:
            raise ShapeError(f"embed: w {w} has rank 0, wanted >= 1")
        return w.with_shape((*x0.shape, *w.shape[1:]))

    def forward(self, xp, x0, w, out=None):
        if on_host(x0) and x0.size and (x0.min() < 0 or x0.max() >= len(w)):
            bad = x0[(x0 < 0) | (x0 >= len(w))].reshape(-1)[0]
            raise ValueError(f"embed: x0 holds the index {int(bad)}, w has rows 0 to {len(w) - 1}")
        if out is None:
            return xp.take(w, x0, axis=0)
        out[...] = xp.take(w, x0, axis=0)
        return out

    def vjp(self, gy, *, x0, w_spec):
        return None, embed_backward(x0, gy, shape=w_spec.shape)

    def cost(self, x0, w):
        y = self.infer(x0, w)
        return Cost(0, x0.nbytes + 2 * y.nbytes)

    def samples(rng):
        w = rng.normal(size=(7, 4))
        yield Sample(np.array([[1, 3, 1], [6, 0, 1]]), w)
        yield Sample(np.array([2, 2]), rng.normal(size=(3, 2, 2)))
        yield Sample(np.zeros((0, 2), np.int64), w)


@op("embed_backward", wide=True, outputs=("gw",), integer=("x0",))
class embed_backward:
    """Gradient of `embed` by w: add every gy_i to row x_i.

    Args:
        x0: Indices of rows.
        gy: (*shape of x0, *features).
        z: To what they are added, zeros if None.
        shape: Shape of w.
    """

    shape: tuple[int, ...]

    def infer(self, x0, gy, z=None):
        if z is not None and z.shape != self.shape:
            raise ShapeError(f"embed_backward: z {z} must have the shape {self.shape}")
        if gy.shape != (*x0.shape, *self.shape[1:]):
            raise ShapeError(
                f"embed_backward: gy {gy} must have the shape {(*x0.shape, *self.shape[1:])}"
            )
        return gy.with_shape(self.shape)

    def forward(self, xp, x0, gy, z=None, out=None):
        if out is None:
            out = xp.empty(self.shape, gy.dtype)
        out[...] = 0 if z is None else z
        if xp is not np:
            xp.add.at(out, x0.reshape(-1), gy.reshape(x0.size, *self.shape[1:]))
        elif x0.size:
            # Equal indices side by side: one sum over each run instead of scattered additions.
            index = x0.reshape(-1)
            order = xp.argsort(index, kind="stable")
            index = index[order]
            first = xp.flatnonzero(
                xp.concatenate((index[:1] == index[:1], index[1:] != index[:-1]))
            )
            rows = gy.reshape(index.size, *self.shape[1:])[order]
            out[index[first]] += xp.add.reduceat(rows, first, axis=0)
        return out

    def vjp(self, ggw, *, x0):
        return None, embed(x0, ggw), ggw

    def cost(self, x0, gy, z=None):
        return Cost(gy.size, 3 * gy.nbytes + self.infer(x0, gy).nbytes)

    def samples(rng):
        x0 = np.array([[1, 3, 1], [6, 0, 1]])
        yield Sample(x0, rng.normal(size=(2, 3, 4)), shape=(7, 4))
        yield Sample(x0, rng.normal(size=(2, 3, 4)), rng.normal(size=(7, 4)), shape=(7, 4))
        yield Sample(np.zeros((0,), np.int64), np.zeros((0, 4)), shape=(7, 4))


def dot(a: Any, b: Any, out: Any = None) -> Any:
    r"""numpy's dot: $y_{i j} = \sum_k a_{i k} b_{k j}$, of vectors, matrices or with a number.

    Args:
        a, b: Variables or NdArrays of any rank; the last axis of a is summed with the last but
            one of b (the only one of a vector). Two numpy arrays or numbers give a numpy result.
        out: NdArray or Variable of the result's shape, which then holds it; a Variable becomes
            the result of the product in the graph.
    Returns:
        (*shape of a without its last axis, *shape of b without the summed axis).
    Raises:
        ShapeError: The summed axes differ in size.
        ValueError: out has another shape.
        TypeError: Only one of a and b is a Variable or NdArray.
    Example:
        >>> F.dot(array([[1, 2], [3, 4]]), array([10, 1])).d
        array([12., 34.], dtype=float32)
    """
    arrays = (Variable, NdArray)
    if not isinstance(a, arrays) and not isinstance(b, arrays):
        try:
            return np.dot(a, b, out=out)
        except (TypeError, ValueError) as e:
            kinds = f"a is {type(a).__name__} and b {type(b).__name__}, which numpy refuses"
            raise type(e)(f"dot: {kinds}: {e}") from None
    for name, x in (("a", a), ("b", b)):
        if not isinstance(x, arrays):
            raise TypeError(
                f"dot: {name} is {type(x).__name__}, wanted nnl.Variable or nnl.NdArray"
            )
    y = _dot(a, b)
    if out is None:
        return y
    if not isinstance(out, arrays):
        raise TypeError(f"dot: out is {type(out).__name__}, wanted nnl.Variable or nnl.NdArray")
    if out.shape != y.shape:
        raise ValueError(f"dot: out has the shape {out.shape}, the result has {y.shape}")
    if isinstance(y, Variable) and isinstance(out, Variable):
        out.rewire_on(y)
        return out
    source, target = (v.data if isinstance(v, Variable) else v for v in (y, out))
    target.become(source)
    return out


def _dot(a: Any, b: Any) -> Any:
    sa, sb = a.shape, b.shape
    if not sa or not sb:
        n = max(len(sa), len(sb))
        a, b = (reshape(x, (1,) * n) if len(x.shape) < n else x for x in (a, b))
        if sa != sb:
            a, b = (stretched(x, sa or sb) for x in (a, b))
        return mul2(a, b)
    summed = sb[-2] if len(sb) > 1 else sb[0]
    if sa[-1] != summed:
        raise ShapeError(
            f"dot: the last axis of a {a.spec} has size {sa[-1]}, the axis of b {b.spec} "
            f"that it is summed with has {summed}"
        )
    if len(sb) > 2:  # the summed axis of b to the front
        b = OPS["transpose"](b, axes=(len(sb) - 2, *range(len(sb) - 2), len(sb) - 1))
    rows, columns = math.prod(sa[:-1]), math.prod(sb) // summed if summed else 0
    y = affine(as_shape(a, (rows, summed)), as_shape(b, (summed, columns)))
    return as_shape(y, (*sa[:-1], *sb[:-2], *sb[-1:]) if len(sb) > 1 else sa[:-1])
