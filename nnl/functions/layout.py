# SPDX-License-Identifier: Apache-2.0
"""Rearranging axes, diagonals and triangles of matrices, one-hot vectors, shapes as data."""

from __future__ import annotations

import numpy as np

from nnl.core.arrays.spec import ShapeError, Spec, check_axes
from nnl.core.graph.variable import Variable
from nnl.core.ops.op import Cost, Onnx, Sample, op
from nnl.core.settings.context import STATE
from nnl.functions.on_device import on_host
from nnl.functions.reduction import sum as sum_over

CATEGORY = "Array manipulation"

__all__ = [
    "transpose",
    "broadcast_to",
    "one_hot",
    "matrix_diag",
    "matrix_diag_part",
    "trilu",
    "eye_like",
    "shape",
]


class MovesData:
    """Common to functions that compute nothing: they cost the bytes they read and write."""

    def cost(self, *x):
        y = self.infer(*x)
        specs = [*x, *(y if isinstance(y, tuple) else (y,))]
        return Cost(flops=0, bytes=sum(s.nbytes for s in specs if s is not None))


def check_indices(name, arg, indices, low, high):
    """Raise a ValueError that names the first index outside [low, high); not on a device."""
    if on_host(indices) and indices.size and (indices.min() < low or indices.max() >= high):
        bad = indices[(indices < low) | (indices >= high)]
        raise ValueError(
            f"{name}: {arg} has the value {int(bad[0])}, wanted {low} <= value < {high}"
        )


@op("transpose", nnp="Transpose", onnx=Onnx("Transpose", since=13, axes="perm"))
class transpose(MovesData):
    r"""Reorder axes: axis i of the result is axis `axes[i]` of x.

    $$y_{i_{a_0} i_{a_1} \ldots} = x_{i_0 i_1 \ldots}$$ with a for `axes`.

    Args:
        x: Any shape.
        axes: A permutation of the axes of x; negative ones count from the end.
    Raises:
        ShapeError: axes is not a permutation of the axes of x.
    Example:
        >>> F.transpose(array([[1, 2, 3], [4, 5, 6]]), (1, 0)).d
        array([[1., 4.],
               [2., 5.],
               [3., 6.]], dtype=float32)
    """

    axes: tuple[int, ...]

    def resolve(self, x):
        axes = check_axes("transpose", self.axes, x)
        if len(axes) != len(x.shape):
            raise ShapeError(
                f"transpose: axes {self.axes} has {len(axes)} entries, x {x} has rank {x.ndim}"
            )
        return {"axes": axes}

    def infer(self, x):
        return x.with_shape([x.shape[a] for a in self.axes])

    def forward(self, xp, x, out=None):
        y = x.transpose(self.axes)
        if out is None:
            return y.copy()
        xp.copyto(out, y)
        return out

    def vjp(self, gy):
        return transpose(gy, axes=tuple(int(a) for a in np.argsort(self.axes)))

    def samples(rng):
        for axes in ((2, 0, 1), (0, 1, 2), (1, 0, 2)):
            yield Sample(rng.normal(size=(2, 3, 4)), axes=axes)
        yield Sample(rng.normal(size=(3,)), axes=(0,))
        yield Sample(rng.normal(size=(0, 3)), axes=(1, 0))


@op("broadcast_to", nnp="BroadcastTo")
class broadcast_to(MovesData):
    r"""Repeat y so that it has the shape of x: $z_{\ldots j \ldots} = y_j$, j along the axes of y.

    Args:
        x: Gives the shape; its values are not used and it gets no gradient.
        y: Its sizes equal those of consecutive axes of x (no size of 1 stretches here).
        axis: The axis of x that the first axis of y lies along; the last axes of x if it is
            negative or left out, as in NNabla.
    Raises:
        ShapeError: A size differs, or y does not fit at axis.
    """

    axis: int | None = None

    def resolve(self, x, y):
        return {"axis": -1 if self.axis is None else max(self.axis, -1)}

    def infer(self, x, y):
        at = self._start(x.ndim, y.ndim)
        if at < 0 or x.shape[at : at + y.ndim] != y.shape:
            raise ShapeError(
                f"broadcast_to: y {y} does not fit along the axes of x {x} from axis {self.axis}"
            )
        return x

    def _start(self, rank, rank_y):
        return rank - rank_y if self.axis == -1 else self.axis

    def forward(self, xp, x, y, out=None):
        out = xp.empty_like(x) if out is None else out
        after = x.ndim - self._start(x.ndim, y.ndim) - y.ndim
        out[...] = y.reshape(y.shape + (1,) * after)
        return out

    def elementwise(self, w):
        x, y = w.shapes
        start = len(x) - len(y) if self.axis in (None, -1) else self.axis
        w.shapes[1] = (1,) * start + y + (1,) * (len(x) - len(y) - start)
        w("copy", 1)

    def vjp(self, gy, *, y_spec):
        at = self._start(len(gy.shape), y_spec.ndim)
        kept = range(at, at + y_spec.ndim)
        axes = tuple(a for a in range(len(gy.shape)) if a not in kept)
        return None, sum_over(gy, axis=axes) if axes else gy

    def samples(rng):
        x = rng.normal(size=(2, 3, 4))
        # NNabla has no backward for an axis other than the last ones: nnl has
        for y_shape, axis in (((3, 4), -1), ((4,), None), ((2, 3, 4), -1), ((2,), 0), ((3,), 1)):
            yield Sample(x, rng.normal(size=y_shape), grad=(False, True), axis=axis)


