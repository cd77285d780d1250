# SPDX-License-Identifier: Apache-2.0
"""Export of reductions, sums along an axis, sorting, searching, and of products of matrices."""

from __future__ import annotations

from math import prod

import numpy as np

from nnl.converters.onnx.exporting.elementwise import choose
from nnl.converters.onnx.exporting.nodes.context import Exporter, Refused
from nnl.converters.onnx.exporting.nodes.tensor import Call, Tensor
from nnl.converters.onnx.file.registry import Handler, onnx_export
from nnl.functions.einsum import parse

_TOTALS = {"sum": "ReduceSum", "mean": "ReduceMean", "prod": "ReduceProd"}


@onnx_export(*_TOTALS)
def total(ctx: Exporter, call: Call) -> Tensor:
    return ctx.reduce(_TOTALS[call.name], call.x, call.attrs.axes, call.attrs.keep_dims)


@onnx_export("max", "min")
def extremum(ctx: Exporter, call: Call) -> tuple[Tensor, ...]:
    a, x = call.attrs, call.x
    which = "Max" if call.name == "max" else "Min"
    made = []
    if not a.only_index:
        made.append(ctx.reduce(f"Reduce{which}", x, a.axes, a.keep_dims))
    if a.only_index or a.with_index:
        made.append(_position(ctx, call, f"Arg{which}"))
    return tuple(made)


def _position(ctx: Exporter, call: Call, op_type: str) -> Tensor:
    """The first position of the extremum, counted through all reduced axes together."""
    a, x = call.attrs, call.x
    i = 1 - a.only_index
    axes = sorted(a.axes)
    if len(axes) == 1:
        return ctx.emit(op_type, x, axis=axes[0], keepdims=int(a.keep_dims), dtype=np.int64)
    kept = [d for d in range(x.ndim) if d not in axes]
    rows = [*(x.sizes[d] for d in kept), prod(x.sizes[d] for d in axes)]
    merged = ctx.reshape(ctx.transpose(x, [*kept, *axes]), rows)
    y = ctx.emit(op_type, merged, axis=len(kept), keepdims=0, dtype=np.int64)
    return ctx.reshape(y, call.shapes[i]) if a.keep_dims else y


@onnx_export("cumsum")
def cumsum(ctx: Exporter, call: Call) -> Tensor:
    a = call.attrs
    axis = ctx.constant(a.axis, np.int64)
    return ctx.emit("CumSum", call.x, axis, exclusive=int(a.exclusive), reverse=int(a.reverse))


@onnx_export("cumprod")
def cumprod(ctx: Exporter, call: Call) -> Tensor:
    """Every product by itself, of the elements that take part and of ones."""
    a, x = call.attrs, call.x
    n = x.sizes[a.axis]
    takes = np.triu(np.ones((n, n), bool), int(a.exclusive))  # (element, product)
    takes = takes.T if a.reverse else takes
    takes = takes.reshape(n, n, *(1,) * (x.ndim - 1 - a.axis))
    spread = choose(ctx, ctx.constant(takes), ctx.unsqueeze(x, a.axis + 1), 1.0)
    return ctx.reduce("ReduceProd", spread, [a.axis])


def top(ctx: Exporter, x: Tensor, k: Tensor, axis: int, largest: bool) -> tuple[Tensor, Tensor]:
    """The k largest or smallest with their positions, in order."""
    values, index = ctx.emit("TopK", x, k, outputs=2, axis=axis, largest=int(largest), sorted=1)
    index.dtype = np.dtype(np.int64)
    return values, index


@onnx_export("sort")
def sort(ctx: Exporter, call: Call) -> tuple[Tensor, ...]:
    a, x = call.attrs, call.x
    values, index = top(ctx, x, ctx.ints(x.sizes[a.axis]), a.axis, a.reverse)
    if a.only_index:
        return (index,)
    return (values, index) if a.with_index else (values,)


@onnx_export("top_k_data")
def top_k_data(ctx: Exporter, call: Call) -> tuple[Tensor, ...]:
    a, x = call.attrs, call.x
    base = a.base_axis
    rows = ctx.reshape(x, (*x.sizes[:base], prod(x.sizes[base:])))
    keys = ctx.emit("Abs", rows) if a.abs else rows
    values, index = top(ctx, keys, ctx.ints(a.k), base, a.largest)
    if a.abs:
        values = ctx.emit("GatherElements", rows, index, axis=base)
    if a.reduce:
        return (values, index) if a.with_index else (values,)
    zeros = ctx.emit("Mul", rows, 0.0)
    full = ctx.emit("ScatterElements", zeros, index, values, axis=base)
    y = ctx.reshape(full, call.shape)
    return (y, index) if a.with_index else (y,)


@onnx_export("embed")
def embed(ctx: Exporter, call: Call) -> Tensor:
    index, w = ctx.cast(call.input(0), np.int64), call.input(1)
    return ctx.emit("Gather", w, index, axis=0, dtype=w.dtype)


