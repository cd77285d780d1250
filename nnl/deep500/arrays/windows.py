# SPDX-License-Identifier: Apache-2.0
"""Normalisation, convolution, pooling and resizing in few primitives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnl.converters.onnx.importing.image import matrix
from nnl.converters.onnx.importing.layers.convolution import window
from nnl.converters.onnx.importing.layers.pooling import Windows
from nnl.deep500.arrays.primitives import Primitives


class WindowOperators(Primitives):
    """Operators over the spatial axes of images, and those that go with them."""

    # ---- normalisation ----

    def per_channel(self, x: Any, v: Any) -> Any:
        return self.reshape(v, (1, -1, *[1] * (self.rank(x) - 2)))

    def visit_BatchNormalization(
        self, node: Any, x: Any, scale: Any, bias: Any, mean: Any, var: Any
    ) -> Any:
        outs: tuple[Any, ...] = ()
        if node.attributes.get("training_mode", 0):
            axes = [i for i in range(self.rank(x)) if i != 1]
            m = self.reduce("mean", x, axes, False)
            d = x - self.per_channel(x, m)
            v = self.reduce("mean", d * d, axes, False)
            keep = node.momentum
            outs = mean * keep + m * (1 - keep), var * keep + v * (1 - keep)
            mean, var = m, v
        factor = scale / self.sqrt(var + node.epsilon)
        y = (x - self.per_channel(x, mean)) * self.per_channel(x, factor)
        y = y + self.per_channel(x, bias)
        return (y, *outs)[: len(node.outputs)] if len(node.outputs) > 1 else y

    def visit_InstanceNormalization(self, node: Any, x: Any, scale: Any, bias: Any) -> Any:
        axes = list(range(2, self.rank(x)))
        d = x - self.reduce("mean", x, axes, True)
        y = d / self.sqrt(self.reduce("mean", d * d, axes, True) + node.epsilon)
        return y * self.per_channel(x, scale) + self.per_channel(x, bias)

    def visit_LayerNormalization(self, node: Any, x: Any, scale: Any, bias: Any = None) -> Any:
        axes = list(range(self.axis(x, node.axis), self.rank(x)))
        m = self.reduce("mean", x, axes, True)
        d = x - m
        deviation = 1 / self.sqrt(self.reduce("mean", d * d, axes, True) + node.epsilon)
        y = d * deviation * scale
        y = y if bias is None else y + bias
        return (y, m, deviation)[: len(node.outputs)] if len(node.outputs) > 1 else y

    def norm(self, x: Any, p: float, axes: Sequence[int]) -> Any:
        x = self.where(x < 0, -x, x)
        return self.reduce("sum", x**p, axes, True) ** (1 / p)

    def visit_LpNormalization(self, node: Any, x: Any) -> Any:
        size = self.norm(x, node.p, [self.axis(x, node.axis)])
        return x / self.where(size == 0, size + 1, size)

    def visit_GlobalLpPool(self, node: Any, x: Any) -> Any:
        return self.norm(x, node.p, range(2, self.rank(x)))

    def visit_GlobalAveragePool(self, node: Any, x: Any) -> Any:
        return self.reduce("mean", x, list(range(2, self.rank(x))), True)

    def visit_GlobalMaxPool(self, node: Any, x: Any) -> Any:
        return self.reduce("max", x, list(range(2, self.rank(x))), True)

    def visit_LRN(self, node: Any, x: Any) -> Any:
        n, channels = node.size, self.shape(x)[1]
        pads = [(0, 0)] * self.rank(x)
        pads[1] = (n - 1) // 2, n // 2
        square = self.pad(x * x, pads, 0)
        total = sum(self.span(square, 1, i, i + channels) for i in range(n))
        return x / (node.bias + node.alpha / n * total) ** node.beta

    # ---- windows ----

    def visit_Conv(self, node: Any, x: Any, w: Any, b: Any = None) -> Any:
        sizes, kernel = self.shape(x)[2:], self.shape(w)[2:]
        strides, dilations, before, after = window(node, sizes, kernel)
        if any((*before, *after)):
            x = self.pad(x, [(0, 0), (0, 0), *zip(before, after, strict=True)], 0)
        y = self.convolve(x, w, strides, dilations, node.group)
        return y if b is None else y + self.per_channel(y, b)

    def visit_ConvTranspose(self, node: Any, x: Any, w: Any, b: Any = None) -> Any:
        sizes, kernel = self.shape(x)[2:], self.shape(w)[2:]
        n, group = len(sizes), node.group
        strides, dilations = node.strides or (1,) * n, node.dilations or (1,) * n
        extra = node.output_padding or (0,) * n
        reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        whole = [(s - 1) * t + r for s, t, r in zip(sizes, strides, reach, strict=True)]
        before, after = list((node.pads or (0,) * 2 * n)[:n]), list((node.pads or (0,) * 2 * n)[n:])
        wanted = node.output_shape
        if wanted is None and node.auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            wanted = [s * t for s, t in zip(sizes, strides, strict=True)]
        if wanted is not None:
            total = [w + e - o for w, e, o in zip(whole, extra, wanted[-n:], strict=True)]
            small, large = [t // 2 for t in total], [t - t // 2 for t in total]
            upper = node.auto_pad == "SAME_UPPER"
            before, after = (small, large) if upper else (large, small)
        # zeros between the pixels, then a plain convolution with the kernel turned around
        for i, t in enumerate(strides):
            x = self.spread(x, 2 + i, t)
        pads = [
            (r - 1 - lo, r - 1 - hi + e)
            for r, lo, hi, e in zip(reach, before, after, extra, strict=True)
        ]
        cut = [(max(0, -lo), max(0, -hi)) for lo, hi in pads]
        x = self.pad(x, [(0, 0), (0, 0), *[(max(0, lo), max(0, hi)) for lo, hi in pads]], 0)
        for i, (lo, hi) in enumerate(cut):
            x = self.span(x, 2 + i, lo, self.shape(x)[2 + i] - hi)
        c, m = self.shape(w)[:2]
        w = self.reshape(w, (group, c // group, m, *kernel))
        w = self.transpose(w, (0, 2, 1, *range(3, 3 + n)))
        w = self.flip(self.reshape(w, (group * m, c // group, *kernel)), range(2, 2 + n))
        y = self.convolve(x, w, (1,) * n, dilations, group)
        return y if b is None else y + self.per_channel(y, b)

    def spread(self, x: Any, axis: int, step: int) -> Any:
        """x with step - 1 zeros between its entries along an axis."""
        if step == 1:
            return x
        shape = list(self.shape(x))
        wide = self.reshape(x, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
        pads = [(0, 0)] * (len(shape) + 1)
        pads[axis + 1] = 0, step - 1
        shape[axis] *= step
        y = self.reshape(self.pad(wide, pads, 0), shape)
        return self.span(y, axis, 0, shape[axis] - step + 1)

    def framed(self, node: Any, x: Any, value: float) -> tuple[Any, Windows]:
        at = Windows(node, self.shape(x)[2:])
        ends = [a + m for a, m in zip(at.after, at.more, strict=True)]
        if any((*at.before, *ends)):
            x = self.pad(x, [(0, 0), (0, 0), *zip(at.before, ends, strict=True)], value)
        # what no window reaches
        for i, (n, k, s, d) in enumerate(
            zip(at.counts, at.kernel, at.strides, at.dilations, strict=True)
        ):
            x = self.span(x, 2 + i, 0, (n - 1) * s + (k - 1) * d + 1)
        return x, at

    def visit_MaxPool(self, node: Any, x: Any) -> Any:
        dtype = np.dtype(self.dtype(x))
        least = -math.inf if dtype.kind == "f" else int(np.iinfo(dtype).min)
        framed, at = self.framed(node, x, least)
        found = self.largest(framed, at.kernel, at.strides, at.dilations)
        if len(node.outputs) < 2:
            return found[0]
        # places in the frame -> places in the input
        sizes, wide = self.shape(x)[2:], self.shape(framed)[2:]
        rest, index, step = found[1], 0, 1
        for axis in reversed(range(len(sizes))):
            place = rest % wide[axis] - at.before[axis]
            rest = rest // wide[axis]
            index = index + place * step
            step *= sizes[axis]
        if node.storage_order and len(sizes) == 2:
            index = (index % sizes[1]) * sizes[0] + index // sizes[1]
        batch, channels = self.shape(x)[:2]
        block = np.arange(batch * channels, dtype=np.int64) * math.prod(sizes)
        block = block.reshape(batch, channels, *[1] * len(sizes))
        return found[0], index + self.constant(block)

    def visit_MaxUnpool(self, node: Any, x: Any, index: Any, wanted: Any = None) -> Any:
        n, shape = self.rank(x) - 2, self.shape(x)
        strides, pads = node.strides or (1,) * n, node.pads or (0,) * 2 * n
        ends = [a + b for a, b in zip(pads[:n], pads[n:], strict=True)]
        sizes = [
            (m - 1) * s + k - p
            for m, s, k, p in zip(shape[2:], strides, node.kernel_shape, ends, strict=True)
        ]
        total = math.prod((*shape[:2], *sizes))
        flat = self.reshape(self.cast(index, np.int64), (-1, 1))
        y = self.scatter_nd(self.like(x, np.zeros(total)), flat, self.reshape(x, (-1,)), "none")
        y = self.reshape(y, (*shape[:2], *sizes))
        if wanted is None:
            return y
        full = zip(self.shape(y), self.ints(wanted), strict=True)
        return self.pad(y, [(0, m - own) for own, m in full], 0)

    def visit_Col2Im(self, node: Any, x: Any, image: Any, block: Any) -> Any:
        image, block = self.ints(image), self.ints(block)
        strides, dilations, before, after = window(node, image, block)
        whole = [m + b + a for m, b, a in zip(image, before, after, strict=True)]
        counts = [
            (m - (k - 1) * d - 1) // t + 1
            for m, k, d, t in zip(whole, block, dilations, strides, strict=True)
        ]
        # flat places in the padded image of every (tap of the block, place of the block)
        taps = np.indices(block).reshape(len(block), -1, 1) * np.reshape(dilations, (-1, 1, 1))
        places = np.indices(counts).reshape(len(block), 1, -1) * np.reshape(strides, (-1, 1, 1))
        at = np.ravel_multi_index(tuple(taps + places), whole).reshape(-1, 1)
        batch, channels = self.shape(x)[0], self.shape(x)[1] // math.prod(block)
        rows = self.transpose(self.reshape(x, (batch * channels, len(at))), (1, 0))
        zero = self.like(x, np.zeros((math.prod(whole), batch * channels)))
        y = self.scatter_nd(zero, self.constant(at.astype(np.int64)), rows, "add")
        y = self.reshape(self.transpose(y, (1, 0)), (batch, channels, *whole))
        for i, (b, m) in enumerate(zip(before, image, strict=True)):
            y = self.span(y, 2 + i, b, b + m)
        return y

    def window_sum(self, x: Any, at: Windows) -> Any:
        batch, channels, *sizes = self.shape(x)
        ones = self.constant(np.ones((1, 1, *at.kernel), self.dtype(x)))
        flat = self.reshape(x, (batch * channels, 1, *sizes))
        y = self.convolve(flat, ones, at.strides, at.dilations, 1)
        return self.reshape(y, (batch, channels, *self.shape(y)[2:]))

    def visit_AveragePool(self, node: Any, x: Any) -> Any:
        framed, at = self.framed(node, x, 0)
        counted = np.ones((1, 1, *self.shape(x)[2:]))
        if node.attributes.get("count_include_pad", 0):
            pads = [(0, 0), (0, 0), *zip(at.before, at.after, strict=True)]
            counted = np.pad(counted, pads, constant_values=1)
            more = [(0, 0), (0, 0), *[(0, m) for m in at.more]]
        else:
            ends = [a + m for a, m in zip(at.after, at.more, strict=True)]
            more = [(0, 0), (0, 0), *zip(at.before, ends, strict=True)]
        counted = np.pad(counted, more)[tuple(slice(0, n) for n in (1, 1, *self.shape(framed)[2:]))]
        total = self.window_sum(self.constant(counted.astype(self.dtype(x))), at)
        return self.window_sum(framed, at) / total

    def visit_LpPool(self, node: Any, x: Any) -> Any:
        p = node.p
        framed, at = self.framed(node, x, 0)
        size = self.where(framed < 0, -framed, framed)
        return self.window_sum(size**p, at) ** (1 / p)

    def visit_Resize(
        self, node: Any, x: Any, roi: Any = None, scales: Any = None, sizes: Any = None
    ) -> Any:
        return self.resized(node, x, roi, scales, sizes)

    def visit_Upsample(self, node: Any, x: Any, scales: Any = None) -> Any:
        factors = self.host(scales) if scales is not None else node.attributes["scales"]
        how = {"mode": node.mode, "kind": "asymmetric", "nearest_mode": "floor"}
        for axis, s in enumerate(float(v) for v in factors):
            n = self.shape(x)[axis]
            x = self.along(x, axis, matrix(n, math.floor(n * s), s, how))
        return x

    def resized(self, node: Any, x: Any, roi: Any, scales: Any, sizes: Any) -> Any:
        kind = node.attributes.get("coordinate_transformation_mode", "half_pixel")
        if kind == "tf_crop_and_resize":
            return self.missing(node)
        shape = self.shape(x)
        axes = [a % len(shape) for a in node.attributes.get("axes") or range(len(shape))]
        given = None if scales is None else [float(s) for s in np.ravel(self.host(scales))]
        new = None if sizes is None else self.ints(sizes)
        if not given and new is not None:
            given = [m / shape[a] for m, a in zip(new, axes, strict=True)]
            policy = node.attributes.get("keep_aspect_ratio_policy", "stretch")
            if policy != "stretch":
                one = (min if policy == "not_larger" else max)(given)
                given = [one] * len(given)
                new = [math.floor(shape[a] * one + 0.5) for a in axes]
        how = {
            "mode": node.mode,
            "kind": kind,
            "nearest_mode": node.attributes.get("nearest_mode", "round_prefer_floor"),
            "a": node.attributes.get("cubic_coeff_a", -0.75),
            "exclude_outside": node.attributes.get("exclude_outside", 0),
            "antialias": node.attributes.get("antialias", 0),
        }
        for i, axis in enumerate(axes):
            n, scale = shape[axis], given[i]  # type: ignore[index]
            m = new[i] if new else math.floor(n * scale)
            if m != n or scale != 1:
                x = self.along(x, axis, matrix(n, m, scale, how))
        return x

    def along(self, x: Any, axis: int, weights: Any) -> Any:
        """x multiplied by a matrix (new size, old size) along an axis."""
        moved, back = self.last(x, axis)
        factor = self.constant(np.ascontiguousarray(weights.T).astype(self.dtype(x)))
        return self.transpose(self.matmul(moved, factor), back)
