# SPDX-License-Identifier: Apache-2.0
"""Export of convolutions and pooling: ONNX has them channels first, with one batch axis."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from nnl.converters.networks import layout as orders
from nnl.converters.onnx.exporting.nodes.context import Exporter, Refused
from nnl.converters.onnx.exporting.nodes.tensor import Call, Tensor
from nnl.converters.onnx.file.registry import onnx_export
from nnl.functions.pooling import layout, split


def channels_first(ctx: Exporter, x: Tensor, lead: int, last: bool) -> Tensor:
    """x as (batch, channels, ...): `lead` axes merged, the channels moved to the front."""
    sizes = x.sizes
    if lead != 1:
        x = ctx.reshape(x, (prod(sizes[:lead]), *sizes[lead:]))
    return ctx.transpose(x, orders.channels_first(len(sizes) - lead + 1)) if last else x


def as_before(ctx: Exporter, y: Tensor, call: Call, lead: int, last: bool) -> Tensor:
    """The inverse of channels_first, for the output."""
    y = ctx.transpose(y, orders.channels_last(len(call.shapes[0]) - lead + 1)) if last else y
    return y if lead == 1 else ctx.reshape(y, call.shape)


def weights_first(ctx: Exporter, w: Tensor, last: bool) -> Tensor:
    return ctx.transpose(w, orders.channels_first(w.ndim)) if last else w


def check_spatial(n: int) -> None:
    if not 1 <= n <= 3:
        raise Refused(f"{n} spatial axes; runtimes take 1, 2 or 3")


@onnx_export("convolution", "deconvolution")
def convolution(ctx: Exporter, call: Call) -> Tensor:
    a, last = call.attrs, call.attrs.channel_last
    n = call.x.ndim - a.base_axis - 1
    check_spatial(n)
    w = weights_first(ctx, call.input(1), last)
    x = channels_first(ctx, call.x, a.base_axis, last)
    settings: dict[str, Any] = {
        "kernel_shape": call.input(1).sizes[1:-1] if last else call.input(1).sizes[2:],
        "pads": (*a.pad, *a.pad),
        "strides": a.stride,
        "dilations": a.dilation,
        "group": a.group,
    }
    op_type = "Conv"
    if call.name == "deconvolution":
        op_type = "ConvTranspose"
        settings["output_padding"] = a.output_padding if any(a.output_padding) else None
    y = ctx.emit(op_type, x, w, call.optional(2), **settings)
    return as_before(ctx, y, call, a.base_axis, last)


@onnx_export("fused_convolution")
def fused_convolution(ctx: Exporter, call: Call) -> tuple[Tensor, ...]:
    """Its parts; the batch normalisation among them with its running statistics."""
    return ctx.expand(call, lambda a, *xs: a.portable(*xs))


@onnx_export("max_pooling", "average_pooling", "sum_pooling")
def pool(ctx: Exporter, call: Call) -> Tensor:
    a, x = call.attrs, call.x
    check_spatial(len(a.kernel))
    lead, size, tail = split(a, x.sizes)
    channels: tuple[int, ...] = () if a.channel_last else (1,)
    if not a.channel_last and len(lead) >= 2:
        channels, lead = lead[-1:], lead[:-1]
    rest = (*channels, *size, *tail)
    y = ctx.reshape(x, (prod(lead), *rest))
    if a.channel_last:
        y = ctx.transpose(y, orders.channels_first(2 + len(size)))
    y = _pooled(ctx, call, y)
    if a.channel_last:
        y = ctx.transpose(y, orders.channels_last(2 + len(size)))
    if len(lead) + len(rest) == x.ndim and len(lead) == 1:
        return y
    return ctx.reshape(y, call.shape)


def _pooled(ctx: Exporter, call: Call, x: Tensor) -> Tensor:
    a = call.attrs
    # a last window that begins inside ends at most k - 1 behind: so wide borders make no other one
    after = a.pad if a.ignore_border else tuple([k - 1 for k in a.kernel])
    settings = {"kernel_shape": a.kernel, "strides": a.stride, "pads": (*a.pad, *after)}
    if call.name == "max_pooling":
        return ctx.emit("MaxPool", x, **settings)
    if call.name == "average_pooling" and not a.including_pad:
        return ctx.emit("AveragePool", x, count_include_pad=0, **settings)
    y = ctx.emit("AveragePool", x, count_include_pad=1, **settings)
    if call.name == "sum_pooling":
        return ctx.emit("Mul", y, float(prod(a.kernel)))
    if a.ignore_border:
        return y
    lead, size, _ = split(a, call.x.sizes)
    if any(ctx.moves(call.x, len(lead) + i) for i in range(len(size))):
        wide = [n + 2 * p for n, p in zip(size, a.pad, strict=True)]
        ones = ctx.expand_to(ctx.constant(np.ones((1,) * (2 + len(size)), x.dtype)), (1, 1, *wide))
        rest = [max(e - p, 0) for e, p in zip(after, a.pad, strict=True)]
        settings["pads"] = (*(0,) * len(size), *rest)
        part = ctx.emit("AveragePool", ones, count_include_pad=1, **settings)
        return ctx.emit("Div", y, part)
    weight = layout(a, call.x.sizes).weight(np, True, np.float64) * prod(a.kernel)
    if a.channel_last and np.ndim(weight):
        weight = np.moveaxis(weight, -1, 0)
    return y if np.all(weight == 1) else ctx.emit("Mul", y, ctx.constant(weight, x.dtype))


@onnx_export("global_average_pooling")
def global_average_pooling(ctx: Exporter, call: Call) -> Tensor:
    x = call.x
    if x.ndim < 3:
        return ctx.reshape(x, call.shape)
    y = ctx.emit("GlobalAveragePool", x)
    return y if x.ndim == 4 else ctx.reshape(y, call.shape)
