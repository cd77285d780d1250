# SPDX-License-Identifier: Apache-2.0
"""Importers of resizing, of sampling at positions, and of boxes.

What F.onnx_resize does not know of resizing goes by one matrix per axis.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.onnx.file.errors import OnnxError
from nnl.converters.onnx.file.registry import onnx_import
from nnl.converters.onnx.importing.arithmetic import half_to_even
from nnl.converters.onnx.values.counted import suppressed
from nnl.converters.onnx.values.values import (
    array,
    axis_of,
    check_size,
    ints,
    known,
    reshape,
    scalar,
    shape_of,
    transpose,
    var,
)
from nnl.functions.onnx_resize import cubic_weights, nearest, positions

_MODES = ("nearest", "linear", "cubic")
HALF = ("half_pixel", "pytorch_half_pixel")


def resized(x: Any, scales: Any, sizes: Any, how: dict[str, Any]) -> Any:
    """x resized.

    Args:
        scales: A factor for every axis, or None: sizes / x.shape.
        sizes: The shape of the result, or None: x.shape * scales, rounded down.
        how: mode, kind (of positions), nearest_mode, and optionally a, exclude_outside, roi,
            antialias, extrapolation.
    """
    old = x.shape
    if how["mode"] not in _MODES:
        raise OnnxError(f"mode is {how['mode']!r}, wanted one of {_MODES}")
    if len(scales or sizes) != len(old):
        raise OnnxError(f"has {len(scales or sizes)} scales or sizes for rank {len(old)}")
    if scales is not None and not all(math.isfinite(s) and s > 0 for s in scales):
        raise OnnxError(f"scales are {scales}, wanted numbers above 0")
    if sizes is None:
        new = tuple(math.floor(n * s) for n, s in zip(old, scales, strict=True))
    else:
        new = tuple(sizes)
    check_size(new)
    plain = not how.get("antialias") and how["kind"] != "half_pixel_symmetric"
    if how["kind"] == "align_corners" and scales is not None:
        plain = plain and all(n * s == m for n, s, m in zip(old, scales, new, strict=True))
    if plain and (scales is None or sizes is None) and min(new) > 0:
        same = as_interpolate(old, new, scales, how)
        if same is not None:
            last = max(1, len(old) - 2)
            return F.interpolate(x, output_size=new[-last:], **same)
        return F.onnx_resize(
            x,
            roi=how.get("roi", ()),
            scales=tuple(scales or ()),
            sizes=() if scales is not None else new,
            mode=how["mode"],
            coordinate_transformation_mode=how["kind"],
            cubic_coeff_a=how.get("a", -0.75),
            exclude_outside=int(how.get("exclude_outside", False)),
            extrapolation_value=how.get("extrapolation", 0.0),
            nearest_mode=how["nearest_mode"],
        )
    for axis, (n, m) in enumerate(zip(old, new, strict=True)):
        scale = m / n if scales is None else scales[axis]
        if n != m or scale != 1:
            x = along(x, axis, matrix(n, m, scale, how))
    return x


def as_interpolate(
    old: Sequence[int], new: Sequence[int], scales: Any, how: dict[str, Any]
) -> dict[str, Any] | None:
    """Arguments by which F.interpolate, for which there are faster kernels, does the same with the
    axes behind the first two, whatever their sizes are; None where it does not."""
    lead = min(2, len(old) - 1)
    if old[:lead] != new[:lead] or (scales is not None and any(s != 1 for s in scales[:lead])):
        return None
    whole = scales is not None and all(s == int(s) for s in scales)
    if scales is not None and not whole:
        return None  # positions go by the scale, not by the sizes
    kind = how["kind"]
    if how["mode"] == "nearest":
        down = kind == "asymmetric" and how["nearest_mode"] == "floor"
        middle = whole and kind in HALF and how["nearest_mode"].startswith("round")
        return {"mode": "nearest"} if down or middle else None
    if how["mode"] != "linear" or kind not in ("asymmetric", "align_corners", *HALF):
        return None
    if kind == "half_pixel" and not whole:  # which takes the middle for one pixel
        return None
    return {
        "mode": "linear", "half_pixel": kind in HALF, "align_corners": kind == "align_corners"
    }  # fmt: skip


def along(x: Any, axis: int, weights: Any) -> Any:
    """A Variable multiplied by a matrix (new size, old size) along an axis."""
    order = [i for i in range(x.ndim) if i != axis] + [axis]
    y = transpose(x, order)
    lead = y.shape[:-1]
    y = F.affine(reshape(y, (math.prod(lead), y.shape[-1])), var(weights.T.astype(np.float32)))
    return transpose(reshape(y, (*lead, len(weights))), np.argsort(order))


def matrix(n: int, m: int, scale: float, how: dict[str, Any]) -> Any:
    """Weights (m, n) that resize an axis of n pixels to m."""
    kind = how["kind"]
    if kind == "half_pixel_symmetric":
        adjusted = m / (scale * n)
        at = n / 2 * (1 - adjusted) + (np.arange(m) + 0.5) / scale - 0.5
    elif kind == "align_corners" and scale * n > 1:
        at = np.arange(m) * (n - 1) / (scale * n - 1)  # of the size before it is rounded down
    else:
        at = positions(n, m, scale, kind, (0.0, 1.0))
    out = np.zeros((m, n))
    if how["mode"] == "nearest":
        index = np.clip(nearest(at, how["nearest_mode"]), 0, n - 1).astype(np.int64)
        out[np.arange(m), index] = 1
        return out
    width = 1 if how["mode"] == "linear" else 2  # reach of the kernel, in pixels
    shrink = min(scale, 1.0) if how.get("antialias") else 1.0
    first = math.floor(-width / shrink) + 1
    steps = np.arange(first, 2 - first)
    low = np.floor(at)
    distance = np.abs((low[:, None] + steps - at[:, None]) * shrink)
    weight = _kernel(distance, width, how.get("a", -0.75))
    index = low[:, None] + steps
    if how.get("exclude_outside"):
        weight = np.where((index < 0) | (index >= n), 0, weight)
    weight = weight / weight.sum(1, keepdims=True)
    index = np.clip(index, 0, n - 1).astype(np.int64)
    np.add.at(out, (np.arange(m)[:, None], index), weight)
    return out


def _kernel(distance: Any, width: int, a: float) -> Any:
    """Triangle, or Keys' cubic kernel, at distances >= 0."""
    if width == 1:
        return np.clip(1 - distance, 0, None)
    part = np.where(distance < 1, distance, distance - 1)
    weights = cubic_weights(part.reshape(-1), a)
    inner = weights[:, 1].reshape(distance.shape)  # at 0 + part
    outer = weights[:, 0].reshape(distance.shape)  # at 1 + part
    return np.where(distance < 1, inner, np.where(distance < 2, outer, 0))


