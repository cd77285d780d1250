# SPDX-License-Identifier: Apache-2.0
"""Export of normalisations, with running statistics where a function has them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from nnl.converters.onnx.exporting.nodes.context import Exporter
from nnl.converters.onnx.exporting.nodes.tensor import Call, Tensor
from nnl.converters.onnx.file.registry import onnx_export
from nnl.core.arrays.spec import Spec


def standardized(
    ctx: Exporter, x: Tensor, axes: Sequence[int], eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """x less its mean over its standard deviation; the mean; the variance."""
    mean = ctx.reduce("ReduceMean", x, axes, keepdims=True)
    centred = ctx.emit("Sub", x, mean)
    variance = ctx.reduce("ReduceMean", ctx.emit("Mul", centred, centred), axes, keepdims=True)
    deviation = ctx.emit("Sqrt", ctx.emit("Add", variance, eps))
    return ctx.emit("Div", centred, deviation), mean, variance


def scale_and_shift(ctx: Exporter, y: Tensor, beta: Tensor | None, gamma: Tensor | None) -> Tensor:
    y = y if gamma is None else ctx.emit("Mul", y, gamma)
    return y if beta is None else ctx.emit("Add", y, beta)


def _ones(ctx: Exporter, x: Tensor, n: int, value: float) -> Tensor:
    return ctx.constant(np.full(n, value), x.dtype)


@onnx_export("batch_normalization", "batch_normalization_with_statistics")
def batch_normalization(ctx: Exporter, call: Call) -> tuple[Tensor, ...]:
    x, beta, gamma, mean, variance = (call.optional(i) for i in range(5))
    a = call.attrs
    if x is None:
        raise ValueError("export: batch_normalization has no input")
    if mean is None or variance is None:
        axes = [d for d in range(x.ndim) if d not in a.axes]
        y, mean, variance = standardized(ctx, x, axes, a.eps)
        return (scale_and_shift(ctx, y, beta, gamma), mean, variance)[: len(call.shapes)]
    if a.axes == (1,) and x.ndim >= 2:
        n = x.sizes[1]
        row = [None if p is None else ctx.reshape(p, (n,)) for p in (gamma, beta, mean, variance)]
        row[0] = _ones(ctx, x, n, 1.0) if row[0] is None else row[0]
        row[1] = _ones(ctx, x, n, 0.0) if row[1] is None else row[1]
        y = ctx.emit("BatchNormalization", x, *row, epsilon=a.eps)
    else:
        deviation = ctx.emit("Sqrt", ctx.emit("Add", variance, a.eps))
        y = ctx.emit("Div", ctx.emit("Sub", x, mean), deviation)
        y = scale_and_shift(ctx, y, beta, gamma)
    return (y, mean, variance)


@onnx_export("fused_batch_normalization", "fused_batch_normalization_with_statistics")
def fused_batch_normalization(ctx: Exporter, call: Call) -> tuple[Tensor, ...]:
    y, mean, variance = batch_normalization(ctx, call)
    z = call.optional(5)
    y = y if z is None else ctx.emit("Add", y, z)
    return ctx.emit("Relu", y), mean, variance


@onnx_export("layer_normalization")
def layer_normalization(ctx: Exporter, call: Call) -> tuple[Tensor, ...]:
    x, beta, gamma = call.x, call.optional(1), call.optional(2)
    first = len(call.attrs.batch_axis)
    at_the_end = sorted(call.attrs.batch_axis) == list(range(first)) and first < x.ndim
    if ctx.opset < 17 or not at_the_end:
        return normalization(ctx, call)
    rest = x.sizes[first:]
    scale = ctx.constant(np.ones(rest, x.dtype)) if gamma is None else ctx.reshape(gamma, rest)
    shift = None if beta is None else ctx.reshape(beta, rest)
    y = ctx.emit("LayerNormalization", x, scale, shift, axis=first, epsilon=call.attrs.eps)
    return (y,)


@onnx_export("instance_normalization")
def instance_normalization(ctx: Exporter, call: Call) -> tuple[Tensor, ...]:
    a, x, beta, gamma = call.attrs, call.x, call.optional(1), call.optional(2)
    channels = x.sizes[1] if x.ndim > 1 else 0
    usual = x.ndim >= 3 and a.channel_axis == 1 and a.batch_axis == (0,)
    shared = all(p is None or prod(p.sizes) == channels for p in (beta, gamma))
    if not (usual and shared):
        return normalization(ctx, call)
    scale = _ones(ctx, x, channels, 1.0) if gamma is None else ctx.reshape(gamma, (channels,))
    shift = _ones(ctx, x, channels, 0.0) if beta is None else ctx.reshape(beta, (channels,))
    return (ctx.emit("InstanceNormalization", x, scale, shift, epsilon=a.eps),)


@onnx_export("group_normalization")
def group_normalization(ctx: Exporter, call: Call) -> tuple[Tensor, ...]:
    a, x, beta, gamma = call.attrs, call.x, call.optional(1), call.optional(2)
    usual = x.ndim >= 3 and a.channel_axis == 1 and a.batch_axis == (0,)
    if not usual:
        return normalization(ctx, call)
    n, groups = x.sizes[1], a.num_groups
    if ctx.opset >= 21:
        scale = _ones(ctx, x, n, 1.0) if gamma is None else ctx.reshape(gamma, (n,))
        shift = _ones(ctx, x, n, 0.0) if beta is None else ctx.reshape(beta, (n,))
        settings = {"num_groups": groups, "epsilon": a.eps}
        return (ctx.emit("GroupNormalization", x, scale, shift, **settings),)
    # groups as the channels of an instance normalisation
    inner = prod(x.sizes[1:]) // groups
    rows = ctx.reshape(x, (x.sizes[0], groups, inner))
    one, zero = _ones(ctx, x, groups, 1.0), _ones(ctx, x, groups, 0.0)
    y = ctx.emit("InstanceNormalization", rows, one, zero, epsilon=a.eps)
    y = ctx.reshape(y, call.shape)
    return (scale_and_shift(ctx, y, beta, gamma),)


@onnx_export(
    "tensor_normalization",
    "weight_standardization",
    "layer_normalization_with_statistics",
    "instance_normalization_with_statistics",
    "group_normalization_with_statistics",
    "tensor_normalization_with_statistics",
    "weight_standardization_with_statistics",
)
def normalization(ctx: Exporter, call: Call) -> tuple[Tensor, ...]:
    """Any of them, from its layout: the shape to look at x in, and the axes to average."""
    a, x = call.attrs, call.x
    beta, gamma = call.optional(1), call.optional(2)
    shape, axes = a.layout(Spec.of(x.sizes))
    y, mean, variance = standardized(ctx, ctx.reshape(x, shape), axes, a.eps)
    beta, gamma = (None if p is None else ctx.reshape(p, a.fold(p.sizes)) for p in (beta, gamma))
    y = scale_and_shift(ctx, y, beta, gamma)
    if shape != x.sizes:
        y = ctx.reshape(y, call.shape)
    return y, mean, variance


@onnx_export("mean_subtraction")
def mean_subtraction(ctx: Exporter, call: Call) -> Tensor:
    return ctx.emit("Sub", call.x, call.input(1))
