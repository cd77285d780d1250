# SPDX-License-Identifier: Apache-2.0
"""Export of functions that read images at computed places: warping, regions, correlation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnl.converters.onnx.export_context import Exporter, Refused
from nnl.converters.onnx.export_elementwise import choose
from nnl.converters.onnx.export_layout import BEFORE_FIRST
from nnl.converters.onnx.export_tensor import Call, Tensor
from nnl.converters.onnx.registry import onnx_export
from nnl.core.op import OPS
from nnl.functions.deformable_convolution import window_positions
from nnl.functions.warp import base_grid


def _column(ctx: Exporter, values: Sequence[float], x: Tensor) -> Tensor:
    """One number for each spatial axis, to go with (batch, axis, point)."""
    return ctx.constant(np.array(values)[:, None], x.dtype)


@onnx_export("add_window_positions")
def add_window_positions(ctx: Exporter, call: Call) -> Tensor:
    a = call.attrs
    grid = window_positions(a.kernel, a.out, a.pad, a.stride, a.dilation)
    return ctx.emit("Add", call.x, ctx.constant(grid, call.x.dtype))


@onnx_export("grid_positions")
def grid_positions(ctx: Exporter, call: Call) -> Tensor:
    a, x = call.attrs, call.x
    y = ctx.slice(x, [-1], [BEFORE_FIRST], [2], [-1])
    y = ctx.emit("Transpose", y, perm=(0, 2, 1))
    y = ctx.emit("Mul", y, ctx.constant(a.scale(np, np.float64), x.dtype))
    if a.linear:
        return y
    return ctx.emit("Add", y, _column(ctx, [(n - 1) / 2 for n in a.sizes], x))


@onnx_export("folded_positions")
def folded_positions(ctx: Exporter, call: Call) -> Tensor:
    a, y = call.attrs, call.x
    if a.padding_mode == "reflect":
        y = _reflected(ctx, y, a.sizes, a.align_corners)
    high = _column(ctx, [n - 1 for n in a.sizes], call.x)
    return ctx.emit("Min", ctx.emit("Max", y, 0.0), high)


def _reflected(ctx: Exporter, p: Tensor, sizes: Sequence[int], align_corners: bool) -> Tensor:
    """Positions mirrored at both ends until they are inside."""
    length = [n - 1.0 if align_corners else float(n) for n in sizes]
    low = 0.0 if align_corners else -0.5
    size = _column(ctx, [n or 1.0 for n in length], p)  # an axis of one pixel is set to 0 below
    distance = ctx.emit("Abs", ctx.emit("Sub", p, low))
    turns = ctx.emit("Floor", ctx.emit("Div", distance, size))
    distance = ctx.emit("Sub", distance, ctx.emit("Mul", turns, size))
    odd = ctx.emit("Equal", ctx.emit("Mod", turns, 2.0, fmod=1), 1.0, dtype=np.bool_)
    y = choose(ctx, odd, ctx.emit("Sub", size, distance), distance)
    return ctx.emit("Mul", ctx.emit("Add", y, low), _column(ctx, [bool(n) for n in length], p))


@onnx_export("corner_pixels")
def corner_pixels(ctx: Exporter, call: Call) -> tuple[Tensor, ...]:
    a, p = call.attrs, call.x
    if a.nearest:
        away = ctx.emit("Floor", ctx.emit("Add", ctx.emit("Abs", p), 0.5))
        low = ctx.emit("Mul", ctx.emit("Sign", p), away)
    else:
        low = ctx.emit("Floor", p)
    index = inside = None
    taps = 1
    for k, size in enumerate(a.sizes):
        row = ctx.slice(low, [k], [k + 1], [1])
        corners = row if a.nearest else ctx.emit("Concat", row, ctx.emit("Add", row, 1.0), axis=1)
        above = ctx.emit("GreaterOrEqual", corners, 0.0, dtype=np.bool_)
        valid = ctx.emit("And", above, ctx.emit("Less", corners, float(size), dtype=np.bool_))
        at = ctx.cast(choose(ctx, valid, corners, 0.0), np.int64)
        taps *= 1 if a.nearest else 2
        if index is None or inside is None:
            index, inside = at, valid
            continue
        shape = (p.sizes[0], taps, p.sizes[2])
        rows = ctx.emit("Mul", ctx.unsqueeze(index, 2), size)
        index = ctx.reshape(ctx.emit("Add", rows, ctx.unsqueeze(at, 1)), shape)
        both = ctx.emit("And", ctx.unsqueeze(inside, 2), ctx.unsqueeze(valid, 1))
        inside = ctx.reshape(both, shape)
    if index is None or inside is None:
        raise Refused("an image without spatial axes")
    return choose(ctx, inside, index, 0), ctx.from_bool(inside, p.dtype), low


@onnx_export("sample_pixels")
def sample_pixels(ctx: Exporter, call: Call) -> Tensor:
    """The sum over taps t of x[b, :, index[b, t, p]] weight[b, t, p]."""
    x, index, weight = call.input(0), ctx.cast(call.input(1), np.int64), call.input(2)
    pixels = ctx.emit("Transpose", x, perm=(0, 2, 1))
    read = ctx.emit("GatherND", pixels, ctx.unsqueeze(index, 3), batch_dims=1)  # (b, t, p, c)
    total = ctx.reduce("ReduceSum", ctx.emit("Mul", read, ctx.unsqueeze(weight, 3)), [1])
    return ctx.emit("Transpose", total, perm=(0, 2, 1))


@onnx_export("affine_grid")
def affine_grid(ctx: Exporter, call: Call) -> Tensor:
    a, theta = call.attrs, call.x
    base = ctx.constant(base_grid(a.size, a.align_corners), theta.dtype)
    y = ctx.emit("MatMul", base, ctx.transpose(theta, (0, 2, 1)))
    return ctx.reshape(y, call.shape)


@onnx_export("warp_by_grid", since=16)
def warp_by_grid(ctx: Exporter, call: Call) -> tuple[Tensor, ...]:
    a, x, grid = call.attrs, call.input(0), call.input(1)
    if x.ndim != 4 or 0 in x.sizes:  # runtimes have it for images only
        return ctx.expand(call, lambda attrs, *v: attrs.decompose(*v))
    linear = "linear" if ctx.opset >= 20 else "bilinear"
    padding = {"zero": "zeros", "repeat": "border", "reflect": "reflection"}
    y = ctx.emit(
        "GridSample",
        ctx.transpose(x, (0, 3, 1, 2)) if a.channel_last else x,
        grid,
        mode=linear if a.mode == "linear" else "nearest",
        padding_mode=padding[a.padding_mode],
        align_corners=int(a.align_corners),
    )
    return (ctx.transpose(y, (0, 2, 3, 1)) if a.channel_last else y,)


@onnx_export("roi_align", since=16)
def roi_align(ctx: Exporter, call: Call) -> Tensor:
    a, x, boxes = call.attrs, call.input(0), call.input(1)
    which = ctx.cast(ctx.squeeze(ctx.slice(boxes, [0], [1], [1]), 1), np.int64)
    corners = ctx.slice(boxes, [1], [5], [1])
    scale_y, scale_x = a.spatial_scale
    scale = float(scale_y)
    if scale_y != scale_x:
        factors = np.array([scale_x, scale_y, scale_x, scale_y])
        corners, scale = ctx.emit("Mul", corners, ctx.constant(factors, x.dtype)), 1.0
    y = ctx.emit(
        "RoiAlign",
        ctx.transpose(x, (0, 3, 1, 2)) if a.channel_last else x,
        corners,
        which,
        output_height=a.output_size[0],
        output_width=a.output_size[1],
        sampling_ratio=max(a.sampling_ratio, 0),
        spatial_scale=scale,
        coordinate_transformation_mode="half_pixel",
    )
    return ctx.transpose(y, (0, 2, 3, 1)) if a.channel_last else y


def _region(x: Any, starts: Sequence[int], sizes: Sequence[int], steps: Sequence[int]) -> Any:
    """Some rows and columns of an nnl Variable (batch, rows, columns, channels)."""
    stops = [i + (n - 1) * s + 1 for i, n, s in zip(starts, sizes, steps, strict=True)]
    ends = (x.shape[0], *stops, x.shape[3])
    return OPS["slice"](x, start=(0, *starts, 0), stop=ends, step=(1, *steps, 1))


@onnx_export("separable_sum")
def separable_sum(ctx: Exporter, call: Call) -> tuple[Tensor, ...]:
    """One product for each pair of taps."""

    def taps(a, x, v, u):  # type: ignore[no-untyped-def]
        rows, columns = v.shape[2:]

        def tap(kernel, k):  # type: ignore[no-untyped-def]
            stop = (kernel.shape[0], k + 1, rows, columns)
            return OPS["slice"](kernel, start=(0, k, 0, 0), stop=stop, step=(1, 1, 1, 1))

        parts = []
        for i in range(v.shape[1]):
            row = []
            for j in range(u.shape[1]):
                stop = (*x.shape[:2], i + rows, j + columns)
                part = OPS["slice"](x, start=(0, 0, i, j), stop=stop, step=(1, 1, 1, 1))
                row.append(OPS["mul2"](part, tap(u, j)))
            parts.append(OPS["mul2"](OPS["add_n"](*row), tap(v, i)))
        return OPS["add_n"](*parts)

    return ctx.expand(call, taps)


@onnx_export("patch_correlation")
def patch_correlation(ctx: Exporter, call: Call) -> tuple[Tensor, ...]:
    """For each displacement: the product of the images, summed over channels and patches."""

    def correlation(a, x1, x2):  # type: ignore[no-untyped-def]
        top, bottom, left, right = a.padding
        dy, dx = a.shift
        first = OPS["pad"](x1, pad_width=(top, bottom, left, right, 0, 0))
        wide = (top + dy, bottom + dy, left + dx, right + dx, 0, 0)
        second = OPS["pad"](x2, pad_width=wide)
        n, oh, ow, mh, mw = a.result_shape(x1.shape)
        size = a.padded(x1.shape)
        parts = []
        for i in range(0, mh * a.shift_step[0], a.shift_step[0]):
            for j in range(0, mw * a.shift_step[1], a.shift_step[1]):
                product = OPS["mul2"](first, _region(second, (i, j), size, (1, 1)))
                total = OPS["sum"](product, axes=(3,), keep_dims=True)
                patches = [
                    _region(total, (k, m), (oh, ow), a.patch_step)
                    for k in range(a.patch[0])
                    for m in range(a.patch[1])
                ]
                parts.append(OPS["add_n"](*patches))
        y = OPS["concatenate"](*parts, axis=3)
        return OPS["reshape"](y, shape=(n, oh, ow, mh, mw))

    return ctx.expand(call, correlation)
