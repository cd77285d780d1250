# SPDX-License-Identifier: Apache-2.0
"""Importers of Fourier transforms and mel filters."""

from __future__ import annotations

from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.onnx.file.errors import OnnxError
from nnl.converters.onnx.file.registry import onnx_import
from nnl.converters.onnx.file.tensors import dtype_of_code
from nnl.converters.onnx.importing.shape import padded, part
from nnl.converters.onnx.values.values import axis_of, check_size, scalar, transpose, var


@onnx_import("DFT")
def dft_attribute(ctx: Any, node: Any, x: Any, length: Any = None) -> Any:
    """Fourier transform along an axis that is an attribute."""
    return transformed(var(x), node.axis, length, node.inverse, node.onesided)


@onnx_import("DFT", since=20)
def dft(ctx: Any, node: Any, x: Any, length: Any = None, axis: Any = None) -> Any:
    """Fourier transform along an axis."""
    at = int(scalar(axis, -2, "the axis"))
    return transformed(var(x), at, length, node.inverse, node.onesided)


def transformed(x: Any, axis: int, length: Any, inverse: int, one_sided: int) -> Any:
    """Transform of (..., 1) real or (..., 2) complex numbers along an axis."""
    axis = axis_of(axis, x.ndim)
    if axis == x.ndim - 1:
        raise OnnxError("transforms the axis of real and imaginary parts")
    default = 2 * (x.shape[axis] - 1) if inverse and one_sided else x.shape[axis]
    n = int(scalar(length, default, "dft_length"))
    if n < 1:
        raise OnnxError(f"dft_length is {n}, wanted at least 1")
    order = [i for i in range(x.ndim) if i not in (axis, x.ndim - 1)] + [axis, x.ndim - 1]
    x = transpose(x, order)
    if x.shape[-1] == 1:
        x = _fitted(x, -1, 2)
    if inverse and one_sided:
        y = _real_inverse(x, n)
    else:
        y = (F.ifft if inverse else F.fft)(_fitted(x, -2, n), signal_ndim=1)
        if one_sided:
            y = part(y, y.ndim - 2, 0, n // 2 + 1)
    return transpose(y, np.argsort(order))


def _fitted(x: Any, axis: int, size: int) -> Any:
    """x with an axis cut or filled with zeros to a size."""
    after = [0] * x.ndim
    after[axis] = size - x.shape[axis]
    check_size([n + a for n, a in zip(x.shape, after, strict=True)])
    return padded(x, [0] * x.ndim, after)


def _real_inverse(x: Any, n: int) -> Any:
    """The real signal of n samples whose first n / 2 + 1 frequencies are x."""
    half = n // 2 + 1
    x = _fitted(x, -2, half)
    at = np.arange(half, n)
    mirrored = F.gather(x, var(n - at), axis=x.ndim - 2)
    mirrored = mirrored * var(np.array([1, -1], np.float32).reshape((1,) * (x.ndim - 1) + (2,)))
    whole = F.concatenate(x, mirrored, axis=x.ndim - 2) if len(at) else x
    return part(F.ifft(whole, signal_ndim=1), x.ndim - 1, 0, 1)


@onnx_import("STFT")
def stft(ctx: Any, node: Any, x: Any, step: Any, window: Any = None, length: Any = None) -> Any:
    """Fourier transforms of overlapping pieces, times a window."""
    x = var(x)
    if x.ndim == 2:  # a real signal without its axis of parts
        x = F.reshape(x, (*x.shape, 1))
    hop = int(scalar(step, what="frame_step"))
    if length is not None:
        n = int(scalar(length, what="frame_length"))
    else:
        n = window.shape[0] if window is not None else x.shape[1]
    if hop < 1 or not 1 <= n <= x.shape[1]:
        raise OnnxError(f"frame_step is {hop}, frame_length {n}, for {x.shape[1]} samples")
    frames = 1 + (x.shape[1] - n) // hop
    at = np.arange(frames)[:, None] * hop + np.arange(n)
    pieces = F.gather(x, var(at), axis=1)  # (B, frames, n, 1 or 2)
    if window is not None:
        low = (n - window.shape[0]) // 2
        window = padded(var(window), [low], [n - window.shape[0] - low])
        pieces = pieces * F.reshape(window, (1, 1, n, 1))
    return transformed(pieces, 2, None, 0, node.onesided)


@onnx_import("MelWeightMatrix")
def mel_weight_matrix(
    ctx: Any, node: Any, bins: Any, length: Any, rate: Any, low: Any, high: Any
) -> Any:
    """Triangular filters, spaced evenly on the mel scale: (dft_length / 2 + 1, bins)."""
    n, size, hertz = (int(scalar(v)) for v in (bins, length, rate))
    check_size((size // 2 + 1, n))
    edges = 2595 * np.log10(1 + np.array([scalar(low), scalar(high)], np.float64) / 700)
    mel = edges[0] + np.arange(n + 2) * (edges[1] - edges[0]) / (n + 2)
    at = ((size + 1) * (700 * (10 ** (mel / 2595) - 1)) // hertz).astype(np.int64)
    k = np.arange(size // 2 + 1)[:, None]
    left, centre, right = at[:-2], at[1:-1], at[2:]
    with np.errstate(divide="ignore", invalid="ignore"):
        rise = np.where(left == centre, 1.0, (k - left) / (centre - left))
        fall = (right - k) / (right - centre)
    y = np.where((k >= left) & (k <= centre), rise, 0.0)
    y = np.where((k >= centre) & (k < right), fall, y)
    return y.astype(dtype_of_code(node.output_datatype, "output_datatype"))
