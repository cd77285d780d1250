# SPDX-License-Identifier: Apache-2.0
"""Matrix products and functions that move elements, as operators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnl.converters.networks.layout import held_axes, permuted, plain, without
from nnl.converters.tflite.graph import FLOAT, INT, Graph, Laid, Refused, Tensor, says
from nnl.core.graph.node import Node

# ---- matrix products ----


@says("affine")
def _affine(g: Graph, node: Node, x: Laid, w: Laid, b: Laid | None) -> Laid:
    """The rows of constant weights take the order of what was flattened before."""
    base, shape = node.attrs.base_axis, node.out_specs[0].shape
    rows, inner = math.prod(x.shape[:base]), w.shape[0]
    columns = w.tensor.value.size // inner if w.tensor.value is not None else math.prod(w.shape[1:])
    source = g.before_reshape(x)
    lead = _leading(source, rows)
    weights = g.reshape(w, (inner, columns))
    if lead is not None and w.tensor.value is not None:
        t = g.reshaped(source.tensor, (rows, inner))
        cube = g.reshape(weights, (*source.shape[lead:], columns))
        n = source.rank - lead
        order = (n, *[a - lead for a in source.order[lead:]])
        matrix = g.reshaped(g.held(cube, order), (columns, inner))
    else:
        t = g.plain(x)
        matrix = g.held(weights, (1, 0))
    bias = None if b is None else g.reshaped(g.plain(b), (columns,))
    return Laid(g.reshaped(_product(g, t, matrix, bias), shape), plain(len(shape)))


def _product(g: Graph, t: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """Products of rows with weights (outputs, inputs)."""
    outputs, inputs = matrix.shape
    if t.shape[-1] != inputs:
        t = g.reshaped(t, (math.prod(t.shape) // inputs, inputs))
    many = len(t.shape) != 2
    shape = (*t.shape[:-1], outputs)
    return g.op("FULLY_CONNECTED", t, matrix, bias, shape=shape, keep_num_dims=many)


def _leading(x: Laid, rows: int) -> int | None:
    """How many axes of x make these rows, if they come first as it is held."""
    for n in range(x.rank):
        if math.prod(x.shape[:n]) == rows and x.order[:n] == plain(n):
            return n
    return None


@says("batch_matmul")
def _matmul(g: Graph, node: Node, x: Laid, y: Laid) -> Laid:
    a, shape = node.attrs, node.out_specs[0].shape
    if x.rank < 2 or y.rank < 2:
        raise Refused("it multiplies vectors")
    if y.tensor.value is not None and math.prod(y.shape[:-2]) == 1 and not a.transpose_a:
        matrix = g.reshape(y, y.shape[-2:])
        weights = g.plain(matrix) if a.transpose_b else g.held(matrix, (1, 0))
        z = _product(g, g.plain(x), weights, None)
        return Laid(g.reshaped(z, shape), plain(len(shape)))
    p, q = g.plain(x), g.plain(y)
    lead = np.broadcast_shapes(p.shape[:-2], q.shape[:-2])
    whole = (*lead, *shape[-2:])
    if len(whole) > 4:
        if p.shape[:-2] != q.shape[:-2]:
            raise Refused("it broadcasts, and has more than 4 axes")
        n = math.prod(lead)
        p, q = (g.reshaped(t, (n, *t.shape[-2:])) for t in (p, q))
    z = g.op(
        "BATCH_MATMUL",
        p,
        q,
        shape=(*p.shape[:-2], *shape[-2:]) if len(whole) > 4 else whole,
        adj_x=a.transpose_a,
        adj_y=a.transpose_b,
    )
    return Laid(g.reshaped(z, shape), plain(len(shape)))


# ---- shapes ----


@says("reshape")
def _reshape(g: Graph, node: Node, x: Laid) -> Laid:
    return g.reshape(x, node.out_specs[0].shape)


@says("transpose")
def _transpose(g: Graph, node: Node, x: Laid) -> Laid:
    """Nothing moves before somebody asks for another order."""
    axes = [a % x.rank for a in node.attrs.axes]
    return Laid(x.tensor, tuple([axes.index(a) for a in x.order]))


@says("broadcast")
def _broadcast(g: Graph, node: Node, x: Laid) -> Laid:
    shape = node.out_specs[0].shape
    if x.shape == shape:
        return x
    x = g.reshape(x, (1,) * (len(shape) - x.rank) + x.shape)
    held = permuted(shape, x.order)
    return Laid(g.op("BROADCAST_TO", x.tensor, g.ints(*held), shape=held), x.order)


@says("tile")
def _tile(g: Graph, node: Node, x: Laid) -> Laid:
    shape = node.out_specs[0].shape
    x = g.reshape(x, (1,) * (len(shape) - x.rank) + x.shape)
    held = permuted(shape, x.order)
    reps = [n // m for n, m in zip(held, x.tensor.shape, strict=True)]
    return Laid(g.op("TILE", x.tensor, g.ints(*reps), shape=held), x.order)


@says("concatenate")
def _concatenate(g: Graph, node: Node, *xs: Laid) -> Laid:
    axis = node.attrs.axis
    axis = (xs[0].rank - 1 if axis is None else axis) % xs[0].rank
    xs = tuple([x for x in xs if math.prod(x.shape)])
    if len(xs) == 1:
        return xs[0]
    order = g.common(xs)
    return Laid(_joined(g, [g.held(x, order) for x in xs], order.index(axis)), order)


def _joined(g: Graph, ts: Sequence[Tensor], axis: int) -> Tensor:
    """Behind each other along an axis, as tensors of at most three axes if they have many."""
    shape = list(ts[0].shape)
    shape[axis] = sum(t.shape[axis] for t in ts)
    if len(shape) <= 4:
        return g.op("CONCATENATION", *ts, shape=shape, axis=axis)
    before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    few = [g.reshaped(t, (before, t.shape[axis], after)) for t in ts]
    y = g.op("CONCATENATION", *few, shape=(before, shape[axis], after), axis=1)
    return g.reshaped(y, shape)


@says("stack")
def _stack(g: Graph, node: Node, *xs: Laid) -> Laid:
    rank = xs[0].rank + 1
    axis = node.attrs.axis % rank
    shape = (*xs[0].shape[:axis], 1, *xs[0].shape[axis:])
    ts = [g.reshaped(g.plain(x), shape) for x in xs]
    return Laid(_joined(g, ts, axis), plain(rank))


@says("split")
def _split(g: Graph, node: Node, x: Laid) -> list[Laid]:
    axis = node.attrs.axis % x.rank
    (at,) = held_axes([axis], x.order)
    order = without(x.order, [axis])
    n = x.tensor.shape[at]
    rest = tuple(s for k, s in enumerate(x.tensor.shape) if k != at)
    parts = g.ops_of("UNPACK", [x.tensor], [rest] * n, num=n, axis=at)
    return [Laid(t, order) for t in parts]


@says("slice")
def _slice(g: Graph, node: Node, x: Laid) -> Laid:
    ranges = [
        range(*part.indices(n)) for part, n in zip(node.attrs.region(x.shape), x.shape, strict=True)
    ]
    if not all(ranges):
        raise Refused("its result is empty")
    return _ranges(g, x, ranges)


def _ranges(g: Graph, x: Laid, ranges: Sequence[range]) -> Laid:
    """Regular parts along the axes of a value."""
    t = x.tensor
    held = [ranges[a] for a in x.order]
    touched = [k for k, (r, n) in enumerate(zip(held, t.shape, strict=True)) if r != range(n)]
    if not touched and g.sizes_stay:  # of open ones it may be a part at others
        return x
    few, groups = g.few_axes(t, touched)
    parts = [
        next((held[k] for k in axes if k in touched), range(n))
        for axes, n in zip(groups, few.shape, strict=True)
    ]
    shape = [len(r) for r in parts]
    if all(r.step == 1 for r in parts):
        y = g.op("SLICE", few, g.ints(*[r.start for r in parts]), g.ints(*shape), shape=shape)
    else:
        whole = sum(1 << k for k, r in enumerate(parts) if r.step < 0 and r[-1] == 0)
        y = g.op(
            "STRIDED_SLICE",
            few,
            g.ints(*[r.start for r in parts]),
            g.ints(*[r[-1] + (1 if r.step > 0 else -1) for r in parts]),
            g.ints(*[r.step for r in parts]),
            shape=shape,
            end_mask=whole,
        )
    return Laid(g.reshaped(y, [len(r) for r in held]), x.order)


@says("pad")
def _pad(g: Graph, node: Node, x: Laid) -> Laid:
    a = node.attrs
    n = len(a.pad_width) // 2
    rows = [(0, 0)] * (x.rank - n) + list(zip(a.pad_width[::2], a.pad_width[1::2], strict=True))
    if a.mode not in ("constant", "reflect"):
        raise Refused(f"its mode is {a.mode}")
    if min(min(r) for r in rows) < 0:
        raise Refused("it cuts off elements")
    if a.mode == "reflect" and any(max(r) >= n for r, n in zip(rows, x.shape, strict=True)):
        raise Refused("it reflects more elements than there are")
    held = [rows[i] for i in x.order]
    touched = [k for k, r in enumerate(held) if any(r)]
    few, groups = g.few_axes(x.tensor, touched)
    rows = [next((held[k] for k in axes if k in touched), (0, 0)) for axes in groups]
    widths = np.array(rows, np.int32)
    shape = [n + b + e for n, (b, e) in zip(few.shape, widths.tolist(), strict=True)]
    if a.mode == "reflect":
        y = g.op("MIRROR_PAD", few, g.constant(widths), shape=shape, mode=0)
    elif a.constant_value:
        y = g.op("PADV2", few, g.constant(widths), a.constant_value, shape=shape)
    else:
        y = g.op("PAD", few, g.constant(widths), shape=shape)
    full = [s + sum(r) for s, r in zip(x.tensor.shape, held, strict=True)]
    return Laid(g.reshaped(y, full), x.order)


@says("flip")
def _flip(g: Graph, node: Node, x: Laid) -> Laid:
    axes = node.attrs.axes
    t = x.tensor
    for axis in held_axes([x.rank - 1] if axes is None else axes, x.order):
        t = g.op("REVERSE_V2", t, g.ints(axis))
    return Laid(t, x.order)


@says("arange")
def _arange(g: Graph, node: Node) -> Laid:
    a = node.attrs
    limits = [g.constant(n, FLOAT) for n in (a.start, a.stop, a.step)]
    return Laid(g.op("RANGE", *limits, shape=node.out_specs[0].shape), plain(1))


# ---- indices ----


def _indices(g: Graph, x: Laid) -> Tensor:
    return g.cast(g.plain(x), INT)


@says("gather")
def _gather(g: Graph, node: Node, x: Laid, indices: Laid) -> Laid:
    a, shape = node.attrs, node.out_specs[0].shape
    if indices.rank == 1 and not a.batch_dims:
        (at,) = held_axes([a.axis], x.order)
        held = permuted(shape, x.order)
        y = g.op("GATHER", x.tensor, _indices(g, indices), shape=held, axis=at)
        return Laid(y, x.order)
    y = g.op(
        "GATHER",
        g.plain(x),
        _indices(g, indices),
        shape=shape,
        axis=a.axis,
        batch_dims=a.batch_dims,
    )
    return Laid(y, plain(len(shape)))


@says("embed")
def _embed(g: Graph, node: Node, indices: Laid, w: Laid) -> Laid:
    shape = node.out_specs[0].shape
    y = g.op("GATHER", g.plain(w), _indices(g, indices), shape=shape, axis=0)
    return Laid(y, plain(len(shape)))


def _positions(g: Graph, indices: Laid, sizes: Sequence[int]) -> Tensor:
    """(count axes, *) as (*, count axes); negative ones count from the end."""
    count = indices.shape[0]
    t = g.cast(g.held(indices, (*range(1, indices.rank), 0)), INT)
    size = np.array(sizes[:count], np.int32)
    if t.value is not None:
        return g.constant(np.where(t.value < 0, t.value + size, t.value).astype(INT))
    return g.op("FLOOR_MOD", t, g.constant(np.broadcast_to(size, t.shape).copy()))


@says("gather_nd")
def _gather_nd(g: Graph, node: Node, x: Laid, indices: Laid) -> Laid:
    shape = node.out_specs[0].shape
    y = g.op("GATHER_ND", g.plain(x), _positions(g, indices, x.shape), shape=shape)
    return Laid(y, plain(len(shape)))


@says("scatter_nd")
def _scatter_nd(g: Graph, node: Node, x: Laid, indices: Laid, out: Laid | None = None) -> Laid:
    shape = node.out_specs[0].shape
    at = _positions(g, indices, shape)
    if not node.attrs.add:
        if at.value is None or len(np.unique(at.value.reshape(-1, at.shape[-1]), axis=0)) != (
            at.value.size // at.shape[-1]
        ):
            raise Refused("the last of several values for a place counts, not their sum")
        if out is not None:
            raise Refused("it writes into another array")
    y = g.op("SCATTER_ND", at, g.plain(x), g.ints(*shape), shape=shape, dtype=FLOAT)
    if out is not None:
        y = g.op("ADD", y, g.plain(out))
    return Laid(y, plain(len(shape)))


@says("one_hot")
def _one_hot(g: Graph, node: Node, x: Laid) -> Laid:
    sizes = node.attrs.shape
    if len(sizes) != 1:
        raise Refused(f"its indices have {len(sizes)} axes, wanted 1")
    t = g.op("FLOOR_MOD", _indices(g, x), sizes[0])
    shape = (*x.shape[:-1], *sizes)
    y = g.op(
        "ONE_HOT",
        g.reshaped(t, x.shape[:-1]),
        g.constant(sizes[0], INT),
        g.constant(1, FLOAT),
        g.constant(0, FLOAT),
        shape=shape,
        dtype=FLOAT,
        axis=-1,
    )
    return Laid(y, plain(len(shape)))


@says("sort")
def _sort(g: Graph, node: Node, x: Laid) -> Any:
    a = node.attrs
    t, order = g.along(x, a.axis)
    values, index = _largest(g, t, t.shape[-1], not a.reverse)
    found = [] if a.only_index else [Laid(values, order)]
    if a.with_index or a.only_index:
        found.append(Laid(g.cast(index, np.int64), order))
    return found


def _largest(g: Graph, t: Tensor, k: int, negated: bool) -> tuple[Tensor, Tensor]:
    """The k largest elements along the last axis, or the smallest, and where they are."""
    shape = (*t.shape[:-1], k)
    source = g.op("NEG", t) if negated else t
    values, index = g.ops_of("TOPK_V2", [source, g.constant(k, INT)], [shape, shape])
    index.dtype = INT
    return (g.op("NEG", values) if negated else values), index


@says("top_k_data")
def _top_k(g: Graph, node: Node, x: Laid) -> Any:
    a = node.attrs
    t = g.reshaped(g.plain(x), (*x.shape[: a.base_axis], math.prod(x.shape[a.base_axis :])))
    if a.abs or not a.reduce:
        raise Refused("it compares absolute values, or keeps the places of elements")
    values, index = _largest(g, t, a.k, not a.largest)
    y = Laid(values, plain(len(values.shape)))
    return [y, Laid(g.cast(index, np.int64), y.order)] if a.with_index else y
