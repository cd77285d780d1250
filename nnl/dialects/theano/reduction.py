# SPDX-License-Identifier: Apache-2.0
"""Reductions, products and linear algebra."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.onnx.values.values import is_var, reshape, shape_of, tagged, var
from nnl.dialects.theano.elementwise import (
    abs_,
    add,
    cast,
    given,
    isclose,
    mul,
    of_fractions,
    pow,
    sqr,
    sqrt,
    sub,
    true_div,
)
from nnl.dialects.theano.variable import (
    as_dtype,
    as_tensor_variable,
    fraction,
    handled,
    made,
    promoted,
    sizes_of,
)
from nnl.dialects.theano.variable import cast as _cast


def allclose(a: Any, b: Any, rtol: float = 1e-05, atol: float = 1e-08) -> Any:
    """Whether all elements are close."""
    return all(isclose(a, b, rtol, atol))


def axes_of(axis: Any, ndim: int) -> tuple[int, ...]:
    """Axes, counted from the front; all where None."""
    if axis is None:
        return tuple(range(ndim))
    found = []
    for a in axis if isinstance(axis, (list, tuple, np.ndarray)) else [axis]:
        a = int(getattr(a, "data", a))
        if not -ndim <= a < ndim:
            raise ValueError(f"axis {a} is out of bounds for a variable of {ndim} axes")
        found.append(a % ndim)
    return tuple(sorted(set(found)))


def reduced(x: Any, axes: tuple[int, ...], keepdims: bool) -> list[int | None]:
    """Sizes that are left."""
    sizes = enumerate(sizes_of(x))
    return [1 if i in axes else d for i, d in sizes if keepdims or i not in axes]


def _whole(x: Any) -> np.dtype[Any]:
    """The type of sums."""
    dtype = np.dtype(x.dtype)
    if dtype.kind == "f":
        return dtype
    return np.dtype(np.uint64 if dtype.kind == "u" else np.int64)


def _reduction(type: str, on_variables: Any, on_arrays: Any, kind: str) -> Callable[..., Any]:
    def function(
        x: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False, acc_dtype: Any = None
    ) -> Any:
        x = given(x)
        if isinstance(dtype, bool):
            dtype, keepdims = None, dtype
        axes = axes_of(axis, len(sizes_of(x)))
        natural = {"whole": _whole, "fraction": fraction, "bool": lambda x: np.dtype(bool)}
        result = natural[kind](x) if kind in natural else np.dtype(x.dtype)
        if dtype is not None:
            result = as_dtype(dtype)
            x = cast(x, result)

        def compute(x: Any) -> Any:
            if kind == "bool":
                x = _cast(x, bool)
            if not is_var(x) and on_arrays is not None:
                return on_arrays(x, axis=axes, keepdims=keepdims)
            x = _cast(x, result) if kind == "fraction" else x
            return on_variables(var(x), axes, keepdims) if axes else x

        return made(type, compute, [x], reduced(x, axes, keepdims), result)

    function.__name__, function.__doc__ = type, f"{type} over axes; over all where None."
    return function


sum = _reduction("sum", F.sum, np.sum, "whole")

prod = _reduction("prod", F.prod, np.prod, "whole")

mean = _reduction("mean", F.mean, None, "fraction")

max = _reduction("max", F.max, np.max, "same")

min = _reduction("min", F.min, np.min, "same")

all = _reduction("all", F.min, np.all, "bool")

any = _reduction("any", F.max, np.any, "bool")


def var_(
    x: Any, axis: Any = None, ddof: int = 0, keepdims: bool = False, corrected: bool = False
) -> Any:
    """Variance over axes: the mean square of the distance from the mean."""
    centred = sub(x, mean(x, axis, keepdims=True))
    if not ddof:
        return mean(sqr(centred), axis, keepdims=keepdims)
    count = mean(sum(add(mul(centred, 0), 1), axis, keepdims=True))
    return true_div(sum(sqr(centred), axis, keepdims=keepdims), sub(count, ddof))


def std(
    x: Any, axis: Any = None, ddof: int = 0, keepdims: bool = False, corrected: bool = False
) -> Any:
    """Square root of the variance."""
    return sqrt(var_(x, axis, ddof, keepdims))


def ptp(x: Any, axis: Any = None) -> Any:
    """Greatest less smallest element."""
    return sub(max(x, axis), min(x, axis))


def logsumexp(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """log(sum(exp(x))), which no large x breaks."""
    x = given(x)
    axes = axes_of(axis, len(sizes_of(x)))
    sizes = reduced(x, axes, keepdims)
    return of_fractions("logsumexp", lambda x: F.logsumexp(x, axes, keepdims), x, sizes)


def _place(name: str) -> Callable[..., Any]:
    def function(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        x = given(x)
        axes = axes_of(axis, len(sizes_of(x)))
        best, of_arrays = (F.max, np.argmax) if name == "argmax" else (F.min, np.argmin)

        def compute(x: Any) -> Any:
            sizes = shape_of(x)
            left = [i for i in range(len(sizes)) if i not in axes]
            flat = handled("Transpose", x, perm=(*left, *axes))
            flat = reshape(flat, (*[sizes[i] for i in left], -1) if 0 not in sizes else ())
            at = best(flat, axis=-1, only_index=True) if is_var(x) else of_arrays(flat, axis=-1)
            shape = [1 if i in axes else n for i, n in enumerate(sizes) if keepdims or i in left]
            return tagged(reshape(at, shape), np.int64) if is_var(at) else at.reshape(shape)

        return made(name, compute, [x], reduced(x, axes, keepdims), np.int64)

    function.__name__ = name
    function.__doc__ = f"Place of the {'greatest' if name == 'argmax' else 'smallest'} element."
    return function


argmax, argmin = _place("argmax"), _place("argmin")


def max_and_argmax(x: Any, axis: Any = None, keepdims: bool = False) -> tuple[Any, Any]:
    """The greatest elements and their places."""
    return max(x, axis, None, keepdims), argmax(x, axis, keepdims)


def _cumulative(name: str) -> Callable[..., Any]:
    def function(x: Any, axis: Any = None) -> Any:
        x = given(x)
        sizes = (None,) if axis is None else sizes_of(x)
        f, of_arrays = (F.cumsum, np.cumsum) if name == "cumsum" else (F.cumprod, np.cumprod)

        def compute(x: Any) -> Any:
            x = reshape(x, (-1,)) if axis is None else x
            return f(x, axis=axis or 0) if is_var(x) else of_arrays(x, axis=axis or 0)

        return made(name, compute, [x], sizes, x.dtype)

    function.__name__, function.__doc__ = name, f"{name} along an axis, or of all in one row."
    return function


cumsum, cumprod = _cumulative("cumsum"), _cumulative("cumprod")


def _dot(a: Any, b: Any) -> Any:
    if not is_var(a) and not is_var(b):
        return np.dot(a, b)
    x, y = var(a), var(b)
    if x.ndim == 0 or y.ndim == 0:
        return handled("Mul", x, y)
    if x.ndim == y.ndim == 2 and x.shape[1] == y.shape[0]:
        return F.affine(x, y)
    shape = (*x.shape[:-1], *y.shape[:-2], *y.shape[-1:][: y.ndim - 1])
    if x.shape[-1] != (y.shape[-2] if y.ndim > 1 else y.shape[0]):
        raise ValueError(f"dot: shapes {x.shape} and {y.shape} do not fit")
    if y.ndim > 2:
        order = (y.ndim - 2, *range(y.ndim - 2), y.ndim - 1)
        y = F.transpose(y, order)
    y = F.reshape(y, (y.shape[0], -1 if y.ndim > 1 else 1))
    x = F.reshape(x, (-1, x.shape[-1]))
    return F.reshape(F.affine(x, y), shape)


def dot(a: Any, b: Any) -> Any:
    """Sum of products over the last axis of a and the last but one of b."""
    a, b = given(a), given(b)
    left, right = sizes_of(a), sizes_of(b)
    sizes = (*left[:-1], *right[:-2], *right[-1:][: len(right) - 1])
    if not left or not right:
        sizes = left + right
    return made("dot", _dot, [a, b], sizes, promoted(a, b))


def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    """Sum of products over several axes of both."""
    a, b = given(a), given(b)
    n, m = len(sizes_of(a)), len(sizes_of(b))
    if isinstance(axes, (int, np.integer)):
        first, second = list(range(n - axes, n)), list(range(axes))
    else:
        first, second = (
            [int(i) % k for i in np.ravel(s)] for s, k in zip(axes, (n, m), strict=True)
        )
    return _einsum("tensordot", a, b, first, second, [])


def batched_tensordot(x: Any, y: Any, axes: Any = 2) -> Any:
    """tensordot of each row of both; axes count the rows."""
    a, b = given(x), given(y)
    if isinstance(axes, (int, np.integer)):
        n = len(sizes_of(a))
        first, second = list(range(n - axes, n)), list(range(1, axes + 1))
    else:
        first, second = ([int(i) for i in np.ravel(s)] for s in axes)
    return _einsum("batched_tensordot", a, b, first, second, [0])


def batched_dot(a: Any, b: Any) -> Any:
    """dot of each row of both."""
    a, b = given(a), given(b)
    n, m = len(sizes_of(a)), len(sizes_of(b))
    if n == 1 or m == 1:
        raise ValueError(f"batched_dot: of {n} and {m} axes, wanted 2 or more of both")
    return _einsum("batched_dot", a, b, [n - 1], [1], [0])


def _einsum(type: str, a: Any, b: Any, first: Any, second: Any, rows: list[int]) -> Any:
    n, m = len(sizes_of(a)), len(sizes_of(b))
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    left = [next(letters) for _ in range(n)]
    right = [next(letters) for _ in range(m)]
    for i, j in [*zip(first, second, strict=True), *[(r, r) for r in rows]]:
        right[j] = left[i]
    out = [left[i] for i in range(n) if i not in first]
    out += [right[j] for j in range(m) if j not in second and j not in rows]
    rule = f"{''.join(left)},{''.join(right)}->{''.join(out)}"

    def compute(a: Any, b: Any) -> Any:
        if not is_var(a) and not is_var(b):
            return np.einsum(rule, a, b)
        return F.einsum(var(a), var(b), equation=rule)

    sizes = dict(zip(left + right, sizes_of(a) + sizes_of(b), strict=True))
    return made(type, compute, [a, b], [sizes[c] for c in out], promoted(a, b))


def outer(a: Any, b: Any) -> Any:
    """Products of all pairs of elements of both, as a matrix."""
    a, b = as_tensor_variable(a), as_tensor_variable(b)
    return dot(a.flatten().dimshuffle(0, "x"), b.flatten().dimshuffle("x", 0))


def _matrix(type: str, f: Callable[..., Any], x: Any, sizes: Any) -> Any:
    def compute(x: Any) -> Any:
        y = f(F.reshape(x, (1, *x.shape)))
        return F.reshape(y, y.shape[1:])

    return of_fractions(type, compute, x, sizes)


def det(x: Any) -> Any:
    """Determinant."""
    return _matrix("det", F.batch_det, x, ())


def matrix_inverse(x: Any) -> Any:
    """The inverse of a matrix."""
    return _matrix("matrix_inverse", F.batch_inv, x, (None, None))


def cholesky(x: Any) -> Any:
    """The lower triangle L with L L' = x."""
    return _matrix("cholesky", F.batch_cholesky, x, (None, None))


