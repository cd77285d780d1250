# SPDX-License-Identifier: Apache-2.0
"""Layers that slide over images: convolution, pooling, local normalization, patches."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.caffe.messages import enum_name
from nnl.converters.caffe.writer import pooled_size
from nnl.core.ops.op import OPS
from nnl.dialects.caffe.layer import MANY, Blob, Layer, builds
from nnl.dialects.caffe.layer_types.neurons import constant

Sizes = tuple[int, ...]


def _spatial(layer: Layer, p: Any, name: str, n: int, default: int, short: str = "") -> Sizes:
    """One size for each axis of an image: `name`, once or for each, or its _h and _w forms."""
    short = short or name
    values = list(getattr(p, name))
    if n == 2 and hasattr(p, f"{short}_h") and p.HasField(f"{short}_h"):
        if values:
            raise layer.fail(f"{name} and {short}_h are both set")
        return getattr(p, f"{short}_h"), getattr(p, f"{short}_w")
    if len(values) not in (0, 1, n):
        raise layer.fail(f"{name} has {len(values)} values for {n} axes")
    return tuple(values * n if len(values) == 1 else values or [default] * n)


@builds(
    "Convolution",
    "Deconvolution",
    "ConvolutionDepthwise",
    "DepthwiseConvolution",
    bottoms=(1, MANY),
    tops=(1, MANY),
)
def convolution(layer: Layer, *xs: Blob) -> None:
    p = layer.message.convolution_param
    ndim = len(xs[0].sizes)
    axis = layer.axis(p.axis, ndim)
    n = ndim - axis - 1
    kernel = _spatial(layer, p, "kernel_size", n, 0, "kernel")
    at = {
        "pad": _spatial(layer, p, "pad", n, 0),
        "stride": _spatial(layer, p, "stride", n, 1),
        "dilation": _spatial(layer, p, "dilation", n, 1),
    }
    c, out = int(xs[0].sizes[axis] or 0), p.num_output
    group = c if "Depthwise" in layer.type else p.group
    if min(kernel, default=1) < 1 or out < 1 or group < 1 or min(*at["stride"], 1) < 1:
        raise layer.fail(f"kernel {kernel}, stride, num_output or group is less than 1")
    if c % group or out % group:
        raise layer.fail(f"{c} channels and num_output {out} are no multiples of group {group}")
    back = layer.type == "Deconvolution"
    shape = (c, out // group, *kernel) if back else (out, c // group, *kernel)
    w = layer.weight(shape, layer.filler(p, "weight_filler"))
    b = [layer.weight((out,), layer.filler(p, "bias_filler"))] if p.bias_term else []
    function = F.deconvolution if back else F.convolution
    for x in xs:
        layer.op(lambda x, w, *b: function(x, w, *b, base_axis=axis, group=group, **at), x, w, *b)


def pool(x: Any, kernel: Sizes, stride: Sizes, pad: Sizes, largest: bool, up: bool = True) -> Any:
    """The maximum, or the mean as Caffe counts it, of windows of the last two axes."""
    size = x.shape[-2:]
    axes = list(zip(size, kernel, stride, pad, strict=True))
    for s, k, _, p in axes:
        if p >= k or s + 2 * p < k:
            raise ValueError(f"kernel {kernel} and pad {pad} do not fit an image of {tuple(size)}")
    out = [pooled_size(s, k, d, p, up) for s, k, d, p in axes]
    fits = [n == (s + 2 * p - k) // d + 1 for n, (s, k, d, p) in zip(out, axes, strict=True)]
    clips = [not p and n == -(-s // d) for n, (s, k, d, p) in zip(out, axes, strict=True)]
    function = F.max_pooling if largest else F.average_pooling
    if all(fits):
        return function(x, kernel, stride, pad=pad)
    if all(clips):
        how = {} if largest else {"including_pad": False}
        return function(x, kernel, stride, ignore_border=False, **how)
    width = []
    for n, (s, k, d, p) in zip(out, axes, strict=True):
        width += [p, max(0, (n - 1) * d + k - s - p)]
    if largest:
        padded = F.pad(x, (0, 0) * (x.ndim - 2) + tuple(width), constant_value=-3.0e38)
        return F.max_pooling(padded, kernel, stride)
    padded = F.pad(x, (0, 0) * (x.ndim - 2) + tuple(width))
    counts = []
    for n, (s, k, d, p) in zip(out, axes, strict=True):
        begin = np.arange(n) * d - p
        counts.append(np.maximum(np.minimum(begin + k, s + p) - begin, 1))
    area = np.outer(*counts).reshape((1,) * (x.ndim - 2) + tuple(out))
    return F.sum_pooling(padded, kernel, stride) * constant(1 / area)


def _stated(p: Any, name: str, short: str) -> Sizes:
    if p.HasField(f"{short}_h") or p.HasField(f"{short}_w"):
        return getattr(p, f"{short}_h"), getattr(p, f"{short}_w")
    return (getattr(p, name),) * 2


@builds("Pooling", tops=(1, 2))
def pooling(layer: Layer, x: Blob) -> None:
    p = layer.message.pooling_param
    method = enum_name(p, "pool")
    if method == "STOCHASTIC" or len(layer.message.top) > 1:
        raise layer.fail("STOCHASTIC pooling and a second top are not supported, only MAX and AVE")
    if len(x.sizes) != 4:
        raise layer.fail(f"bottom has the shape {x.shape}, wanted 4 axes")
    largest, up = method == "MAX", p.ceil_mode and enum_name(p, "round_mode") == "CEIL"
    if p.global_pooling:
        f = F.max if largest else F.mean
        layer.op(lambda x: f(x, (2, 3), keepdims=True), x)
        return
    kernel, stride = _stated(p, "kernel_size", "kernel"), _stated(p, "stride", "stride")
    pad = _stated(p, "pad", "pad")
    if min(kernel) < 1 or min(stride) < 1:
        raise layer.fail(f"kernel {kernel} and stride {stride}: wanted at least 1")
    layer.op(lambda x: pool(x, kernel, stride, pad, largest, up), x)


@builds("SPP")
def spp(layer: Layer, x: Blob) -> None:
    p = layer.message.spp_param
    if not 1 <= p.pyramid_height <= 16:
        raise layer.fail(f"pyramid_height is {p.pyramid_height}, wanted 1 to 16")

    def compute(x: Any) -> Any:
        parts = []
        for i in range(p.pyramid_height):
            bins = 2**i
            kernel = tuple(math.ceil(s / bins) for s in x.shape[2:])
            pad = tuple((k * bins - s + 1) // 2 for k, s in zip(kernel, x.shape[2:], strict=True))
            y = pool(x, kernel, kernel, pad, enum_name(p, "pool") == "MAX")
            parts.append(F.reshape(y, (y.shape[0], -1)))
        return F.concatenate(*parts, axis=1)

    layer.op(compute, x)


@builds("LRN")
def lrn(layer: Layer, x: Blob) -> None:
    p = layer.message.lrn_param
    n, alpha, beta, k = p.local_size, p.alpha, p.beta, p.k
    if n % 2 == 0:
        raise layer.fail(f"local_size is {n}, wanted an odd number")
    within = enum_name(p, "norm_region") == "WITHIN_CHANNEL"

    def compute(x: Any) -> Any:
        square, half = x * x, (n - 1) // 2
        if within:
            mean = pool(square, (n, n), (1, 1), (half, half), False)
            return x * (mean * alpha + 1.0) ** -beta
        rows = F.reshape(square, (x.shape[0], 1, x.shape[1], -1))
        mean = F.average_pooling(rows, (n, 1), (1, 1), pad=(half, 0))
        return x * F.reshape(mean * alpha + k, x.shape) ** -beta

    layer.op(compute, x)


@builds("Im2col")
def im2col(layer: Layer, x: Blob) -> None:
    p = layer.message.convolution_param
    kernel, pad = _spatial(layer, p, "kernel_size", 2, 0, "kernel"), _spatial(layer, p, "pad", 2, 0)
    stride, dilation = _spatial(layer, p, "stride", 2, 1), _spatial(layer, p, "dilation", 2, 1)
    if min(*kernel, *stride, *dilation) < 1:
        raise layer.fail(f"kernel {kernel}, stride or dilation is less than 1")

    def compute(x: Any) -> Any:
        n, c, *size = x.shape
        at = list(zip(size, kernel, stride, pad, dilation, strict=True))
        out = [(s + 2 * p - ((k - 1) * d + 1)) // t + 1 for s, k, t, p, d in at]
        padded = F.pad(x, (0, 0, 0, 0, pad[0], pad[0], pad[1], pad[1])) if any(pad) else x
        parts = []
        for place in itertools.product(*map(range, kernel)):
            start = [i * d for i, d in zip(place, dilation, strict=True)]
            stop = [b + (o - 1) * t + 1 for b, o, t in zip(start, out, stride, strict=True)]
            parts.append(F.slice(padded, (0, 0, *start), (n, c, *stop), (1, 1, *stride)))
        return F.reshape(F.stack(*parts, axis=2), (n, -1, *out))

    layer.op(compute, x)


@builds("Crop", bottoms=2)
def crop(layer: Layer, x: Blob, like: Blob) -> None:
    p = layer.message.crop_param
    axis = layer.axis(p.axis, len(x.sizes))
    offsets = list(p.offset) or [0]
    n = len(x.sizes) - axis
    if len(offsets) not in (1, n):
        raise layer.fail(f"offset has {len(offsets)} values for {n} axes")
    offsets = offsets * n if len(offsets) == 1 else offsets

    def compute(x: Any, like: Any) -> Any:
        start = [0] * axis + offsets
        stop = [*x.shape[:axis], *(o + s for o, s in zip(offsets, like.shape[axis:], strict=True))]
        if any(e > s for e, s in zip(stop, x.shape, strict=True)):
            raise ValueError(f"offset {offsets} and shape {like.shape} reach beyond {x.shape}")
        return F.slice(x, start, stop)

    layer.op(compute, x, like)


@builds("Interp")
def interp(layer: Layer, x: Blob) -> None:
    p = layer.message.interp_param
    if p.pad_beg > 0 or p.pad_end > 0:
        raise layer.fail("pad_beg and pad_end are positive, wanted at most 0")

    def compute(x: Any) -> Any:
        begin, end = -p.pad_beg, p.pad_end
        if begin or end:
            h, w = x.shape[2:]
            x = F.slice(x, (0, 0, begin, begin), (*x.shape[:2], h + end, w + end))
        size = [(s - 1) // p.shrink_factor + 1 for s in x.shape[2:]]
        size = [s + (s - 1) * (p.zoom_factor - 1) for s in size]
        if p.height and p.width:
            size = [p.height, p.width]
        return F.interpolate(x, output_size=size, mode="linear", align_corners=True)

    layer.op(compute, x)


@builds("ROIPooling", bottoms=2)
def roi_pooling(layer: Layer, x: Blob, boxes: Blob) -> None:
    p = layer.message.roi_pooling_param
    out, factor = (p.pooled_h, p.pooled_w), p.spatial_scale
    if min(out) < 1:
        raise layer.fail(f"pooled_h and pooled_w are {out}, wanted at least 1")

    def compute(x: Any, boxes: Any) -> Any:
        # a maximum over a bin is one over the rows in it, then over the columns
        image = OPS["cast"](F.slice(boxes, (0, 0), (boxes.shape[0], 1)), dtype="int64")
        y = F.gather(x, F.reshape(image, (-1,)), axis=0)
        for axis, count in ((0, out[0]), (1, out[1])):
            size = x.shape[2 + axis]
            edge = [F.slice(boxes, (0, i), (boxes.shape[0], i + 1)) for i in (2 - axis, 4 - axis)]
            first, last = (_half_up(e * factor) for e in edge)
            length = F.maximum_scalar(last - first + 1, 1.0)
            bins = constant(np.arange(count).reshape(1, -1))
            low = F.floor(bins * length / count) + first
            high = F.ceil((bins + 1) * length / count) + first
            place = constant(np.arange(size).reshape(1, 1, -1))
            low, high = (F.reshape(v, (*v.shape, 1)) for v in (low, high))
            inside = F.greater_equal(place + low * 0, low) * F.less(place + high * 0, high)
            shape = (inside.shape[0], 1, *((count, 1) if axis == 0 else (1, count)))
            mask = F.reshape(inside, (*shape, size))
            # along the last axis: the pixels of the image that a bin may have
            y = F.transpose(y, (0, 1, 3, 2)) if axis == 0 else y
            y = F.reshape(
                y, (*y.shape[:2], 1, *y.shape[2:]) if axis == 0 else (*y.shape[:3], 1, y.shape[3])
            )
            y = F.max(y * mask + (1 - mask) * -3.0e38, axis=4)
        return y * F.greater_scalar(y, -1.0e38)

    layer.op(compute, x, boxes)


def _half_up(x: Any) -> Any:
    return F.floor(x + 0.5)
