# SPDX-License-Identifier: Apache-2.0
"""Importers of convolutions, pooling and resizing: images with maps first, which functions want."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.networks.layout import Order, channels_first
from nnl.converters.networks.windows import full_sizes, reach, same_padding
from nnl.converters.tflite.building import Builder, Value, check_size, computed, reads
from nnl.converters.tflite.flatbuffer import Damaged
from nnl.converters.tflite.schema import SAME, VALID
from nnl.core.graph.variable import Variable

IMAGE, VOLUME = channels_first(4), channels_first(5)  # (N, C, H, W) of (N, H, W, C)
LOWEST = -3.4028235e38
MAX_WINDOW = 2**16  # pixels


def _numbers(b: Builder, name: str, axes: str, low: int = 1) -> tuple[int, ...]:
    found = tuple([int(b.op.options[f"{name}_{a}"]) for a in axes])
    if min(found) < low or max(found) > MAX_WINDOW:
        raise Damaged(f"its {name} is {found}")
    return found


def _image(b: Builder, v: Value, order: Order = IMAGE) -> Variable:
    if v.rank != len(order):
        raise Damaged(f"its input has {v.rank} axes, wanted {len(order)}")
    return b.held(v, order)


def _pads(
    b: Builder, sizes: Sequence[int], span: Sequence[int], stride: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Pixels before and after that the operator's padding adds."""
    n = len(sizes)
    if b.op.options["padding"] != SAME:
        return [0] * n, [0] * n
    before, after = same_padding(sizes, span, stride)
    return list(before), list(after)


def padded(x: Any, before: Sequence[int], after: Sequence[int], value: float = 0.0) -> Any:
    """With pixels around its last axes."""
    if not any(before) and not any(after):
        return x
    n = x.ndim - len(before)
    check_size(
        [*x.shape[:n], *(s + p + q for s, p, q in zip(x.shape[n:], before, after, strict=True))]
    )
    widths = [w for pair in zip(before, after, strict=True) for w in pair]
    return F.pad(x, widths, "constant", value)


