# SPDX-License-Identifier: Apache-2.0
"""Resizing along every axis; what F.onnx_resize does not know goes by one matrix per axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.onnx.file.errors import OnnxError
from nnl.converters.onnx.values.values import check_size, reshape, transpose, var
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
