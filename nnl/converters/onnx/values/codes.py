# SPDX-License-Identifier: Apache-2.0
"""Values of 8 bits in a model: whole numbers with a scale and a zero point."""

from __future__ import annotations

from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.onnx.file.errors import OnnxError
from nnl.converters.onnx.file.operators import operator_class
from nnl.converters.onnx.values.values import (
    array,
    axis_of,
    dtype_of,
    is_var,
    reshape,
    shape_of,
    tagged,
    var,
)
from nnl.core.graph.variable import Variable

BYTES = (np.dtype(np.int8), np.dtype(np.uint8))


def constant(value: Any) -> Variable:
    """A scale or zero point as a function reads it: a number that plans know, where it is one."""
    if is_var(value):
        return value
    value = np.asarray(value, np.float32)
    if value.size and (value == value.flat[0]).all():
        return F.constant(float(value.flat[0]), shape=value.shape)
    return var(value)


def as_bytes(x: Any, scale: Any, zero: Any, dtype: Any) -> Variable:
    """The whole numbers of 8 bits that stand for floats; scale and zero have the rank of x."""
    y = F.quantize_linear(
        var(x), constant(scale), constant(zero), "HALF_TO_EVEN", False, np.dtype(dtype)
    )
    return tagged(y, dtype)


def as_real(x: Any, scale: Any, zero: Any) -> Variable:
    """The floats that whole numbers stand for."""
    return F.dequantize_linear(var(x), constant(scale), constant(zero))


def checked_scale(scale: Any, what: str = "scale") -> Any:
    """A scale.

    Raises:
        OnnxError: It is known, and some number of it is no scale.
    """
    if not is_var(scale):
        values = np.asarray(scale, np.float32)
        bad = ~(np.isfinite(values) & (values > 0))
        if bad.any():
            raise OnnxError(f"{what} holds {values[bad].flat[0]:g}, wanted finite numbers above 0")
    return scale


def checked_zero(zero: Any, dtype: Any, what: str = "zero_point") -> Any:
    """A zero point of values of a type.

    Raises:
        OnnxError: It has another type, so that it may lie beyond their range.
    """
    if zero is not None and dtype_of(zero) != dtype:
        raise OnnxError(f"{what} is {dtype_of(zero)}, wanted {np.dtype(dtype)} as the values are")
    return zero


def spread(parameter: Any, shape: tuple[int, ...], axis: int, block: int) -> Any:
    """A scale or zero point, one for everything, for every index of an axis, or for every block."""
    sizes = shape_of(parameter)
    if len(sizes) == 0 or sizes == (1,):
        return reshape(parameter, (1,) * len(shape))
    axis = axis_of(axis, len(shape), "axis of the scale")
    if len(sizes) == 1 and not block:
        if sizes[0] != shape[axis]:
            raise OnnxError(
                f"has {sizes[0]} scales or zero points for {shape[axis]} values along axis {axis}"
            )
        return reshape(parameter, [sizes[0] if i == axis else 1 for i in range(len(shape))])
    if not block:
        block = -(-shape[axis] // sizes[axis])
    value = np.repeat(array(parameter, "the scale"), block, axis)
    return np.take(value, np.arange(shape[axis]), axis)


def run(ctx: Any, op: str, *values: Any, **attributes: Any) -> Any:
    """What a node of ONNX's own operator gives for values."""
    names = tuple("" if v is None else "x" for v in values)
    node = operator_class(op)(*names, outputs=("y",), **attributes)
    outs = ctx.handler(node)(ctx, node, *values)
    return outs[0] if isinstance(outs, (tuple, list)) else outs


def chosen(node: Any, *names: str) -> dict[str, Any]:
    """Those of the attributes that a node has."""
    return {n: node.attributes[n] for n in names if n in node.attributes}


def real(x: Any, scale: Any, zero: Any, axis: int = 1) -> Any:
    """The floats that whole numbers stand for.

    Args:
        axis: Along which a scale of several numbers lies.
    """
    shape, dtype = shape_of(x), dtype_of(x)
    checked_zero(zero, dtype)
    scale = checked_scale(scale)
    return as_real(x, spread(scale, shape, axis, 0), spread(wide(zero), shape, axis, 0))


def wide(zero: Any) -> Any:
    """A zero point as a float; 0 if it is left out."""
    if zero is None:
        return np.zeros((), np.float32)
    return zero if is_var(zero) else array(zero).astype(np.float32)


def stored(y: Any, scale: Any, zero: Any) -> Any:
    """The whole numbers that stand for floats."""
    dtype = np.dtype(np.uint8) if zero is None else dtype_of(zero)
    if dtype not in BYTES:
        raise OnnxError(f"the zero point of the result is {dtype}, wanted int8 or uint8")
    shape = shape_of(y)
    scale = checked_scale(scale)
    return as_bytes(y, spread(scale, shape, 1, 0), spread(wide(zero), shape, 1, 0), dtype)


def bias_of(x_scale: Any, w_scale: Any, bias: Any) -> Any:
    """A bias of whole numbers, in units of both scales, as floats."""
    if bias is None:
        return None
    if is_var(x_scale) or is_var(w_scale) or is_var(bias):
        n = shape_of(bias)[0]
        scales = (F.broadcast(F.reshape(var(s), (-1,)), (n,)) for s in (x_scale, w_scale))
        return var(bias) * next(scales) * next(scales)
    return (array(bias) * (array(x_scale) * array(w_scale).reshape(-1))).astype(np.float32)


def columns(b: Any, scale: Any, zero: Any) -> Any:
    """A factor whose scales may be those of its columns."""
    return real(b, scale, zero, max(0, len(shape_of(b)) - 1))


def rows(a: Any, scale: Any, zero: Any) -> Any:
    """A factor whose scales may be those of its rows."""
    return real(a, scale, zero, max(0, len(shape_of(a)) - 2))
