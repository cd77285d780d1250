# SPDX-License-Identifier: Apache-2.0
"""Resizing as the operator Resize of ONNX defines it."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from nnl.core.arrays.spec import ShapeError
from nnl.core.ops.op import OPS, Cost, Sample, op
from nnl.functions.interpolate import combine, transpose
from nnl.functions.layout import held

CATEGORY = "Signal processing"

__all__ = ["onnx_resize"]

CROP = "tf_crop_and_resize"
CHOICES = {
    "mode": ("nearest", "linear", "cubic"),
    "coordinate_transformation_mode": (
        "half_pixel",
        "pytorch_half_pixel",
        "align_corners",
        "asymmetric",
        "tf_half_pixel_for_nn",
        CROP,
    ),
    "nearest_mode": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
}


def positions(size: int, out: int, scale: float | None, kind: str, roi: tuple[float, float]) -> Any:
    """Where the pixels of the result lie on an axis of x, in pixels of x.

    The scale is out / size if None. It is not computed then, so that a position that is a ratio of
    integers is rounded once and a half is a half.
    """
    i = np.arange(out, dtype=np.float64)
    if kind == CROP:
        start, end = roi
        if out == 1:
            return np.array([0.5 * (start + end) * (size - 1)])
        return start * (size - 1) + i * (end - start) * (size - 1) / (out - 1)
    if kind == "align_corners":
        return i * (size - 1) / max(out - 1, 1)
    if kind == "pytorch_half_pixel" and out == 1:
        return np.zeros(1)
    if kind == "asymmetric":
        return i * size / out if scale is None else i / scale
    at = (2 * i + 1) * size / (2 * out) if scale is None else (i + 0.5) / scale
    return at if kind == "tf_half_pixel_for_nn" else at - 0.5


def nearest(at: Any, kind: str) -> Any:
    """Index of the pixel taken for a position."""
    if kind == "floor":
        return np.floor(at)
    if kind == "ceil":
        return np.ceil(at)
    return np.ceil(at - 0.5) if kind == "round_prefer_floor" else np.floor(at + 0.5)


def cubic_weights(part: Any, a: float) -> Any:
    """Weights of the pixels at -1, 0, 1 and 2 for a position `part` after 0; (out, 4)."""
    columns = []
    for near, far in ((part, part + 1), (1 - part, 2 - part)):
        inner = ((a + 2) * near - (a + 3)) * near * near + 1
        outer = ((a * far - 5 * a) * far + 8 * a) * far - 4 * a
        columns.append((inner, outer))
    (w0, w_1), (w1, w2) = columns
    return np.stack((w_1, w0, w1, w2), 1)


@lru_cache(maxsize=256)
def taps(size: int, out: int, scale: float | None, roi: tuple[float, float], how: Any) -> Any:
    """Which pixels every pixel of the result is made of along one axis, and with which weights.

    Returns:
        index and weight, (out, 1, 2 or 4), and which pixels of the result lie outside of x.
    """
    mode, kind, nearest_mode, cubic_coeff_a, exclude_outside = how
    at = positions(size, out, scale, kind, roi)
    if mode == "nearest":
        index = nearest(at, nearest_mode)[:, None]
        weight = np.ones((out, 1))
    else:
        low = np.floor(at)
        part = at - low
        if mode == "linear":
            steps = np.arange(2)
            weight = np.stack((1 - part, part), 1)
        else:
            steps = np.arange(-1, 3)
            weight = cubic_weights(part, cubic_coeff_a)
        index = low[:, None] + steps
        if mode == "cubic" and exclude_outside:
            weight = np.where((index < 0) | (index >= size), 0, weight)
            weight /= weight.sum(axis=1, keepdims=True)
    index = np.clip(index, 0, size - 1).astype(np.int64)
    outside = np.zeros(out, bool)
    if kind == CROP:
        outside = (at < 0) | (at > size - 1)
        weight = np.where(outside[:, None], 0, weight)
    return index, weight, outside


class OnnxResizing:
    """Attributes of onnx_resize and of its gradient, and the maps along the axes."""

    roi: tuple[float, ...] = ()
    scales: tuple[float, ...] = ()
    sizes: tuple[int, ...] = ()
    mode: str = "nearest"
    coordinate_transformation_mode: str = "half_pixel"
    cubic_coeff_a: float = -0.75
    exclude_outside: int = 0
    extrapolation_value: float = 0.0
    nearest_mode: str = "round_prefer_floor"

    def result_shape(self, shape):
        if self.sizes:
            return self.sizes
        return tuple(math.floor(n * s) for n, s in zip(shape, self.scales, strict=True))

    def axes(self, shape):
        """(axis, taps) for every axis that changes."""
        rank = len(shape)
        crops = self.coordinate_transformation_mode == CROP
        roi = self.roi if crops else (0.0,) * rank + (1.0,) * rank
        how = (
            self.mode,
            self.coordinate_transformation_mode,
            self.nearest_mode,
            self.cubic_coeff_a,
            bool(self.exclude_outside),
        )
        out = self.result_shape(shape)
        for axis in range(rank):
            scale = self.scales[axis] if self.scales else None
            if shape[axis] and scale != 1 and (scale is not None or shape[axis] != out[axis]):
                part = (roi[axis], roi[rank + axis])
                yield axis, taps(shape[axis], out[axis], scale, part, how)

    def flops(self, size):
        return 2 * {"nearest": 0, "linear": 2, "cubic": 4}[self.mode] * size


@op("onnx_resize", nnp="ONNXResize")
class onnx_resize(OnnxResizing):
    r"""Resize arrays of any rank by nearest pixel, linear or cubic interpolation.

    $$y_{i_1 \ldots i_n} = \sum_{j_1 \ldots j_n}
      h(p_1 - j_1) \cdots h(p_n - j_n)\, x_{j_1 \ldots j_n}$$
    where h is the kernel of the mode: for "linear" $h(t) = \max(0, 1 - |t|)$, for "nearest" 1 at
    the pixel taken, and for "cubic" with slope a
    $$h(t) = (a + 2) |t|^3 - (a + 3) |t|^2 + 1 \text{ for } |t| \le 1, \quad
      a |t|^3 - 5 a |t|^2 + 8 a |t| - 4 a \text{ for } 1 < |t| < 2.$$

    Along each axis of size n, resized by s to m pixels, pixel i of the result lies at the position
    p in x that coordinate_transformation_mode says:

        half_pixel            (i + 0.5) / s - 0.5: the borders of pixels keep their place
        pytorch_half_pixel    the same, but 0 if m = 1
        align_corners         i (n - 1) / (m - 1): the end pixels keep their place; 0 if m = 1
        asymmetric            i / s
        tf_half_pixel_for_nn  (i + 0.5) / s
        tf_crop_and_resize    (n - 1) (a + i (b - a) / (m - 1)), (n - 1) (a + b) / 2 if m = 1: the
                              part from a to b of x, as fractions of its size

    An axis that is not resized, s = 1, stays as it is.

    Args:
        x: (d_1, ..., d_n).
        roi: a of every axis, then b of every axis; only for tf_crop_and_resize.
        scales: s of every axis; m is n s rounded down.
        sizes: Instead of scales: m of every axis; s is m / n.
        mode: "nearest": the pixel at p rounded. "linear": between the two pixels around p.
            "cubic": of the four pixels around p, by the kernel of Keys. Pixels beyond the ends of
            x are the ones at the ends.
        cubic_coeff_a: The kernel's slope a at distance 1.
        exclude_outside: With "cubic", leave out pixels beyond the ends, and divide by the sum of
            the other weights.
        extrapolation_value: With tf_crop_and_resize, the result where p is outside of [0, n - 1].
        nearest_mode: How p is rounded: "floor", "ceil", or to the nearest integer, halves down
            ("round_prefer_floor") or up ("round_prefer_ceil").
    Returns:
        (m_1, ..., m_n).
    Raises:
        ShapeError: scales, sizes or roi do not fit the rank of x, or there is nothing to resize.
        ValueError: Not exactly one of scales and sizes is given, one of them or a name is out of
            range, or roi crops an axis that is not resized.
    Source: ONNX, operator Resize; Keys, Cubic convolution interpolation for digital image
        processing, IEEE Trans. ASSP 29(6), 1981, eq. 11 and 14.
    """

    def infer(self, x):
        for field, known in CHOICES.items():
            value = getattr(self, field)
            if value not in known:
                raise ValueError(f"onnx_resize: {field} is {value!r}, wanted one of {known}")
        if bool(self.scales) == bool(self.sizes):
            raise ValueError(
                f"onnx_resize: scales is {self.scales} and sizes is {self.sizes}, wanted exactly "
                "one of them"
            )
        rank = x.ndim
        for field in ("scales", "sizes"):
            value = getattr(self, field)
            if value and len(value) != rank:
                raise ShapeError(
                    f"onnx_resize: {field} {value} has {len(value)} numbers, wanted one for each "
                    f"axis of x {x}"
                )
        if min(self.sizes, default=1) < 0:
            raise ValueError(f"onnx_resize: sizes is {self.sizes}, wanted numbers >= 0")
        if not all(0 < s < math.inf for s in self.scales):
            raise ValueError(f"onnx_resize: scales is {self.scales}, wanted numbers > 0")
        shape = self.result_shape(x.shape)
        for n, m in zip(x.shape, shape, strict=True):
            if n != m and 0 in (n, m):
                raise ShapeError(
                    f"onnx_resize: x {x} cannot be resized to {shape}: an axis has no pixels"
                )
        if self.coordinate_transformation_mode == CROP:
            self.check_roi(x, shape)
        return x.with_shape(shape)

    def check_roi(self, x, shape):
        rank = x.ndim
        if len(self.roi) != 2 * rank:
            raise ShapeError(
                f"onnx_resize: roi {self.roi} has {len(self.roi)} numbers, wanted two for each "
                f"axis of x {x}"
            )
        for axis, (n, m) in enumerate(zip(x.shape, shape, strict=True)):
            part = self.roi[axis], self.roi[rank + axis]
            if part != (0, 1) and (self.scales[axis] == 1 if self.scales else n == m):
                raise ValueError(
                    f"onnx_resize: roi is {part} for axis {axis}, which is not resized; wanted "
                    "(0.0, 1.0)"
                )

    def forward(self, xp, x):
        shape, changed = x.shape, False
        outside = []
        for axis, (index, weight, out) in self.axes(shape):
            x, changed = combine(xp, x, axis, index, weight), True
            if out.any():
                outside.append((slice(None),) * axis + (xp.asarray(np.flatnonzero(out)),))
        for at in outside:
            x[at] = self.extrapolation_value
        return x if changed else x.copy()

    def portable(self, x):
        lost = []
        for axis, (index, weight, outside) in self.axes(x.shape):
            shape = [1] * len(x.shape)
            shape[axis] = len(index)
            parts = []
            for j in range(index.shape[1]):
                part = OPS["gather"](x, held(index[:, j].copy()), axis=axis)
                if not (weight[:, j] == 1).all():
                    w = weight[:, j].astype(x.spec.dtype)
                    part = OPS["mul2"](part, held(w.reshape(shape)))
                parts.append(part)
            x = parts[0]
            for part in parts[1:]:
                x = OPS["add2"](x, part)
            if outside.any():
                lost.append(outside.reshape(shape))
        for outside in lost:
            where = OPS["broadcast"](held(outside.astype(x.spec.dtype)), shape=x.shape)
            value = OPS["constant"](val=self.extrapolation_value, shape=x.shape)
            x = OPS["where"](where, value, x)
        return OPS["identity"](x)

    def vjp(self, gy, *, x_spec):
        return onnx_resize_backward(gy, shape=x_spec.shape, **self.as_dict())

    def cost(self, x):
        y = self.infer(x)
        return Cost(self.flops(y.size), x.nbytes + y.nbytes)

    def samples(rng):
        x = rng.normal(size=(1, 2, 4, 5))
        sizes, scales = (1, 2, 7, 3), (1, 1, 1.5, 0.7)
        kinds = [k for k in CHOICES["coordinate_transformation_mode"] if k != CROP]
        for mode in CHOICES["mode"]:
            for kind in kinds:
                at = {"mode": mode, "coordinate_transformation_mode": kind}
                yield Sample(x, sizes=sizes, **at)
                yield Sample(x, scales=scales, **at)
            at["coordinate_transformation_mode"] = CROP
            at["roi"] = (0.0, 0.0, 0.2, -0.3, 1.0, 1.0, 0.9, 1.2)
            yield Sample(x, sizes=sizes, extrapolation_value=1.5, **at)
            yield Sample(x, sizes=(1, 2, 3, 1), extrapolation_value=1.5, **at)
            yield Sample(x[0, 0], sizes=(1, 1), mode=mode)
            yield Sample(rng.normal(size=6), scales=(2.5,), mode=mode)
            yield Sample(rng.normal(size=(2, 2, 3)), sizes=(3, 4, 5), mode=mode)
        for rounding in CHOICES["nearest_mode"]:
            yield Sample(x, sizes=(1, 2, 5, 7), nearest_mode=rounding)
            yield Sample(x, scales=(1, 1, 2, 0.5), nearest_mode=rounding)
        yield Sample(x, sizes=sizes, mode="cubic", cubic_coeff_a=-0.5, exclude_outside=1)
        yield Sample(x[:, :0], sizes=(1, 0, 7, 3), mode="linear")


@op("onnx_resize_backward", outputs=("gx",))
class onnx_resize_backward(OnnxResizing):
    """Gradient of onnx_resize for x of the given shape: the transposed linear map."""

    shape: tuple[int, ...] = ()

    def infer(self, gy):
        return gy.with_shape(self.shape)

    def forward(self, xp, gy):
        changed = False
        for axis, (index, weight, _) in self.axes(self.shape):
            table = transpose(index, weight, self.shape[axis])
            gy, changed = combine(xp, gy, axis, *table), True
        return gy if changed else gy.copy()

    def vjp(self, ggx):
        at = self.as_dict() | {"extrapolation_value": 0.0}
        del at["shape"]
        return onnx_resize(ggx, **at)

    def cost(self, gy):
        return Cost(self.flops(gy.size), gy.nbytes + self.infer(gy).nbytes)

    def samples(rng):
        gy = rng.normal(size=(2, 7, 3))
        for mode in CHOICES["mode"]:
            yield Sample(gy, sizes=gy.shape, mode=mode, shape=(2, 4, 5))
