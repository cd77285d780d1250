# SPDX-License-Identifier: Apache-2.0
"""Functions in terms of those that have operators, beyond those that all formats share."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.rules.building import along, batches, constant, filled, like, matrix, taken
from nnl.converters.rules.spectra import PIXELS, SPECTRA
from nnl.core.graph.variable import Variable
from nnl.core.ops.op import OPS
from nnl.functions.interpolate import settings, taps


def _asinh(a: Any, x: Any) -> Any:
    m = F.abs(x)
    return F.sign(x, alpha=0.0) * F.log(m + (m * m + 1.0) ** 0.5)


def _sinc(a: Any, x: Any) -> Any:
    near = F.equal_scalar(x, 0.0)
    safe = x + near
    return F.where(near, near, F.sin(safe) / safe)


def _isinf(a: Any, x: Any) -> Any:
    return F.equal_scalar(F.abs(x), float("inf"))


def _searchsorted(a: Any, s: Any, v: Any) -> Any:
    compare = F.less_equal if a.right else F.less
    p = F.reshape(s, (*s.shape[:-1], 1, s.shape[-1]))
    q = F.reshape(v, (*v.shape, 1))
    shape = (*v.shape, s.shape[-1])
    return F.sum(compare(F.broadcast(p, shape), F.broadcast(q, shape)), axis=-1)


def _diagonal(a: Any, x: Any) -> Any:
    n = x.shape[-1]
    eye = constant(np.eye(n).reshape((1,) * (x.ndim - 1) + (n, n)))
    return F.reshape(x, (*x.shape, 1)) * eye


def _diagonal_of(a: Any, x: Any) -> Any:
    n = x.shape[-1]
    return F.sum(x * constant(np.eye(n).reshape((1,) * (x.ndim - 2) + (n, n))), axis=-1)


def _interpolate(a: Any, x: Any) -> Any:
    """Along one axis after the other: pixels taken, or products with a constant matrix."""
    end = x.ndim - a.channel_last
    for axis, out in enumerate(a.output_size, end - len(a.output_size)):
        n = x.shape[axis]
        if out == n:
            continue
        index, weight = taps(n, out, *settings(a))  # type: ignore[no-untyped-call]
        if index.shape[1] == 1:
            x = taken(x, axis, index[:, 0])
            continue
        x = along(x, axis, matrix(n, index, weight))
    return x


def _matmul(a: Any, x: Any, y: Any) -> Any:
    """With the axes of batches broadcast, as one."""
    if x.ndim < 3 and y.ndim < 3:
        return None
    batch, *both = batches(x, y)
    p, q = (F.reshape(v, (math.prod(batch), *v.shape[-2:])) for v in both)
    z = F.batch_matmul(p, q, a.transpose_a, a.transpose_b)
    return F.reshape(z, (*batch, *z.shape[1:]))


def _grouped(a: Any, x: Any, w: Any, b: Any) -> Any:
    """A convolution with groups and three spatial axes, group by group."""
    if a.group == 1 or a.channel_last:
        return None
    axis, per = a.base_axis, w.shape[1]
    maps = w.shape[0] // a.group
    parts = []
    for k in range(a.group):
        inside = taken(x, axis, np.arange(k * per, (k + 1) * per))
        rows = np.arange(k * maps, (k + 1) * maps)
        bias = None if b is None else taken(b, 0, rows)
        parts.append(
            F.convolution(inside, taken(w, 0, rows), bias, axis, a.pad, a.stride, a.dilation, 1)
        )
    return F.concatenate(*parts, axis=axis)


def _one_hot(a: Any, x: Any) -> Any:
    """Positions in several axes as one number."""
    if len(a.shape) < 2:
        return None
    at = None
    for i, n in enumerate(a.shape):
        one = taken(x, x.ndim - 1, [i])
        one = F.where(F.less_scalar(one, 0.0), one + float(n), one)
        at = one if at is None else at * float(n) + one
    return F.reshape(F.one_hot(at, (math.prod(a.shape),)), (*x.shape[:-1], *a.shape))


def _float(x: Any) -> Any:
    return x if x.spec.dtype == np.float32 else OPS["cast"](x, dtype="float32")


def _take_along(a: Any, x: Any, index: Any) -> Any:
    axis = a.axis % x.ndim
    order = [i for i in range(x.ndim) if i != axis] + [axis]
    lead = [x.shape[i] for i in order[:-1]]
    if lead != [index.shape[i] for i in order[:-1]]:
        return None
    rows = math.prod(lead)
    p, q = (F.reshape(F.transpose(v, order), (rows, v.shape[axis])) for v in (x, index))
    y = F.reshape(F.gather(p, q, axis=1, batch_dims=1), (*lead, index.shape[axis]))
    return F.transpose(y, [order.index(i) for i in range(x.ndim)])


def _scatter_along(a: Any, x: Any, index: Any) -> Any:
    """Added up at positions, of which all coordinates but one are known."""
    axis = a.axis % x.ndim
    known = np.indices(index.shape).reshape(x.ndim, 1, -1)
    rows = [constant(known[i]) for i in range(x.ndim)]
    rows[axis] = F.reshape(_float(index), (1, index.size))
    data = F.reshape(x, (x.size,))
    at = F.concatenate(*rows, axis=0) if x.ndim > 1 else rows[0]
    return OPS["scatter_nd"](data, OPS["cast"](at, dtype="int64"), shape=a.shape, add=True)


def _onnx_resize(a: Any, x: Any) -> Any:
    """An interpolation of pixels, where all axes of them are resized by their sizes' ratio."""
    shape = a.result_shape(x.shape)
    sizes, outs = x.shape[2:], shape[2:]
    whole = not a.scales or all(
        n * s == m for n, s, m in zip(x.shape, a.scales, shape, strict=True)
    )
    if x.ndim < 3 or x.ndim > 4 or shape[:2] != x.shape[:2] or not whole:
        return None
    how = a.coordinate_transformation_mode
    half = how in ("half_pixel", "pytorch_half_pixel")
    if a.mode == "linear" and how != "tf_crop_and_resize":
        if min(outs) == 1 or not (half or how in ("align_corners", "asymmetric")):
            return None
        return F.interpolate(x, None, outs, "linear", how == "align_corners", half)
    ties = any(
        (2 * i + 1) * n % (2 * m) == 0 for n, m in zip(sizes, outs, strict=True) for i in range(m)
    )
    if a.mode == "nearest" and half and not ties and a.nearest_mode.startswith("round"):
        return F.interpolate(x, None, outs, "nearest", False, True, True)
    if a.mode == "nearest" and how == "asymmetric" and a.nearest_mode == "floor":
        return F.interpolate(x, None, outs, "nearest", False, False)
    return None