# ---- operators ----


@onnx_import("Upsample")
def upsample(ctx: Any, node: Any, x: Any, scales: Any = None) -> Any:
    """Enlarged by nearest pixel or linear interpolation."""
    if scales is not None:
        factors = [float(v) for v in array(scales, "scales").reshape(-1)]
    elif "scales" in node.attributes:
        factors = list(node.scales)
    else:
        factors = [1.0, 1.0, node.height_scale, node.width_scale]
    return resized(var(x), factors, None, _old(node.mode))


def _old(mode: str) -> dict[str, Any]:
    mode = "linear" if mode in ("linear", "bilinear") else mode
    return {"mode": mode, "kind": "asymmetric", "nearest_mode": "floor"}


@onnx_import("Resize")
def resize_10(ctx: Any, node: Any, x: Any, scales: Any) -> Any:
    """Version 10: scales only, positions without an offset."""
    factors = [float(v) for v in array(scales, "scales").reshape(-1)]
    return resized(var(x), factors, None, _old(node.mode))


@onnx_import("Resize", since=11)
def resize(
    ctx: Any, node: Any, x: Any, roi: Any = None, scales: Any = None, sizes: Any = None
) -> Any:
    """x resized along its axes, or along those given."""
    old = shape_of(x)
    rank = len(old)
    given = getattr(node, "axes", None)
    axes = list(range(rank)) if given is None else [axis_of(a, rank) for a in given]
    factors = None if scales is None else [float(v) for v in array(scales, "scales").reshape(-1)]
    target = None if sizes is None else list(ints(sizes, "sizes"))
    if factors is not None and not factors:
        factors = None  # an empty tensor stands for none
    if (factors is None) == (not target):
        raise OnnxError("wants scales or sizes, not both and not neither")
    if len(factors or target or ()) != len(axes):
        raise OnnxError(f"has {len(factors or target or ())} scales or sizes for {len(axes)} axes")
    how = {
        "mode": node.mode,
        "kind": node.coordinate_transformation_mode,
        "nearest_mode": node.nearest_mode,
        "a": node.cubic_coeff_a,
        "exclude_outside": bool(node.exclude_outside),
        "antialias": bool(getattr(node, "antialias", 0)),
        "extrapolation": node.extrapolation_value,
    }
    policy = getattr(node, "keep_aspect_ratio_policy", None) or "stretch"
    all_sizes: list[int] | None = list(old)
    all_factors: list[float] | None = [1.0] * rank
    if target is not None and factors is None:
        if policy != "stretch":
            ratios = [t / old[a] for t, a in zip(target, axes, strict=True)]
            ratio = min(ratios) if policy == "not_larger" else max(ratios)
            target = [math.floor(ratio * old[a] + 0.5) for a in axes]
            for a in axes:
                all_factors[a] = ratio
        else:
            all_factors = None
        for t, a in zip(target, axes, strict=True):
            all_sizes[a] = t
    else:
        for f, a in zip(factors or (), axes, strict=True):
            all_factors[a] = f
        all_sizes = None
    if how["kind"] == "tf_crop_and_resize":
        part = [float(v) for v in array(roi, "roi").reshape(-1)]
        start, end = [0.0] * rank, [1.0] * rank
        for i, a in enumerate(axes):
            start[a], end[a] = part[i], part[i + len(axes)]
        how["roi"] = (*start, *end)
    return resized(var(x), all_factors, all_sizes, how)


