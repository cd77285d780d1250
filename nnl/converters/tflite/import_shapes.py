# SPDX-License-Identifier: Apache-2.0
"""Importers of operators that move elements."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.tflite.building import Builder, Value, check_size, computed, reads
from nnl.converters.tflite.flatbuffer import Damaged
from nnl.core.graph.variable import Variable


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


@reads("MATRIX_SET_DIAG")
def _set_diagonal(b: Builder, v: Value, diagonal: Value) -> Value:
    n, m = v.shape[-2:]
    eye = np.eye(n, m, dtype=np.float32)
    wide = F.reshape(b.held(diagonal), (*diagonal.shape, 1))
    shape = v.shape
    mask = F.broadcast(Variable.from_numpy_array(eye.reshape((1,) * (v.rank - 2) + (n, m))), shape)
    rows = F.pad(wide, [0, n - min(n, m), 0, 0], "constant", 0.0)
    return computed(F.where(mask, F.broadcast(rows, shape), b.held(v)))