@onnx_export("gather")
def gather(ctx: Exporter, call: Call) -> Tensor:
    a, x, index = call.attrs, call.input(0), ctx.cast(call.input(1), np.int64)
    b, axis = a.batch_dims, a.axis
    if b == 0:
        return ctx.emit("Gather", x, index, axis=axis)
    rank = x.ndim
    moved = [*range(b), axis, *(d for d in range(b, rank) if d != axis)]
    pairs = ctx.unsqueeze(index, call.input(1).ndim)
    y = ctx.emit("GatherND", ctx.transpose(x, moved), pairs, batch_dims=b)
    # (batch, indices, outer, inner) -> (batch, outer, indices, inner)
    k, outer = call.input(1).ndim - b, axis - b
    places = range(b + k + rank - 1 - b)
    order = [*places[:b], *places[b + k : b + k + outer], *places[b : b + k]]
    return ctx.transpose(y, [*order, *places[b + k + outer :]])


def position_rows(ctx: Exporter, indices: Tensor) -> Tensor:
    """(axis, ...) indices as ONNX has them, (..., axis)."""
    return ctx.transpose(ctx.cast(indices, np.int64), [*range(1, indices.ndim), 0])


@onnx_export("gather_nd")
def gather_nd(ctx: Exporter, call: Call) -> Tensor:
    x, indices = call.input(0), call.input(1)
    return ctx.emit("GatherND", x, position_rows(ctx, indices))


@onnx_export("scatter_nd")
def scatter_nd(ctx: Exporter, call: Call) -> Tensor:
    data, indices, base = call.input(0), call.input(1), call.optional(2)
    at = position_rows(ctx, indices)
    if base is None:
        base = ctx.expand_to(ctx.constant(np.zeros((), data.dtype)), call.shape)
    if call.attrs.add and ctx.opset < 16:
        raise Refused("adding at the same place several times needs opset 16")
    reduction = "add" if call.attrs.add else None
    return ctx.emit("ScatterND", base, at, data, reduction=reduction)


@onnx_export("scatter_add", since=16)
def scatter_add(ctx: Exporter, call: Call) -> Tensor:
    x0, indices, x1 = call.input(0), ctx.cast(call.input(1), np.int64), call.input(2)
    sizes = call.input(1).sizes
    if x1.sizes != sizes:
        axes = [d for d, n in enumerate(x1.sizes) if n != sizes[d]]
        x1 = ctx.slice(x1, [0] * len(axes), [sizes[d] for d in axes], axes)
    return ctx.emit("ScatterElements", x0, indices, x1, axis=call.attrs.axis, reduction="add")


@onnx_export("take_along")
def take_along(ctx: Exporter, call: Call) -> Tensor:
    index = ctx.cast(call.input(1), np.int64)
    return ctx.emit("GatherElements", call.x, index, axis=call.attrs.axis)


@onnx_export("bool_fill")
def bool_fill(ctx: Exporter, call: Call) -> Tensor:
    mask = ctx.cast(call.input(1), np.bool_)
    return choose(ctx, mask, float(call.attrs.value), call.x)


def flat_mask(ctx: Exporter, mask: Tensor) -> Tensor:
    return ctx.emit("Reshape", ctx.cast(mask, np.bool_), ctx.ints(-1))


@onnx_export("bool_gather")
def bool_gather(ctx: Exporter, call: Call) -> Tensor:
    x, mask = call.input(0), call.input(1)
    m = mask.ndim
    rows = prod(x.sizes[m:])
    shape = (-1, rows) if x.ndim > m else (-1,)
    flat = ctx.emit("Reshape", x, ctx.ints(*shape))
    return opened(call, ctx.emit("Compress", flat, flat_mask(ctx, mask), axis=0))


@onnx_export("bool_scatter")
def bool_scatter(ctx: Exporter, call: Call) -> Tensor:
    x, mask, output = call.input(0), ctx.cast(call.input(1), np.bool_), call.optional(2)
    places = ctx.emit("Transpose", ctx.emit("NonZero", mask, dtype=np.int64), perm=(1, 0))
    if output is None:
        output = ctx.expand_to(ctx.constant(np.zeros((), x.dtype)), call.shape)
    return ctx.emit("ScatterND", output, places, x)


@onnx_export("unique")
def unique(ctx: Exporter, call: Call) -> tuple[Tensor, ...]:
    a = call.attrs
    axis = None if a.flatten else a.axis
    made = ctx.emit("Unique", call.x, outputs=4, axis=axis, sorted=int(a.sorted))
    kept = [opened(call, made[0], axis or 0)]
    for wanted, y in zip((a.with_index, a.with_inverse, a.with_counts), made[1:], strict=True):
        y.dtype = np.dtype(np.int64)
        if wanted:
            kept.append(y)
    return tuple(kept)


def opened(call: Call, y: Tensor, axis: int = 0) -> Tensor:
    """Mark an axis whose size depends on the values of the inputs."""
    y.open_axis = axis
    return y


# ---- products and determinants ----


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


# ---- functions that are one expression ----

_EXPRESSIONS: dict[str, Handler] = {
    "nonzero": lambda ctx, call: opened(call, ctx.emit("NonZero", call.x, dtype=np.int64), axis=1),
    "batch_det": lambda ctx, call: ctx.emit("Det", call.x),
    "batch_logdet": lambda ctx, call: ctx.emit("Log", ctx.emit("Abs", ctx.emit("Det", call.x))),
}

for _names, _expression in _EXPRESSIONS.items():
    onnx_export(*_names.split())(_expression)
