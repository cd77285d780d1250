# SPDX-License-Identifier: Apache-2.0
"""Importers of arithmetic, comparisons, logic and bits: element by element, with broadcasting."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.onnx.file.errors import OnnxError
from nnl.converters.onnx.file.registry import Handler, onnx_import
from nnl.converters.onnx.values.values import (
    Sized,
    array,
    broadcast,
    dtype_of,
    is_float,
    is_var,
    known,
    reshape,
    same_rank,
    scalar,
    shape_of,
    tagged,
    var,
)


def expm1(x: Any) -> Any:
    """exp(x) - 1 = 2 sinh(x / 2) exp(x / 2), exact where x is small; -1 below -50."""
    under = F.less_scalar(x, -50.0)
    half = F.mul_scalar(F.where(under, F.mul_scalar(under, -50.0), x), 0.5)
    return 2.0 * F.sinh(half) * F.exp(half)


def log1p(x: Any) -> Any:
    """log(1 + x) = 2 artanh(x / (x + 2)), exact where x is small; beyond 1 the logarithm itself."""
    over = F.greater_scalar(x, 1.0)
    small, large = F.where(over, over, x), F.maximum_scalar(x, 1.0)
    return 2.0 * F.atanh(small / (small + 2.0)) + F.log((large + 1.0) * 0.5)


def zeros_like(x: Any) -> Any:
    """Zeros, also where x is infinite or no number; the shape is not part of the program."""
    return F.mul_scalar(F.less_scalar(x, 0.0), 0.0)


def one_number(x: Any) -> bool:
    """Whether x is a constant of one element, for which functions have a scalar form."""
    return not is_var(x) and x.size == 1


def aligned(node: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """Both operands; before version 7 `axis` says where the sizes of the second one belong."""
    if node.since < 7 and getattr(node, "broadcast", 0) and getattr(node, "axis", None) is not None:
        rank = len(shape_of(a))
        axis = node.axis % rank
        shape = shape_of(b)
        b = reshape(b, shape + (1,) * (rank - axis - len(shape)))
    return a, b


def pair(f: Any, a: Any, b: Any) -> Any:
    """f of two Variables of one rank."""
    return f(*same_rank(var(a), var(b)))


def _binary(
    name: str, on_arrays: Callable[..., Any], on_variables: Any, right: Any, left: Any
) -> None:
    @onnx_import(name)
    def handler(ctx: Any, node: Any, a: Any, b: Any) -> Any:
        a, b = aligned(node, a, b)
        if not is_var(a) and not is_var(b):
            return on_arrays(a, b)
        if right is not None and one_number(b) and b.ndim <= len(a.shape):
            return right(var(a), float(b.reshape(-1)[0]))
        if left is not None and one_number(a) and a.ndim <= len(b.shape):
            return left(var(b), float(a.reshape(-1)[0]))
        return pair(on_variables, a, b)

    handler.__doc__ = f"{name} with ONNX's broadcasting."


def divide(a: Any, b: Any) -> Any:
    """Division of arrays; integers are cut towards zero."""
    if is_float(a.dtype):
        return np.divide(a, b)
    if np.any(np.asarray(b) == 0):
        raise OnnxError("divides an integer by zero")
    quotient = np.floor_divide(a, b)
    if a.dtype.kind == "i":
        quotient = quotient + ((quotient < 0) & (quotient * b != a))
    return quotient


_binary("Add", np.add, F.add2, F.add_scalar, F.add_scalar)
_binary("Sub", np.subtract, F.sub2, lambda x, k: F.add_scalar(x, -k), F.r_sub_scalar)
_binary("Mul", np.multiply, F.mul2, F.mul_scalar, F.mul_scalar)


@onnx_import("Div")
def div(ctx: Any, node: Any, a: Any, b: Any) -> Any:
    """Quotient; integers are cut towards zero."""
    a, b = aligned(node, a, b)
    if not is_var(a) and not is_var(b):
        return divide(a, b)
    if one_number(b) and b.ndim <= len(a.shape) and float(b.reshape(-1)[0]) != 0:
        y = F.mul_scalar(var(a), 1.0 / float(b.reshape(-1)[0]))
        if is_float(dtype_of(a)):
            exact = np.log2(abs(float(b.reshape(-1)[0]))) % 1 == 0
            return y if exact and not isinstance(b, Sized) else pair(F.div2, a, b)
    return truncated(pair(F.div2, a, b), dtype_of(a))


def truncated(x: Any, dtype: Any) -> Any:
    """A Variable cut towards zero if its ONNX type is an integer."""
    return x if is_float(dtype) else F.sign(x, 0.0) * F.floor(F.abs(x))


@onnx_import("Pow")
def pow(ctx: Any, node: Any, a: Any, b: Any) -> Any:
    """Power, of the type of the base."""
    a, b = aligned(node, a, b)
    if not is_var(a) and not is_var(b):
        return np.power(a, b).astype(a.dtype)
    if one_number(b) and b.ndim <= len(a.shape):
        return F.pow_scalar(var(a), float(b.reshape(-1)[0]))
    return pair(F.pow2, a, b)


@onnx_import("Mod")
def mod(ctx: Any, node: Any, a: Any, b: Any) -> Any:
    """Remainder with the sign of the divisor, or with that of the dividend for fmod=1."""
    if not is_var(a) and not is_var(b):
        return np.fmod(a, b) if node.fmod else np.mod(a, b)
    a, b = same_rank(var(a), var(b))
    return F.mod2(a, b, fmod=True) if node.fmod else floor_mod(a, b)


def floor_mod(a: Any, b: Any) -> Any:
    """The remainder of two Variables of one rank with the sign of b, exact as that of fmod."""
    rest = F.mod2(a, b, fmod=True)
    b = broadcast(b, np.broadcast_shapes(a.shape, b.shape))
    other_side = F.less_scalar(F.sign(rest, 0.0) * F.sign(b, 0.0), 0.0)
    return F.where(other_side, rest + b, rest)


def _variadic(name: str, on_arrays: Any, on_variables: Any) -> None:
    @onnx_import(name)
    def handler(ctx: Any, node: Any, *values: Any) -> Any:
        if not any(map(is_var, values)):
            return functools.reduce(on_arrays, values)
        return functools.reduce(lambda a, b: pair(on_variables, a, b), map(var, values))

    handler.__doc__ = f"{name} of any number of operands, with broadcasting."


_variadic("Max", np.maximum, F.maximum2)
_variadic("Min", np.minimum, F.minimum2)
_variadic("Sum", np.add, F.add2)


@onnx_import("Mean")
def mean(ctx: Any, node: Any, *values: Any) -> Any:
    """Arithmetic mean of the operands."""
    total = functools.reduce(lambda a, b: pair(F.add2, a, b), map(var, values))
    return F.mul_scalar(total, 1.0 / len(values))


def _compare(name: str, on_arrays: Any, on_variables: Any) -> None:
    @onnx_import(name)
    def handler(ctx: Any, node: Any, a: Any, b: Any) -> Any:
        a, b = aligned(node, a, b)
        if known(a) and known(b):
            return on_arrays(array(a), array(b))
        return tagged(pair(on_variables, a, b), bool)

    handler.__doc__ = f"{name}: a bool for every pair of elements."


_compare("Equal", np.equal, F.equal)
_compare("Greater", np.greater, F.greater)
_compare("GreaterOrEqual", np.greater_equal, F.greater_equal)
_compare("Less", np.less, F.less)
_compare("LessOrEqual", np.less_equal, F.less_equal)
_compare("And", np.logical_and, F.logical_and)
_compare("Or", np.logical_or, F.logical_or)
_compare("Xor", np.logical_xor, F.logical_xor)


def _bits(name: str, on_arrays: Any) -> None:
    @onnx_import(name)
    def handler(ctx: Any, node: Any, a: Any, b: Any) -> Any:
        return on_arrays(array(a), array(b))

    handler.__doc__ = f"{name} of integers that are known while the graph is built."


_bits("BitwiseAnd", np.bitwise_and)
_bits("BitwiseOr", np.bitwise_or)
_bits("BitwiseXor", np.bitwise_xor)


@onnx_import("BitShift")
def bit_shift(ctx: Any, node: Any, x: Any, by: Any) -> Any:
    """Bits moved left or right."""
    shift = np.left_shift if node.direction == "LEFT" else np.right_shift
    return shift(array(x), array(by))


@onnx_import("BitCast")
def bit_cast(ctx: Any, node: Any, x: Any) -> Any:
    """The same bits read as another type."""
    from nnl.converters.onnx.file.tensors import dtype_of_code

    dtype = dtype_of_code(node.to, "BitCast")
    value = array(x)
    return np.frombuffer(value.tobytes(), dtype).reshape(value.shape)


def _unary(name: str, on_arrays: Any, on_variables: Any) -> None:
    @onnx_import(name)
    def handler(ctx: Any, node: Any, x: Any) -> Any:
        return on_variables(x) if is_var(x) else on_arrays(x)

    handler.__doc__ = f"{name} of every element."


_unary("Neg", np.negative, lambda x: F.mul_scalar(x, -1.0))
_unary("Abs", np.abs, F.abs)
_unary("Sign", np.sign, lambda x: F.sign(x, 0.0))
_unary("Sqrt", np.sqrt, lambda x: F.pow_scalar(x, 0.5))
_unary("Reciprocal", np.reciprocal, lambda x: F.r_div_scalar(x, 1.0))
_unary("Relu", lambda x: np.maximum(x, np.zeros((), x.dtype)), F.relu)


def half_to_even(x: Any) -> Any:
    """A Variable rounded to integers, halves to even ones; exact for all of float32."""
    low = F.floor(x)
    part, half = x - low, low * 0.5
    odd = F.greater(half, F.floor(half))
    up = F.logical_or(F.greater_scalar(part, 0.5), F.equal_scalar(part, 0.5) * odd)
    return low + up


_unary("Round", np.rint, half_to_even)


@onnx_import("IsInf")
def is_inf(ctx: Any, node: Any, x: Any) -> Any:
    """Whether each element is infinite, of the signs asked for."""
    if known(x):
        value = array(x)
        up = np.isposinf(value) & bool(node.detect_positive)
        return up | (np.isneginf(value) & bool(node.detect_negative))
    found = F.isinf(x)
    if node.detect_positive and node.detect_negative:
        return found
    side = F.greater_scalar(x, 0.0) if node.detect_positive else F.less_scalar(x, 0.0)
    return F.logical_and(found, side)


@onnx_import("Where")
def where(ctx: Any, node: Any, condition: Any, a: Any, b: Any) -> Any:
    """a where the condition holds, b elsewhere."""
    if not any(map(is_var, (condition, a, b))):
        return np.where(condition, a, b)
    if known(condition) and not is_float(dtype_of(a)) and known(a) and known(b):
        return np.where(array(condition), array(a), array(b))
    shape = np.broadcast_shapes(*map(shape_of, (condition, a, b)))
    low = [ctx.open and len(shape_of(v)) < len(shape) for v in (condition, a, b)]
    parts = [broadcast(var(v), shape, k) for v, k in zip((condition, a, b), low, strict=True)]
    return F.where(*parts)


@onnx_import("Clip")
def clip_attributes(ctx: Any, node: Any, x: Any) -> Any:
    """x cut to [min, max], which are attributes."""
    low = None if node.min is None or node.min <= -3.4e38 else np.float32(node.min)
    high = None if node.max is None or node.max >= 3.4e38 else np.float32(node.max)
    return clipped(x, low, high)


@onnx_import("Clip", since=11)
def clip(ctx: Any, node: Any, x: Any, low: Any = None, high: Any = None) -> Any:
    """x cut to [min, max]; max counts where min is larger."""
    return clipped(x, low, high)


def clipped(x: Any, low: Any, high: Any) -> Any:
    """x with both bounds applied; None is no bound."""
    if not any(map(is_var, (x, low, high))):
        y = x if low is None else np.maximum(x, np.asarray(low).astype(x.dtype))
        return y if high is None else np.minimum(y, np.asarray(high).astype(x.dtype))
    y = var(x)
    for bound, by_number, by_value in (
        (low, F.maximum_scalar, F.maximum2),
        (high, F.minimum_scalar, F.minimum2),
    ):
        if bound is None:
            continue
        if known(bound):
            y = by_number(y, float(scalar(bound, what="a bound")))
        else:
            y = pair(by_value, y, bound)
    return y


# ---- operators that are one expression ----

_EXPRESSIONS: dict[str, Handler] = {
    "BitwiseNot": lambda ctx, node, x: np.bitwise_not(array(x)),
    "Not": lambda ctx, node, x: np.logical_not(array(x)) if known(x) else F.logical_not(x),
    "Identity": lambda ctx, node, x: (x,),
    "IsNaN": lambda ctx, node, x: np.isnan(array(x)) if known(x) else F.isnan(x),
}

for _names, _expression in _EXPRESSIONS.items():
    onnx_import(*_names.split())(_expression)