RULES: dict[str, Any] = {
    "onnx_resize": _onnx_resize,
    **SPECTRA,
    **PIXELS,
    "scatter_along": _scatter_along,
    "store": lambda a, old, new: new,  # the file has no memory of runs before
    "take_along": _take_along,
    "tan": lambda a, x: F.sin(x) / F.cos(x),
    "asin": lambda a, x: F.atan2(x, (1.0 - x * x) ** 0.5),
    "acos": lambda a, x: F.atan2((1.0 - x * x) ** 0.5, x),
    "atan": lambda a, x: F.atan2(x, F.broadcast(like(x, 1.0), x.shape)),
    "asinh": _asinh,
    "acosh": lambda a, x: F.log(x + (x * x - 1.0) ** 0.5),
    "sinc": _sinc,
    "isnan": lambda a, x: F.not_equal(x, x),
    "isinf": _isinf,
    "reset_nan": lambda a, x: F.where(F.not_equal(x, x), filled(x, a.val), x),
    "reset_inf": lambda a, x: F.where(_isinf(a, x), filled(x, a.val), x),
    "searchsorted": _searchsorted,
    "matrix_diag": _diagonal,
    "matrix_diag_part": _diagonal_of,
    "shape": lambda a, x: Variable.from_numpy_array(np.array(x.shape[a.start : a.end], np.int64)),
    "constant": lambda a: Variable.from_numpy_array(np.full(a.shape, a.val, np.float32)),
    "one_hot": _one_hot,
    "interpolate": _interpolate,
    "batch_matmul": _matmul,
    "convolution": _grouped,
}
