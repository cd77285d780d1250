# SPDX-License-Identifier: Apache-2.0
"""Export of the parts of stft and istft as convolutions with windowed waves.

A transform of every frame is a convolution with one kernel for the real and one for the imaginary
part of each frequency; adding frames up where they overlap is its transpose.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nnl.converters.onnx.export_context import Exporter
from nnl.converters.onnx.export_tensor import Call, Tensor
from nnl.converters.onnx.registry import onnx_export


def waves(a: Any, weights: tuple[float, float] | None) -> np.ndarray:
    """(2 frequencies, 1, fft_size): cosines, then minus sines, windowed and weighted."""
    n, m = a.fft_size, a.frequencies()
    angle = 2 * np.pi * (np.outer(range(m), range(n)) % n) / n
    both = np.stack((np.cos(angle), -np.sin(angle)))
    if weights is not None:
        both = both * a.frequency_weight(np, *weights, np.float64)
    both = both * a.window(np, np.float64)
    return both.reshape(2 * m, 1, n)


@onnx_export("cut_spectra")
def cut_spectra(ctx: Exporter, call: Call) -> tuple[Tensor, ...]:
    a, x = call.attrs, call.x
    weights = None
    if a.inverse:
        count = a.frame_count(x.sizes[1])
        x = ctx.slice(x, [0], [a.covered(count)], [1])
        x = ctx.emit("Mul", x, ctx.constant(a.sample_weight(np, count, call.x.dtype)))
        weights = (2 / a.fft_size, 1 / a.fft_size)
    kernel = ctx.constant(waves(a, weights), call.x.dtype)
    y = ctx.emit("Conv", ctx.unsqueeze(x, 1), kernel, strides=(a.stride,))
    m = a.frequencies()
    return ctx.emit("Split", y, ctx.ints(m, m), outputs=2, axis=1)  # type: ignore[no-any-return]


@onnx_export("add_spectra")
def add_spectra(ctx: Exporter, call: Call) -> Tensor:
    a, count = call.attrs, call.x.sizes[2]
    n = a.fft_size
    # irfft weighs inner frequencies by 2 / n; as the transpose of rfft all are weighed by 1
    weights = (2 / n, 1 / n) if a.inverse else (1.0, 1.0)
    kernel = ctx.constant(waves(a, weights), call.x.dtype)
    both = ctx.emit("Concat", *call.inputs, axis=1)
    y = ctx.squeeze(ctx.emit("ConvTranspose", both, kernel, strides=(a.stride,)), 1)
    if a.inverse:
        y = ctx.emit("Mul", y, ctx.constant(a.sample_weight(np, count, call.x.dtype)))
    rest = a.size - a.covered(count)
    return ctx.emit("Pad", y, ctx.ints(0, 0, 0, rest)) if rest > 0 else y


@onnx_export("pad_backward")
def pad_backward(ctx: Exporter, call: Call) -> Tensor:
    """One product with zeros and ones per axis: where each padded element came from."""
    y, rank = call.x, call.x.ndim
    for axis, source in enumerate(call.attrs.sources(np, call.shapes[0])):
        if source is None:
            continue
        matrix = np.zeros((len(source), call.shapes[0][axis]))
        matrix[range(len(source)), source] = 1
        order = [*(d for d in range(rank) if d != axis), axis]
        y = ctx.emit("Transpose", y, perm=order)
        y = ctx.emit("MatMul", y, ctx.constant(matrix, call.x.dtype))
        y = ctx.emit("Transpose", y, perm=[order.index(d) for d in range(rank)])
    return ctx.emit("Identity", y) if y is call.x else y
