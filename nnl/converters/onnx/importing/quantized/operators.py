# SPDX-License-Identifier: Apache-2.0
"""Importers of operators of 8 bits that ONNX Runtime's tools write: each is read as a plain
operator between dequantize_linear and quantize_linear."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from nnl.converters.onnx.file.errors import OnnxError
from nnl.converters.onnx.file.operators import operator_class
from nnl.converters.onnx.file.registry import onnx_import
from nnl.converters.onnx.importing.quantized.quantization import (
    dynamic_quantize_linear,
    qlinear_matmul,
)
from nnl.converters.onnx.values.codes import (
    as_real,
    bias_of,
    chosen,
    columns,
    real,
    rows,
    run,
    stored,
)
from nnl.converters.onnx.values.values import is_var, shape_of, transpose

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
