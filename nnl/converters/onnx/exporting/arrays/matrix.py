# SPDX-License-Identifier: Apache-2.0
"""Export of matrix products, determinants and Fourier transforms."""

from __future__ import annotations

import math
from math import prod

import numpy as np

from nnl.converters.onnx.exporting.arrays.elementwise import scaled
from nnl.converters.onnx.exporting.nodes.context import Exporter
from nnl.converters.onnx.exporting.nodes.tensor import Call, Tensor
from nnl.converters.onnx.file.registry import onnx_export
from nnl.functions.einsum import parse


@onnx_export("affine")
def affine(ctx: Exporter, call: Call) -> Tensor:
    x, w, b = call.input(0), call.input(1), call.optional(2)
    base = call.attrs.base_axis
    inner, columns = w.sizes[0], prod(w.sizes[1:])
    matrix = ctx.reshape(w, (inner, columns))
    row = None if b is None else ctx.reshape(b, (columns,))
    if base == x.ndim - 1 and x.ndim > 2:
        y = ctx.emit("MatMul", x, matrix)
        y = y if row is None else ctx.emit("Add", y, row)
        flat = w.ndim == 2
    else:
        rows = x if (x.ndim, base) == (2, 1) else ctx.emit("Flatten", x, axis=base)
        y = ctx.emit("Gemm", rows, matrix, row)
        flat = w.ndim == 2 and base == 1
    return y if flat else ctx.reshape(y, call.shape)


@onnx_export("batch_matmul")
def batch_matmul(ctx: Exporter, call: Call) -> Tensor:
    sides = []
    for x, swap in zip(call.inputs, (call.attrs.transpose_a, call.attrs.transpose_b), strict=True):
        order = (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)
        sides.append(ctx.transpose(x, order) if swap else x)
    return ctx.emit("MatMul", *sides)


@onnx_export("einsum")
def einsum(ctx: Exporter, call: Call) -> Tensor:
    ranks = tuple(call.input(i).ndim for i in range(len(call.inputs)))
    terms, out = parse(call.attrs.equation, ranks)
    return ctx.emit("Einsum", *call.inputs, equation=f"{','.join(terms)}->{out}")


@onnx_export("batch_det")
def batch_det(ctx: Exporter, call: Call) -> Tensor:
    return ctx.emit("Det", call.x)


@onnx_export("batch_logdet")
def batch_logdet(ctx: Exporter, call: Call) -> Tensor:
    return ctx.emit("Log", ctx.emit("Abs", ctx.emit("Det", call.x)))


@onnx_export("fft", "ifft")
def fourier(ctx: Exporter, call: Call) -> Tensor:
    """One matrix product per axis: a transform of n points of pairs (real, imaginary) is linear.

    So it does not need the operator DFT of opset 17, which runtimes often lack.
    """
    x, n = call.x, call.attrs.signal_ndim
    y = x
    for axis in range(x.ndim - 1 - n, x.ndim - 1):
        points = x.sizes[axis]
        matrix = ctx.constant(_pairs_matrix(points, call.name == "ifft"), x.dtype)
        # bring the points beside the pairs: (..., axis, pair) and merge these two
        order = [*(d for d in range(x.ndim - 1) if d != axis), axis, x.ndim - 1]
        sizes = [x.sizes[d] for d in order[:-2]]
        y = ctx.transpose(y, order)
        y = ctx.reshape(y, (*sizes, 2 * points))
        y = ctx.emit("MatMul", y, matrix)
        y = ctx.reshape(y, (*sizes, points, 2))
        y = ctx.transpose(y, [order.index(d) for d in range(x.ndim)])
    total = prod(x.sizes[x.ndim - 1 - n : -1])
    if call.attrs.normalized:
        return scaled(ctx, y, 1.0 / math.sqrt(total))
    return scaled(ctx, y, 1.0 / total if call.name == "ifft" else 1.0)


def _pairs_matrix(points: int, inverse: bool) -> np.ndarray:
    """(2 points, 2 points): row and column are position and real or imaginary part."""
    angle = 2 * np.pi * np.outer(range(points), range(points)) % (2 * np.pi * max(points, 1))
    angle /= max(points, 1)
    sine = np.sin(angle) if inverse else -np.sin(angle)
    blocks = np.array([[np.cos(angle), sine], [-sine, np.cos(angle)]])
    return blocks.transpose(2, 0, 3, 1).reshape(2 * points, 2 * points)
