# SPDX-License-Identifier: Apache-2.0
"""Export of what reads images: convolutions and pooling, which ONNX has channels first with one
batch axis, resizing, sampling at computed places, and non-maximum suppression.

Where Resize computes the same positions it is used. Elsewhere each axis is gathered and weighted:
the taps of an axis are known when the graph is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from nnl.converters.networks import layout as orders
from nnl.converters.onnx.exporting.elementwise import choose
from nnl.converters.onnx.exporting.layout import gathered
from nnl.converters.onnx.exporting.nodes.context import Exporter, Refused
from nnl.converters.onnx.exporting.nodes.tensor import Call, Tensor
from nnl.converters.onnx.file.registry import onnx_export
from nnl.converters.rules.linear_maps import weighted_pixels
from nnl.core.ops.op import OPS
from nnl.functions.interpolate import settings, taps
from nnl.functions.interpolate import split as split_pixels
from nnl.functions.onnx_resize import CROP
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


# ---- resizing ----


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
    lead, size, _ = split_pixels(a, x.sizes)
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


# ---- computed places: warping, regions, correlation ----


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


# ---- non-maximum suppression ----


@onnx_export("onnx_non_max_suppression")
def onnx_non_max_suppression(ctx: Exporter, call: Call) -> Tensor:
    a = call.attrs
    y = ctx.emit(
        "NonMaxSuppression",
        call.input(0),
        call.input(1),
        ctx.ints(a.max_output_boxes_per_class),
        ctx.constant([a.iou_threshold], np.float32),
        ctx.constant([a.score_threshold], np.float32),
        center_point_box=a.center_point_box,
        dtype=np.int64,
    )
    y.open_axis = 0
    return y


def _from(ctx: Exporter, x: Tensor, start: int, stop: int) -> Tensor:
    """Columns of (batch, boxes, columns)."""
    return ctx.slice(x, [start], [stop], [2])


def _above(ctx: Exporter, x: Tensor, threshold: float) -> Tensor:
    """x, with 0 in the place of what is below the threshold."""
    return choose(ctx, ctx.emit("Less", x, threshold, dtype=np.bool_), 0.0, x)


@onnx_export("nms_detection2d")
def nms_detection2d(ctx: Exporter, call: Call) -> Tensor:
    a, x = call.attrs, call.x
    boxes = _from(ctx, x, 0, 4)
    confidence = _above(ctx, _from(ctx, x, 4, 5), a.thresh)
    scores = ctx.emit("Mul", _from(ctx, x, 5, x.sizes[2]), confidence)
    scores = _above(ctx, scores, a.thresh)
    if a.nms_per_class:
        kept = ctx.emit("Transpose", scores, perm=(0, 2, 1))
        kept = ctx.emit("Mul", kept, _survivors(ctx, boxes, kept, x.sizes[1], a.nms))
        scores = ctx.emit("Transpose", kept, perm=(0, 2, 1))
    else:
        lost = _outshone(ctx, boxes, confidence, x.sizes[1], a.nms)
        none = ctx.emit("Or", lost, ctx.emit("Equal", confidence, 0.0, dtype=np.bool_))
        confidence = choose(ctx, lost, 0.0, confidence)
        scores = choose(ctx, none, 0.0, scores)
    return ctx.emit("Concat", boxes, confidence, scores, axis=2)


def _survivors(ctx: Exporter, boxes: Tensor, scores: Tensor, limit: int, nms: float) -> Tensor:
    """1 for the (batch, class, box) that suppression selects, else 0."""
    selected = ctx.emit(
        "NonMaxSuppression",
        boxes,
        scores,
        ctx.ints(limit),
        ctx.constant([nms], np.float32),
        ctx.constant([0.0], np.float32),
        center_point_box=1,
        dtype=np.int64,
    )
    rows = ctx.slice(ctx.emit("Shape", selected), [0], [1], [0])
    ones = ctx.emit("Expand", ctx.constant(1.0, scores.dtype), rows)
    zeros = ctx.emit("Mul", scores, 0.0)
    return ctx.emit("ScatterND", zeros, selected, ones)


def _outshone(ctx: Exporter, boxes: Tensor, scores: Tensor, count: int, nms: float) -> Tensor:
    """Whether a box overlaps too much with any that has a higher score (or the same, and comes
    first), suppressed itself or not. (batch, boxes, 1)"""

    def pairs(v: Tensor, op_type: str) -> Tensor:
        """(batch, one, other, ...)"""
        return ctx.emit(op_type, ctx.unsqueeze(v, 2), ctx.unsqueeze(v, 1))

    half = ctx.emit("Div", _from(ctx, boxes, 2, 4), 2.0)
    low = ctx.emit("Sub", _from(ctx, boxes, 0, 2), half)
    high = ctx.emit("Add", _from(ctx, boxes, 0, 2), half)

    def area(size: Tensor, axis: int) -> Tensor:
        return ctx.reduce("ReduceProd", ctx.emit("Relu", size), [axis])

    common = area(ctx.emit("Sub", pairs(high, "Min"), pairs(low, "Max")), 3)
    single = area(ctx.emit("Sub", high, low), 2)
    union = ctx.emit("Sub", pairs(single, "Add"), common)
    positive = ctx.emit("Greater", union, 0.0, dtype=np.bool_)
    overlap = ctx.emit("Div", common, choose(ctx, positive, union, 1.0))
    score = ctx.squeeze(scores, 2)
    one, other = ctx.unsqueeze(score, 2), ctx.unsqueeze(score, 1)
    higher = ctx.emit("Greater", one, other, dtype=np.bool_)
    earlier = ctx.constant(np.triu(np.ones((count, count), bool), 1))
    first = ctx.emit("And", ctx.emit("Equal", one, other, dtype=np.bool_), earlier)
    before = ctx.emit("Or", higher, first)
    counts = ctx.emit("Greater", other, 0.0, dtype=np.bool_)  # a score of 0 is no candidate
    close = ctx.emit("Greater", overlap, nms, dtype=np.bool_)
    lost = ctx.emit("And", ctx.emit("And", before, counts), close)
    any_of = ctx.reduce("ReduceMax", ctx.from_bool(lost, score.dtype), [1])
    return ctx.unsqueeze(ctx.cast(any_of, np.bool_), 2)
