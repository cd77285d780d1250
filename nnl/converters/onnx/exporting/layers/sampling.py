# SPDX-License-Identifier: Apache-2.0
"""Export of functions that read images at computed places: warping, regions, correlation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnl.converters.onnx.exporting.layers.convolution import as_before, channels_first
from nnl.converters.onnx.exporting.nodes.context import Exporter
from nnl.converters.onnx.exporting.nodes.tensor import Call, Tensor
from nnl.converters.onnx.file.registry import onnx_export
from nnl.core.ops.op import OPS


@onnx_export("warp_by_grid", since=16)
def warp_by_grid(ctx: Exporter, call: Call) -> tuple[Tensor, ...]:
    a, x, grid = call.attrs, call.input(0), call.input(1)
    if x.ndim != 4 or 0 in x.sizes:  # runtimes have it for images only
        return ctx.expand(call, lambda attrs, *v: attrs.decompose(*v))
    linear = "linear" if ctx.opset >= 20 else "bilinear"
    padding = {"zero": "zeros", "repeat": "border", "reflect": "reflection"}
    y = ctx.emit(
        "GridSample",
        channels_first(ctx, x, 1, a.channel_last),
        grid,
        mode=linear if a.mode == "linear" else "nearest",
        padding_mode=padding[a.padding_mode],
        align_corners=int(a.align_corners),
    )
    return (as_before(ctx, y, call, 1, a.channel_last),)


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
        channels_first(ctx, x, 1, a.channel_last),
        corners,
        which,
        output_height=a.output_size[0],
        output_width=a.output_size[1],
        sampling_ratio=max(a.sampling_ratio, 0),
        spatial_scale=scale,
        coordinate_transformation_mode="half_pixel",
    )
    return as_before(ctx, y, call, 1, a.channel_last)


def _region(x: Any, starts: Sequence[int], sizes: Sequence[int], steps: Sequence[int]) -> Any:
    """Some rows and columns of an nnl Variable (batch, rows, columns, channels)."""
    stops = [i + (n - 1) * s + 1 for i, n, s in zip(starts, sizes, steps, strict=True)]
    ends = (x.shape[0], *stops, x.shape[3])
    return OPS["slice"](x, start=(0, *starts, 0), stop=ends, step=(1, *steps, 1))


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
