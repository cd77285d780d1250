# SPDX-License-Identifier: Apache-2.0
"""Importers of quantised operators. Integers are computed exactly, floats pass gradients.

Operators of 8 bits that ONNX Runtime's tools write are read as plain ones between
dequantize_linear and quantize_linear.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.onnx.file.errors import OnnxError
from nnl.converters.onnx.file.operators import operator_class
from nnl.converters.onnx.file.registry import onnx_import
from nnl.converters.onnx.file.tensors import dtype_of_code
from nnl.converters.onnx.importing.layers.convolution import convolved
from nnl.converters.onnx.importing.shape import cast_to
from nnl.converters.onnx.values.codes import (
    BYTES,
    as_bytes,
    as_real,
    bias_of,
    checked_scale,
    checked_zero,
    chosen,
    columns,
    real,
    rows,
    run,
    spread,
    stored,
    wide,
)
from nnl.converters.onnx.values.values import (
    array,
    dtype_of,
    is_float,
    is_var,
    known,
    reshape,
    shape_of,
    tagged,
    transpose,
    var,
)
from nnl.core.graph.variable import Variable
from nnl.core.interpreters.interpreter import EAGER
from nnl.core.settings.context import STATE, Context, using

CONVOLUTION = ("kernel_shape", "strides", "pads", "dilations", "group", "auto_pad")
ONE = np.ones((), np.float32)


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
        dtype = dtype_of(zero)
    else:
        code = getattr(node, "output_dtype", 0) or 0
        dtype = dtype_of_code(code, "output_dtype") if code else np.dtype(np.uint8)
    s = spread(checked_scale(scale, "y_scale"), shape_of(x), axis, block)
    z = spread(wide(zero), shape_of(x), axis, block)
    if known([x, s, z]):
        return quantized(array(x), array(s), array(z), dtype, getattr(node, "saturate", 1))
    limits = _limits(dtype)
    if limits is None:
        raise OnnxError(f"quantisation to {dtype.name} needs values that are known")
    if dtype in BYTES:
        return as_bytes(x, s, z, dtype)
    from nnl.converters.onnx.importing.arithmetic import half_to_even

    x = var(x)
    level = half_to_even(x / F.broadcast(var(s), x.shape)) + F.broadcast(var(z), x.shape)
    return F.minimum_scalar(F.maximum_scalar(level, limits[0]), limits[1])


@onnx_import("DequantizeLinear")
def dequantize_linear(ctx: Any, node: Any, x: Any, scale: Any, zero: Any = None) -> Any:
    """(x - zero) scale."""
    block = getattr(node, "block_size", 0) or 0
    axis = getattr(node, "axis", 1) if len(shape_of(x)) else 0
    s = spread(checked_scale(scale, "x_scale"), shape_of(x), axis, block)
    checked_zero(zero, dtype_of(x), "x_zero_point")
    z = None if zero is None else spread(wide(zero), shape_of(x), axis, block)
    if dtype_of(x) in BYTES and not STATE.auto_forward:
        return as_real(x, s, np.zeros(shape_of(s), np.float32) if z is None else z)
    value = x if is_var(x) else x.astype(np.float32)
    if not is_var(value) and not is_var(s):
        y = (value if z is None else value - z) * s.astype(np.float32)
        code = getattr(node, "output_dtype", 0) or 0
        return y.astype(dtype_of_code(code, "output_dtype") if code else s.dtype)
    y = var(value)
    y = y if z is None else y - F.broadcast(var(z), y.shape)
    return y * F.broadcast(var(s), y.shape)


@onnx_import("DynamicQuantizeLinear")
def dynamic_quantize_linear(ctx: Any, node: Any, x: Any) -> Any:
    """uint8 with a scale and zero point that fit the range of x."""
    if not known(x):
        x = var(x)
        low, high = (
            F.reshape(f(g(x), 0.0), (1,) * x.ndim)
            for f, g in ((F.minimum_scalar, F.min), (F.maximum_scalar, F.max))
        )
        scale = F.div2(high - low, F.constant(255.0, shape=high.shape))
        scale = scale + F.equal_scalar(scale, 0.0)
        zero = F.quantize_linear(-low, scale, scale * 0, "HALF_TO_EVEN", False, np.uint8)
        y = as_bytes(x, scale, zero, np.uint8)
        return y, F.reshape(scale, ()), tagged(F.reshape(zero, ()), np.uint8)
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
    if not known([a, b, a_zero, b_zero]):
        y = run(ctx, "MatMul", rows(a, ONE, a_zero), columns(b, ONE, b_zero))
        return tagged(y, np.int32)
    return np.matmul(_centred(a, a_zero, -2), _centred(b, b_zero, -1)).astype(np.int32)


def _exact_conv(node: Any, x: Any, w: Any) -> Any:
    """Convolution of integers, in float64, which holds them up to 2^53 exactly."""
    double = Context(["cpu:double"])
    with using(interpreter=EAGER, no_grad=True, context=double, target=double.target):
        x, w = (Variable.from_numpy_array(v.astype(np.float64)) for v in (x, w))
        return np.rint(convolved(node, x, w).d).astype(np.int64)


@onnx_import("ConvInteger")
def conv_integer(
    ctx: Any, node: Any, x: Any, w: Any, x_zero: Any = None, w_zero: Any = None
) -> Any:
    """Convolution of integers, as int32. Padding is the zero point, so 0 after centring."""
    if not known([x, w, x_zero, w_zero]):
        values = real(x, ONE, x_zero), real(w, ONE, w_zero, 0)
        return tagged(run(ctx, "Conv", *values, **chosen(node, *CONVOLUTION)), np.int32)
    return _exact_conv(node, _centred(x, x_zero, 1), _centred(w, w_zero, 0)).astype(np.int32)


@onnx_import("QLinearMatMul")
def qlinear_matmul(
    ctx: Any, node: Any, a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any, b_zero: Any,
    y_scale: Any, y_zero: Any,
) -> Any:  # fmt: skip
    """Product of quantised matrices, quantised."""
    if not known([a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero]):
        y = run(ctx, "MatMul", rows(a, a_scale, a_zero), columns(b, b_scale, b_zero))
        return stored(y, y_scale, y_zero)
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
    if not known([x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, b]):
        values = real(x, x_scale, x_zero), real(w, w_scale, w_zero, 0)
        bias = bias_of(x_scale, w_scale, b)
        y = run(ctx, "Conv", *values, bias, **chosen(node, *CONVOLUTION))
        return stored(y, y_scale, y_zero)
    total = _exact_conv(node, _centred(x, x_zero, 1), _centred(w, w_zero, 0))
    column = (1, -1) + (1,) * (total.ndim - 2)
    if b is not None:
        total = total + array(b).astype(np.int64).reshape(column)
    ratio = array(x_scale).astype(np.float32) * array(w_scale).astype(np.float32).reshape(-1)
    ratio = (ratio / array(y_scale).astype(np.float32)).reshape(column)
    return _requantized(total * ratio, array(y_zero))


# ---- operators of ONNX Runtime's tools ----


MICROSOFT = "com.microsoft"
microsoft = partial(onnx_import, domain=MICROSOFT)


# ---- products ----

microsoft("QLinearMatMul")(qlinear_matmul)


@microsoft("QGemm")
def qgemm(
    ctx: Any, node: Any, a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any, b_zero: Any,
    c: Any = None, y_scale: Any = None, y_zero: Any = None,
) -> Any:  # fmt: skip
    """Product of quantised matrices; a bias is in units of their scales."""
    maps = 0 if node.attributes.get("transB") else 1
    bias = bias_of(a_scale, b_scale, c)
    alpha = node.attributes.get("alpha", 1.0)
    if bias is not None and alpha != 1:
        bias = bias * np.float32(alpha)
    y = run(
        ctx, "Gemm", real(a, a_scale, a_zero), real(b, b_scale, b_zero, maps), bias,
        **chosen(node, "transA", "transB", "alpha"),
    )  # fmt: skip
    return y if y_scale is None else stored(y, y_scale, y_zero)


@microsoft("MatMulIntegerToFloat")
def matmul_integer_to_float(
    ctx: Any, node: Any, a: Any, b: Any, a_scale: Any, b_scale: Any, a_zero: Any = None,
    b_zero: Any = None, bias: Any = None,
) -> Any:  # fmt: skip
    """Product of quantised matrices as floats."""
    y = run(ctx, "MatMul", rows(a, a_scale, a_zero), columns(b, b_scale, b_zero))
    return y if bias is None else run(ctx, "Add", y, bias)


@microsoft("DynamicQuantizeMatMul")
def dynamic_quantize_matmul(
    ctx: Any, node: Any, a: Any, b: Any, b_scale: Any, b_zero: Any = None, bias: Any = None
) -> Any:
    """Product of a matrix that is quantised by its own range with a quantised one, as floats."""
    return matmul_integer_to_float(ctx, node, *dynamic(ctx, node, a, b, b_scale, b_zero), bias)


def dynamic(ctx: Any, node: Any, a: Any, b: Any, b_scale: Any, b_zero: Any) -> Sequence[Any]:
    """The inputs of MatMulIntegerToFloat for a factor of floats."""
    q, scale, zero = dynamic_quantize_linear(ctx, node, a)
    return q, b, scale, b_scale, zero, b_zero


@microsoft("DynamicQuantizeLSTM")
def dynamic_quantize_lstm(
    ctx: Any, node: Any, x: Any, w: Any, r: Any, b: Any, lengths: Any, h: Any, c: Any, p: Any,
    w_scale: Any, w_zero: Any, r_scale: Any, r_zero: Any,
) -> Any:  # fmt: skip
    """LSTM with quantised weights, stored as (D, I, 4 H); x is quantised by its own range, states
    stay floats."""
    q, scale, zero = dynamic_quantize_linear(ctx, node, x)
    weights = []
    for value, s, z in ((w, w_scale, w_zero), (r, r_scale, r_zero)):
        sizes = (len(shape_of(value)) - 1) * (1,)
        each = [v if is_var(v) else np.asarray(v) for v in (s, z)]
        each = [v.reshape((v.shape[0], *sizes)) if v.ndim == 1 else v[:, None, :] for v in each]
        weights.append(transpose(as_real(value, *[v.astype(np.float32) for v in each]), (0, 2, 1)))
    known = ("activation_alpha", "activation_beta", "activations", "clip", "direction",
             "hidden_size", "input_forget")  # fmt: skip
    lstm = operator_class("LSTM")(*["x"] * 8, outputs=("y", "h", "c"), **chosen(node, *known))
    values = [real(q, scale, zero), *weights, b, lengths, h, c, p]
    return ctx.handler(lstm)(ctx, lstm, *values)


# ---- one function of quantised values ----


def pointwise(op: str) -> Any:
    """The importer of an operator of two quantised values."""

    def handler(ctx: Any, node: Any, *v: Any) -> Any:
        if len(v) != 8:
            raise OnnxError(f"has {len(v)} inputs, wanted 8: two values and a result, each with "
                            "scale and zero point")  # fmt: skip
        return stored(run(ctx, op, real(*v[:3]), real(*v[3:6])), *v[6:8])

    return handler


microsoft("QLinearAdd")(pointwise("Add"))
microsoft("QLinearMul")(pointwise("Mul"))


def of_one(op: str, *known: str) -> Any:
    """The importer of an operator of one quantised value."""

    def handler(
        ctx: Any, node: Any, x: Any, x_scale: Any, x_zero: Any, y_scale: Any, y_zero: Any = None
    ) -> Any:
        last = bool(node.attributes.get("channels_last"))
        value = real(x, x_scale, x_zero)
        rank = len(shape_of(x))
        value = transpose(value, (0, rank - 1, *range(1, rank - 1))) if last else value
        y = run(ctx, op, value, **chosen(node, *known))
        y = transpose(y, (0, *range(2, rank), 1)) if last else y
        return stored(y, y_scale, y_zero)

    return handler


POOL = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")
microsoft("QLinearSigmoid")(of_one("Sigmoid"))
microsoft("QLinearLeakyRelu")(of_one("LeakyRelu", "alpha"))
microsoft("QLinearAveragePool")(of_one("AveragePool", *POOL))
microsoft("QLinearGlobalAveragePool")(of_one("GlobalAveragePool"))
microsoft("QLinearSoftmax")(of_one("Softmax", "axis"))


@microsoft("QLinearWhere")
def qlinear_where(
    ctx: Any, node: Any, condition: Any, x: Any, x_scale: Any, x_zero: Any, y: Any, y_scale: Any,
    y_zero: Any, z_scale: Any, z_zero: Any,
) -> Any:  # fmt: skip
    """One of two quantised values for each element, quantised."""
    z = run(ctx, "Where", condition, real(x, x_scale, x_zero), real(y, y_scale, y_zero))
    return stored(z, z_scale, z_zero)


@microsoft("QLinearConcat")
def qlinear_concat(ctx: Any, node: Any, y_scale: Any, y_zero: Any, *parts: Any) -> Any:
    """Quantised values joined along an axis, quantised."""
    if len(parts) % 3 or not parts:
        raise OnnxError(f"has {len(parts)} inputs after y_zero_point, wanted three for each value")
    values = [real(*parts[i : i + 3]) for i in range(0, len(parts), 3)]
    return stored(run(ctx, "Concat", *values, axis=node.attributes["axis"]), y_scale, y_zero)


@microsoft("QuantizeLinear", "DequantizeLinear")
def as_onnx(ctx: Any, node: Any, *values: Any) -> Any:
    """What ONNX has under the same name."""
    return run(ctx, node.op_type, *values, **chosen(node, "axis", "block_size"))


@microsoft("QEmbedLayerNormalization")
def quantized_embedding(ctx: Any, node: Any, *v: Any) -> Any:
    """EmbedLayerNormalization of quantised tables."""
    from nnl.converters.onnx.importing.layers.transformers import embed_layer_normalization

    ids, segments, *rest = v
    tables, mask = list(rest[:5]), rest[5] if len(rest) > 5 else None
    numbers = (*rest[6:], *[None] * 10)
    scales, zeros = numbers[:5], numbers[5:10]
    tables = [
        None if t is None else real(t, s, z) for t, s, z in zip(tables, scales, zeros, strict=True)
    ]
    return embed_layer_normalization(ctx, node, ids, segments, *tables, mask)


# ---- products whose weights have 4 or 8 bits, as language models have them ----


@onnx_import("MatMulNBits", domain="com.microsoft")
def matmul_nbits(
    ctx: Any, node: Any, x: Any, w: Any, scale: Any, zero: Any = None, order: Any = None,
    bias: Any = None,
) -> Any:  # fmt: skip
    """Product with the transpose of weights whose blocks of a row have a scale each."""
    a = node.attributes
    rows, columns, bits, block = a["N"], a["K"], a.get("bits", 4), a.get("block_size", 0)
    if order is not None:
        raise OnnxError("has the input g_idx, which is not read: groups of any order of columns")
    if bits not in (4, 8) or block < 16 or block % 2 or min(rows, columns) < 1:
        raise OnnxError(
            f"has N {rows}, K {columns}, bits {bits}, block_size {block}, "
            "wanted 4 or 8 bits and blocks of an even number from 16 on"
        )
    blocks = -(-columns // block)
    w = array(w, "B")
    sizes = (("B", w.size, rows * blocks * block * bits // 8),
             ("scales", math.prod(shape_of(scale)), rows * blocks))  # fmt: skip
    for name, size, wanted in sizes:
        if size != wanted:
            raise OnnxError(f"{name} has {size} values, wanted {wanted}")
    scale, offset, x = reshape(scale, (rows, blocks)), None, var(x)
    if zero is not None:
        units = array(scale, "scales").astype(np.float32)
        offset = var(-units * _zeros(array(zero, "zero_points"), bits, (rows, blocks)))
    if blocks * block != columns:  # the last block is filled up
        x = F.pad(x, (0, 0) * (x.ndim - 1) + (0, blocks * block - columns))
    y = F.quantized_matmul(
        x, var(w.reshape(rows, -1)), var(scale), offset, bits=bits, group_size=block,
        activation_bits=8 if a.get("accuracy_level", 0) == 4 else 32,
    )  # fmt: skip
    return y if bias is None else y + reshape(var(bias), (1,) * (y.ndim - 1) + (rows,))


def _zeros(zero: Any, bits: int, shape: tuple[int, int]) -> Any:
    """Zero points as floats; those of a row fill whole bytes where they are packed."""
    if zero.dtype != np.uint8:
        return zero.reshape(shape).astype(np.float32)
    rows, blocks = shape
    if zero.size != rows * -(-blocks * bits // 8):
        raise OnnxError(f"zero_points has {zero.size} bytes for scales of the shape {shape}")
    zero = zero.reshape(rows, -1)
    if bits == 4:
        zero = np.stack((zero & 15, zero >> 4), axis=-1).reshape(rows, -1)[:, :blocks]
    return zero.astype(np.float32)
