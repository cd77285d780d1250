# SPDX-License-Identifier: Apache-2.0
"""Importers of pooling.

ONNX's ceil_mode differs from nnl's ignore_border=False: a window counts if it starts inside the
input or its left padding. So what the plain form cannot say is padded first, and windows with
dilations are reduced axis by axis, as one strided slice for every tap along it.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.onnx.file.errors import OnnxError
from nnl.converters.onnx.file.registry import onnx_import
from nnl.converters.onnx.importing.indexing import scatter
from nnl.converters.onnx.importing.layers.convolution import window
from nnl.converters.onnx.importing.shape import padded
from nnl.converters.onnx.values.values import (
    array,
    check_size,
    ints,
    known,
    reshape,
    shape_of,
    var,
)

MAX_WORK = 2**30  # elements of all windows of one channel; 7 x 7 at 4096 x 4096 places are less
MAX_TAPS = 2**12  # of a window with dilations, along all axes: each is a function of the graph


class Windows:
    """Where the windows of a pooling node lie.

    Attributes:
        before, after: Padding that the node asks for.
        more: Further padding after, so that the last window of ceil_mode fits.
        counts: Number of windows along each axis.
    """

    def __init__(self, node: Any, sizes: tuple[int, ...]) -> None:
        self.sizes, self.kernel = sizes, node.kernel_shape
        if len(self.kernel) != len(sizes):
            raise OnnxError(f"kernel_shape {self.kernel}: wanted {len(sizes)} numbers")
        self.strides, self.dilations, self.before, self.after = window(node, sizes, self.kernel)
        ceil = bool(getattr(node, "ceil_mode", 0))
        if (getattr(node, "auto_pad", None) or "NOTSET") != "NOTSET":
            ceil = False  # the padding is chosen so that windows fit
        more, counts = [], []
        for n, k, s, d, b, a in zip(
            sizes, self.kernel, self.strides, self.dilations, self.before, self.after, strict=True
        ):
            room = n + b + a - (k - 1) * d - 1
            if room < 0:
                raise OnnxError(f"window {self.kernel} is larger than the padded input {sizes}")
            count = (-(-room // s) if ceil else room // s) + 1
            if ceil and (count - 1) * s >= n + b:  # it would start in the padding after
                count -= 1
            counts.append(count)
            more.append(max(0, (count - 1) * s - room))
        check_size(
            [max(0, n + b + a) for n, b, a in zip(sizes, self.before, self.after, strict=True)]
        )
        self.more, self.counts = tuple(more), tuple(counts)
        if math.prod((*self.kernel, *counts)) > MAX_WORK:
            raise OnnxError(f"a window {self.kernel} at {self.counts} places would take too long")
        self.symmetric = self.before == self.after and not any(self.more)
        self.dense = all(d == 1 for d in self.dilations)
        # Whether windows side by side cover x, the last one as far as it goes: said by the node
        # alone, for a pad that is there at some sizes only would make another program.
        fits = ceil and not any((*self.before, *self.after))
        fits = fits or getattr(node, "auto_pad", None) == "SAME_UPPER" and max(self.kernel) <= 2
        self.covers = fits and tuple(self.kernel) == tuple(self.strides)

    def pad(self, x: Any, value: float) -> Any:
        """x with all padding."""
        after = [a + m for a, m in zip(self.after, self.more, strict=True)]
        return padded(x, (0, 0, *self.before), (0, 0, *after), "constant", value)

    def reduced(self, x: Any, combine: Callable[[Any, Any], Any]) -> Any:
        """What `combine` makes of every window of a padded x, one axis after the other."""
        if sum(self.kernel) > MAX_TAPS:
            raise OnnxError(
                f"a window {self.kernel} with dilations, wanted {MAX_TAPS} taps or less"
            )
        steps = zip(self.kernel, self.dilations, self.strides, self.counts, strict=True)
        for axis, (k, d, s, count) in enumerate(steps, 2):
            start, stop, step = [0] * x.ndim, list(x.shape), [1] * x.ndim
            step[axis] = s
            parts = []
            for t in range(k):
                start[axis], stop[axis] = t * d, t * d + (count - 1) * s + 1
                parts.append(F.slice(x, start, stop, step))
            x = functools.reduce(combine, parts)
        return x

    def taps(self, x: Any) -> list[Any]:
        """For every tap of the window, what it sees: views (N, C, *counts) of a padded array."""
        check_size([math.prod(self.kernel), *x.shape[:2], *self.counts], x.itemsize)
        out = []
        for tap in itertools.product(*map(range, self.kernel)):
            rows = [
                slice(t * d, t * d + (c - 1) * s + 1, s)
                for t, d, c, s in zip(tap, self.dilations, self.counts, self.strides, strict=True)
            ]
            out.append(x[(slice(None), slice(None), *rows)])
        return out

    def totals(self, count_padding: bool) -> Any:
        """How many elements each window averages over: (1, 1, *counts)."""
        y = np.ones((), np.float32)
        for axis in range(len(self.sizes)):
            n, b, a = self.sizes[axis], self.before[axis], self.after[axis]
            low, high = (-b, n + a) if count_padding else (0, n)
            at = np.arange(self.counts[axis])[:, None] * self.strides[axis] - b
            at = at + np.arange(self.kernel[axis]) * self.dilations[axis]
            inside = ((at >= low) & (at < high)).sum(1).astype(np.float32)
            y = y[..., None] * inside
        return np.maximum(y, 1)[None, None]


@onnx_import("MaxPool")
def max_pool(ctx: Any, node: Any, x: Any) -> Any:
    """Maximum of every window, and where it is as a flat index if asked for."""
    value, dtype = x, array(x).dtype if known(x) else np.dtype(np.float32)
    x = var(x)
    w = Windows(node, x.shape[2:])
    if w.covers and w.dense:
        y = F.max_pooling(x, w.kernel, stride=w.strides, ignore_border=False)
    elif w.symmetric and w.dense:
        y = F.max_pooling(x, w.kernel, stride=w.strides, ignore_border=True, pad=w.before)
    elif w.dense:
        y = F.max_pooling(w.pad(x, -math.inf), w.kernel, stride=w.strides, ignore_border=True)
    else:
        y = w.reduced(w.pad(x, -math.inf), F.maximum2)
    if len(node.outputs) < 2 or not node.outputs[1]:
        return y
    low = np.iinfo(dtype).min if dtype.kind in "iu" else -math.inf
    wide = padded(
        array(value),
        (0, 0, *w.before),
        (0, 0, *(a + m for a, m in zip(w.after, w.more, strict=True))),
        "constant",
        low,
    )
    best = np.argmax(np.stack(w.taps(wide)), 0)
    taps = np.array(list(itertools.product(*map(range, w.kernel))))[best]  # (N, C, *counts, n)
    flat = np.zeros(best.shape, np.int64)
    order = range(len(w.sizes))
    for axis in order if node.storage_order == 0 else reversed(order):
        place = np.arange(w.counts[axis]) * w.strides[axis] - w.before[axis]
        place = place.reshape((-1,) + (1,) * (len(w.sizes) - 1 - axis))
        flat = flat * w.sizes[axis] + place + taps[..., axis] * w.dilations[axis]
    lead = np.arange(math.prod(x.shape[:2])).reshape(x.shape[:2] + (1,) * len(w.sizes))
    return y, flat + lead * math.prod(w.sizes)


def _window_sums(w: Windows, x: Any) -> Any:
    x = w.pad(x, 0.0)
    if w.dense:
        return F.sum_pooling(x, w.kernel, stride=w.strides, ignore_border=True)
    return w.reduced(x, F.add2)


@onnx_import("AveragePool")
def average_pool(ctx: Any, node: Any, x: Any) -> Any:
    """Mean of every window, with or without its padding."""
    x = var(x)
    w = Windows(node, x.shape[2:])
    count_padding = bool(getattr(node, "count_include_pad", 0))
    inside = all(p < k for p, k in zip(w.before, w.kernel, strict=True))  # some of every window
    if w.symmetric and w.dense and (count_padding or inside):
        return F.average_pooling(x, w.kernel, w.strides, True, w.before, False, count_padding)
    return _window_sums(w, x) * var(1.0 / w.totals(count_padding))


@onnx_import("LpPool")
def lp_pool(ctx: Any, node: Any, x: Any) -> Any:
    """p-norm of every window."""
    x = var(x)
    w = Windows(node, x.shape[2:])
    p = float(node.p)
    return F.pow_scalar(_window_sums(w, F.pow_scalar(F.abs(x), p)), 1.0 / p)


def _global(name: str, reduce: Any) -> None:
    @onnx_import(name)
    def handler(ctx: Any, node: Any, x: Any) -> Any:
        x = var(x)
        return reduce(x, tuple(range(2, x.ndim)), node)

    handler.__doc__ = f"{name}: over all spatial axes, which keep the size 1."


_global("GlobalAveragePool", lambda x, axes, node: F.mean(x, axis=axes, keepdims=True))
_global("GlobalMaxPool", lambda x, axes, node: F.max(x, axis=axes, keepdims=True))
_global(
    "GlobalLpPool",
    lambda x, axes, node: F.pow_scalar(
        F.sum(F.pow_scalar(F.abs(x), float(node.p)), axis=axes, keepdims=True), 1.0 / node.p
    ),
)


@onnx_import("MaxUnpool")
def max_unpool(ctx: Any, node: Any, x: Any, indices: Any, output_shape: Any = None) -> Any:
    """Maxima put back where MaxPool found them, zeros elsewhere."""
    sizes = shape_of(x)
    n = len(sizes) - 2
    strides, pads = node.strides or (1,) * n, node.pads or (0,) * 2 * n
    spatial = [
        (size - 1) * s - pads[i] - pads[i + n] + k
        for i, (size, s, k) in enumerate(zip(sizes[2:], strides, node.kernel_shape, strict=True))
    ]
    inferred = (*sizes[:2], *spatial)
    wanted = inferred if output_shape is None else ints(output_shape, "output_shape")
    check_size(wanted)
    # the indices are for the shape that the windows give; a larger one only adds room
    at = np.unravel_index(array(indices, "the indices").reshape(-1), inferred)
    flat = np.ravel_multi_index(at, wanted).reshape(1, -1)
    zeros = np.zeros(math.prod(wanted), np.float32)
    return reshape(scatter(var(zeros), flat, reshape(x, (-1,)), "none"), wanted)
