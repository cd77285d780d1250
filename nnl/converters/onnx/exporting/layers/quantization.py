# SPDX-License-Identifier: Apache-2.0
"""Export of quantisation: QuantizeLinear and DequantizeLinear where ONNX has what a function says,
else its arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnl.converters.onnx.exporting.arrays.elementwise import rounded
from nnl.converters.onnx.exporting.nodes.context import Exporter, Refused
from nnl.converters.onnx.exporting.nodes.tensor import Call, Tensor
from nnl.converters.onnx.file.registry import onnx_export
from nnl.functions.inq import powers_of_two
from nnl.functions.linear_quantization import INTEGERS


@onnx_export("quantize_linear")
def quantize_linear(ctx: Exporter, call: Call) -> Tensor:
    a = call.attrs
    x, scale, zero_point = (call.input(i) for i in range(3))
    if a.round_mode == "HALF_TO_EVEN" and not a.narrow_range:
        dtype = np.dtype(np.int8 if a.dtype == 1 else np.uint8)
        found = _parameters(ctx, scale, zero_point, dtype)
        if found is not None:
            s, z, axis = found
            q = ctx.emit("QuantizeLinear", x, s, z, dtype=dtype, axis=axis)
            y = ctx.cast(q, x.dtype)
            ctx.whole[id(y)] = q
            return y

    def whole(v: Tensor) -> Tensor:
        return ctx.emit("Round", v) if a.round_mode == "HALF_TO_EVEN" else rounded(ctx, v)

    low, high = INTEGERS[a.dtype]
    y = ctx.emit("Add", whole(ctx.emit("Div", x, scale)), whole(zero_point))
    return ctx.emit("Clip", y, low + a.narrow_range, high)


@onnx_export("dequantize_linear")
def dequantize_linear(ctx: Exporter, call: Call) -> Tensor:
    x, scale, zero_point = (call.input(i) for i in range(3))
    q = ctx.whole.get(id(x), x)
    if q.dtype in (np.int8, np.uint8):
        found = _parameters(ctx, scale, zero_point, q.dtype)
        if found is not None:
            s, z, axis = found
            return ctx.emit("DequantizeLinear", q, s, z, dtype=scale.dtype, axis=axis)
    return ctx.emit("Mul", ctx.emit("Sub", ctx.cast(x, scale.dtype), zero_point), scale)


def _parameters(
    ctx: Exporter, scale: Tensor, zero: Tensor, dtype: np.dtype[np.uint8]
) -> tuple[Tensor, Tensor, int | None] | None:
    """Scale and zero point as ONNX takes them: numbers, or vectors along an axis; None where they
    are not known, or lie along several."""
    s, z = (_value(ctx, t) for t in (scale, zero))
    axes = [i for i, n in enumerate(scale.sizes) if n != 1]
    if s is None or z is None or len(axes) > 1 or ctx.opset < (13 if axes else 10):
        return None
    whole, info = np.rint(z), np.iinfo(dtype)
    if (whole != z).any() or whole.min() < info.min or whole.max() > info.max:
        return None
    shape = (-1,) if axes else ()
    z = np.broadcast_to(whole, scale.sizes).reshape(shape).astype(dtype)
    name = f"{scale.name}/vector" if scale.name else ""
    vector = ctx.constant(np.reshape(s, shape).astype(np.float32)) if not name else None
    if vector is None:
        vector = ctx.fold(scale, "vector", lambda v: v.reshape(shape))
    return (vector, ctx.constant(z), axes[0] if axes else None) if vector is not None else None


def _value(ctx: Exporter, x: Tensor) -> np.ndarray[Any, Any] | None:
    """What a tensor holds, if that is known; one number may be stretched."""
    if x.value is not None:
        return np.asarray(x.value)
    for node in reversed(ctx.ops):
        if any(y is x for y in node.outs):
            first = node.ins[0] if node.name == "Expand" else None
            return None if first is None or first.value is None else np.asarray(first.value)
    return None


@onnx_export("inq_affine", "inq_convolution")
def inq(ctx: Exporter, call: Call) -> tuple[Tensor, ...]:
    """The layer with its weights as training left them: fixed ones are powers of two."""
    x, w, fixed, bias = (call.optional(i) for i in range(4))
    if w is None or w.value is None or fixed is None or fixed.value is None:
        raise Refused("its weights must be parameters, not inputs or computed")
    powers = powers_of_two(np, w.value, call.attrs.num_bits)
    indicator = fixed.value
    weights = ctx.fold(w, "quantized", lambda v: np.where(indicator != 0, powers, v))

    def layer(a, x, w, bias=None):  # type: ignore[no-untyped-def]
        inner = a.inner()
        return inner.op(x, w, bias, **inner.as_dict())

    return ctx.expand(call, layer, x, weights, bias)
