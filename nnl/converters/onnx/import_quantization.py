# SPDX-License-Identifier: Apache-2.0
"""Importers of quantised operators. Integers are computed exactly, floats pass gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.onnx.errors import OnnxError
from nnl.converters.onnx.import_convolution import convolved
from nnl.converters.onnx.import_shape import cast_to
from nnl.converters.onnx.registry import onnx_import
from nnl.converters.onnx.tensors import dtype_of_code
from nnl.converters.onnx.values import (
    array,
    axis_of,
    is_float,
    is_var,
    known,
    reshape,
    shape_of,
    var,
)
from nnl.core.context import Context, using
from nnl.core.variable import Variable


def _limits(dtype: Any) -> tuple[float, float] | None:
    """Smallest and largest integer of a type; None for floats."""
    name = dtype.name
    if name.endswith(("int4", "int2")):
        bits = int(name[-1])
        return (
            (0, 2**bits - 1) if name.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        )
    if is_float(dtype):
        return None
    info = np.iinfo(dtype)
    return info.min, info.max


def spread(parameter: Any, shape: tuple[int, ...], axis: int, block: int) -> Any:
    """A scale or zero point, one for everything, for every index of an axis, or for every block."""
    sizes = shape_of(parameter)
    if len(sizes) == 0 or sizes == (1,):
        return reshape(parameter, (1,) * len(shape))
    axis = axis_of(axis, len(shape))
    if len(sizes) == 1 and not block:
        return reshape(parameter, [sizes[0] if i == axis else 1 for i in range(len(shape))])
    if not block:
        block = -(-shape[axis] // sizes[axis])
    value = np.repeat(array(parameter, "the scale"), block, axis)
    return np.take(value, np.arange(shape[axis]), axis)


def quantized(x: Any, scale: Any, zero: Any, dtype: Any, saturate: int = 1) -> Any:
    """saturate(round(x / scale) + zero) of arrays."""
    limits = _limits(dtype)
    y = x.astype(np.float32) / scale.astype(np.float32)
    if limits is None:
        return cast_to(np.asarray(y + zero.astype(np.float32), np.float32), dtype, saturate)
    y = np.rint(y).astype(np.float64) + zero.astype(np.float64)
    y = np.where(np.isnan(y), 0, np.clip(y, *limits)).astype(np.int64)
    if dtype.name.endswith(("int4", "int2")):
        return y.astype(np.uint8 if dtype.name.startswith("u") else np.int8).astype(dtype)
    return y.astype(dtype)


@onnx_import("QuantizeLinear")
def quantize_linear(ctx: Any, node: Any, x: Any, scale: Any, zero: Any = None) -> Any:
    """Integers or small floats from floats."""
    block = getattr(node, "block_size", 0) or 0
    axis = getattr(node, "axis", 1) if len(shape_of(x)) else 0
    if zero is not None:
        dtype = array(zero).dtype
    else:
        code = getattr(node, "output_dtype", 0) or 0
        dtype = dtype_of_code(code, "output_dtype") if code else np.dtype(np.uint8)
    s = spread(scale, shape_of(x), axis, block)
    wide = np.zeros((), np.float32) if zero is None else array(zero).astype(np.float32)
    z = spread(wide, shape_of(x), axis, block)
    if known(x) and known(s):
        return quantized(array(x), array(s), z, dtype, getattr(node, "saturate", 1))
    limits = _limits(dtype)
    if limits is None:
        raise OnnxError(f"quantisation to {dtype.name} needs values that are known")
    from nnl.converters.onnx.import_arithmetic import half_to_even

    x = var(x)
    level = half_to_even(x / F.broadcast(var(s), x.shape)) + F.broadcast(var(z), x.shape)
    return F.minimum_scalar(F.maximum_scalar(level, limits[0]), limits[1])


@onnx_import("DequantizeLinear")
def dequantize_linear(ctx: Any, node: Any, x: Any, scale: Any, zero: Any = None) -> Any:
    """(x - zero) scale."""
    block = getattr(node, "block_size", 0) or 0
    axis = getattr(node, "axis", 1) if len(shape_of(x)) else 0
    s = spread(scale, shape_of(x), axis, block)
    z = None if zero is None else spread(array(zero).astype(np.float32), shape_of(x), axis, block)
    wide = x if is_var(x) else x.astype(np.float32)
    if not is_var(wide) and not is_var(s):
        y = (wide if z is None else wide - z) * s.astype(np.float32)
        code = getattr(node, "output_dtype", 0) or 0
        return y.astype(dtype_of_code(code, "output_dtype") if code else s.dtype)
    y = var(wide)
    y = y if z is None else y - F.broadcast(var(z), y.shape)
    return y * F.broadcast(var(s), y.shape)


@onnx_import("DynamicQuantizeLinear")
def dynamic_quantize_linear(ctx: Any, node: Any, x: Any) -> Any:
    """uint8 with a scale and zero point that fit the range of x."""
    value = array(x, "x").astype(np.float32)
    low, high = min(np.float32(0), value.min(initial=0)), max(np.float32(0), value.max(initial=0))
    scale = np.float32((high - low) / np.float32(255)) or np.float32(1)
    zero = np.clip(np.rint(-low / scale), 0, 255).astype(np.uint8)
    y = quantized(value, np.asarray(scale), np.asarray(zero), np.dtype(np.uint8))
    return y, np.asarray(scale, np.float32), np.asarray(zero)


def _centred(x: Any, zero: Any, axis: int) -> Any:
    """x minus its zero point, as int64; a vector of zero points lies along an axis."""
    value = array(x, "an integer input").astype(np.int64)
    if zero is None:
        return value
    z = array(zero).astype(np.int64)
    if z.ndim == 1 and z.size > 1:
        z = z.reshape([-1 if i == axis % value.ndim else 1 for i in range(value.ndim)])
    elif z.size == 1:
        z = z.reshape(())
    return value - z


@onnx_import("MatMulInteger")
def matmul_integer(
    ctx: Any, node: Any, a: Any, b: Any, a_zero: Any = None, b_zero: Any = None
) -> Any:
    """Product of integer matrices, as int32."""
    return np.matmul(_centred(a, a_zero, -2), _centred(b, b_zero, -1)).astype(np.int32)


def _exact_conv(node: Any, x: Any, w: Any) -> Any:
    """Convolution of integers, in float64, which holds them up to 2^53 exactly."""
    double = Context(["cpu:double"])
    with using(auto_forward=True, no_grad=True, trace=None, context=double, target=double.target):
        x, w = (Variable.from_numpy_array(v.astype(np.float64)) for v in (x, w))
        return np.rint(convolved(node, x, w).d).astype(np.int64)


@onnx_import("ConvInteger")
def conv_integer(
    ctx: Any, node: Any, x: Any, w: Any, x_zero: Any = None, w_zero: Any = None
) -> Any:
    """Convolution of integers, as int32. Padding is the zero point, so 0 after centring."""
    return _exact_conv(node, _centred(x, x_zero, 1), _centred(w, w_zero, 0)).astype(np.int32)


@onnx_import("QLinearMatMul")
def qlinear_matmul(
    ctx: Any, node: Any, a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any, b_zero: Any,
    y_scale: Any, y_zero: Any,
) -> Any:  # fmt: skip
    """Product of quantised matrices, quantised."""
    total = np.matmul(_centred(a, a_zero, -2), _centred(b, b_zero, -1))
    ratio = array(a_scale).astype(np.float32) * array(b_scale).astype(np.float32)
    ratio = ratio / array(y_scale).astype(np.float32)
    return _requantized(total * ratio, array(y_zero))


def _requantized(y: Any, zero: Any) -> Any:
    limits = _limits(zero.dtype)
    if limits is None:
        return (y + zero.astype(np.float32)).astype(zero.dtype)
    return np.clip(np.rint(y) + zero.astype(np.int64), *limits).astype(zero.dtype)


@onnx_import("QLinearConv")
def qlinear_conv(
    ctx: Any, node: Any, x: Any, x_scale: Any, x_zero: Any, w: Any, w_scale: Any, w_zero: Any,
    y_scale: Any, y_zero: Any, b: Any = None,
) -> Any:  # fmt: skip
    """Convolution of quantised values, quantised; the bias is in units of x_scale w_scale."""
    total = _exact_conv(node, _centred(x, x_zero, 1), _centred(w, w_zero, 0))
    column = (1, -1) + (1,) * (total.ndim - 2)
    if b is not None:
        total = total + array(b).astype(np.int64).reshape(column)
    ratio = array(x_scale).astype(np.float32) * array(w_scale).astype(np.float32).reshape(-1)
    ratio = (ratio / array(y_scale).astype(np.float32)).reshape(column)
    return _requantized(total * ratio, array(y_zero))