def _reflected(p: Any, low: float, high: float) -> Any:
    """Positions mirrored at both ends until they are inside."""
    span = high - low
    if span <= 0:
        return F.mul_scalar(p, 0.0)
    t = F.abs(F.add_scalar(p, -low))
    t = t - F.mul_scalar(F.floor(F.mul_scalar(t, 0.5 / span)), 2 * span)
    return F.add_scalar(F.minimum2(t, F.r_sub_scalar(t, 2 * span)), low)


def _clamped(p: Any, size: int) -> Any:
    return F.minimum_scalar(F.maximum_scalar(p, 0.0), size - 1.0)


class Sampler:
    """Reads an image (N, C, *S) at positions (N, *S') along each spatial axis."""

    def __init__(self, x: Any, padding: str, align: bool) -> None:
        self.sizes, self.padding, self.align = x.shape[2:], padding, align
        self.x = F.reshape(x, (*x.shape[:2], math.prod(self.sizes)))

    def folded(self, p: Any, size: int) -> Any:
        """Positions brought inside, for the paddings that do so."""
        if self.padding == "border":
            return _clamped(p, size)
        if self.padding == "reflection":
            ends = (0.0, size - 1.0) if self.align else (-0.5, size - 0.5)
            return _clamped(_reflected(p, *ends), size)
        return p

    def at(self, places: list[Any]) -> Any:
        """Pixels at whole-numbered places; 0 outside, where the padding is zeros: (N, C, *S')."""
        inside, flat = None, None
        for p, size in zip(places, self.sizes, strict=True):
            if self.padding == "zeros":
                ok = F.greater_equal_scalar(p, 0.0) * F.less_equal_scalar(p, size - 1.0)
                inside = ok if inside is None else inside * ok
            p = _clamped(self.folded(p, size), size)
            flat = p if flat is None else F.mul_scalar(flat, float(size)) + p
        y = F.gather(self.x, F.unlink(flat), axis=2, batch_dims=1)
        # without the batch axis, gather puts the channels after it: (N, C, *S')
        if inside is None:
            return y
        return y * F.reshape(inside, (inside.shape[0], 1, *inside.shape[1:]))

    def blend(self, taps: list[list[tuple[Any, Any]]]) -> Any:
        """Sum over all combinations of (place, weight) along the axes."""
        total = None
        for corner in itertools.product(*taps):
            weight = None
            for _, w in corner:
                weight = w if weight is None else weight * w
            y = self.at([p for p, _ in corner])
            y = y * F.reshape(weight, (weight.shape[0], 1, *weight.shape[1:]))
            total = y if total is None else total + y
        return total


