# SPDX-License-Identifier: Apache-2.0
"""Functions that are a matrix along each axis, for targets that have products but not them."""

from __future__ import annotations

from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.rules.building import along, constant, matrix, part, taken
from nnl.functions.interpolate import settings, split, taps


def _interpolate(a: Any, x: Any) -> Any:
    """Pixels by whole factors are repeated; else a weighted mean of pixels along each axis."""
    n = len(a.output_size)
    first = x.ndim - n - a.channel_last
    sizes = x.shape[first : first + n]
    factors = [o // i for o, i in zip(a.output_size, sizes, strict=True)]
    exact = all(i * k == o for o, i, k in zip(a.output_size, sizes, factors, strict=True))
    other = a.align_corners or a.half_pixel or a.half_pixel_for_nn or a.channel_last
    if a.mode == "nearest" and exact and not other:
        return F.unpooling(x, tuple(factors))
    y = x
    for axis, (size, out) in enumerate(zip(sizes, a.output_size, strict=True), first):
        if size != out or a.mode == "nearest":
            y = along(y, axis, matrix(size, *taps(size, out, *settings(a))))
    return F.identity(x) if y is x else y


def weighted_pixels(a: Any, x: Any) -> Any:
    """An interpolation as a sum of weighted pixels along each axis, for targets that gather."""
    for axis, out in enumerate(a.output_size, len(split(a, x.shape)[0])):
        if out == x.shape[axis]:
            continue
        shape = [1] * x.ndim
        shape[axis] = out
        parts = []
        for i, w in zip(*(v.T for v in taps(x.shape[axis], out, *settings(a))), strict=True):
            pixels = taken(x, axis, i)
            parts.append(pixels if (w == 1).all() else pixels * constant(w.reshape(shape)))
        x = sum(parts[1:], parts[0])
    return F.identity(x)


def _onnx_resize(a: Any, x: Any) -> Any:
    """A weighted mean of pixels along each axis."""
    for axis, (index, weight, outside) in list(a.axes(x.shape)):
        if a.extrapolation_value and outside.any():
            return None
        x = along(x, axis, matrix(x.shape[axis], index, weight))
    return F.identity(x)


def _cumsum(a: Any, x: Any) -> Any:
    """A triangle of ones."""
    n = x.shape[a.axis]
    ones = np.tril(np.ones((n, n)), 0 if not a.exclusive else -1)
    return along(x, a.axis % x.ndim, ones if a.reverse else ones.T)


def _fourier(sign: int) -> Any:
    """Cosines and sines; real and imaginary parts are beside each other on the last axis."""

    def rule(a: Any, x: Any) -> Any:
        last = x.ndim - 1
        sizes = x.shape[last - a.signal_ndim : last]
        if max(sizes, default=1) > LONGEST_SIGNAL:
            return None
        re, im = (part(x, last, k, k + 1) for k in (0, 1))
        for axis, n in enumerate(sizes, last - a.signal_ndim):
            angle = 2 * np.pi * (np.outer(np.arange(n), np.arange(n)) % n) / n * sign
            scale = n**-0.5 if a.normalized else 1 / n if sign > 0 else 1.0
            c, s = np.cos(angle) * scale, np.sin(angle) * scale
            re, im = (
                along(re, axis, c) - along(im, axis, s),
                along(re, axis, s) + along(im, axis, c),
            )
        return F.concatenate(re, im, axis=last)

    return rule


LONGEST_SIGNAL = 2**13  # along an axis: its matrices have twice the square of that


RULES = {
    "interpolate": _interpolate,
    "onnx_resize": _onnx_resize,
    "cumsum": _cumsum,
    "fft": _fourier(-1),
    "ifft": _fourier(1),
}
