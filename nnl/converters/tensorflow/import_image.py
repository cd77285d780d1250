# SPDX-License-Identifier: Apache-2.0
"""Importers of functions on images: convolutions, pooling, normalization, resizing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.networks.windows import full_sizes, reach, same_padding
from nnl.converters.onnx.importing.image import along, resized
from nnl.converters.onnx.values.values import (
    dtype_of,
    ints,
    is_var,
    shape_of,
    tagged,
    transpose,
    var,
)
from nnl.converters.tensorflow.interpreter import Unsupported, tf_import
from nnl.converters.tensorflow.messages import TensorFlowError
from nnl.converters.tensorflow.shared import onnx
from nnl.functions.onnx_resize import cubic_weights


def _is_first(node: Any) -> bool:
    """Whether the channels are before the pixels."""
    return bool(node.attr("data_format", "NHWC").startswith("NC"))


def _spatial(node: Any, name: str, rank: int) -> tuple[int, ...]:
    """The entries of an attribute that belong to pixels."""
    values = node.attr(name) or [1] * rank
    if len(values) != rank:
        raise TensorFlowError(f"its {name} are {values}, wanted {rank} numbers")
    at = slice(2, None) if _is_first(node) else slice(1, -1)
    rest = values[:2] if _is_first(node) else [values[0], values[-1]]
    if rest != [1, 1]:
        raise Unsupported(f"its {name} {values} move through samples or channels")
    return tuple(int(n) for n in values[at])


def _padding(node: Any, rank: int) -> dict[str, Any]:
    """Padding as the importers of ONNX take it."""
    how = node.attr("padding", "VALID")
    if how == "EXPLICIT":
        rows = np.array(node.attr("explicit_paddings") or [], np.int64)
        if rows.size != 2 * rank or (rows < 0).any():
            raise TensorFlowError(f"its paddings are {rows.tolist()}, wanted {2 * rank} numbers")
        rows = rows.reshape(-1, 2)[2:] if _is_first(node) else rows.reshape(-1, 2)[1:-1]
        return {"auto_pad": "NOTSET", "pads": tuple(rows.T.reshape(-1).tolist())}
    if how not in ("SAME", "VALID"):
        raise Unsupported(f"its padding is {how}")
    return {"auto_pad": "SAME_UPPER" if how == "SAME" else "VALID"}


def _sliding(node: Any, rank: int) -> dict[str, Any]:
    return {
        "strides": _spatial(node, "strides", rank),
        "dilations": _spatial(node, "dilations", rank),
        **_padding(node, rank),
    }


def _weight(ctx: Any, node: Any, w: Any, axes: Sequence[int]) -> Any:
    return (
        ctx.parameter(node, "W", np.ascontiguousarray(np.transpose(w, axes)))
        if not is_var(w)
        else transpose(w, axes)
    )


@tf_import("Conv2D", "Conv3D")
def conv(ctx: Any, node: Any, x: Any, w: Any) -> Any:
    """Convolution; weights are (*kernel, channels of a group, maps)."""
    rank = 4 if node.op == "Conv2D" else 5
    if len(shape_of(x)) != rank or len(shape_of(w)) != rank:
        raise TensorFlowError(f"convolves {shape_of(x)} with {shape_of(w)}")
    channels = shape_of(x)[1 if _is_first(node) else -1]
    inner = shape_of(w)[-2]
    if not inner or channels % inner:
        raise TensorFlowError(f"has {channels} channels, and weights for {inner}")
    weight = _weight(ctx, node, w, (rank - 1, rank - 2, *range(rank - 2)))
    call = {**_sliding(node, rank), "group": channels // inner}
    return ctx.axes.on_images(lambda v: onnx("Conv", v, weight, **call), x, _is_first(node))


@tf_import("DepthwiseConv2dNative")
def depthwise(ctx: Any, node: Any, x: Any, w: Any) -> Any:
    """Convolution of every channel on its own; weights are (*kernel, channels, maps of each)."""
    if len(shape_of(x)) != 4 or len(shape_of(w)) != 4:
        raise TensorFlowError(f"convolves {shape_of(x)} with {shape_of(w)}")
    height, width, channels, maps = shape_of(w)
    flat = (channels * maps, 1, height, width)
    if is_var(w):
        weight = F.reshape(F.transpose(w, (2, 3, 0, 1)), flat)
    else:
        weight = ctx.parameter(node, "W", np.transpose(w, (2, 3, 0, 1)).reshape(flat))
    call = {**_sliding(node, 4), "group": channels}
    return ctx.axes.on_images(lambda v: onnx("Conv", v, weight, **call), x, _is_first(node))


@tf_import("Conv2DBackpropInput", "Conv3DBackpropInputV2")
def deconv(ctx: Any, node: Any, sizes: Any, w: Any, y: Any) -> Any:
    """Transposed convolution to an image of a given size."""
    rank = len(shape_of(y))
    wanted = ints(sizes, "the sizes")
    if rank not in (4, 5) or len(shape_of(w)) != rank or len(wanted) not in (rank, rank - 2):
        raise TensorFlowError(f"makes {wanted} of {shape_of(y)} with {shape_of(w)}")
    if len(wanted) == rank:
        wanted = wanted[2:] if _is_first(node) else wanted[1:-1]
    weight = _weight(ctx, node, w, (rank - 1, rank - 2, *range(rank - 2)))
    call = {**_sliding(node, rank), "group": 1}
    span = reach(weight.shape[2:], call["dilations"])
    if call["auto_pad"] == "SAME_UPPER":
        before, _ = same_padding(wanted, span, call["strides"])
    else:
        before = tuple(call.get("pads", (0,) * (rank - 2)))[: rank - 2]
    inner = shape_of(y)[2:] if _is_first(node) else shape_of(y)[1:-1]
    full = full_sizes(inner, span, call["strides"])
    after = [f - b - n for f, b, n in zip(full, before, wanted, strict=True)]
    call |= {
        "auto_pad": "NOTSET",
        "pads": (*before, *[max(a, 0) for a in after]),
        "output_padding": tuple(max(-a, 0) for a in after),
    }
    return ctx.axes.on_images(
        lambda v: onnx("ConvTranspose", v, weight, **call), y, _is_first(node)
    )


@tf_import("MaxPool", "AvgPool", "MaxPool3D", "AvgPool3D", "MaxPoolV2")
def pool(ctx: Any, node: Any, x: Any, kernel: Any = None, strides: Any = None) -> Any:
    """Maximum, or mean without the padding, of every window."""
    rank = len(shape_of(x))
    if kernel is not None:
        raise Unsupported("its window is computed")
    call = {
        "kernel_shape": _spatial(node, "ksize", rank),
        "strides": _spatial(node, "strides", rank),
        **_padding(node, rank),
    }
    name = "MaxPool" if node.op.startswith("Max") else "AveragePool"
    return ctx.axes.on_images(lambda v: onnx(name, v, **call), x, _is_first(node))


@tf_import("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def batch_norm(ctx: Any, node: Any, x: Any, gamma: Any, beta: Any, mean: Any, variance: Any) -> Any:
    """Normalization of channels by known statistics, or by those of the batch."""
    eps, training = node.attr("epsilon", 1e-4), node.attr("is_training", True)
    rank = len(shape_of(x))
    shape = (1, -1, *[1] * (rank - 2))
    named = {"beta": beta, "gamma": gamma}
    if not training:
        named |= {"mean": mean, "var": variance}
    given = {}
    for name, v in named.items():
        wide = F.reshape(v, shape) if is_var(v) else np.asarray(v).reshape(shape)
        given[name] = ctx.parameter(node, name, wide, need_grad=name in ("beta", "gamma"))

    stats = [mean, variance]

    def f(v: Any) -> Any:
        if not training:
            values = [given[k] for k in ("beta", "gamma", "mean", "var")]
            return F.batch_normalization(v, *values, eps=eps, batch_stat=False)
        values = [given["beta"], given["gamma"], None, None]
        y, *found = F.batch_normalization(v, *values, eps=eps, output_stat=True)
        n = v.size // found[0].size  # variances are given without bias
        found[1] = F.mul_scalar(found[1], n / max(n - 1, 1))
        stats[:] = [F.reshape(s, (-1,)) for s in found]
        return y

    return [ctx.axes.on_images(f, var(x), _is_first(node)), *stats]


@tf_import("LRN")
def lrn(ctx: Any, node: Any, x: Any) -> Any:
    """x divided by a power of the sum of squares in neighbouring channels."""
    radius = node.attr("depth_radius", 5)
    size = 2 * radius + 1
    call = {
        "size": size,
        "alpha": node.attr("alpha", 1.0) * size,
        "beta": node.attr("beta", 0.5),
        "bias": node.attr("bias", 1.0),
    }
    return ctx.axes.on_images(lambda v: onnx("LRN", v, **call), x)


_RESIZED = {
    "ResizeBicubic": "cubic",
    "ResizeBilinear": "linear",
    "ResizeNearestNeighbor": "nearest",
}


@tf_import(*_RESIZED)
def resize(ctx: Any, node: Any, x: Any, size: Any) -> Any:
    """Images of another size."""
    if len(shape_of(x)) != 4:
        raise TensorFlowError(f"resizes {shape_of(x)}, wanted images")
    sizes, mode = ints(size, "the size"), _RESIZED[node.op]
    corners = bool(node.attr("align_corners", False))
    half = bool(node.attr("half_pixel_centers", False))
    if len(sizes) != 2 or min(sizes) < 1:
        raise TensorFlowError(f"resizes to {sizes}")

    def f(v: Any) -> Any:
        if mode == "cubic":
            for axis, m in enumerate(sizes, 2):
                v = along(v, axis, _cubic(v.shape[axis], m, corners, half))
            return v
        if (
            half
            and mode == "linear"
            and any(m == 1 < n for m, n in zip(sizes, v.shape[2:], strict=True))
        ):
            how = {"mode": mode, "kind": "half_pixel", "nearest_mode": "floor"}
            return resized(v, None, (*v.shape[:2], *sizes), how)
        if mode == "linear" or (mode == "nearest" and not corners):
            nearest = {"half_pixel_for_nn": half} if mode == "nearest" else {"half_pixel": half}
            return F.interpolate(v, output_size=sizes, mode=mode, align_corners=corners, **nearest)
        how = {"mode": mode, "kind": "align_corners", "nearest_mode": "round_prefer_ceil"}
        return resized(v, None, (*v.shape[:2], *sizes), how)

    y = ctx.axes.on_images(f, x)
    return tagged(y, np.float32 if mode != "nearest" else dtype_of(x))


def _cubic(n: int, m: int, corners: bool, half: bool) -> Any:
    """Weights (m, n) that resize an axis of n pixels to m, as TensorFlow has them in a table for
    1024 places between two pixels."""
    scale = (n - 1) / (m - 1) if corners and m > 1 else n / m
    at = (np.arange(m) + 0.5) * scale - 0.5 if half else np.arange(m) * scale
    low = np.floor(at)
    between = np.rint((at - low) * 1024) / 1024
    weight = cubic_weights(between, -0.5 if half else -0.75)
    index = low[:, None].astype(np.int64) + np.arange(-1, 3)
    if half:
        weight = np.where((index < 0) | (index >= n), 0, weight)
        weight = weight / weight.sum(1, keepdims=True)
    out = np.zeros((m, n))
    np.add.at(out, (np.arange(m)[:, None], np.clip(index, 0, n - 1)), weight)
    return out


@tf_import("ExtractImagePatches")
def patches(ctx: Any, node: Any, x: Any) -> Any:
    """The pixels of every window as channels, those of one pixel side by side."""
    kernel, rank = _spatial(node, "ksizes", 4), 4
    channels = shape_of(x)[-1]
    count = kernel[0] * kernel[1] * channels
    if count > 2**12:
        raise Unsupported(f"a window has {count} numbers")
    eye = np.eye(count, dtype=np.float32).reshape(count, *kernel, channels).transpose(0, 3, 1, 2)
    call = {
        "strides": _spatial(node, "strides", rank),
        "dilations": _spatial(node, "rates", rank),
        **_padding(node, rank),
        "group": 1,
    }
    return ctx.axes.on_images(lambda v: onnx("Conv", v, eye, **call), x)