def cubic(t: Any, a: float = -0.75) -> list[Any]:
    """Keys' weights of the pixels at -1, 0, 1 and 2 for a position t after 0."""
    out = []
    for near, outer in ((t + 1, True), (t, False), (1 - t, False), (2 - t, True)):
        if outer:
            y = ((near * a - 5 * a) * near + 8 * a) * near - 4 * a
        else:
            y = (near * (a + 2) - (a + 3)) * near * near + 1
        out.append(y)
    return out


@onnx_import("GridSample")
def grid_sample(ctx: Any, node: Any, x: Any, grid: Any) -> Any:
    """Pixels of an image at positions in [-1, 1], the last axis of the image first."""
    x, grid = var(x), var(grid)
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(node.mode, node.mode)
    align = bool(node.align_corners)
    sampler = Sampler(x, node.padding_mode, align)
    n = len(sampler.sizes)
    places = []
    for i, size in enumerate(sampler.sizes):
        start, stop = [0] * grid.ndim, list(grid.shape)
        start[-1], stop[-1] = n - 1 - i, n - i
        g = F.reshape(F.slice(grid, start, stop, [1] * grid.ndim), grid.shape[:-1])
        scale, shift = ((size - 1) / 2, (size - 1) / 2) if align else (size / 2, (size - 1) / 2)
        places.append(F.add_scalar(F.mul_scalar(g, scale), shift))
    if mode == "nearest":
        return sampler.at([
            half_to_even(sampler.folded(p, s))
            for p, s in zip(places, sampler.sizes, strict=True)
        ])  # fmt: skip
    taps = []
    for p, size in zip(places, sampler.sizes, strict=True):
        p = p if mode == "cubic" else sampler.folded(p, size)
        base = F.unlink(F.floor(p))
        t = p - base
        if mode == "cubic":
            taps.append([(base + (k - 1), w) for k, w in enumerate(cubic(t))])
        elif mode == "linear":
            taps.append([(base, 1 - t), (base + 1, t)])
        else:
            raise OnnxError(f"mode is {node.mode!r}, wanted nearest, linear or cubic")
    return sampler.blend(taps)


@onnx_import("RoiAlign")
def roi_align(ctx: Any, node: Any, x: Any, rois: Any, batch: Any) -> Any:
    """Boxes of an image, read at regular places and averaged, or their maximum."""
    half = node.since >= 16 and node.coordinate_transformation_mode == "half_pixel"
    x, boxes = var(x), array(rois, "the boxes").astype(np.float32)
    index = array(batch, "the batch indices").astype(np.float32)
    offset = 0.5 if half else 0.0
    low = boxes[:, :2] * np.float32(node.spatial_scale) - offset
    extent = boxes[:, 2:] * np.float32(node.spatial_scale) - offset - low
    if not half:
        extent = np.maximum(extent, 1)
    size = (node.output_height, node.output_width)
    if node.mode == "avg":
        moved = np.concatenate([index[:, None], low + 0.5, low + 0.5 + extent], 1)
        ratio = node.sampling_ratio
        return F.roi_align(x, var(moved), size, sampling_ratio=ratio if ratio > 0 else -1)
    results = []
    for box, (x0, y0), (width, height) in zip(index, low, extent, strict=True):
        results.append(_largest(x, int(box), (y0, x0), (height, width), size, node.sampling_ratio))
    return F.stack(*results, axis=0)


def _largest(x: Any, image: int, low: Any, extent: Any, bins: Any, ratio: int) -> Any:
    """The largest weighted pixel around the sampling places of every bin: (C, *bins)."""
    rows, channels = x.shape[2:], x.shape[1]
    taps = []
    for start, length, n, size in zip(low, extent, bins, rows, strict=True):
        samples = ratio if ratio > 0 else max(1, math.ceil(length / n))
        p = start + (np.arange(n)[:, None] + (np.arange(samples) + 0.5) / samples) * length / n
        inside = (p >= -1) & (p <= size)
        p = np.clip(p, 0, size - 1)
        base = np.floor(p).astype(np.int64)
        t = (p - base).astype(np.float32)
        taps.append(
            (
                np.stack([base, np.minimum(base + 1, size - 1)], -1),
                np.stack([(1 - t), t], -1) * inside[..., None],
            )
        )  # (bins, samples, 2)
    (at_y, w_y), (at_x, w_x) = taps
    flat = at_y[:, None, :, None, :, None] * rows[1] + at_x[None, :, None, :, None, :]
    weight = w_y[:, None, :, None, :, None] * w_x[None, :, None, :, None, :]
    start, stop = (image, 0, 0, 0), (image + 1, *x.shape[1:])
    plane = F.reshape(F.slice(x, start, stop, (1, 1, 1, 1)), (channels, rows[0] * rows[1]))
    seen = F.gather(plane, var(flat.reshape(*bins, -1)), axis=1)
    weight = var(weight.reshape(1, *bins, -1).astype(np.float32))
    return F.max(seen * F.broadcast(weight, seen.shape), axis=3)


