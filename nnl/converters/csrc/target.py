# SPDX-License-Identifier: Apache-2.0
"""The functions that C has, and what to say instead of the others, or of some of their forms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import nnl.converters.csrc.calls as calls
import nnl.functions as F
from nnl.converters.csrc.memory import MOST
from nnl.converters.networks.layout import channels_first, channels_last
from nnl.converters.networks.lowering import Target
from nnl.converters.nnp.function_messages import visible_inputs
from nnl.converters.rules.building import batches, constant
from nnl.converters.rules.linear_maps import weighted_pixels
from nnl.converters.rules.spectra import PIXELS, SPECTRA
from nnl.core.graph.node import Node, Value
from nnl.core.ops.op import OPS
from nnl.functions.pooling import layout

Rule = Callable[..., Any]


def _again(a: Any, *xs: Any, **changed: Any) -> Any:
    """The same function with other attributes."""
    return a.op(*xs, **{**a.as_dict(), **changed})


def _maps_first(a: Any, x: Any, w: Any = None, *rest: Any) -> Any:
    """Of a function of images whose maps are last."""
    if not a.channel_last:
        return None
    n = len(getattr(a, "kernel", None) or a.pad)

    def first(v: Any) -> Any:
        return F.transpose(v, channels_first(v.ndim, v.ndim - n - 1))

    weights = () if w is None else (first(w), *rest)
    y = _again(a, first(x), *weights, channel_last=False)
    return F.transpose(y, channels_last(y.ndim, y.ndim - n - 1))


def _beside_each_other(a: Any, x: Any) -> Any:
    """A reduction, with its axes moved to the end."""
    kept = [i for i in range(x.ndim) if i not in a.axes]
    axes = tuple(range(len(kept), x.ndim))
    moved = F.transpose(x, (*kept, *sorted(a.axes)))
    ys = _again(a, moved, axes=axes, keep_dims=False)
    if not a.keep_dims:
        return ys
    shape = tuple(1 if i in a.axes else n for i, n in enumerate(x.shape))
    every = ys if isinstance(ys, tuple) else (ys,)
    return tuple(F.reshape(y, shape) for y in every)


def _matmul(a: Any, x: Any, y: Any) -> Any:
    """With batches that do not stretch."""
    if min(x.ndim, y.ndim) < 2:
        return None
    batch, p, q = batches(x, y)
    if math.prod(y.shape[:-2]) == 1 < math.prod(batch) and not a.transpose_a:  # rows of all batches
        rows, w = F.reshape(x, (1, -1, x.shape[-1])), F.reshape(y, (1, *y.shape[-2:]))
        found = _again(a, rows, w)
        return F.reshape(found, (*batch, x.shape[-2], found.shape[-1]))
    return _again(a, p, q)


def _scattered_in_part(a: Any, x: Any, index: Any) -> Any:
    """Indices for a part of the array: the rest of it is zeros."""
    part = (*x.shape[: a.axis], a.shape[a.axis], *x.shape[a.axis + 1 :])
    y = OPS["scatter_along"](x, index, shape=part, axis=a.axis)
    return F.pad(y, [w for n, m in zip(a.shape, part, strict=True) for w in (0, n - m)])


def _min_max(a: Any, x: Any, low: Any, high: Any, least: Any, most: Any) -> Any:
    """By ranges that are known, or that are those of the data."""
    if a.x_min_max and a.ema:
        return None  # each call changes the ranges
    if a.x_min_max:
        axes = tuple(i for i, n in enumerate(low.shape) if n == 1)
        low, high = F.min(x, axes, keepdims=True), F.max(x, axes, keepdims=True)
    high = F.maximum2(high, low + a.eps)
    scale = (high - low) / (most - least)
    zero = F.minimum2(F.maximum2(F.round(least - low / scale), least), most)
    lowest, highest = (least - zero) * scale, (most - zero) * scale
    y = F.minimum2(F.maximum2(x, lowest), highest)
    return F.round((y - lowest) / scale) * scale + lowest, lowest, highest


def _cast(a: Any, x: Any) -> Any:
    """All numbers are floats, so a type is the values that it has."""
    kind = np.dtype(a.dtype).kind
    if kind == "b":
        return F.not_equal_scalar(x, 0.0)
    if kind in "iu":
        return F.where(F.less_scalar(x, 0.0), F.ceil(x), F.floor(x))
    return F.identity(x)


def _average(a: Any, x: Any) -> Any:
    weight = layout(a, x.shape).weight(np, a.including_pad, np.float32)
    weight = weight.reshape((1,) * (x.ndim - weight.ndim) + weight.shape)
    y = F.sum_pooling(x, a.kernel, a.stride, a.ignore_border, a.pad, a.channel_last)
    return y * (float(weight.flat[0]) if np.ptp(weight) == 0 else constant(weight))


def _one_hot(a: Any, x: Any) -> Any:
    """A one, scattered for each row."""
    rows = math.prod(x.shape[:-1])
    at = F.transpose(F.reshape(x, (rows, len(a.shape))), (1, 0))
    at = F.concatenate(constant(np.arange(rows)[None]), at, axis=0)
    y = F.scatter_nd(constant(np.ones(rows)), at, shape=(rows, *a.shape))
    return F.reshape(y, (*x.shape[:-1], *a.shape))


RULES: dict[str, Rule] = {
    **dict.fromkeys(("convolution", "deconvolution", "max_pooling", "sum_pooling"), _maps_first),
    **dict.fromkeys(("sum", "prod", "max", "min"), _beside_each_other),
    **SPECTRA,
    "average_pooling": _average,
    "batch_matmul": _matmul,
    "cast": _cast,
    "corner_pixels": PIXELS["corner_pixels"],
    "interpolate": weighted_pixels,
    "min_max_quantize": _min_max,
    "mod2": lambda a, x, y: x - F.floor(x / y) * y,
    "one_hot": _one_hot,
    "scatter_along": _scattered_in_part,
}


def target() -> Target:
    """What `lower` asks."""
    return Target("CSRC", _refuses, RULES)


def _refuses(node: Node, is_constant: Callable[[Value], bool]) -> str | None:
    op = node.op
    if not calls.has(op.name):
        return "C source does not have it"
    if op.written(node.attrs):
        return "it changes an input"
    for spec in (*[v.current_spec for v in visible_inputs(node)], *node.out_specs):
        if not 0 < spec.size <= MOST:
            return f"an array has {spec.size} elements, wanted 1 to {MOST}"
    refuses = calls.REFUSES.get(op.name)
    return None if refuses is None else refuses(node)
