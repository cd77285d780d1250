# SPDX-License-Identifier: Apache-2.0
"""Convolutions, pooling and resizing as operators on images with channels last."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnl.converters.networks.layout import channels_last, plain
from nnl.converters.networks.windows import full_sizes, reach
from nnl.converters.tflite.graph import FLOAT, Graph, Laid, Refused, Tensor, says
from nnl.converters.tflite.schema import SAME, VALID
from nnl.core.graph.node import Node
from nnl.functions.pooling import layout

LOWEST = -3.4028235e38


def images(g: Graph, x: Laid, spatial: int, maps_last: bool) -> Tensor:
    """A value of maps and spatial axes as (N, *spatial, C), signals as images of height 1."""
    shape = x.shape
    lead = x.rank - spatial - 1
    if lead < 0:
        shape, lead = (1, *shape), 0
    if maps_last:
        if x.order != plain(x.rank):
            x = Laid(g.plain(x), plain(x.rank))
        sizes = shape[lead:-1] if spatial else ()
        return g.reshaped(x.tensor, (math.prod(shape[:lead]), *_pixels(sizes), shape[-1]))
    full = (math.prod(shape[:lead]), shape[lead], *_pixels(shape[lead + 1 :]))
    return g.held(g.reshape(x, full), channels_last(len(full)))


def _pixels(sizes: Sequence[int]) -> tuple[int, ...]:
    return (1, *sizes) if len(sizes) == 1 else tuple(sizes)


def _result(g: Graph, y: Tensor, node: Node, maps_last: bool) -> Laid:
    """What was computed with maps last, as the function gives it."""
    shape = node.out_specs[0].shape
    if maps_last:
        return Laid(g.reshaped(y, shape), plain(len(shape)))
    return g.reshape(Laid(y, channels_last(len(y.shape))), shape)


def _pair(values: Sequence[int], first: int) -> tuple[int, ...]:
    """An argument for each axis of an image."""
    return (first, *values) if len(values) == 1 else tuple(values)


def padding(
    g: Graph,
    t: Tensor,
    outs: Sequence[int],
    span: Sequence[int],
    stride: Sequence[int],
    pad: Sequence[int],
    fill: float = 0.0,
    partial: bool = False,
) -> tuple[Tensor, int]:
    """An image with the pixels around it that windows see, as padding of the operator if it can be.

    Where sizes are open, it is widened as far as windows of any size of it reach.

    Args:
        outs: Numbers of windows.
        span: Pixels that a window spans.
        pad: Pixels before.
        partial: Whether the last window may reach beyond the padding.
    """
    sizes = t.shape[1:-1]
    needed = [(o - 1) * s + r - n for o, s, r, n in zip(outs, stride, span, sizes, strict=True)]
    after = [max(0, n - p) for n, p in zip(needed, pad, strict=True)]
    if not g.sizes_stay:
        after = [r - 1 if partial else p for p, r in zip(pad, span, strict=True)]
    if not any(pad) and not any(after):
        return t, VALID
    if (g.sizes_stay or max(stride) == 1) and all(
        o == -(-n // s) and max(total, 0) // 2 == p
        for o, n, s, total, p in zip(outs, sizes, stride, needed, pad, strict=True)
    ):
        return t, SAME
    return padded(g, t, [(0, 0), *zip(pad, after, strict=True), (0, 0)], fill), VALID


def padded(g: Graph, t: Tensor, widths: Sequence[tuple[int, int]], fill: float) -> Tensor:
    """A tensor with further elements before and after along its axes."""
    shape = [n + b + a for n, (b, a) in zip(t.shape, widths, strict=True)]
    rows = g.constant(np.array(widths, np.int32).reshape(-1, 2))
    if not fill:
        return g.op("PAD", t, rows, shape=shape)
    return g.op("PADV2", t, rows, fill, shape=shape)


def cut(g: Graph, t: Tensor, begin: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """A block of a tensor."""
    if tuple(sizes) == t.shape:
        return t
    return g.op("SLICE", t, g.ints(*begin), g.ints(*sizes), shape=sizes)


# ---- convolution ----


@says("convolution")
def _convolution(g: Graph, node: Node, x: Laid, w: Laid, b: Laid | None) -> Laid:
    a = node.attrs
    n = len(a.pad)
    if n > 3:
        raise Refused(f"it has {n} spatial axes, wanted at most 3")
    if a.channel_last and w.tensor.value is None and n != 2:
        raise Refused("its maps are last, and its weights are computed")
    t = images(g, x, n, a.channel_last)
    rank = len(t.shape)
    maps, inner = w.shape[0], w.shape[-1 if a.channel_last else 1]
    kernel = w.shape[1:-1] if a.channel_last else w.shape[2:]
    first = (maps, *_pixels(kernel), inner) if a.channel_last else (maps, inner, *_pixels(kernel))
    weights = g.reshape(w, first)
    if a.channel_last:
        weights = Laid(g.plain(weights), channels_last(rank))
    stride, dilation = _pair(a.stride, 1), _pair(a.dilation, 1)
    size = weights.shape[2:]
    span = reach(size, dilation)
    out = node.out_specs[0].shape
    outs = _pixels(out[-n - 1 : -1] if a.channel_last else out[-n:])
    t, how = padding(g, t, outs, span, stride, _pair(a.pad, 0))
    bias = g.constant(np.zeros(maps, np.float32)) if b is None else g.plain(b)
    options = {"shape": (t.shape[0], *outs, maps), "padding": how}
    for axis, s, d in zip("dhw"[-len(outs) :], stride, dilation, strict=True):
        options |= {f"stride_{axis}": s, f"dilation_{axis}": d}
    if n == 3:
        if a.group != 1:
            raise Refused("it has groups, and three spatial axes")
        name, order = "CONV_3D", (2, 3, 4, 1, 0)
    elif a.group > 1 and inner == 1:
        name, order = "DEPTHWISE_CONV_2D", (1, 2, 3, 0)
        options["depth_multiplier"] = maps // a.group
    else:
        name, order = "CONV_2D", channels_last(4)
    y = g.op(name, t, g.held(weights, order), bias, **options)
    return _result(g, y, node, a.channel_last)


@says("deconvolution")
def _deconvolution(g: Graph, node: Node, x: Laid, w: Laid, b: Laid | None) -> Laid:
    """In full, then cut or widened, unless the operator's own padding says it."""
    a = node.attrs
    n = len(a.pad)
    if n > 2:
        raise Refused(f"it has {n} spatial axes, wanted at most 2")
    t = images(g, x, n, a.channel_last)
    shape = w.shape
    if a.channel_last:
        w = Laid(g.plain(w), channels_last(w.rank))
        shape = w.shape
    weights = g.reshape(w, (*shape[:2], *_pixels(shape[2:])))
    dilation, stride, pad = _pair(a.dilation, 1), _pair(a.stride, 1), _pair(a.pad, 0)
    kernel = weights.shape[2:]
    span = reach(kernel, dilation)
    if span != kernel or a.group != 1:
        if w.tensor.value is None:
            raise Refused("it has groups or a dilation, and its weights are computed")
        weights = _dense(weights, a.group, dilation, span)
    maps = weights.shape[1]
    full = full_sizes(t.shape[1:-1], span, stride)
    out = node.out_specs[0].shape
    outs = _pixels(out[-n - 1 : -1] if a.channel_last else out[-n:])
    more = [o - f + p for o, f, p in zip(outs, full, pad, strict=True)]  # after the full result
    same = all(
        -(-o // s) == i and max(f - o, 0) // 2 == p and o <= f
        for o, s, i, f, p in zip(outs, stride, t.shape[1:-1], full, pad, strict=True)
    )
    sizes = outs if same else full
    whole = (t.shape[0], *sizes, maps)
    y = g.op(
        "TRANSPOSE_CONV",
        g.ints(*whole),
        g.held(weights, (1, 2, 3, 0)),
        t,
        *([g.plain(b)] if same and b is not None else []),
        shape=whole,
        dtype=FLOAT,
        padding=SAME if same else VALID,
        stride_h=stride[0],
        stride_w=stride[1],
    )
    if not same:
        kept = [f - p + min(m, 0) for f, p, m in zip(full, pad, more, strict=True)]
        y = cut(g, y, (0, *pad, 0), (t.shape[0], *kept, maps))
        if max(more) > 0:
            y = padded(g, y, [(0, 0), *[(0, max(m, 0)) for m in more], (0, 0)], 0)
    if b is not None and not same:
        y = g.op("ADD", y, g.plain(b))
    return _result(g, y, node, a.channel_last)


def _dense(w: Laid, group: int, dilation: Sequence[int], span: Sequence[int]) -> Laid:
    """Weights of a deconvolution without groups and dilation: with zeros between and around."""
    value = w.tensor.value.transpose([w.order.index(i) for i in range(w.rank)])
    channels, maps = value.shape[:2]
    full = np.zeros((channels, maps * group, *span), np.float32)
    per = channels // group
    for k in range(group):
        block = full[k * per : (k + 1) * per, k * maps : (k + 1) * maps]
        block[:, :, :: dilation[0], :: dilation[1]] = value[k * per : (k + 1) * per]
    return Laid(Tensor(full.shape, FLOAT, full), plain(4))


# ---- pooling ----


@says("max_pooling", "average_pooling", "sum_pooling")
def _pooling(g: Graph, node: Node, x: Laid) -> Laid:
    """Of images at once; of volumes along their planes, then across them."""
    a, kind = node.attrs, node.op.name
    n = len(a.kernel)
    if n > 3:
        raise Refused(f"its kernel has {n} axes, wanted at most 3")
    where = layout(a, x.shape)
    maximum = kind == "max_pooling"
    fill = LOWEST if maximum else 0.0
    t = images(g, x, n, a.channel_last)
    weight = None
    if not maximum:
        sums = 1.0 if kind == "sum_pooling" else where.weight(np, a.including_pad, FLOAT)
        weight = np.asarray(sums, np.float32) * math.prod(a.kernel)
    kernel, stride, pad = _pair(a.kernel, 1), _pair(a.stride, 1), _pair(a.pad, 0)
    outs = _pixels(where.out)
    whole = kernel == t.shape[1:-1] and not any(pad)
    if n == 2 and whole and kind == "average_pooling":  # in 8 bits, with a scale of its own
        shape = (t.shape[0], 1, 1, t.shape[-1])
        return _result(
            g, g.op("MEAN", t, g.ints(1, 2), shape=shape, keep_dims=True), node, a.channel_last
        )
    if n == 2 and kind == "average_pooling" and not a.including_pad:
        inside, how = padding(g, t, outs, kernel, stride, pad, 0.0, not a.ignore_border)
        if how == SAME:  # its mean leaves the padding out
            y = _pool(g, "AVERAGE_POOL_2D", inside, outs, kernel, stride, SAME)
            return _result(g, y, node, a.channel_last)
    t, how = padding(g, t, outs, kernel, stride, pad, fill, not a.ignore_border)
    if how == SAME and not maximum:
        sizes = zip(outs, stride, kernel, t.shape[1:-1], pad, strict=True)
        after = [max(0, (o - 1) * s + k - n - p) for o, s, k, n, p in sizes]
        t = padded(g, t, [(0, 0), *zip(pad, after, strict=True), (0, 0)], 0)
        how = VALID
    name = "MAX_POOL_2D" if maximum else "AVERAGE_POOL_2D"
    if n < 3:
        y = _pool(g, name, t, outs, kernel, stride, how)
    else:
        y = _pool_volume(g, name, t, outs, kernel, stride, how)
    if weight is not None and not np.allclose(weight, 1, rtol=1e-7, atol=0):
        y = g.op("MUL", y, _weights(weight, len(outs)))
    return _result(g, y, node, a.channel_last)


def _weights(weight: Any, rank: int) -> Any:
    """Of windows, for channels last."""
    sizes = [n for n in weight.shape if n != 1]
    if not sizes:
        return weight.reshape(())
    return weight.reshape((1,) * (rank + 2) if weight.size == 1 else _spread(weight, rank))


def _spread(weight: Any, rank: int) -> tuple[int, ...]:
    shape = weight.shape[-rank:] if len(weight.shape) >= rank else weight.shape
    shape = (1,) * (rank - len(shape)) + tuple(shape)
    return (1, *shape, 1)


def _pool(
    g: Graph,
    name: str,
    t: Tensor,
    outs: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    how: int,
) -> Tensor:
    return g.op(
        name,
        t,
        shape=(t.shape[0], *outs, t.shape[-1]),
        padding=how,
        stride_h=stride[0],
        stride_w=stride[1],
        filter_h=kernel[0],
        filter_w=kernel[1],
    )


def _pool_volume(
    g: Graph,
    name: str,
    t: Tensor,
    outs: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    how: int,
) -> Tensor:
    n, d, h, w, c = t.shape
    flat = g.reshaped(t, (n * d, h, w, c))
    y = _pool(g, name, flat, outs[1:], kernel[1:], stride[1:], how)
    y = g.reshaped(y, (n, d, outs[1] * outs[2], c))
    y = _pool(g, name, y, (outs[0], outs[1] * outs[2]), (kernel[0], 1), (stride[0], 1), how)
    return g.reshaped(y, (n, *outs, c))


# ---- resizing ----


@says("unpooling")
def _unpooling(g: Graph, node: Node, x: Laid) -> Laid:
    """Every pixel is repeated."""
    a = node.attrs
    n = len(a.kernel)
    if n > 2:
        raise Refused(f"its kernel has {n} axes, wanted at most 2")
    t = images(g, x, n, a.channel_last)
    sizes = [s * k for s, k in zip(t.shape[1:-1], _pair(a.kernel, 1), strict=True)]
    shape = (t.shape[0], *sizes, t.shape[-1])
    y = g.op("RESIZE_NEAREST_NEIGHBOR", t, g.ints(*sizes), shape=shape)
    return _result(g, y, node, a.channel_last)


@says("interpolate")
def _interpolate(g: Graph, node: Node, x: Laid) -> Laid:
    a = node.attrs
    n = len(a.output_size)
    if n > 2:
        raise Refused(f"it has {n} spatial axes, wanted at most 2")
    if a.mode == "nearest" and (a.align_corners or (a.half_pixel and not a.half_pixel_for_nn)):
        raise Refused("it takes other pixels for the nearest ones")
    t = images(g, x, n, a.channel_last)
    sizes = _pixels(a.output_size)
    nearest = a.mode == "nearest"
    if a.half_pixel and not nearest and min(a.output_size) == 1:
        raise Refused("it takes the first pixel, not the middle, of an axis that gets one")
    y = g.op(
        "RESIZE_NEAREST_NEIGHBOR" if nearest else "RESIZE_BILINEAR",
        t,
        g.ints(*sizes),
        shape=(t.shape[0], *sizes, t.shape[-1]),
        align_corners=a.align_corners,
        half_pixel_centers=a.half_pixel_for_nn if nearest else a.half_pixel,
    )
    return _result(g, y, node, a.channel_last)
