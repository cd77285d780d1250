# SPDX-License-Identifier: Apache-2.0
"""Importers of convolutions and pooling: images with maps first, which functions want, and windows
as ONNX has them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.networks.layout import Order, channels_first
from nnl.converters.networks.windows import full_sizes
from nnl.converters.tensorflow.shared import onnx
from nnl.converters.tflite.building import Builder, Value, check_size, computed, reads
from nnl.converters.tflite.flatbuffer import Damaged
from nnl.converters.tflite.schema import SAME, VALID
from nnl.core.graph.variable import Variable

IMAGE, VOLUME = channels_first(4), channels_first(5)  # (N, C, H, W) of (N, H, W, C)
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


def _sliding(b: Builder, axes: str, *more: str) -> dict[str, Any]:
    """How a window moves, as ONNX says it."""
    names = {"stride": "strides", "dilation": "dilations", "filter": "kernel_shape"}
    how = "SAME_UPPER" if b.op.options["padding"] == SAME else "VALID"
    return {"auto_pad": how} | {names[n]: _numbers(b, n, axes) for n in ("stride", *more)}


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
    maps, inner = weights.shape[:2]
    channels = x.shape[1]
    if not inner or channels % inner:
        raise Damaged(f"it has {channels} channels, its weights {list(w.shape)}")
    moves = _sliding(b, axes, "dilation")
    alone = weights.shape[2:] == x.shape[2:] and max(moves["dilations"]) == 1
    if alone and (
        moves["auto_pad"] == "VALID" or all(map(int.__ge__, moves["strides"], x.shape[2:]))
    ):
        whole = _of_one_window(b, v, w, bias)
        if whole is not None:
            return b.activated(whole)
    flat = None if bias is None else b.held(b.reshaped(bias, (maps,)))
    y = onnx("Conv", x, weights, flat, group=channels // inner, **moves)
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
    pads = (*before, *after)
    y = onnx("ConvTranspose", x, weights, flat, strides=stride, pads=pads, group=1)
    return b.activated(Value(y, order))


_POOLED = {"MAX_POOL_2D": "MaxPool", "AVERAGE_POOL_2D": "AveragePool", "L2_POOL_2D": "AveragePool"}


@reads(*_POOLED)
def _pooling(b: Builder, v: Value) -> Value:
    """Maximum, mean, or root of the mean square, of every window."""
    x, moves = _image(b, v), _sliding(b, "hw", "filter")
    if b.op.name != "L2_POOL_2D":
        y = onnx(_POOLED[b.op.name], x, **moves)
    else:
        y = onnx("AveragePool", x * x, **moves) ** 0.5
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
