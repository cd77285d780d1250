# SPDX-License-Identifier: Apache-2.0
"""Importers of what treats every element alike, of reductions, and of matrix products."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.onnx.importing.arithmetic import expm1, log1p, pair, zeros_like
from nnl.converters.onnx.importing.reduction import product
from nnl.converters.onnx.importing.shape import cast_to
from nnl.converters.onnx.values.values import (
    array,
    axis_of,
    dtype_of,
    ints,
    is_var,
    reshape,
    scalar,
    shape_of,
    tagged,
    transpose,
    var,
)
from nnl.converters.tensorflow.interpreter import Unsupported, tf_import
from nnl.converters.tensorflow.messages import TensorFlowError, dtype_of_code
from nnl.converters.tensorflow.shared import onnx
from nnl.core.graph.dispatch import apply
from nnl.core.graph.variable import Variable

# ---- element by element ----

_SAME = {
    "Abs": "Abs",
    "AddN": "Sum",
    "Div": "Div",
    "Maximum": "Max",
    "Minimum": "Min",
    "Neg": "Neg",
    "Pow": "Pow",
    "RealDiv": "Div",
    "Reciprocal": "Reciprocal",
    "Inv": "Reciprocal",
    "Relu": "Relu",
    "Rint": "Round",
    "Round": "Round",
    "Sign": "Sign",
    "Softplus": "Softplus",
    "Sqrt": "Sqrt",
    "Sub": "Sub",
    "TruncateDiv": "Div",
}
_TRUTH = {
    "Equal": "Equal",
    "Greater": "Greater",
    "GreaterEqual": "GreaterOrEqual",
    "IsNan": "IsNaN",
    "Less": "Less",
    "LessEqual": "LessOrEqual",
    "LogicalAnd": "And",
    "LogicalNot": "Not",
    "LogicalOr": "Or",
}
_FUNCTIONS: dict[str, tuple[Any, Any]] = {  # of Variables, of arrays
    "Acos": (F.acos, np.arccos),
    "Acosh": (F.acosh, np.arccosh),
    "Asin": (F.asin, np.arcsin),
    "Asinh": (F.asinh, np.arcsinh),
    "Atan": (F.atan, np.arctan),
    "Atan2": (F.atan2, np.arctan2),
    "Atanh": (F.atanh, np.arctanh),
    "Ceil": (F.ceil, np.ceil),
    "Cos": (F.cos, np.cos),
    "Cosh": (F.cosh, np.cosh),
    "Elu": (F.elu, None),
    "Erf": (F.erf, None),
    "Erfc": (lambda x: F.r_sub_scalar(F.erf(x), 1.0), None),
    "Exp": (F.exp, np.exp),
    "Expm1": (expm1, np.expm1),
    "Floor": (F.floor, np.floor),
    "Log": (F.log, np.log),
    "Log1p": (log1p, np.log1p),
    "Relu6": (F.relu6, None),
    "Rsqrt": (lambda x: F.pow_scalar(x, -0.5), None),
    "Selu": (F.selu, None),
    "Sigmoid": (F.sigmoid, None),
    "Sin": (F.sin, np.sin),
    "Sinh": (F.sinh, np.sinh),
    "Softsign": (F.softsign, None),
    "Square": (lambda x: x * x, np.square),
    "SquaredDifference": (F.squared_error, lambda x, y: np.square(x - y)),
    "Tan": (F.tan, np.tan),
    "Tanh": (F.tanh, np.tanh),
    "ZerosLike": (zeros_like, np.zeros_like),
    "OnesLike": (lambda x: F.add_scalar(zeros_like(x), 1.0), np.ones_like),
}


ELEMENTWISE: dict[str, Callable[..., Any]] = {}  # of arrays or Variables that broadcast


def _elementwise(name: str, function: Callable[..., Any], truth: bool = False) -> None:
    ELEMENTWISE[name] = function

    @tf_import(name)
    def handler(ctx: Any, node: Any, *xs: Any) -> Any:
        y = ctx.axes.alike(function, *xs)
        return ctx.typed(y, 10 if truth else node.attr("T"))

    handler.__doc__ = f"{name}, with broadcasting."


def _of(on_variables: Any, on_arrays: Any) -> Callable[..., Any]:
    def function(*xs: Any) -> Any:
        if on_arrays is not None and not any(map(is_var, xs)):
            return on_arrays(*xs)
        if len(xs) == 2:
            return pair(on_variables, *xs)
        return on_variables(var(xs[0]))

    return function


for _name, _theirs in _SAME.items():
    _elementwise(_name, functools.partial(onnx, _theirs))
for _name, _theirs in _TRUTH.items():
    _elementwise(_name, functools.partial(onnx, _theirs), truth=True)
for _name, (_variables, _arrays) in _FUNCTIONS.items():
    _elementwise(_name, _of(_variables, _arrays))


# ---- scale and shift, which frozen graphs have of a normalization ----

_LINEAR = ("affine", "convolution", "deconvolution")


def _of_channels(x: Any, c: Any) -> Any:
    """A constant with a number for every channel of x, the last axis; None if it is none."""
    if not is_var(x) or is_var(c) or not 0 < c.ndim <= x.ndim or x.ndim < 2:
        return None
    return c.reshape(-1) if c.size == c.shape[-1] == x.shape[-1] > 1 else None


ELEMENTWISE |= {name: functools.partial(onnx, name) for name in ("Mul", "Add")}


@tf_import("Mul")
def multiply(ctx: Any, node: Any, x: Any, y: Any) -> Any:
    """A product; one by numbers of channels is remembered."""
    z = ctx.typed(ctx.axes.alike(ELEMENTWISE["Mul"], x, y), node.attr("T"))
    for value, other in ((x, y), (y, x)):
        scale = _of_channels(value, other)
        maker = None if scale is None else ctx.axes.of(value)[0].edge.node
        if maker is not None and maker.op.name in _LINEAR:
            ctx.scaled[z.edge.key] = z, value, scale
    return z


@tf_import("Add", "AddV2")
def add(ctx: Any, node: Any, x: Any, y: Any) -> Any:
    """A sum; behind a product by numbers of channels, a normalization with known statistics,
    which becomes part of the weights where networks are written."""
    for value, other in ((x, y), (y, x)):
        shift = _of_channels(value, other)
        if shift is not None and value.edge.key in ctx.scaled:
            _, before, scale = ctx.scaled[value.edge.key]
            source, order = ctx.axes.of(before)
            shape = [1] * source.ndim
            shape[order[-1]] = len(scale)
            numbers = {"beta": shift, "gamma": scale, "mean": 0 * scale, "var": 0 * scale + 1}
            given = [
                ctx.parameter(node, name, v.reshape(shape), need_grad=name in ("beta", "gamma"))
                for name, v in numbers.items()
            ]
            z = F.batch_normalization(source, *given, axes=(order[-1],), eps=0.0, batch_stat=False)
            return ctx.axes.transposed(z, order)
    return ctx.typed(ctx.axes.alike(ELEMENTWISE["Add"], x, y), node.attr("T"))


def _nan_safe(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A function of x and y that is 0 where y is 0."""

    def safe(x: Any, y: Any) -> Any:
        x, y = var(x), var(y)
        zero = F.equal_scalar(y, 0.0)
        shape = np.broadcast_shapes(x.shape, y.shape)
        quotient = pair(function, x, F.add2(y, zero))
        keep = F.r_sub_scalar(zero, 1.0)
        return F.mul2(quotient, keep if keep.shape == shape else F.broadcast(keep, shape))

    return safe


