# SPDX-License-Identifier: Apache-2.0
"""Importers of what reads or writes elements by index, and what returns indices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.onnx.file.errors import OnnxError
from nnl.converters.onnx.file.registry import onnx_import
from nnl.converters.onnx.importing.arithmetic import pair
from nnl.converters.onnx.values import counted
from nnl.converters.onnx.values.values import (
    array,
    axis_of,
    check_size,
    dtype_of,
    is_float,
    is_var,
    known,
    reshape,
    scalar,
    shape_of,
    tagged,
    transpose,
    var,
)
from nnl.core.ops.op import OPS


def from_front(indices: Any, size: int, what: str = "index") -> Any:
    """Indices counted from the front, as an int64 array."""
    at = array(indices, "the indices").astype(np.int64)
    if at.size and (at.min() < -size or at.max() >= size):
        bad = at.min() if at.min() < -size else at.max()
        raise OnnxError(f"has the {what} {bad}, outside [-{size}, {size})")
    return np.where(at < 0, at + size, at)


def take(x: Any, at: Any, axis: int) -> Any:
    """x at indices along an axis; the indices may be an array or depend on inputs."""
    size = shape_of(x)[axis]
    if known(at):
        at = from_front(at, size)
        if not is_var(x):
            return np.take(x, at, axis)
        if at.ndim == 0:
            part = F.slice(x, *_one(shape_of(x), axis, int(at)))
            return reshape(part, shape_of(x)[:axis] + shape_of(x)[axis + 1 :])
        return F.gather(x, var(at), axis=axis)
    return F.gather(var(x), _counted_later(at, size), axis=axis)


def _counted_later(at: Any, size: int) -> Any:
    """Indices that depend on inputs, counted from the front."""
    return at + F.mul_scalar(F.less_scalar(at, 0.0), float(size))


def _one(sizes: Any, axis: int, at: int) -> Any:
    start, stop = [0] * len(sizes), list(sizes)
    start[axis], stop[axis] = at, at + 1
    return start, stop, [1] * len(sizes)


@onnx_import("Gather")
def gather(ctx: Any, node: Any, x: Any, indices: Any) -> Any:
    """Slices of x at indices along an axis."""
    return take(x, indices, axis_of(node.axis, len(shape_of(x))))


@onnx_import("GatherElements")
def gather_elements(ctx: Any, node: Any, x: Any, indices: Any) -> Any:
    """Elements of x, of whose position indices gives one coordinate."""
    axis = axis_of(node.axis, len(shape_of(x)))
    if not known(indices):
        at = _counted_later(indices, shape_of(x)[axis])
        return OPS["take_along"](var(x), at, axis=axis)
    at = from_front(indices, shape_of(x)[axis])
    if is_var(x):
        return OPS["take_along"](x, var(at), axis=axis)
    grid = np.indices(at.shape, sparse=True)
    return x[(*grid[:axis], at, *grid[axis + 1 :])]


@onnx_import("GatherND")
def gather_nd(ctx: Any, node: Any, x: Any, indices: Any) -> Any:
    """Elements or slices of x at positions along the last axis of indices."""
    batch = getattr(node, "batch_dims", 0) or 0
    if not known(indices):
        return F.gather_nd(var(x), _places_later(indices, batch))
    at = array(indices, "the indices").astype(np.int64)
    depth = at.shape[-1]
    for i in range(depth):
        from_front(at[..., i], shape_of(x)[batch + i])
    lead = np.indices(at.shape[:batch], sparse=True)
    lead = [g.reshape(g.shape + (1,) * (at.ndim - 1 - batch)) for g in lead]
    where = np.broadcast_arrays(*lead, *np.moveaxis(at, -1, 0))
    if not is_var(x):
        return x[tuple(where)]
    return F.gather_nd(x, var(np.stack(where)))


def _places_later(indices: Any, batch: int = 0) -> Any:
    """Positions along the last axis of indices that depend on inputs, as (m, ...)."""
    rank = indices.ndim
    at = F.transpose(indices, (rank - 1, *range(rank - 1)))
    if not batch:
        return at
    lead = np.indices(at.shape[1:])[:batch].astype(np.float32)
    return F.concatenate(var(lead), at, axis=0)


def _scatter_later(x: Any, where: Any, updates: Any, how: str) -> Any:
    """scatter for positions that depend on inputs."""
    if how not in ("none", "add"):
        array(where, "the indices")  # says that they must be known
    return OPS["scatter_nd"](var(updates), where, var(x), add=how == "add")


def scatter(x: Any, where: Any, updates: Any, how: str) -> Any:
    """x with updates written at positions.

    Args:
        where: (m, ...) int64, positions along the first m axes of x; not negative.
        updates: where.shape[1:] + the sizes of x after the first m.
        how: "none" (the last one counts), "add", "mul", "min" or "max".
    """
    if not is_var(x) and not is_var(updates):
        y, at = np.array(x), tuple(where)
        by = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}.get(how)
        if by is None:
            y[at] = updates
        else:
            by.at(y, at, updates)
        return y
    x, updates = var(x), var(updates)
    op = OPS["scatter_nd"]
    if how in ("none", "add"):
        return op(updates, var(where), x, add=how == "add")
    combine = {"mul": F.mul2, "min": F.minimum2, "max": F.maximum2}[how]
    for index in _rounds(where, x.shape):
        at = where.reshape(len(where), -1)[:, index]
        flat = reshape(updates, (-1, *x.shape[len(where) :]))
        chosen = F.gather(flat, var(index), axis=0)
        old = F.gather_nd(x, var(at))
        x = op(combine(old, chosen), var(at), x, add=False)
    return x


def _rounds(where: Any, sizes: Any) -> list[Any]:
    """Indices of the positions in groups without repetition, so that each can be written once."""
    flat = np.ravel_multi_index(tuple(where.reshape(len(where), -1)), sizes[: len(where)])
    order = np.argsort(flat, kind="stable")
    ranked = flat[order]
    first = np.r_[True, ranked[1:] != ranked[:-1]] if len(flat) else np.zeros(0, bool)
    starts = np.maximum.accumulate(np.where(first, np.arange(len(flat)), 0))
    turn = np.empty(len(flat), np.int64)
    turn[order] = np.arange(len(flat)) - starts
    return [np.flatnonzero(turn == r) for r in range(int(turn.max(initial=-1)) + 1)]


@onnx_import("ScatterElements", "Scatter")
def scatter_elements(ctx: Any, node: Any, x: Any, indices: Any, updates: Any) -> Any:
    """x with elements written where indices gives one coordinate of their position."""
    axis = axis_of(node.axis, len(shape_of(x)))
    how = getattr(node, "reduction", None) or "none"
    grid = list(np.indices(shape_of(indices)))
    if not known(indices):
        parts = [indices if i == axis else var(g) for i, g in enumerate(grid)]
        return _scatter_later(x, F.stack(*parts, axis=0), updates, how)
    grid[axis] = from_front(indices, shape_of(x)[axis])
    return scatter(x, np.stack(grid), updates, how)


@onnx_import("ScatterND")
def scatter_nd(ctx: Any, node: Any, x: Any, indices: Any, updates: Any) -> Any:
    """x with slices written at positions along the last axis of indices."""
    how = getattr(node, "reduction", None) or "none"
    if not known(indices):
        return _scatter_later(x, _places_later(indices), updates, how)
    at = np.moveaxis(array(indices, "the indices").astype(np.int64), -1, 0)
    at = np.stack([from_front(a, shape_of(x)[i]) for i, a in enumerate(at)])
    return scatter(x, at, updates, how)


@onnx_import("TensorScatter")
def tensor_scatter(ctx: Any, node: Any, cache: Any, update: Any, start: Any = None) -> Any:
    """A cache with new entries along an axis, from a place of its own for every sample."""
    sizes, new = shape_of(cache), shape_of(update)
    axis = axis_of(node.axis, len(sizes))
    first = np.zeros(sizes[0], np.int64) if start is None else array(start, "the write indices")
    if axis == 0 or first.shape != (sizes[0],):
        raise OnnxError("axis must not be the batch, and write_indices has one entry per sample")
    grid = list(np.indices(new))
    grid[axis] = grid[axis] + first.reshape((-1,) + (1,) * (len(new) - 1))
    if node.mode == "circular":
        grid[axis] %= sizes[axis]
    elif grid[axis].size and (grid[axis].min() < 0 or grid[axis].max() >= sizes[axis]):
        raise OnnxError(f"writes up to {grid[axis].max()} of an axis of size {sizes[axis]}")
    return scatter(cache, np.stack(grid), update, "none")


@onnx_import("OneHot")
def one_hot(ctx: Any, node: Any, indices: Any, depth: Any, values: Any) -> Any:
    """values[1] at the index along a new axis, values[0] elsewhere."""
    n = int(scalar(depth, what="depth"))
    rank = len(shape_of(indices)) + 1
    check_size([n, *shape_of(indices)])
    axis = axis_of(node.axis, rank)
    if known(indices) and known(values):
        at, (off, on) = array(indices), array(values)
        at = np.expand_dims(at % n if not is_float(at.dtype) else np.mod(at, n), axis)
        inside = (array(indices) >= -n) & (array(indices) < n)
        places = np.arange(n).reshape((-1,) + (1,) * (rank - 1 - axis))
        return np.where((at == places) & np.expand_dims(inside, axis), on, off)
    sizes = list(shape_of(indices))
    sizes.insert(axis, 1)
    at = F.reshape(var(indices), sizes)
    places = np.arange(n, dtype=np.float32).reshape((-1,) + (1,) * (rank - 1 - axis))
    y = pair(F.equal, at, places) + pair(F.equal, at + n, places)
    values = var(values)
    off, on = (F.reshape(F.slice(values, (i,), (i + 1,)), (1,) * rank) for i in (0, 1))
    return pair(F.add2, pair(F.mul2, y, on - off), off)


@onnx_import("Compress")
def compress(ctx: Any, node: Any, x: Any, condition: Any) -> Any:
    """Slices of x where a condition holds."""
    if ctx.bounded and not known(condition):
        flat = node.axis is None
        x = reshape(x, (math.prod(shape_of(x)),)) if flat else x
        axis = 0 if flat else axis_of(node.axis, len(shape_of(x)))
        return counted.compress(x, condition, axis)
    chosen = np.flatnonzero(array(condition, "the condition"))
    if node.axis is None:
        return take(reshape(x, (math.prod(shape_of(x)),)), chosen, 0)
    return take(x, chosen, axis_of(node.axis, len(shape_of(x))))


@onnx_import("NonZero")
def non_zero(ctx: Any, node: Any, x: Any) -> Any:
    """Positions of elements that are not 0, as int64."""
    if ctx.bounded and not known(x):
        return counted.non_zero(x)
    value = array(x, "x")
    return np.array(np.nonzero(np.atleast_1d(value)), np.int64).reshape(max(value.ndim, 1), -1)


def _arg(name: str, best: Any) -> None:
    @onnx_import(name)
    def handler(ctx: Any, node: Any, x: Any) -> Any:
        rank = len(shape_of(x))
        axis = axis_of(node.axis, rank)
        if not known(x):
            pick = F.max if name == "ArgMax" else F.min
            last = bool(getattr(node, "select_last_index", 0))
            y = F.flip(x, (axis,)) if last else x
            y = pick(y, axis=axis, keepdims=bool(node.keepdims), only_index=True)
            y = F.r_sub_scalar(y, shape_of(x)[axis] - 1.0) if last else y
            return tagged(y, np.int64)
        value = array(x)
        if getattr(node, "select_last_index", 0):
            at = value.shape[axis] - 1 - best(np.flip(value, axis), axis=axis)
        else:
            at = best(value, axis=axis)
        return np.expand_dims(at, axis) if node.keepdims else at

    handler.__doc__ = f"{name}: the index of an extreme along an axis."


_arg("ArgMax", np.argmax)
_arg("ArgMin", np.argmin)


@onnx_import("TopK")
def top_k(ctx: Any, node: Any, x: Any, k: Any = None) -> Any:
    """The k largest or smallest along an axis, and their indices; of equals the first."""
    axis = axis_of(-1 if node.axis is None else node.axis, len(shape_of(x)))
    later = ctx.bounded and k is not None and not known(k)  # as many as there are, then cut
    n = (
        shape_of(x)[axis]
        if later
        else int(node.attributes["k"] if k is None else scalar(k, what="k"))
    )
    if not 0 <= n <= shape_of(x)[axis]:
        raise OnnxError(f"k is {n}, the axis has {shape_of(x)[axis]}")
    largest = bool(getattr(node, "largest", 1))
    if known(x) and not later:
        value = array(x)
        keys = np.flip(value, axis) if largest else value
        order = np.argsort(keys, axis, kind="stable")
        if largest:
            order = value.shape[axis] - 1 - np.flip(order, axis)
        at = np.take(order, np.arange(n), axis).astype(np.int64)
        if not is_var(x):
            return np.take_along_axis(value, at, axis), at
        return OPS["take_along"](x, var(at), axis=axis), at
    y, at = F.sort(var(x), axis=axis, reverse=largest, with_index=True)
    if later:
        count = F.reshape(k, ())
        y = tagged(y, dtype_of(x))
        return counted.counted(y, axis, count), counted.counted(tagged(at, np.int64), axis, count)
    from nnl.converters.onnx.importing.shape import part

    return part(y, axis, 0, n), tagged(part(at, axis, 0, n), np.int64)


@onnx_import("Unique")
def unique(ctx: Any, node: Any, x: Any) -> Any:
    """Distinct elements or slices, where they are first, where each went, and how often."""
    axis = node.axis
    if ctx.bounded and not known(x):
        if axis is None or len(shape_of(x)) == 1:
            return counted.unique(x, bool(node.sorted))
        return counted.unique_slices(x, axis_of(axis, len(shape_of(x))), bool(node.sorted))
    value = array(x, "x")
    y, first, back, count = np.unique(
        value, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    back = back.reshape(-1)
    if not node.sorted:
        order = np.argsort(first, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        y = np.take(y, order, 0 if axis is None else axis)
        first, back, count = first[order], rank[back], count[order]
    return [y, *(a.astype(np.int64) for a in (first, back, count))]


@onnx_import("ReverseSequence")
def reverse_sequence(ctx: Any, node: Any, x: Any, lengths: Any) -> Any:
    """The first steps of every sample, as many as its length, backwards."""
    sizes, n = shape_of(x), array(lengths, "the lengths").astype(np.int64)
    time, batch = node.time_axis, node.batch_axis
    steps = np.arange(sizes[time]).reshape(-1, 1)
    at = np.where(steps < n, n - 1 - steps, steps)  # (time, batch)
    order = [time, batch, *(i for i in range(len(sizes)) if i not in (time, batch))]
    y = transpose(x, order)
    where = np.stack(np.broadcast_arrays(at, np.arange(sizes[batch])))
    y = F.gather_nd(y, var(where)) if is_var(y) else y[tuple(where)]
    return transpose(y, np.argsort(order))


@onnx_import("ArrayFeatureExtractor", domain="ai.onnx.ml")
def array_feature_extractor(ctx: Any, node: Any, x: Any, indices: Any) -> Any:
    """Columns of x."""
    y = take(x, reshape(indices, (-1,)), len(shape_of(x)) - 1)
    return reshape(y, (1, *shape_of(y))) if len(shape_of(x)) == 1 else y


__all__ = ["dtype_of", "from_front", "scatter", "take"]
