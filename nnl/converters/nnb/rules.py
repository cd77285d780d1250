# SPDX-License-Identifier: Apache-2.0
"""What to say in functions of NNabla's C runtime instead of others, or of other arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.rules.building import batches, part
from nnl.core.graph.variable import Variable


def _complete(a: Any, x: Any, beta: Any, gamma: Any, mean: Any, variance: Any) -> Any:
    """A normalization by known statistics with all its inputs."""
    if a.batch_stat or len(a.axes) != 1:
        return None
    full = [1] * x.ndim
    full[a.axes[0]] = x.shape[a.axes[0]]

    def given(v: Any, number: float, used: bool) -> Any:
        if v is not None and used:
            return v
        return Variable.from_numpy_array(np.full(full, number, np.float32))

    return F.batch_normalization(
        x,
        given(beta, 0, not a.no_bias),
        given(gamma, 1, not a.no_scale),
        given(mean, 0, True),
        given(variance, 1, True),
        a.axes,
        a.decay_rate,
        a.eps,
        False,
    )


def _matmul(a: Any, x: Any, y: Any) -> Any:
    """With one axis of batches, of different variables, not transposed."""
    if x.ndim < 2 or y.ndim < 2:
        return None
    batch, p, q = batches(x, y)

    def flat(v: Any, transposed: bool) -> Any:
        whole = F.reshape(v, (math.prod(batch), *v.shape[-2:]))
        return F.transpose(whole, (0, 2, 1)) if transposed else whole

    z = F.batch_matmul(flat(p, a.transpose_a), flat(q, a.transpose_b))
    return F.reshape(z, (*batch, *z.shape[1:]))


def is_plain(a: Any, shape: Sequence[int]) -> bool:
    """Whether the limits of a slice are inside, and its steps forward."""
    ranges = zip(a.start, a.stop, a.step, shape, strict=False)
    return len(a.start) == len(shape) and all(
        0 <= i < j <= n and step > 0 for i, j, step, n in ranges
    )


def _slice(a: Any, x: Any) -> Any:
    """With limits inside, and steps forward."""
    starts, stops, steps, flipped = [], [], [], []
    for axis, (region, n) in enumerate(zip(a.region(x.shape), x.shape, strict=True)):
        found = range(*region.indices(n))
        if not found:
            return None
        if found.step < 0:
            flipped.append(axis)
            found = found[::-1]
        starts.append(found[0])
        stops.append(found[-1] + 1)
        steps.append(found.step)
    y = F.slice(x, tuple(starts), tuple(stops), tuple(steps))
    return F.flip(y, flipped) if flipped else y


def _pad(a: Any, x: Any) -> Any:
    """The pixels at the border again and again."""
    if a.mode != "repeat":
        return None
    widths = list(zip(a.pad_width[::2], a.pad_width[1::2], strict=True))
    for axis, (before, after) in enumerate(widths, x.ndim - len(widths)):
        n = x.shape[axis]
        first, last = part(x, axis, 0, 1), part(x, axis, n - 1, n)
        if before or after:
            x = F.concatenate(*[first] * before, x, *[last] * after, axis=axis)
    return x


def _affine_by_matmul(a: Any, x: Any, w: Any, b: Any) -> Any:
    """With a weight that is computed."""
    base = a.base_axis % x.ndim
    rows, inner = math.prod(x.shape[:base]), w.shape[0]
    y = F.batch_matmul(F.reshape(x, (1, rows, inner)), F.reshape(w, (1, inner, w.size // inner)))
    y = F.reshape(y, (*x.shape[:base], *w.shape[1:]))
    return y if b is None else y + F.reshape(b, (1,) * base + b.shape)


# ---- truth values, of the signs of differences; a NaN counts as 0 ----


def _above(x: Any, also_equal: bool = False) -> Any:
    """1 where x is above 0, else 0."""
    return F.sign(x, alpha=1.0 if also_equal else -1.0) * 0.5 + 0.5


def _other(x: Any) -> Any:
    """1 where x is not 0."""
    return F.abs(F.sign(x, alpha=0.0))


def _compare(rule: Callable[[Any], Any]) -> Callable[..., Any]:
    """A rule of a comparison, from what it says of the difference; with a number or an array."""

    def whole(a: Any, x: Any, *y: Any) -> Any:
        if not y and not math.isfinite(a.val):
            return None
        return rule(x - (y[0] if y else a.val))

    return whole


def _where(a: Any, condition: Any, x: Any, y: Any) -> Any:
    """Each limited to 0 where the other is taken, which works for infinities too."""
    c = F.reshape(condition, condition.shape + (1,) * (x.ndim - condition.ndim))

    def part(v: Any, taken: Any) -> Any:
        limit = F.broadcast(taken * LARGEST, v.shape)
        return F.maximum2(F.minimum2(v, limit), limit * -1.0)

    c = _other(c)
    return part(x, c) + part(y, 1.0 - c)


def _floor(a: Any, x: Any) -> Any:
    y = F.round(x)
    return y - _above(y - x)


LARGEST = float(np.finfo(np.float32).max)

RULES: dict[str, Callable[..., Any]] = {
    **{
        name + kind: _compare(rule)
        for kind in ("", "_scalar")
        for name, rule in {
            "greater": _above,
            "greater_equal": lambda d: _above(d, True),
            "less": lambda d: _above(d * -1.0),
            "less_equal": lambda d: _above(d * -1.0, True),
            "equal": lambda d: 1.0 - _other(d),
            "not_equal": _other,
        }.items()
    },
    "logical_not": lambda a, x: 1.0 - _other(x),
    "logical_and": lambda a, x, y: _other(x) * _other(y),
    "logical_or": lambda a, x, y: F.maximum2(_other(x), _other(y)),
    "logical_xor": lambda a, x, y: F.abs(_other(x) - _other(y)),
    "logical_and_scalar": lambda a, x: _other(x) * float(a.val),
    "logical_or_scalar": lambda a, x: F.maximum_scalar(_other(x), float(a.val)),
    "logical_xor_scalar": lambda a, x: F.abs(_other(x) - float(a.val)),
    "where": _where,
    "floor": _floor,
    "ceil": lambda a, x: _floor(a, x * -1.0) * -1.0,
    "batch_normalization": _complete,
    "batch_matmul": _matmul,
    "affine": _affine_by_matmul,
    "slice": _slice,
    "pad": _pad,
}
