# SPDX-License-Identifier: Apache-2.0
"""Importers of reductions, running sums, softmax and its relatives, and matrix products."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.onnx.file.errors import OnnxError
from nnl.converters.onnx.file.registry import onnx_import
from nnl.converters.onnx.importing.arithmetic import pair, truncated
from nnl.converters.onnx.importing.shape import axes_given
from nnl.converters.onnx.values.values import (
    array,
    axis_of,
    broadcast,
    dtype_of,
    is_float,
    is_var,
    reshape,
    same_rank,
    scalar,
    shape_of,
    transpose,
    var,
)

_EMPTY = {"Max": -np.inf, "Min": np.inf, "Prod": 1.0, "LogSum": -np.inf, "LogSumExp": -np.inf}


_REDUCE: dict[str, tuple[Any, Any]] = {
    "Sum": (lambda x, a: F.sum(x, axis=a, keepdims=True), np.sum),
    "Mean": (lambda x, a: F.mean(x, axis=a, keepdims=True), None),
    "Max": (lambda x, a: F.max(x, axis=a, keepdims=True), np.max),
    "Min": (lambda x, a: F.min(x, axis=a, keepdims=True), np.min),
    "Prod": (lambda x, a: F.prod(x, axis=a, keepdims=True), np.prod),
    "L1": (lambda x, a: F.sum(F.abs(x), axis=a, keepdims=True), None),
    "L2": (lambda x, a: F.pow_scalar(F.sum(x * x, axis=a, keepdims=True), 0.5), None),
    "SumSquare": (lambda x, a: F.sum(x * x, axis=a, keepdims=True), None),
    "LogSum": (lambda x, a: F.log(F.sum(x, axis=a, keepdims=True)), None),
    "LogSumExp": (lambda x, a: F.logsumexp(x, axis=a, keepdims=True), None),
}


def _reduction(name: str) -> None:
    on_variables, on_arrays = _REDUCE[name]

    @onnx_import(f"Reduce{name}")
    def handler(ctx: Any, node: Any, x: Any, axes: Any = None) -> Any:
        sizes = shape_of(x)
        given = axes_given(node, axes)
        if not given:
            if getattr(node, "noop_with_empty_axes", 0):
                return _element_wise(name, x)
            given = tuple(range(len(sizes)))
        at = tuple(sorted({axis_of(a, len(sizes)) for a in given}))
        kept = tuple(1 if i in at else n for i, n in enumerate(sizes))
        dropped = tuple(n for i, n in enumerate(sizes) if i not in at)
        if math.prod(sizes) == 0 and math.prod(kept):
            y: Any = np.full(kept, _of_nothing(name, dtype_of(x)), dtype_of(x))
        elif not is_var(x) and on_arrays is not None:
            y = np.asarray(on_arrays(x, axis=at, keepdims=True), x.dtype)
        elif not at:
            return _element_wise(name, x)
        else:
            y = on_variables(var(x), at)
            y = truncated(y, dtype_of(x)) if name in _FRACTIONS else y
        return reshape(y, kept if node.keepdims else dropped)

    handler.__doc__ = f"Reduce{name} over axes."


_FRACTIONS = ("L2", "LogSum", "LogSumExp", "Mean")  # of whole numbers too


def _of_nothing(name: str, dtype: Any) -> Any:
    """What a reduction of no elements gives."""
    value = _EMPTY.get(name, 0.0)
    if math.isfinite(value) or is_float(dtype):
        return value
    if dtype.kind == "b":
        return value > 0
    limits = np.iinfo(dtype)
    return limits.max if value > 0 else limits.min


def _element_wise(name: str, x: Any) -> Any:
    """What a reduction over no axes leaves: the function of every element."""
    if name in ("L1", "L2"):
        return F.abs(x) if is_var(x) else np.abs(x)
    if name == "SumSquare":
        return x * x
    if name == "LogSum":
        return F.log(var(x))
    return x


for _name in _REDUCE:
    _reduction(_name)


def _cumulative(name: str, on_arrays: Any, on_variables: Any, start: int) -> None:
    @onnx_import(name)
    def handler(ctx: Any, node: Any, x: Any, axis: Any) -> Any:
        at = axis_of(int(scalar(axis, what="the axis")), len(shape_of(x)))
        flags = {"exclusive": bool(node.exclusive), "reverse": bool(node.reverse)}
        if is_var(x):
            return on_variables(x, axis=at, **flags)
        y = np.flip(x, at) if node.reverse else x
        total = on_arrays(y, axis=at, dtype=x.dtype)
        if node.exclusive:
            total = np.roll(total, 1, at)
            total[(slice(None),) * at + (slice(0, 1),)] = start
        return np.flip(total, at) if node.reverse else total

    handler.__doc__ = f"{name} along an axis, optionally without the own element or backwards."


_cumulative("CumSum", np.cumsum, F.cumsum, 0)
_cumulative("CumProd", np.cumprod, F.cumprod, 1)


def flattened(node: Any, x: Any) -> tuple[Any, int, Any]:
    """x, the axis to normalise over, and the shape to go back to.

    Before version 13 the axes from `axis` on are one.
    """
    sizes = shape_of(x)
    axis = axis_of(node.axis, len(sizes))
    if node.since >= 13:
        return x, axis, sizes
    return reshape(x, (math.prod(sizes[:axis]), math.prod(sizes[axis:]))), 1, sizes


@onnx_import("Softmax")
def softmax(ctx: Any, node: Any, x: Any) -> Any:
    """Exponentials that sum to 1 along an axis."""
    y, axis, sizes = flattened(node, var(x))
    return reshape(F.softmax(y, axis=axis), sizes)


@onnx_import("LogSoftmax")
def log_softmax(ctx: Any, node: Any, x: Any) -> Any:
    """Logarithm of softmax."""
    y, axis, sizes = flattened(node, var(x))
    return reshape(F.log_softmax(y, axis=axis), sizes)


@onnx_import("Hardmax")
def hardmax(ctx: Any, node: Any, x: Any) -> Any:
    """1 at the first maximum along an axis, 0 elsewhere."""
    y, axis, sizes = flattened(node, var(x))
    n = y.shape[axis]
    at = F.max(y, axis=axis, keepdims=True, only_index=True)
    order = [i for i in range(y.ndim) if i != axis] + [axis]
    hot = F.one_hot(transpose(at, order), (n,))
    return reshape(transpose(hot, np.argsort(order)), sizes)


@onnx_import("LpNormalization")
def lp_normalization(ctx: Any, node: Any, x: Any) -> Any:
    """x divided by its norm along an axis; zeros stay."""
    x = var(x)
    axis = axis_of(node.axis, x.ndim)
    if node.p == 1:
        size = F.sum(F.abs(x), axis=axis, keepdims=True)
    else:
        size = F.pow_scalar(F.sum(x * x, axis=axis, keepdims=True), 0.5)
    zero = F.equal_scalar(size, 0.0)
    return F.div2(x, size + zero)


@onnx_import("MatMul")
def matmul(ctx: Any, node: Any, a: Any, b: Any) -> Any:
    """Matrix product as in numpy: vectors are rows or columns, batch axes broadcast."""
    if not is_var(a) and not is_var(b):
        return np.matmul(a, b)
    return product(var(a), var(b))


def product(a: Any, b: Any) -> Any:
    """Matrix product of Variables as in numpy."""
    rows, columns = a.ndim == 1, b.ndim == 1
    if a.ndim == 0 or b.ndim == 0:
        raise OnnxError(f"multiplies shapes {a.shape} and {b.shape}: a scalar is no matrix")
    a = F.reshape(a, (1, *a.shape)) if rows else a
    b = F.reshape(b, (*b.shape, 1)) if columns else b
    if a.shape[-1] != b.shape[-2]:
        raise OnnxError(f"multiplies shapes {a.shape} and {b.shape}: the inner sizes differ")
    if b.ndim == 2 and a.ndim >= 2:
        y = F.affine(a, b, base_axis=a.ndim - 1)
    else:
        y = F.batch_matmul(*same_rank(a, b))
    sizes = y.shape
    if rows:
        sizes = sizes[:-2] + sizes[-1:]
    return reshape(y, sizes[:-1] if columns else sizes)


@onnx_import("Gemm")
def gemm(ctx: Any, node: Any, a: Any, b: Any, c: Any = None) -> Any:
    """alpha a' b' + beta c."""
    if not any(map(is_var, (a, b, c))) and a.dtype.kind in "iu":
        y = (a.T if node.transA else a) @ (b.T if node.transB else b)
        y = np.asarray(node.alpha * y).astype(a.dtype)
        return y if c is None else y + np.asarray(node.beta * c).astype(a.dtype)
    a, b = var(a), var(b)
    if a.ndim != 2 or b.ndim != 2:
        raise OnnxError(f"multiplies shapes {a.shape} and {b.shape}, wanted matrices")
    a = F.transpose(a, (1, 0)) if node.transA else a
    b = F.transpose(b, (1, 0)) if node.transB else b
    plain = node.alpha == 1 and node.beta == 1 and c is not None
    if plain and shape_of(c) == (b.shape[1],) and a.shape[1] == b.shape[0]:
        return F.affine(a, b, var(c))
    y = product(a, b)
    y = y if node.alpha == 1 else y * node.alpha
    if c is None or node.beta == 0:
        return y
    c = var(c) if node.beta == 1 else var(c) * node.beta
    return pair(F.add2, y, broadcast(c, y.shape) if c.ndim == 0 else c)


@onnx_import("Einsum")
def einsum(ctx: Any, node: Any, *values: Any) -> Any:
    """Sum of products in Einstein's notation."""
    equation = node.equation.replace(" ", "")
    if not any(map(is_var, values)) and values[0].dtype.kind in "iuf":
        return np.einsum(equation, *values)
    if len(values) == 2 and all(is_float(dtype_of(v)) for v in values):
        y = _as_product(equation, *map(var, values))
        if y is not None:
            return y
    return F.einsum(*map(var, values), equation=equation)


