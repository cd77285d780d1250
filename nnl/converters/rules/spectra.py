# SPDX-License-Identifier: Apache-2.0
"""Spectra and pixels at computed positions, in simpler functions."""

from __future__ import annotations

from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.rules.building import constant, filled, part, taken
from nnl.core.ops.op import OPS


def _spectra(a: Any, x: Any) -> Any:
    """A convolution with windowed waves."""
    waves, count = _waves(a), a.frame_count(x.shape[1])
    if a.inverse:
        x = part(x, 1, 0, a.covered(count))
        x = x * constant(a.sample_weight(np, count, np.float32)[None])
        waves = waves * np.tile(
            a.frequency_weight(np, 2 / a.fft_size, 1 / a.fft_size, float), (2, 1)
        )
    y = F.convolution(
        F.reshape(x, (x.shape[0], 1, x.shape[1])), constant(waves[:, None]), stride=(a.stride,)
    )
    n = a.frequencies()
    return taken(y, 1, np.arange(n)), taken(y, 1, np.arange(n, 2 * n))


def _added_spectra(a: Any, y_r: Any, y_i: Any) -> Any:
    """A deconvolution with windowed waves."""
    n, count = a.fft_size, y_r.shape[2]
    inner, ends = (n / 2, float(n)) if not a.inverse else (1.0, 1.0)
    m = a.frequency_weight(np, inner, ends, float)
    waves = _waves(a) * np.tile(m * a.frequency_weight(np, 2 / n, 1 / n, float), (2, 1))
    x = F.deconvolution(
        F.concatenate(y_r, y_i, axis=1), constant(waves[:, None]), stride=(a.stride,)
    )
    x = F.reshape(x, (x.shape[0], x.shape[2]))
    if a.inverse:
        x = x * constant(a.sample_weight(np, count, np.float32)[None])
    return x if x.shape[1] == a.size else F.pad(x, (0, a.size - x.shape[1]))


def _waves(a: Any) -> Any:
    """(2 F, fft_size): cosines, then sines, of the window."""
    frames = np.fft.rfft(np.eye(a.fft_size) * a.window(np, float), axis=1).T
    return np.concatenate((frames.real, frames.imag))


def _sample_pixels(a: Any, x: Any, index: Any, weight: Any) -> Any:
    b, taps, points = index.shape
    found = F.gather(x, F.reshape(index, (b, taps * points)), axis=2, batch_dims=1)
    found = F.reshape(found, (b, x.shape[1], taps, points))
    return F.sum(found * F.reshape(weight, (b, 1, taps, points)), axis=2)


def _corner_pixels(a: Any, p: Any) -> Any:
    """Positions as floats hold all pixels of an image of less than 2^24."""
    low = F.round(p) if a.nearest else F.floor(p)
    b, _, points = p.shape
    index: Any = None
    inside: Any = None
    for k, size in enumerate(a.sizes):
        row = taken(low, 1, [k])
        corners = row if a.nearest else F.concatenate(row, row + 1.0, axis=1)
        valid = F.greater_equal_scalar(corners, 0.0) * F.less_scalar(corners, float(size))
        corners = F.where(valid, corners, filled(corners, 0.0))
        if index is None:
            index, inside = corners, valid
            continue
        one, other = (b, index.shape[1], 1, points), (b, 1, corners.shape[1], points)
        taps = (b, index.shape[1] * corners.shape[1], points)
        rows = F.reshape(index, one) * float(size)
        index = F.reshape(rows + F.reshape(corners, other), taps)
        inside = F.reshape(F.reshape(inside, one) * F.reshape(valid, other), taps)
    return OPS["cast"](index * inside, dtype="int64"), inside, low


SPECTRA = {
    "cut_spectra": _spectra,
    "add_spectra": _added_spectra,
}
PIXELS = {
    "sample_pixels": _sample_pixels,
    "corner_pixels": _corner_pixels,
}
