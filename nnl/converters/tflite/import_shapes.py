# SPDX-License-Identifier: Apache-2.0
"""Importers of operators that move elements."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.layout import permuted, plain, without
from nnl.converters.tflite.building import Builder, Value, check_size, computed, reads
from nnl.converters.tflite.flatbuffer import Damaged
from nnl.core.op import OPS
from nnl.core.variable import Variable

END = 2**31 - 1


@reads("RESHAPE", parts=True)
def _reshape(b: Builder, v: Value, shape: Value | None = None) -> Value:
    wanted = b.ints(shape, "the shape") if shape is not None else b.op.options["new_shape"]
    wanted = [int(n) for n in wanted]
    if wanted.count(-1) == 1:
        rest = -math.prod(wanted)
        wanted[wanted.index(-1)] = math.prod(v.shape) // rest if rest > 0 else -1
    if min(wanted, default=1) < 0:
        raise Damaged(f"its shape is {wanted}")
    return b.reshaped(v, wanted)


@reads("SQUEEZE", parts=True)
def _squeeze(b: Builder, v: Value) -> Value:
    axes = [a % max(v.rank, 1) for a in b.op.options["squeeze_dims"]]
    axes = axes or [a for a, n in enumerate(v.shape) if n == 1]
    return b.reshaped(v, [n for a, n in enumerate(v.shape) if a not in axes])


@reads("EXPAND_DIMS", parts=True)
def _expand(b: Builder, v: Value, axis: Value) -> Value:
    (at,) = b.axes(axis, v.rank + 1)
    return b.reshaped(v, (*v.shape[:at], 1, *v.shape[at:]))


@reads("TRANSPOSE", parts=True)
def _transpose(b: Builder, v: Value, axes: Value) -> Value:
    """Nothing moves before somebody asks for another order."""
    found = b.axes(axes, v.rank)
    if sorted(found) != list(range(v.rank)):
        raise Damaged(f"its axes are {found}, with {v.rank}")
    return Value(v.x, tuple([found.index(a) for a in v.order]), v.name)


@reads("CONCATENATION", parts=True)
def _concatenate(b: Builder, *vs: Value) -> Value:
    axis = int(b.op.options["axis"])
    if len({v.rank for v in vs}) != 1 or not -vs[0].rank <= axis < vs[0].rank:
        raise Damaged(f"its axis is {axis}, with {[v.rank for v in vs]} axes")
    order = b.common(vs)
    y = F.concatenate(*[b.held(v, order) for v in vs], axis=order.index(axis % vs[0].rank))
    return b.activated(Value(y, order))


@reads("PACK", parts=True)
def _pack(b: Builder, *vs: Value) -> Value:
    axis = int(b.op.options["axis"])
    return computed(F.stack(*[b.held(v) for v in vs], axis=axis))


@reads("UNPACK", parts=True)
def _unpack(b: Builder, v: Value) -> list[Value]:
    axis = int(b.op.options["axis"])
    if not -v.rank <= axis < v.rank:
        raise Damaged(f"its axis is {axis}, with {v.rank}")
    at = v.order.index(axis % v.rank)
    if v.shape[axis] != len(b.outs):
        raise Damaged(f"it has {len(b.outs)} outputs, for {v.shape[axis]} parts")
    parts = F.split(b.held(v, v.order), axis=at)
    order = without(v.order, [axis])
    return [Value(y, order) for y in (parts if isinstance(parts, (list, tuple)) else [parts])]


@reads("SPLIT", "SPLIT_V", parts=True)
def _split(b: Builder, *vs: Value) -> list[Value]:
    v, axis = (vs[1], vs[0]) if b.op.name == "SPLIT" else (vs[0], vs[2])
    (at,) = b.axes(axis, v.rank)
    n, count = v.shape[at], len(b.outs)
    sizes = [n // max(count, 1)] * count if b.op.name == "SPLIT" else b.ints(vs[1], "the sizes")
    if sizes.count(-1) == 1:
        sizes[sizes.index(-1)] = n - sum(sizes) - 1
    if sum(sizes) != n or min(sizes) < (0 if v.known else 1):
        raise Damaged(f"its parts are {sizes} of {n}")
    ends = np.cumsum(sizes).tolist()
    return [_cut(b, v, {at: slice(e - s, e, 1)}) for s, e in zip(sizes, ends, strict=True)]


def _cut(b: Builder, v: Value, parts: dict[int, slice]) -> Value:
    """Regular parts along some axes."""
    slices = [parts.get(a, slice(0, n, 1)) for a, n in enumerate(v.shape)]
    if v.known:
        return computed(b.array(v, "")[tuple(slices)])
    ranges = [range(*s.indices(n)) for s, n in zip(slices, v.shape, strict=True)]
    if not all(ranges):
        raise Damaged("its result has no elements")
    held = [ranges[a] for a in v.order]
    start = [r.start for r in held]
    stop = [r.stop if r.stop >= 0 else -END for r in held]
    return Value(F.slice(b.held(v, v.order), start, stop, [r.step for r in held]), v.order)


@reads("SLICE", parts=True)
def _slice(b: Builder, v: Value, begin: Value, size: Value) -> Value:
    starts, sizes = b.ints(begin, "the start"), b.ints(size, "the size")
    if not len(starts) == len(sizes) == v.rank or min(starts, default=0) < 0:
        raise Damaged(f"it begins at {starts}, with {v.rank} axes")
    ends = [n if s == -1 else p + s for p, s, n in zip(starts, sizes, v.shape, strict=True)]
    if any(not 0 <= e <= n for e, n in zip(ends, v.shape, strict=True)):
        raise Damaged(f"it begins at {starts} and has {sizes}, of {list(v.shape)}")
    pairs = zip(starts, ends, strict=True)
    return _cut(b, v, {a: slice(s, e, 1) for a, (s, e) in enumerate(pairs)})


@reads("STRIDED_SLICE", parts=True)
def _strided(b: Builder, v: Value, begin: Value, end: Value, steps: Value) -> Value:
    o = b.op.options
    if o["ellipsis_mask"] or o["new_axis_mask"] or o["offset"]:
        raise Damaged("its masks for new axes are in use, which nnl does not read")
    rows = [b.ints(x, "a limit") for x in (begin, end, steps)]
    if len({len(r) for r in rows}) != 1 or len(rows[0]) > v.rank or 0 in rows[2]:
        raise Damaged(f"its limits are {rows}, with {v.rank} axes")
    parts, gone = {}, []
    for a, (start, stop, by) in enumerate(zip(*rows, strict=True)):
        bit = 1 << a
        if o["shrink_axis_mask"] & bit:
            gone.append(a)
            start %= max(v.shape[a], 1)
            parts[a] = slice(start, start + 1, 1)
            continue
        low = None if o["begin_mask"] & bit else start
        high = None if o["end_mask"] & bit else stop
        parts[a] = slice(low, high, by)
    y = _cut(b, v, parts)
    return b.reshaped(y, [n for a, n in enumerate(y.shape) if a not in gone]) if gone else y


@reads("PAD", "PADV2", "MIRROR_PAD")
def _pad(b: Builder, v: Value, widths: Value, fill: Value | None = None) -> Value:
    rows = b.array(widths, "the widths").tolist()
    if len(rows) != v.rank or any(len(r) != 2 or min(r) < 0 for r in rows):
        raise Damaged(f"its widths are {rows}, with {v.rank} axes")
    check_size([n + sum(r) for n, r in zip(v.shape, rows, strict=True)])
    flat = [w for a in v.order for w in rows[a]]
    x = b.held(v, v.order)
    if b.op.name != "MIRROR_PAD":
        value = 0.0 if fill is None else float(b.array(fill, "the value").reshape(-1)[0])
        return Value(F.pad(x, flat, "constant", value), v.order)
    if b.op.options["mode"] == 0:
        return Value(F.pad(x, flat, "reflect"), v.order)
    for a, (before, after) in enumerate(rows):  # the border's elements are repeated
        n = v.shape[a]
        if before or after:
            at = np.arange(-before, n + after) % (2 * n)
            index = Variable.from_numpy_array(np.where(at < n, at, 2 * n - 1 - at))
            x = F.gather(x, index, axis=v.order.index(a))
    return Value(x, v.order)


@reads("TILE", parts=True)
def _tile(b: Builder, v: Value, reps: Value) -> Value:
    counts = b.ints(reps, "the counts")
    if len(counts) != v.rank or min(counts, default=1) < 1:
        raise Damaged(f"its counts are {counts}, with {v.rank} axes")
    check_size([n * c for n, c in zip(v.shape, counts, strict=True)])
    return Value(F.tile(b.held(v, v.order), permuted(counts, v.order)), v.order)


@reads("BROADCAST_TO", parts=True)
def _broadcast(b: Builder, v: Value, shape: Value) -> Value:
    wanted = tuple(b.ints(shape, "the shape"))
    check_size(wanted)
    v = b.reshaped(v, (1,) * (len(wanted) - v.rank) + v.shape)
    return Value(F.broadcast(b.held(v, v.order), permuted(wanted, v.order)), v.order)


@reads("FILL")
def _fill(b: Builder, shape: Value, fill: Value) -> Value:
    wanted = tuple(b.ints(shape, "the shape"))
    check_size(wanted)
    if fill.known:
        return computed(np.full(wanted, b.array(fill, "").reshape(-1)[0]))
    return computed(F.broadcast(F.reshape(b.held(fill), (1,) * len(wanted)), wanted))


@reads("SHAPE")
def _shape(b: Builder, v: Value) -> Value:
    return computed(np.array(v.shape, np.int32))


@reads("RANK")
def _rank(b: Builder, v: Value) -> Value:
    return computed(np.array(v.rank, np.int32))


@reads("BROADCAST_ARGS")
def _broadcast_args(b: Builder, p: Value, q: Value) -> Value:
    shapes = [b.ints(v, "a shape") for v in (p, q)]
    return computed(np.array(np.broadcast_shapes(*map(tuple, shapes)), b.outs[0].dtype))


@reads("DYNAMIC_UPDATE_SLICE")
def _update(b: Builder, v: Value, new: Value, start: Value) -> Value:
    at = b.ints(start, "the start")
    if not len(at) == new.rank == v.rank or any(map(int.__gt__, new.shape, v.shape)):
        raise Damaged(f"it writes {list(new.shape)} at {at} of {list(v.shape)}")
    at = [min(max(a, 0), n - m) for a, n, m in zip(at, v.shape, new.shape, strict=True)]
    widths = [(a, n - m - a) for a, n, m in zip(at, v.shape, new.shape, strict=True)]
    inside = np.pad(np.ones(new.shape, np.float32), widths)
    y = F.pad(b.held(new), [w for pair in widths for w in pair], "constant", 0.0)
    return computed(F.where(Variable.from_numpy_array(inside), y, b.held(v)))


@reads("REVERSE_SEQUENCE")
def _reverse_parts(b: Builder, v: Value, lengths: Value) -> Value:
    """The first elements of every sample in the other direction."""
    along, batch = (int(b.op.options[k]) for k in ("seq_dim", "batch_dim"))
    counts = b.array(lengths, "the lengths").reshape(-1).astype(np.int64)
    if along == batch or not 0 <= min(along, batch) <= max(along, batch) < v.rank:
        raise Damaged(f"its axes are {along} and {batch}, with {v.rank}")
    if len(counts) != v.shape[batch] or not _inside(counts, v.shape[along] + 1):
        raise Damaged(f"its lengths are {counts.tolist()}, of {list(v.shape)}")
    rest = tuple([a for a in range(v.rank) if a not in (batch, along)])
    at = np.arange(v.shape[along])
    index = np.where(at < counts[:, None], counts[:, None] - 1 - at, at)
    order = (batch, along, *rest)
    return Value(F.gather(b.held(v, order), Variable.from_numpy_array(index), 1, 1), order)


@reads("SPARSE_TO_DENSE")
def _to_dense(b: Builder, at: Value, shape: Value, v: Value, fill: Value) -> Value:
    wanted = tuple(b.ints(shape, "the shape"))
    check_size(wanted)
    index = b.array(at, "the places")
    index = index.reshape(-1, len(wanted)) if index.ndim != 2 else index
    if index.shape[1] != len(wanted) or not all(map(_inside, index.T, wanted)):
        raise Damaged(f"its places are {list(index.shape)}, of {list(wanted)}")
    places = np.full(wanted, len(index), np.int64)
    places[tuple(index.T)] = np.arange(len(index))
    values = F.broadcast(F.reshape(b.held(v), (-1,)), (len(index),))
    rows = F.concatenate(values, F.reshape(b.held(fill), (1,)), axis=0)
    return computed(F.gather(rows, Variable.from_numpy_array(places), 0))


@reads("DILATE")
def _dilate(b: Builder, v: Value, steps: Value, fill: Value) -> Value:
    """With so many times the fill between elements."""
    by, y = b.ints(steps, "the steps"), b.held(v)
    value = float(b.array(fill, "the fill").reshape(-1)[0])
    if len(by) != v.rank or min(by, default=1) < 1:
        raise Damaged(f"its steps are {by}, with {v.rank} axes")
    check_size([n * k for n, k in zip(v.shape, by, strict=True)])
    for a, (n, k) in enumerate(zip(v.shape, by, strict=True)):
        shape = y.shape
        y = F.reshape(y, (*shape[: a + 1], 1, *shape[a + 1 :]))
        y = F.pad(y, [0, k - 1] + [0, 0] * (len(shape) - a - 1), "constant", value)
        y = F.reshape(y, (*shape[:a], n * k, *shape[a + 1 :]))
    last = [(n - 1) * k + 1 for n, k in zip(v.shape, by, strict=True)]
    return computed(F.slice(y, [0] * v.rank, last, [1] * v.rank))


@reads("RANGE")
def _range(b: Builder, start: Value, stop: Value, by: Value) -> Value:
    first, last, step = (b.array(v, "a limit").reshape(-1)[0] for v in (start, stop, by))
    if not step or not abs((last - first) / step) < 2**24:
        raise Damaged(f"its limits are {first}, {last} and {step}")
    return computed(np.arange(first, last, step))


@reads("REVERSE_V2", parts=True)
def _reverse(b: Builder, v: Value, axes: Value) -> Value:
    found = b.axes(axes, v.rank)
    return Value(F.flip(b.held(v, v.order), [v.order.index(a) for a in found]), v.order)


@reads("GATHER", parts=True)
def _gather(b: Builder, v: Value, indices: Value) -> Value:
    axis, lead = int(b.op.options["axis"]), int(b.op.options["batch_dims"])
    if not -v.rank <= axis < v.rank or not 0 <= lead <= min(axis % v.rank, indices.rank):
        raise Damaged(f"its axis is {axis}, after {lead}")
    if indices.known and not _inside(indices.x, v.shape[axis]):
        raise Damaged(f"its indices are outside of {v.shape[axis]}")
    shape = v.shape[: axis % v.rank] + indices.shape[lead:] + v.shape[axis % v.rank + 1 :]
    check_size(shape)
    return computed(F.gather(b.held(v), b.held(indices), axis % v.rank, lead))


def _inside(index: Any, size: int) -> bool:
    return not index.size or bool(index.min() >= 0 and index.max() < size)


@reads("EMBEDDING_LOOKUP")
def _lookup(b: Builder, indices: Value, v: Value) -> Value:
    return computed(F.embed(b.held(indices), b.held(v)))


@reads("GATHER_ND")
def _gather_nd(b: Builder, v: Value, indices: Value) -> Value:
    at = b.held(indices, (indices.rank - 1, *range(indices.rank - 1)))
    return computed(F.gather_nd(b.held(v), at))


@reads("SCATTER_ND")
def _scatter_nd(b: Builder, indices: Value, v: Value, shape: Value) -> Value:
    wanted = tuple(b.ints(shape, "the shape"))
    check_size(wanted)
    at = b.held(indices, (indices.rank - 1, *range(indices.rank - 1)))
    return computed(OPS["scatter_nd"](b.held(v), at, shape=wanted, add=True))


@reads("ONE_HOT")
def _one_hot(b: Builder, v: Value, depth: Value, on: Value, off: Value) -> Value:
    (n,) = b.ints(depth, "the depth")
    high, low = (float(b.array(x, "a value").reshape(-1)[0]) for x in (on, off))
    check_size((*v.shape, n))
    axis = int(b.op.options["axis"])
    classes = np.arange(n, dtype=np.float32).reshape((1,) * v.rank + (n,))
    wide = F.reshape(b.held(v), (*v.shape, 1))
    wide = wide if wide.spec.dtype.kind == "f" else OPS["cast"](wide, dtype="float32")
    y = F.equal(wide, Variable.from_numpy_array(classes)) * (high - low) + low
    order = [i for i in range(v.rank)]
    order.insert(axis if axis >= 0 else v.rank + 1 + axis, v.rank)
    return computed(F.transpose(y, order) if order != list(plain(v.rank + 1)) else y)


@reads("TOPK_V2")
def _top_k(b: Builder, v: Value, k: Value) -> list[Value]:
    (n,) = b.ints(k, "the count")
    if not v.rank or not 1 <= n <= v.shape[-1]:
        raise Damaged(f"its count is {n}, of {list(v.shape)}")
    values, index = F.sort(b.held(v), axis=v.rank - 1, reverse=True, with_index=True)
    found = [computed(values), computed(index)]
    return [_cut(b, y, {v.rank - 1: slice(0, n, 1)}) for y in found]


@reads("MATRIX_SET_DIAG")
def _set_diagonal(b: Builder, v: Value, diagonal: Value) -> Value:
    n, m = v.shape[-2:]
    eye = np.eye(n, m, dtype=np.float32)
    wide = F.reshape(b.held(diagonal), (*diagonal.shape, 1))
    shape = v.shape
    mask = F.broadcast(Variable.from_numpy_array(eye.reshape((1,) * (v.rank - 2) + (n, m))), shape)
    rows = F.pad(wide, [0, n - min(n, m), 0, 0], "constant", 0.0)
    return computed(F.where(mask, F.broadcast(rows, shape), b.held(v)))


@reads("MATRIX_DIAG")
def _diagonal(b: Builder, v: Value) -> Value:
    return computed(F.matrix_diag(b.held(v)))