@onnx_import("MaxRoiPool")
def max_roi_pool(ctx: Any, node: Any, x: Any, rois: Any) -> Any:
    """Maxima of a grid of bins in every box; 0 for an empty bin (Girshick, Fast R-CNN, 2015)."""
    x, boxes = var(x), array(rois, "the boxes")
    rows, columns = node.pooled_shape
    results = []
    for box in boxes:
        image = int(box[0])
        if not 0 <= image < x.shape[0]:
            raise OnnxError(f"a box is in the image {image} of {x.shape[0]}")
        left, top, right, bottom = (int(np.floor(v * node.spatial_scale + 0.5)) for v in box[1:])
        spans = []
        for low, high, n, size in (
            (top, bottom, rows, x.shape[2]),
            (left, right, columns, x.shape[3]),
        ):
            step = max(high - low + 1, 1) / n
            ends = [(math.floor(i * step) + low, math.ceil((i + 1) * step) + low) for i in range(n)]
            spans.append([(min(max(a, 0), size), min(max(b, 0), size)) for a, b in ends])
        bins = [_bin(x, image, span) for span in itertools.product(*spans)]
        results.append(F.reshape(F.stack(*bins, axis=1), (x.shape[1], rows, columns)))
    return F.stack(*results, axis=0)


def _bin(x: Any, image: int, span: Any) -> Any:
    """The maximum of every channel in one bin: (C,)."""
    (top, bottom), (left, right) = span
    if top >= bottom or left >= right:
        return var(np.zeros(x.shape[1], np.float32))
    start, stop = (image, 0, top, left), (image + 1, x.shape[1], bottom, right)
    return F.max(F.slice(x, start, stop, (1, 1, 1, 1)), axis=(0, 2, 3))


@onnx_import("NonMaxSuppression")
def non_max_suppression(
    ctx: Any,
    node: Any,
    boxes: Any,
    scores: Any,
    most: Any = None,
    overlap: Any = None,
    least: Any = None,
) -> Any:
    """Rows (image, class, box) of boxes that overlap no better one too much."""
    if ctx.bounded and not (known(boxes) and known(scores)):
        return suppressed(
            boxes, scores, bool(node.center_point_box),
            int(scalar(most, 0, "max_output_boxes_per_class")),
            float(scalar(overlap, 0.0, "iou_threshold")), scalar(least, what="score_threshold"),
        )  # fmt: skip
    box, score = array(boxes, "the boxes").astype(np.float64), array(scores, "the scores")
    limit = int(scalar(most, 0, "max_output_boxes_per_class"))
    threshold = float(scalar(overlap, 0.0, "iou_threshold"))
    floor = None if least is None else float(scalar(least, what="score_threshold"))
    if node.center_point_box:
        centre, half = box[..., :2], np.abs(box[..., 2:]) / 2
        low, high = centre - half, centre + half
    else:
        low = np.minimum(box[..., :2], box[..., 2:])
        high = np.maximum(box[..., :2], box[..., 2:])
    area = (high - low).prod(-1)
    rows: list[tuple[int, int, int]] = []
    for image in range(score.shape[0]):
        for label in range(score.shape[1]):
            s = score[image, label]
            order = np.argsort(-s, kind="stable")
            if floor is not None:
                order = order[s[order] > floor]
            taken: list[int] = []
            while len(order) and len(taken) < limit:
                best, order = order[0], order[1:]
                taken.append(int(best))
                shared = np.minimum(high[image, order], high[image, best])
                shared = (shared - np.maximum(low[image, order], low[image, best])).clip(0).prod(-1)
                union = area[image, order] + area[image, best] - shared
                order = order[~(shared > threshold * union)]
            rows += [(image, label, i) for i in taken]
    return np.array(rows, np.int64).reshape(-1, 3)
