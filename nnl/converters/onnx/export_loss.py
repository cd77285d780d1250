# SPDX-License-Identifier: Apache-2.0
"""Export of losses and metrics."""

from __future__ import annotations

import numpy as np

from nnl.converters.onnx.export_context import Exporter
from nnl.converters.onnx.export_elementwise import choose
from nnl.converters.onnx.export_tensor import Call, Tensor
from nnl.converters.onnx.registry import onnx_export

_TINY = 2.0**-126  # lower bound of what the logarithm is taken of: the smallest normal float32


def difference(ctx: Exporter, call: Call) -> Tensor:
    return ctx.emit("Sub", call.input(0), call.input(1))


@onnx_export("squared_error")
def squared_error(ctx: Exporter, call: Call) -> Tensor:
    d = difference(ctx, call)
    return ctx.emit("Mul", d, d)


@onnx_export("absolute_error")
def absolute_error(ctx: Exporter, call: Call) -> Tensor:
    return ctx.emit("Abs", difference(ctx, call))


@onnx_export("huber_loss")
def huber_loss(ctx: Exporter, call: Call) -> Tensor:
    d = ctx.emit("Abs", difference(ctx, call))
    near = ctx.emit("Min", d, call.attrs.delta)
    return ctx.emit("Mul", ctx.emit("Sub", ctx.emit("Mul", d, 2.0), near), near)


@onnx_export("epsilon_insensitive_loss")
def epsilon_insensitive_loss(ctx: Exporter, call: Call) -> Tensor:
    d = ctx.emit("Abs", difference(ctx, call))
    return ctx.emit("Relu", ctx.emit("Sub", d, call.attrs.epsilon))


@onnx_export("sigmoid_cross_entropy")
def sigmoid_cross_entropy(ctx: Exporter, call: Call) -> Tensor:
    """softplus(x) - x t, with softplus(x) = max(x, 0) + log(1 + exp(-|x|))."""
    x, target = call.x, ctx.cast(call.input(1), call.x.dtype)
    small = ctx.emit("Exp", ctx.emit("Neg", ctx.emit("Abs", x)))
    tail = ctx.emit("Log", ctx.emit("Add", small, 1.0))
    return ctx.emit("Sub", ctx.emit("Add", ctx.emit("Relu", x), tail), ctx.emit("Mul", x, target))


@onnx_export("binary_cross_entropy")
def binary_cross_entropy(ctx: Exporter, call: Call) -> Tensor:
    x, target = call.input(0), call.input(1)

    def weighted(p: Tensor, weight: Tensor) -> Tensor:
        return ctx.emit("Mul", weight, ctx.emit("Log", ctx.emit("Max", p, _TINY)))

    y = ctx.emit(
        "Add",
        weighted(x, target),
        weighted(ctx.emit("Sub", 1.0, x), ctx.emit("Sub", 1.0, target)),
    )
    return ctx.emit("Neg", y)


@onnx_export("kl_multinomial")
def kl_multinomial(ctx: Exporter, call: Call) -> Tensor:
    p, q = call.input(0), call.input(1)
    logs = [ctx.emit("Log", ctx.emit("Add", v, 1e-8)) for v in (p, q)]
    terms = ctx.emit("Mul", ctx.emit("Sub", *logs), p)
    base = call.attrs.base_axis
    y = ctx.reduce("ReduceSum", terms, range(base, p.ndim))
    return ctx.unsqueeze(y, base)


def labelled(ctx: Exporter, call: Call, scores: Tensor) -> Tensor:
    """Minus the score of each label; 0 where the label is negative."""
    labels = ctx.cast(call.input(1), np.int64)
    zero = ctx.constant(0, np.int64)
    index = ctx.emit("Max", labels, zero)
    y = ctx.emit("GatherElements", scores, index, axis=call.attrs.axis)
    return choose(ctx, ctx.emit("Less", labels, zero, dtype=np.bool_), 0.0, ctx.emit("Neg", y))


@onnx_export("softmax_cross_entropy")
def softmax_cross_entropy(ctx: Exporter, call: Call) -> Tensor:
    return labelled(ctx, call, ctx.emit("LogSoftmax", call.x, axis=call.attrs.axis))


@onnx_export("categorical_cross_entropy")
def categorical_cross_entropy(ctx: Exporter, call: Call) -> Tensor:
    return labelled(ctx, call, ctx.emit("Log", ctx.emit("Max", call.x, _TINY)))


@onnx_export("binary_error")
def binary_error(ctx: Exporter, call: Call) -> Tensor:
    sides = [ctx.emit("GreaterOrEqual", call.input(i), 0.5, dtype=np.bool_) for i in (0, 1)]
    return ctx.from_bool(ctx.emit("Xor", *sides), call.dtypes[0])