@reads("CONV_2D", "DEPTHWISE_CONV_2D", "CONV_3D")
def _convolution(b: Builder, v: Value, w: Value, bias: Value | None = None) -> Value:
    name = b.op.name
    axes = "dhw" if name == "CONV_3D" else "hw"
    order = VOLUME if name == "CONV_3D" else IMAGE
    x = _image(b, v, order)
    if w.rank != len(order):
        raise Damaged(f"its weights have {w.rank} axes, wanted {len(order)}")
    first = {"CONV_2D": (0, 3, 1, 2), "DEPTHWISE_CONV_2D": (3, 0, 1, 2)}
    weights = b.held(w, first.get(name, (4, 3, 0, 1, 2)))
    stride, dilation = _numbers(b, "stride", axes), _numbers(b, "dilation", axes)
    maps, inner = weights.shape[:2]
    channels = x.shape[1]
    if not inner or channels % inner:
        raise Damaged(f"it has {channels} channels, its weights {list(w.shape)}")
    span = reach(weights.shape[2:], dilation)
    before, after = _pads(b, x.shape[2:], span, stride)
    if not any((*before, *after)) and span == x.shape[2:] == weights.shape[2:]:
        whole = _of_one_window(b, v, w, bias)
        if whole is not None:
            return b.activated(whole)
    pad = before
    if before != after:
        x, pad = padded(x, before, after), [0] * len(before)
    flat = None if bias is None else b.held(b.reshaped(bias, (maps,)))
    y = F.convolution(x, weights, flat, 1, pad, stride, dilation, channels // inner)
    return b.activated(Value(y, order))


@reads("CUSTOM 'Convolution2DTransposeBias'")
def _mediapipe(b: Builder, v: Value, w: Value, bias: Value) -> Value:
    """MediaPipe's: padding, 1 for the size times the stride, and strides are its bytes."""
    padding, across, down = np.frombuffer(b.op.options["bytes"], "<i4", 3).tolist()
    same = SAME if padding == 1 else VALID
    b.op.options |= {"padding": same, "stride_w": across, "stride_h": down}
    sizes = zip(v.shape[1:3], w.shape[1:3], (down, across), strict=True)
    out = [n * s if same == SAME else (n - 1) * s + k for n, k, s in sizes]
    size = np.array([v.shape[0], *out, w.shape[0]], np.int32)
    return _deconvolution(b, computed(size), w, v, bias)


@reads("TRANSPOSE_CONV", "CONV_3D_TRANSPOSE")
def _deconvolution(b: Builder, size: Value, w: Value, v: Value, bias: Value | None = None) -> Value:
    axes = "dhw" if b.op.name == "CONV_3D_TRANSPOSE" else "hw"
    order = VOLUME if axes == "dhw" else IMAGE
    rank = len(order)
    x = _image(b, v, order)
    out = b.ints(size, "the size")
    if w.rank != rank or len(out) != rank:
        raise Damaged(f"its weights are {list(w.shape)}, its result {out}")
    weights = b.held(w, (4, 3, 0, 1, 2) if axes == "dhw" else (3, 0, 1, 2))
    stride = _numbers(b, "stride", axes)
    check_size(out)
    full = full_sizes(x.shape[2:], weights.shape[2:], stride)
    total = [f - o for f, o in zip(full, out[1:-1], strict=True)]
    same = b.op.options["padding"] == SAME
    before = [max(t, 0) // 2 if same else 0 for t in total]
    after = [t - p for t, p in zip(total, before, strict=True)]
    flat = None if bias is None else b.held(b.reshaped(bias, (weights.shape[1],)))
    if before == after:
        y = F.deconvolution(x, weights, flat, 1, before, stride)
    else:
        y = F.deconvolution(x, weights, None, 1, [0] * len(stride), stride)
        stop = [f - max(a, 0) for f, a in zip(full, after, strict=True)]
        y = F.slice(y, (0, 0, *before), (*y.shape[:2], *stop), (1,) * rank)
        y = padded(y, [0] * len(stride), [max(-a, 0) for a in after])
        y = y if flat is None else y + F.reshape(flat, (1, -1, *[1] * len(stride)))
    return b.activated(Value(y, order))


@reads("MAX_POOL_2D", "AVERAGE_POOL_2D")
def _pooling(b: Builder, v: Value) -> Value:
    x = _image(b, v)
    stride, kernel = _numbers(b, "stride", "hw"), _numbers(b, "filter", "hw")
    before, after = _pads(b, x.shape[2:], kernel, stride)
    maximum = b.op.name == "MAX_POOL_2D"
    symmetric = before == after and all(p < k for p, k in zip(before, kernel, strict=True))
    inside = x if symmetric else padded(x, before, after, LOWEST if maximum else 0.0)
    pad = before if symmetric else [0, 0]
    if maximum:
        y = F.max_pooling(inside, kernel, stride, True, pad)
    elif symmetric:
        y = F.average_pooling(inside, kernel, stride, True, pad, False, False)
    else:
        y = F.average_pooling(inside, kernel, stride)
        y = y * Variable.from_numpy_array(
            _weights(x.shape[2:], before, kernel, stride, y.shape[2:])
        )
    return b.activated(Value(y, IMAGE))


def _of_one_window(b: Builder, v: Value, w: Value, bias: Value | None) -> Value | None:
    """The one pixel of a window as large as the input, as a product; the windows of streams."""
    given = b.ins[0]
    if not w.known or given is None or given.open or v.order[0] != 0 or b.op.name == "CONV_3D":
        return None
    x = b.held(v, v.order)
    if b.op.name == "CONV_2D":
        maps = w.shape[0]
        rows, stored = _as_rows(b.array(w, ""), v.order), None
        if w.stored is not None and w.stored[1].size == len(w.stored[1]):
            stored = _as_rows(w.stored[0], v.order), _as_rows(w.stored[1], v.order)
        flat = None if bias is None else b.held(b.reshaped(bias, (maps,)))
        if math.prod(x.shape[1:]) != len(rows):
            return None  # groups
        y = F.affine(x, b.held(Value(rows, (0, 1), w.name, stored)), flat, base_axis=1)
    else:
        if w.shape[3] != v.shape[3]:
            return None  # several maps of a channel
        axes = tuple([a for a, axis in enumerate(v.order) if axis in (1, 2)])
        y = F.sum(x * b.held(w, v.order), axis=axes)
        y = y if bias is None else y + b.held(b.reshaped(bias, (1, w.shape[3])))
    return computed(F.reshape(y, (v.shape[0], 1, 1, y.shape[1])))


def _as_rows(w: Any, order: Order) -> Any:
    """Weights (maps, ...) as a matrix with a column for each map."""
    return w.transpose(order).reshape(len(w), -1).T


@reads("L2_POOL_2D")
def _l2_pooling(b: Builder, v: Value) -> Value:
    """The root of the mean square of every window."""
    x = _image(b, v)
    squares = Value(x * x, IMAGE)
    kind, b.op.options["activation"] = b.op.options["activation"], 0
    y = _pooling(b, squares)
    b.op.options["activation"] = kind
    return b.activated(Value(y.x**0.5, IMAGE))


def _weights(
    sizes: Sequence[int], before: Sequence[int], kernel: Any, stride: Any, outs: Any
) -> np.ndarray[Any, Any]:
    """What sums over windows with padding are multiplied with to leave it out."""
    y = np.ones((1, 1), np.float32)
    for n, p, k, s, o in zip(sizes, before, kernel, stride, outs, strict=True):
        at = np.arange(o)[:, None] * s - p + np.arange(k)
        y = y[..., None] * (k / ((at >= 0) & (at < n)).sum(1)).astype(np.float32)
    return y


@reads("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR")
def _resize(b: Builder, v: Value, size: Value) -> Value:
    x = _image(b, v)
    out = b.ints(size, "the size")
    if len(out) != 2 or min(out) < 1:
        raise Damaged(f"its size is {out}")
    check_size([*x.shape[:2], *out])
    align, half = b.op.options["align_corners"], b.op.options["half_pixel_centers"]
    if b.op.name == "RESIZE_BILINEAR":
        if half and any(o == 1 < n for o, n in zip(out, x.shape[2:], strict=True)):
            raise Damaged("it makes one pixel of several between their centres, unlike nnl")
        y = F.interpolate(x, None, out, "linear", align, half)
    elif align:
        y = x
        for axis, o in enumerate(out, 2):
            at = np.arange(o) * ((x.shape[axis] - 1) / max(o - 1, 1))
            index = np.minimum(np.floor(at + 0.5), x.shape[axis] - 1).astype(np.int64)
            y = F.gather(y, Variable.from_numpy_array(index), axis=axis)
    else:
        y = F.interpolate(x, None, out, "nearest", False, half, half)
    return Value(y, IMAGE)