def solve(a: Any, b: Any) -> Any:
    """x with a x = b."""
    return dot(matrix_inverse(a), b)


def matrix_dot(*args: Any) -> Any:
    """The product of several matrices."""
    y = args[0]
    for x in args[1:]:
        y = dot(y, x)
    return y


def matrix_power(m: Any, n: int) -> Any:
    """The product of n times the same matrix."""
    from nnl.dialects.theano.elements import identity_like

    return matrix_dot(*[m] * n) if n else identity_like(m)


def kron(a: Any, b: Any) -> Any:
    """The matrix of the products of an element of a and all of b, block by block."""
    a, b = as_tensor_variable(a), as_tensor_variable(b)
    y = a.dimshuffle(0, "x", 1, "x") * b.dimshuffle("x", 0, "x", 1)
    return y.reshape((a.shape[0] * b.shape[0], a.shape[1] * b.shape[1]), ndim=2)


def norm(x: Any, ord: Any = None, axis: Any = None) -> Any:
    """(sum |x|^ord)^(1 / ord) of all elements, or along an axis; 2 if left out."""
    p = 2 if ord in (None, "fro") else ord
    if p in (np.inf, "inf"):
        return max(abs_(x), axis)
    if p == 1:
        return sum(abs_(x), axis)
    return pow(sum(pow(abs_(x), float(p)), axis), 1.0 / p)