@op("one_hot", nnp="OneHot", integer=("x",))
class one_hot(MovesData):
    r"""1 at the index that the last axis of x spells, 0 elsewhere.

    $$y_{b, i} = 1 \text{ if } i = (x_{b 0}, \ldots, x_{b, n-1}), \text{ else } 0$$

    Args:
        x: (..., n) integers; x[..., i] is in [-shape[i], shape[i]), negative ones count from
            the end.
        shape: n sizes.
    Returns:
        (..., *shape). No gradient.
    Raises:
        ShapeError: The last axis of x has another size than len(shape).
        ValueError: An index is out of range.
    Example:
        >>> F.one_hot(array([[2], [0]], int), (3,)).d
        array([[0., 0., 1.],
               [1., 0., 0.]], dtype=float32)
    """

    shape: tuple[int, ...]

    def infer(self, x):
        if x.ndim == 0 or x.shape[-1] != len(self.shape):
            raise ShapeError(
                f"one_hot: x {x} must have the size {len(self.shape)} in its last axis, "
                f"one index for each size of shape {self.shape}"
                + f": write F.reshape(x, {(*x.shape, 1)})"
                * (len(self.shape) == 1)
            )
        return Spec.of(x.shape[:-1] + self.shape, STATE.target.float_dtype)

    def forward(self, xp, x, out=None, dtype=None):
        full = x.shape[:-1] + self.shape
        for i, n in enumerate(self.shape):
            check_indices("one_hot", f"x[..., {i}]", x[..., i], -n, n)
        if out is None:
            out = xp.zeros(full, dtype)
        else:
            out.fill(0)
        rows = x.reshape(-1, len(self.shape)).T
        out.reshape((-1,) + self.shape)[(xp.arange(rows.shape[1]), *rows)] = 1
        return out

    def samples(rng):
        yield Sample(rng.integers(0, 5, (4, 1)), shape=(5,))
        yield Sample(rng.integers(0, 2, (2, 3, 2)), shape=(2, 3))
        yield Sample(np.array([[-1], [0], [-3]]), shape=(3,))
        yield Sample(np.array([2]), shape=(3,))


@op("matrix_diag", nnp="MatrixDiag")
class matrix_diag(MovesData):
    """Diagonal matrices from the last axis: $y_{...,i,i} = x_{...,i}$, 0 elsewhere.

    Args:
        x: (..., n) with at least one axis.
    Returns:
        (..., n, n).
    Raises:
        ShapeError: x is a scalar.
    """

    def infer(self, x):
        if x.ndim == 0:
            raise ShapeError(f"matrix_diag: x {x} is a scalar, wanted at least one axis")
        return x.with_shape(x.shape + x.shape[-1:])

    def forward(self, xp, x, out=None):
        n = x.shape[-1]
        if out is None:
            out = xp.zeros(x.shape + (n,), x.dtype)
        else:
            out.fill(0)
        # the diagonal is every (n + 1)-th element of a flattened matrix
        out.reshape(x.shape[:-1] + (n * n,))[..., :: n + 1] = x
        return out

    def vjp(self, gy):
        return matrix_diag_part(gy)

    def samples(rng):
        for size in ((3,), (2, 3), (2, 1, 4), (2, 0)):
            yield Sample(rng.normal(size=size))