_elementwise("DivNoNan", _nan_safe(F.div2))


def _isfinite(x: Any) -> Any:
    if not is_var(x):
        return np.isfinite(x)
    return F.logical_not(F.logical_or(F.isnan(x), F.isinf(x)))


_elementwise("IsFinite", _isfinite, truth=True)
_elementwise("IsInf", lambda x: F.isinf(x) if is_var(x) else np.isinf(x), truth=True)
_elementwise(
    "NotEqual",
    lambda x, y: pair(F.not_equal, x, y) if is_var(x) or is_var(y) else np.not_equal(x, y),
    truth=True,
)
_elementwise("FloorMod", functools.partial(onnx, "Mod", fmod=0))
_elementwise("Mod", functools.partial(onnx, "Mod", fmod=1))
_elementwise("TruncateMod", functools.partial(onnx, "Mod", fmod=1))
_elementwise("ClipByValue", functools.partial(onnx, "Clip"))


def _floor_div(x: Any, y: Any) -> Any:
    if not is_var(x) and not is_var(y):
        if x.dtype.kind in "iu" and not np.all(y):
            raise TensorFlowError("divides an integer by zero")
        return np.floor_divide(x, y)
    return F.floor(pair(F.div2, x, y))


_elementwise("FloorDiv", _floor_div)
_elementwise("Xlogy", lambda x, y: _chosen_log(x, y))


