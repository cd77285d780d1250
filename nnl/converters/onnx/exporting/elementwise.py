# SPDX-License-Identifier: Apache-2.0
"""Export of functions that work element by element, and of quantisation: QuantizeLinear and
DequantizeLinear where ONNX has what a function says, else its arithmetic."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nnl.converters.onnx.exporting.nodes.context import Exporter, Refused
from nnl.converters.onnx.exporting.nodes.tensor import Call, Tensor
from nnl.converters.onnx.file.registry import Handler, onnx_export
from nnl.core.ops.op import OPS
from nnl.functions.inq import powers_of_two
from nnl.functions.linear_quantization import INTEGERS


def scaled(ctx: Exporter, x: Tensor, factor: float) -> Tensor:
    return x if factor == 1.0 else ctx.emit("Mul", x, float(factor))


_BINARY = {"maximum2": "Max", "minimum2": "Min"}


@onnx_export(*_BINARY)
def binary(ctx: Exporter, call: Call) -> Tensor:
    return ctx.emit(_BINARY[call.name], *call.inputs)


# (operator, whether the number is the first operand)
_WITH_NUMBER = {
    "add_scalar": ("Add", False),
    "mul_scalar": ("Mul", False),
    "pow_scalar": ("Pow", False),
    "r_sub_scalar": ("Sub", True),
    "r_div_scalar": ("Div", True),
    "r_pow_scalar": ("Pow", True),
    "maximum_scalar": ("Max", False),
    "minimum_scalar": ("Min", False),
}


@onnx_export(*_WITH_NUMBER)
def with_number(ctx: Exporter, call: Call) -> Tensor:
    op_type, first = _WITH_NUMBER[call.name]
    val = call.attrs.val
    if call.name == "pow_scalar" and val in (0.5, -1.0):
        return ctx.emit("Sqrt" if val == 0.5 else "Reciprocal", call.x)
    return ctx.emit(op_type, *((val, call.x) if first else (call.x, val)))


# (operator, whether its result is negated)
_COMPARISONS = {
    "equal": ("Equal", False),
    "not_equal": ("Equal", True),
    "greater": ("Greater", False),
    "greater_equal": ("GreaterOrEqual", False),
    "less": ("Less", False),
    "less_equal": ("LessOrEqual", False),
}


@onnx_export(*_COMPARISONS, *(f"{name}_scalar" for name in _COMPARISONS))
def comparison(ctx: Exporter, call: Call) -> Tensor:
    op_type, negated = _COMPARISONS[call.name.removesuffix("_scalar")]
    second = call.attrs.val if call.name.endswith("_scalar") else call.input(1)
    y = ctx.emit(op_type, call.x, second, dtype=np.bool_)
    return ctx.from_bool(ctx.emit("Not", y) if negated else y, call.dtypes[0])


_LOGIC = {"logical_and": "And", "logical_or": "Or", "logical_xor": "Xor"}


@onnx_export(*_LOGIC, *(f"{name}_scalar" for name in _LOGIC))
def logic(ctx: Exporter, call: Call) -> Tensor:
    first = ctx.cast(call.x, np.bool_)
    if call.name.endswith("_scalar"):
        second = ctx.constant(np.asarray(call.attrs.val, np.bool_))
    else:
        second = ctx.cast(call.input(1), np.bool_)
    y = ctx.emit(_LOGIC[call.name.removesuffix("_scalar")], first, second)
    return ctx.from_bool(y, call.dtypes[0])


_PREDICATES = {"isnan": "IsNaN", "isinf": "IsInf", "reset_nan": "IsNaN", "reset_inf": "IsInf"}


@onnx_export("isnan", "isinf")
def predicate(ctx: Exporter, call: Call) -> Tensor:
    y = ctx.emit(_PREDICATES[call.name], call.x, dtype=np.bool_)
    return ctx.from_bool(y, call.dtypes[0])


@onnx_export("reset_nan", "reset_inf")
def reset(ctx: Exporter, call: Call) -> Tensor:
    bad = ctx.emit(_PREDICATES[call.name], call.x, dtype=np.bool_)
    val = ctx.constant(call.attrs.val, call.x.dtype)
    return choose(ctx, bad, val, call.x)


def choose(ctx: Exporter, condition: Tensor, yes: Any, no: Any) -> Tensor:
    """Where: numbers take the dtype of the tensor among yes and no."""
    dtype = yes.dtype if isinstance(yes, Tensor) else no.dtype
    return ctx.emit("Where", condition, ctx.tensor(yes, dtype), ctx.tensor(no, dtype), dtype=dtype)


@onnx_export("where")
def where(ctx: Exporter, call: Call) -> Tensor:
    condition, yes, no = call.input(0), call.input(1), call.input(2)
    rest = tuple(range(condition.ndim, yes.ndim))
    return choose(ctx, ctx.unsqueeze(ctx.cast(condition, np.bool_), *rest), yes, no)


@onnx_export("atan2")
def atan2(ctx: Exporter, call: Call) -> Tensor:
    """The arc tangent of the quotient, moved by half a turn on the left of the plane."""
    y, x = call.input(0), call.input(1)
    angle = ctx.emit("Atan", ctx.emit("Div", y, x))
    below = ctx.emit("Less", y, 0.0, dtype=np.bool_)
    half = choose(ctx, below, ctx.constant(-math.pi, y.dtype), ctx.constant(math.pi, y.dtype))
    moved = ctx.emit("Add", angle, half)
    angle = choose(ctx, ctx.emit("Less", x, 0.0, dtype=np.bool_), moved, angle)
    flat = ctx.emit("Equal", y, 0.0, dtype=np.bool_)
    none = ctx.emit("And", flat, ctx.emit("Equal", x, 0.0, dtype=np.bool_))
    return choose(ctx, none, 0.0, angle)


@onnx_export("sinc")
def sinc(ctx: Exporter, call: Call) -> Tensor:
    x = call.x
    zero = ctx.emit("Equal", x, 0.0, dtype=np.bool_)
    return choose(ctx, zero, 1.0, ctx.emit("Div", ctx.emit("Sin", x), choose(ctx, zero, 1.0, x)))


@onnx_export("prelu")
def prelu(ctx: Exporter, call: Call) -> Tensor:
    x, slope = call.input(0), call.input(1)
    axis = call.attrs.base_axis
    channels = slope.sizes == (x.sizes[axis],)
    shape = (slope.sizes[0], *(1,) * (x.ndim - 1 - axis)) if channels else ()
    return ctx.emit("PRelu", x, ctx.reshape(slope, shape or (1,) * min(1, x.ndim)))


@onnx_export("softplus")
def softplus(ctx: Exporter, call: Call) -> Tensor:
    beta = call.attrs.beta
    return scaled(ctx, ctx.emit("Softplus", scaled(ctx, call.x, beta)), 1.0 / beta)


@onnx_export("gelu", since=20)
def gelu(ctx: Exporter, call: Call) -> Tensor:
    return ctx.emit("Gelu", call.x, approximate="tanh")


def truncated(ctx: Exporter, x: Tensor) -> Tensor:
    """x without its fraction."""
    return ctx.emit("Mul", ctx.emit("Sign", x), ctx.emit("Floor", ctx.emit("Abs", x)))


def rounded(ctx: Exporter, x: Tensor) -> Tensor:
    """The next integer, halves away from zero (ONNX's Round takes the even one)."""
    whole = truncated(ctx, x)
    twice = ctx.emit("Mul", ctx.emit("Sub", x, whole), 2.0)
    return ctx.emit("Add", truncated(ctx, ctx.emit("Clip", twice, -1.0, 1.0)), whole)


@onnx_export("sign")
def sign(ctx: Exporter, call: Call) -> Tensor:
    y = ctx.emit("Sign", call.x)
    if call.attrs.alpha == 0.0:
        return y
    return choose(ctx, ctx.emit("Equal", call.x, 0.0, dtype=np.bool_), call.attrs.alpha, y)


@onnx_export("mod2")
def mod2(ctx: Exporter, call: Call) -> Tensor:
    x0, x1 = call.input(0), call.input(1)
    whole = np.dtype(x0.dtype).kind in "iu"
    fmod = int(call.attrs.fmod or not whole)
    return ctx.emit("Mod", x0, ctx.cast(x1, x0.dtype), fmod=fmod)


@onnx_export("bit_shift")
def bit_shift(ctx: Exporter, call: Call) -> Tensor:
    x, shift = call.input(0), call.input(1)
    if np.dtype(x.dtype).kind != "u":
        raise Refused(f"ONNX shifts unsigned integers, x is {x.dtype}")
    return ctx.emit("BitShift", x, ctx.cast(shift, x.dtype), direction=call.attrs.direction)


# ---- quantisation ----


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


# ---- functions that are one expression ----

_EXPRESSIONS: dict[str, Handler] = {
    # Functions that only matter in training: the input as it is.
    "unlink clip_grad_by_value clip_grad_by_norm top_k_grad dropout": lambda ctx, call: ctx.emit(
        "Identity", call.x
    ),
    "assign store": lambda ctx, call: ctx.emit("Identity", call.input(1)),
    "logical_not": lambda ctx, call: ctx.from_bool(
        ctx.emit("Not", ctx.cast(call.x, np.bool_)), call.dtypes[0]
    ),
    "relu6": lambda ctx, call: ctx.emit("Clip", call.x, 0.0, 6.0),
    "hard_tanh": lambda ctx, call: ctx.emit("Clip", call.x, -1.0, 1.0),
    "hard_sigmoid": lambda ctx, call: ctx.emit("HardSigmoid", call.x, alpha=0.2, beta=0.5),
    "round": lambda ctx, call: rounded(ctx, call.x),
    "binarize": lambda ctx, call: ctx.expand(
        call, lambda a, x: OPS["sign"](x, alpha=a.quantize_zero_to)
    ),
}

for _names, _expression in _EXPRESSIONS.items():
    onnx_export(*_names.split())(_expression)
