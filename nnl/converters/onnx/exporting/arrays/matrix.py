# SPDX-License-Identifier: Apache-2.0
"""Export of matrix products, determinants and Fourier transforms."""

from __future__ import annotations

from math import prod

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
