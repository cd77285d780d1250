# SPDX-License-Identifier: Apache-2.0
"""Export of interpolate and onnx_resize.

Where Resize computes the same positions it is used. Elsewhere each axis is gathered and weighted:
the taps of an axis are known when the graph is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from nnl.converters.onnx.exporting.arrays.layout import gathered
from nnl.converters.onnx.exporting.layers.convolution import as_before, channels_first
from nnl.converters.onnx.exporting.nodes.context import Exporter
from nnl.converters.onnx.exporting.nodes.tensor import Call, Tensor
from nnl.converters.onnx.file.registry import onnx_export
from nnl.converters.rules.linear_maps import weighted_pixels
from nnl.functions.interpolate import settings, split, taps
from nnl.functions.onnx_resize import CROP


def resize(
    ctx: Exporter, x: Tensor, axes: Sequence[int], sizes: Sequence[int], **how: Any
) -> Tensor:
    """A Resize node to the given sizes of some axes."""
    if ctx.opset >= 18:
        return ctx.emit("Resize", x, None, None, ctx.ints(*sizes), axes=tuple(axes), **how)
    full = list(x.sizes)
    for axis, n in zip(axes, sizes, strict=True):
        full[axis] = n
    return ctx.emit("Resize", x, None, None, ctx.ints(*full), **how)


@onnx_export("interpolate")
def interpolate(ctx: Exporter, call: Call) -> tuple[Tensor, ...]:
    a, x = call.attrs, call.x
    lead, size, _ = split(a, x.sizes)
    moves = a.mode == "nearest" and any(ctx.moves(x, len(lead) + i) for i in range(len(size)))
    how = None if moves else _same_as_resize(a, size)
    if how is None or 0 in x.sizes or not lead or ctx.opset < 11:
        return _by_taps(ctx, call, len(lead), size)
    n = len(size)
    merged = len(lead) - 1 + a.channel_last
    y = channels_first(ctx, x, merged, a.channel_last)
    y = resize(ctx, y, range(2, 2 + n), a.output_size, **how)
    return (as_before(ctx, y, call, merged, a.channel_last),)


def _same_as_resize(a: Any, size: Sequence[int]) -> dict[str, Any] | None:
    """Attributes of Resize that give the same, None where rounding could differ."""
    if len(size) > 3:
        return None
    if a.mode == "linear":
        if a.align_corners:
            kind = "align_corners"
        else:
            kind = "pytorch_half_pixel" if a.half_pixel else "asymmetric"
        return {"mode": "linear", "coordinate_transformation_mode": kind}
    multiples = all(out % n == 0 for n, out in zip(size, a.output_size, strict=True) if n)
    plain = not (a.align_corners or a.half_pixel or a.half_pixel_for_nn)
    if not (multiples and plain):
        return None
    return {
        "mode": "nearest",
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }


def _by_taps(ctx: Exporter, call: Call, start: int, size: Sequence[int]) -> tuple[Tensor, ...]:
    a, y = call.attrs, call.x
    if a.mode != "nearest" or ctx.opset < 11:
        return ctx.expand(call, weighted_pixels)
    for axis, (n, out) in enumerate(zip(size, a.output_size, strict=True), start):
        if ctx.moves(call.x, axis):
            y = ctx.emit("Gather", y, _nearest(ctx, a, n, out), axis=axis)
        elif n != out:
            y = gathered(ctx, y, taps(n, out, *settings(a))[0][:, 0], axis)
    return (ctx.emit("Identity", y) if y is call.x else y,)


def _nearest(ctx: Exporter, a: Any, n: int, out: int) -> Tensor:
    """The pixels of an axis that are taken, from its sizes: see `taps`."""
    if a.half_pixel_for_nn:
        step, start, parts = 2 * n, n, 2 * out
    elif a.align_corners:
        step, start, parts = n - 1, 0, max(out - 1, 1)
    elif a.half_pixel:
        step, start, parts = 2 * n, n - out, 2 * out
    else:
        step, start, parts = n, 0, out
    y = ctx.emit("Range", *[ctx.constant(k, np.int64) for k in (0, out, 1)])
    y = ctx.emit("Add", ctx.emit("Mul", y, ctx.ints(step)), ctx.ints(start))
    y = ctx.emit("Max", ctx.emit("Div", y, ctx.ints(parts)), ctx.ints(0))
    return ctx.emit("Min", y, ctx.ints(n - 1))  # type: ignore[no-any-return]


_OF_RESIZE = (
    "mode", "coordinate_transformation_mode", "cubic_coeff_a", "exclude_outside",
    "extrapolation_value", "nearest_mode",
)  # fmt: skip


@onnx_export("onnx_resize")
def onnx_resize(ctx: Exporter, call: Call) -> tuple[Tensor, ...]:
    a, x = call.attrs, call.x
    moves = any(ctx.moves(x, axis) for axis in range(2, x.ndim))
    if ctx.opset >= 11 and _resize_takes(a, x) and (moves or a.mode != "nearest"):
        roi = ctx.constant(a.roi, np.float32) if a.roi else None
        scales = ctx.constant(a.scales, np.float32) if a.scales else None
        target = None if a.scales else ctx.ints(*call.shape)
        how = {k: v for k, v in a.as_dict().items() if k in _OF_RESIZE}
        return (ctx.emit("Resize", x, roi, scales, target, **how),)
    return ctx.expand(call, lambda a, x: a.portable(x))


def _resize_takes(a: Any, x: Tensor) -> bool:
    """Whether runtimes resize this: images with the first two axes as they are. Their nearest
    pixels may be others where positions are rounded."""
    if a.coordinate_transformation_mode in (CROP, "tf_half_pixel_for_nn"):
        return False
    sizes = a.result_shape(x.sizes)
    return x.ndim == 4 and sizes[:2] == x.sizes[:2] and prod(x.sizes) > 0