def _chosen_log(x: Any, y: Any) -> Any:
    """x log(y), 0 where x is 0."""
    if not is_var(x) and not is_var(y):
        return np.where(x == 0, 0, x * np.log(np.where(x == 0, 1, y)))
    x, y = var(x), var(y)
    shape = np.broadcast_shapes(x.shape, y.shape)
    x, y = (v if v.shape == shape else F.broadcast(v, shape) for v in (x, y))
    zero = F.equal_scalar(x, 0.0)
    return x * F.log(F.where(zero, F.add_scalar(F.mul_scalar(y, 0.0), 1.0), y))


@tf_import("LeakyRelu")
def leaky_relu(ctx: Any, node: Any, x: Any) -> Any:
    """x, times alpha where it is negative."""
    return ctx.axes.alike(lambda v: F.leaky_relu(var(v), alpha=node.attr("alpha", 0.2)), x)


@tf_import("SelectV2", "Select")
def select(ctx: Any, node: Any, condition: Any, x: Any, y: Any) -> Any:
    """x where the condition holds, y elsewhere; in version 1 it may be one for every row."""
    if node.op == "Select" and len(shape_of(condition)) == 1 and len(shape_of(x)) > 1:
        condition = reshape(condition, (-1, *[1] * (len(shape_of(x)) - 1)))
    chosen = ctx.axes.alike(functools.partial(onnx, "Where"), condition, x, y)
    return ctx.typed(chosen, node.attr("T"))


@tf_import("Cast")
def cast(ctx: Any, node: Any, x: Any) -> Any:
    """x as another type."""
    to = dtype_of_code(node.attr("DstT", 1))
    return ctx.axes.alike(lambda v: cast_to(v, to), x)


@tf_import("BiasAdd", "BiasAddV1")
def bias_add(ctx: Any, node: Any, x: Any, b: Any) -> Any:
    """A number for every channel, as part of the function before where that has none."""
    if not is_var(x):
        x = var(x)
    first = node.attr("data_format", "NHWC").startswith("NC")
    source, order = ctx.axes.of(x)
    b = ctx.parameter(node, "b", b)
    at = order[1 if first else x.ndim - 1]
    maker = source.edge.node
    free = maker is not None and maker.op.name in ("convolution", "affine", "deconvolution")
    if free and maker.inputs[2:] in ((), (None,)) and at == maker.attrs.base_axis and b.ndim == 1:
        data, weight = (Variable.on(v) for v in maker.inputs[:2])
        return ctx.axes.transposed(apply(maker.op, maker.attrs, (data, weight, b)), order)
    wide = [1] * source.ndim
    wide[at] = b.size
    return ctx.axes.transposed(source + F.reshape(b, wide), order)


# ---- reductions ----

_REDUCED = {
    "Max": "ReduceMax",
    "Mean": "ReduceMean",
    "Min": "ReduceMin",
    "Prod": "ReduceProd",
    "Sum": "ReduceSum",
    "EuclideanNorm": "ReduceL2",
}