@op("matrix_diag_part", nnp="MatrixDiagPart")
class matrix_diag_part(MovesData):
    """The diagonals of square matrices: $y_{...,i} = x_{...,i,i}$.

    Args:
        x: (..., n, n).
    Returns:
        (..., n).
    Raises:
        ShapeError: x has fewer than two axes, or the last two differ.
    """

    def infer(self, x):
        if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
            raise ShapeError(f"matrix_diag_part: x {x} must have two last axes of one size")
        return x.with_shape(x.shape[:-1])

    def forward(self, xp, x, out=None):
        y = xp.diagonal(x, axis1=-2, axis2=-1)
        if out is None:
            return y.copy()
        xp.copyto(out, y)
        return out

    def vjp(self, gy):
        return matrix_diag(gy)

    def samples(rng):
        for size in ((3, 3), (2, 4, 4), (2, 0, 0)):
            yield Sample(rng.normal(size=size))


@op("trilu", nnp="Trilu")
class trilu(MovesData):
    r"""Keep the upper or lower triangle of each matrix, zero the rest.

    $$y_{i j} = x_{i j} \text{ if } j - i \ge k, \text{ else } 0$$ and without upper
    if $j - i \le k$.

    Args:
        x: (..., rows, columns).
        k: The diagonal that bounds the triangle and belongs to it; above the main one if positive.
        upper: Keep what is on and above that diagonal, else what is on and below it.
    Raises:
        ShapeError: x has fewer than two axes.
    """

    k: int = 0
    upper: bool = True

    def infer(self, x):
        if x.ndim < 2:
            raise ShapeError(f"trilu: x {x} has rank {x.ndim}, wanted at least 2")
        return x

    def forward(self, xp, x, out=None):
        rows, columns = x.shape[-2:]
        keep = xp.tri(rows, columns, self.k - 1 if self.upper else self.k, dtype=bool)
        # where, not a product: an infinity outside the triangle must not become nan
        y = xp.where(keep != self.upper, x, xp.zeros((), x.dtype))
        if out is None:
            return y
        xp.copyto(out, y)
        return out

    def vjp(self, gy):
        return trilu(gy, k=self.k, upper=self.upper)

    def samples(rng):
        for k in (-1, 0, 2):
            for upper in (True, False):
                yield Sample(rng.normal(size=(3, 4)), k=k, upper=upper)
        yield Sample(rng.normal(size=(2, 3, 2)), k=1)


@op("eye_like", nnp="EyeLike")
class eye_like(MovesData):
    r"""A matrix of the shape of x with 1 on the k-th diagonal and 0 elsewhere.

    $$y_{i j} = 1 \text{ if } j - i = k, \text{ else } 0$$

    Args:
        x: (rows, columns); only its shape is used. No gradient.
        k: Number of the diagonal, above the main one if positive.
    Raises:
        ShapeError: x is not a matrix.
    """

    k: int = 0

    def infer(self, x):
        if x.ndim != 2:
            raise ShapeError(f"eye_like: x {x} has rank {x.ndim}, wanted 2")
        return x

    def forward(self, xp, x):
        return xp.eye(*x.shape, k=self.k, dtype=x.dtype)

    def portable(self, x):
        return held(np.eye(*x.shape, k=self.k, dtype=x.spec.dtype))

    def samples(rng):
        for k in (-1, 0, 2):
            yield Sample(rng.normal(size=(3, 4)), grad=(False,), k=k)


@op("shape", nnp="Shape")
class shape(MovesData):
    """The shape $(d_0, d_1, ...)$ of x as a vector of floats: $y_i = d_{start + i}$.

    Args:
        x: Any shape; only its shape is used. No gradient.
        start, end: The part shape[start:end], as in a Python slice; an end of None or 0 is the end.
    """

    start: int | None = None
    end: int | None = None

    def resolve(self, x):
        return {"start": self.start or 0, "end": self.end or 0}

    def _part(self, shape):
        return shape[self.start or 0 : self.end or None]

    def infer(self, x):
        return x.with_shape((len(self._part(x.shape)),))

    def forward(self, xp, x):
        return xp.asarray(self._part(x.shape), dtype=x.dtype)

    def portable(self, x):
        return held(np.asarray(self._part(x.shape), dtype=x.spec.dtype))

    def samples(rng):
        for start, end in ((None, None), (1, None), (0, 2), (-2, 0), (0, -1), (1, 3)):
            yield Sample(rng.normal(size=(2, 3, 4)), grad=(False,), start=start, end=end)


def held(array):
    """A numpy array as an input of functions."""
    return Variable.from_numpy_array(array)