def _as_product(equation: str, a: Any, b: Any) -> Any:
    """A product of matrices, or of elements where nothing is summed, of transposed operands, which
    more engines have than einsum; None for what is none."""
    terms, arrow, out = equation.partition("->")
    left, _, right = terms.partition(",")
    if not arrow or any(len({*t}) < len(t) or not t.isalpha() for t in (left, right, out)):
        return None
    if len(left) != a.ndim or len(right) != b.ndim or not {*left} ^ {*right} <= {*out}:
        return None
    sizes = dict(zip(left + right, a.shape + b.shape, strict=True))
    if tuple(sizes[c] for c in left) != a.shape or not {*out} <= {*sizes}:
        return None
    batch = [c for c in left if c in right and c in out]
    inner = [c for c in left if c in right and c not in out]
    rows, columns = [c for c in left if c not in right], [c for c in right if c not in left]
    a = transpose(a, [left.index(c) for c in batch + rows + inner])
    b = transpose(b, [right.index(c) for c in batch + inner + columns])
    kept = [sizes[c] for c in batch]
    r, k, n = ([sizes[c] for c in some] for some in (rows, inner, columns))
    if inner:
        a = F.reshape(a, (*kept, math.prod(r), math.prod(k)))
        b = F.reshape(b, (*kept, math.prod(k), math.prod(n)))
        y = F.reshape(product(a, b), (*kept, *r, *n))
    else:
        a = F.reshape(a, (*kept, *r, *[1] * len(n)))
        y = pair(F.mul2, a, F.reshape(b, (*kept, *[1] * len(r), *n)))
    return transpose(y, [(batch + rows + columns).index(c) for c in out])


@onnx_import("Det")
def det(ctx: Any, node: Any, x: Any) -> Any:
    """Determinants of square matrices."""
    x = var(x)
    lead = x.shape[:-2]
    y = F.batch_det(F.reshape(x, (-1, *x.shape[-2:])))
    return reshape(y, lead)


__all__ = ["array", "product"]