@tf_import(*_REDUCED)
def reduced(ctx: Any, node: Any, x: Any, axes: Any) -> Any:
    """Over axes, which go or keep the size 1; over none if there are none."""
    rank = len(shape_of(x))
    given = sorted({axis_of(a, rank) for a in ints(axes, "the axes")})
    keep = bool(node.attr("keep_dims", False))
    if not given or not rank:
        return x
    name = _REDUCED[node.op]
    if not is_var(x) and name == "ReduceMean" and dtype_of(x).kind in "iu":
        return np.mean(x, tuple(given), keepdims=keep).astype(x.dtype)
    source, order = ctx.axes.of(x)
    held = np.array(sorted(order[a] for a in given), np.int64)
    whole = onnx(name, source, held, keepdims=1)
    y = ctx.axes.transposed(whole, order)
    if not keep:
        sizes = [n for i, n in enumerate(shape_of(x)) if i not in given]
        left = [order[i] for i in range(rank) if i not in given]
        y = reshape(whole if left == sorted(left) else y, sizes)
    return ctx.typed(y, node.attr("T"))


@tf_import("All", "Any")
def truth(ctx: Any, node: Any, x: Any, axes: Any) -> Any:
    """Whether all, or any, along some axes are true."""
    rank = len(shape_of(x))
    given = tuple(sorted({axis_of(a, rank) for a in ints(axes, "the axes")}))
    keep = bool(node.attr("keep_dims", False))
    if not is_var(x):
        return (np.all if node.op == "All" else np.any)(x, axis=given, keepdims=keep)
    if not given:
        return x
    best = F.min if node.op == "All" else F.max
    return tagged(best(x, axis=given, keepdims=keep), bool)


@tf_import("ArgMax", "ArgMin")
def arg(ctx: Any, node: Any, x: Any, axis: Any = 0) -> Any:
    """Where the extremum is along an axis."""
    at = int(scalar(axis, what="the axis"))
    y = onnx(node.op, x, axis=at, keepdims=0)
    return ctx.typed(y, node.attr("output_type", 9))


@tf_import("Cumsum", "Cumprod")
def cumulative(ctx: Any, node: Any, x: Any, axis: Any) -> Any:
    """Sums or products along an axis, up to each element."""
    flags = {k: bool(node.attr(k, False)) for k in ("exclusive", "reverse")}
    return ctx.typed(
        onnx(node.op.replace("s", "S").replace("p", "P"), x, axis, **flags), node.attr("T")
    )


@tf_import("Softmax", "LogSoftmax")
def softmax(ctx: Any, node: Any, x: Any) -> Any:
    """Along the last axis, if no other is said."""
    f = F.softmax if node.op == "Softmax" else F.log_softmax
    x = var(x)
    source, order = ctx.axes.of(x)
    return ctx.axes.transposed(f(source, axis=order[node.attr("axis", -1)]), order)


@tf_import("L2Loss")
def l2_loss(ctx: Any, node: Any, x: Any) -> Any:
    """Half of the sum of squares."""
    x = var(x)
    return F.mul_scalar(F.sum(x * x), 0.5)


@tf_import("SoftmaxCrossEntropyWithLogits")
def softmax_cross_entropy(ctx: Any, node: Any, x: Any, labels: Any) -> Any:
    """The loss of every row."""
    loss = F.sum(var(labels) * F.log_softmax(var(x), axis=1), axis=1)
    return [F.mul_scalar(loss, -1.0)]


# ---- matrix products ----


@tf_import("MatMul")
def matmul(ctx: Any, node: Any, x: Any, w: Any) -> Any:
    """Product of two matrices; a constant second one is a weight."""
    if node.attr("transpose_a", False):
        x = transpose(x, (1, 0))
    if node.attr("transpose_b", False):
        w = transpose(w, (1, 0))
    if not is_var(x) and not is_var(w):
        return np.matmul(x, w)
    if len(shape_of(x)) != 2 or len(shape_of(w)) != 2:
        raise TensorFlowError(f"multiplies {shape_of(x)} and {shape_of(w)}, wanted matrices")
    return F.affine(var(x), ctx.parameter(node, "W", w) if is_var(x) else var(w))


@tf_import("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def batch_matmul(ctx: Any, node: Any, x: Any, y: Any) -> Any:
    """Products of the matrices of the last two axes."""
    turned = []
    for v, flag in ((x, "adj_x"), (y, "adj_y")):
        rank = len(shape_of(v))
        if rank < 2:
            raise TensorFlowError(f"multiplies {shape_of(x)} and {shape_of(y)}, wanted matrices")
        swapped = (*range(rank - 2), rank - 1, rank - 2)
        turned.append(transpose(v, swapped) if node.attr(flag, False) else v)
    if not any(map(is_var, turned)):
        return np.matmul(*turned)
    if is_var(turned[0]) and not is_var(turned[1]) and turned[1].ndim == 2:
        turned[1] = ctx.parameter(node, "W", turned[1])
    return product(*map(var, turned))


@tf_import("Einsum")
def einsum(ctx: Any, node: Any, *xs: Any) -> Any:
    """Sum of products in Einstein's notation."""
    equation = node.attr("equation", "")
    if "..." in equation:
        equation = _without_dots(equation, [len(shape_of(x)) for x in xs])
    if len(xs) == 2 and is_var(xs[0]) and not is_var(xs[1]):
        xs = xs[0], ctx.parameter(node, "W", xs[1])
    return onnx("Einsum", *xs, equation=equation)


def _without_dots(equation: str, ranks: list[int]) -> str:
    """An equation with letters for the axes that "..." stands for."""
    terms, arrow, result = equation.replace(" ", "").partition("->")
    free = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in equation]
    most, found = 0, []
    for term, rank in zip(terms.split(","), ranks, strict=True):
        n = rank - len(term.replace("...", "")) if "..." in term else 0
        if n > len(free) or n < 0:
            raise Unsupported(f"its equation {equation!r} does not fit the ranks {ranks}")
        most = max(most, n)
        found.append((term, n))
    full = [t.replace("...", "".join(free[most - n : most])) for t, n in found]
    return ",".join(full) + arrow + result.replace("...", "".join(free[:most]))


@tf_import("Range")
def range_(ctx: Any, node: Any, start: Any, limit: Any, delta: Any) -> Any:
    """start, start + delta, ... below limit."""
    return onnx("Range", start, limit, delta)


@tf_import("LinSpace")
def linspace(ctx: Any, node: Any, start: Any, stop: Any, count: Any) -> Any:
    """Numbers at equal distances."""
    n = int(scalar(count, what="the count"))
    if not 0 < n < 2**24:
        raise TensorFlowError(f"wants {n} numbers")
    return np.linspace(array(start), array(stop), n, dtype=dtype_of(start))


@tf_import("MatrixDiag", "MatrixDiagV2", "MatrixDiagV3")
def matrix_diag(ctx: Any, node: Any, x: Any, *form: Any) -> Any:
    """Matrices with x on the diagonal and another value elsewhere."""
    *where, rows, columns, fill = form or (np.int32(0), np.int32(-1), np.int32(-1), np.float32(0))
    n = shape_of(x)[-1]
    square = all(int(scalar(v, what="a size")) in (-1, n) for v in (rows, columns))
    if ints(where[0]) not in ((0,), (0, 0)) or not square or scalar(fill):
        raise Unsupported("gives another diagonal, other sizes or another value elsewhere")
    return tagged(F.matrix_diag(var(x)), dtype_of(x))


@tf_import("RandomUniform", "RandomStandardNormal")
def random(ctx: Any, node: Any, shape: Any) -> Any:
    """Other numbers in each run, from nnl's stream."""
    draw = F.rand if node.op == "RandomUniform" else F.randn
    return ctx.typed(draw(shape=ints(shape, "the shape")), node.attr("dtype", 1))
