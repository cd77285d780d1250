# SPDX-License-Identifier: Apache-2.0
"""x[...]: numbers, slices, tensors of integers and of truth values, as numpy has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import nnl.functions as F
import nnl.workspace as ws
from nnl.converters.onnx.importing.indexing import scatter
from nnl.converters.onnx.importing.indexing import take as along
from nnl.converters.onnx.importing.shape import part
from nnl.converters.onnx.values.values import (
    broadcast,
    dtype_of,
    is_var,
    known,
    reshape,
    same_rank,
    shape_of,
    tagged,
    transpose,
    var,
)
from nnl.core.ops.op import OPS
from nnl.dialects.theano.variable import Apply, sizes_of, value_now


class Hole:
    """Where a template of an index has a tensor."""

    def __init__(self, place: int) -> None:
        self.place = place


class Span:
    """A slice whose bounds are computed: its start, and how many elements it has."""

    def __init__(self, start: Any, count: Any, step: int) -> None:
        self.start, self.count, self.step = start, count, step


class Template:
    """An index, of which tensors are inputs of the operator.

    Attributes:
        tensors: These inputs.
    """

    def __init__(self, x: Any, index: Any) -> None:
        self.tensors: list[Any] = []
        entries = list(index) if isinstance(index, tuple) else [index]
        used = sum(
            0 if e is None or e is Ellipsis else _is_mask(e) and np.ndim(e) or 1 for e in entries
        )
        ndim = len(sizes_of(x))
        if used > ndim:
            raise IndexError(f"too many indices: {used} for a variable of {ndim} axes")
        dots = [i for i, e in enumerate(entries) if e is Ellipsis]
        at = dots[0] if dots else len(entries)
        entries[at : at + 1] = [slice(None)] * (ndim - used)
        self.entries: list[Any] = []
        axis = 0
        for e in entries:
            if e is not None and _is_mask(e):
                from nnl.dialects.theano.elements import nonzero

                self.entries += [self.hole(v) for v in nonzero(e)]
                axis += np.ndim(e) if not isinstance(e, ws.Tensor) else e.ndim
                continue
            self.entries.append(self._entry(x, axis, e))
            axis += e is not None
        self.sizes = self._sizes(sizes_of(x))

    def hole(self, tensor: Any) -> Any:
        """A place for a tensor; numbers and arrays stay as they are."""
        if not isinstance(tensor, ws.Tensor):
            return tensor
        self.tensors.append(tensor)
        return Hole(len(self.tensors) - 1)

    def _entry(self, x: Any, axis: int, e: Any) -> Any:
        if isinstance(e, slice):
            bounds = [e.start, e.stop, e.step]
            if not any(isinstance(b, ws.Tensor) for b in bounds):
                return e
            return self._span(x, axis, e)
        if isinstance(e, (list, np.ndarray)):
            if any(isinstance(v, ws.Tensor) for v in np.ravel(np.array(e, object))):
                from nnl.dialects.theano.variable import as_tensor_variable

                return self.hole(as_tensor_variable(e))
            return np.asarray(e, np.int64)
        if isinstance(e, ws.Tensor):
            if np.dtype(e.dtype).kind == "f":
                raise TypeError(f"an index is {e!r} of {e.dtype}, wanted integers")
            return self.hole(e)
        if e is None or isinstance(e, (int, np.integer)):
            return e
        raise TypeError(f"an index is {e!r}, wanted integers, slices or tensors of integers")

    def _span(self, x: Any, axis: int, e: slice) -> Any:
        """A slice from a start that is computed: one program for each number of elements."""
        if isinstance(e.step, ws.Tensor) or (e.step or 1) < 1:
            raise ValueError(f"a slice that is computed has the step {e.step}, wanted 1 or more")
        bounds = [np.int64(0) if e.start is None else e.start, e.stop]
        given = [b for b in bounds if b is not None]

        def compute(x: Any, *given: Any) -> list[Any]:
            size = shape_of(x)[axis]
            start, stop = (_bound(b, size) for b in (*given, np.int64(size))[:2])
            return [start, _counted(start, stop, e.step or 1)]

        op = Apply("slice", compute, [x, *given], [(), ()], ["int64", "int64"])
        return Span(*map(self.hole, op.outputs), e.step or 1)

    def _sizes(self, sizes: Sequence[int | None]) -> list[int | None]:
        """What is known of the sizes of the result."""
        axis, found, advanced, last, first = 0, [], [], None, None
        for i, e in enumerate(self.entries):
            if e is None:
                found.append(1)
                continue
            if isinstance(e, slice) and e == slice(None):
                found.append(sizes[axis])
            elif isinstance(e, (slice, Span)):
                found.append(None)
            elif not isinstance(e, (int, np.integer)):
                shape = sizes_of(self.tensors[e.place]) if isinstance(e, Hole) else np.shape(e)
                if shape or not isinstance(e, Hole):
                    advanced.append(shape)
                    if first is None:
                        first = len(found)
                    elif last != i - 1:
                        first = 0
                    last = i
            axis += 1
        if advanced:
            n = max(map(len, advanced))
            at = first or 0
            found[at:at] = [None] * n
        return found

    def filled(self, parts: Sequence[Any]) -> tuple[Any, ...]:
        """The index of values."""

        def value(e: Any) -> Any:
            return parts[e.place] if isinstance(e, Hole) else e

        index = []
        for e in self.entries:
            if isinstance(e, Span):
                start, count = value(e.start), int(value_now(value(e.count), "the size of a slice"))
                if known(start):
                    first = int(value_now(start, "a start"))
                    index.append(slice(first, first + count * e.step, e.step))
                else:
                    index.append(_Run(start, count, e.step))
            else:
                index.append(value(e))
        return tuple(index)


def _bound(b: Any, size: int) -> Any:
    """A start or stop within an axis."""
    if not is_var(b):
        return np.clip(b + size if b < 0 else b, 0, size)
    return F.minimum_scalar(F.maximum_scalar(_from_front(b, size), 0.0), float(size))


def _counted(start: Any, stop: Any, step: int) -> Any:
    """How many elements a slice has."""
    if not is_var(start) and not is_var(stop):
        return np.int64(len(range(int(start), int(stop), step)))
    length = F.maximum_scalar(var(stop) - var(start), 0.0)
    return length if step == 1 else F.ceil(length * (1.0 / step))


class _Run:
    """Elements from a start that only the run knows."""

    def __init__(self, start: Any, count: int, step: int) -> None:
        self.start, self.count, self.step = start, count, step

    def places(self) -> Any:
        """Their indices."""
        steps = var(np.arange(self.count, dtype=np.float32) * self.step)
        return tagged(F.reshape(self.start, (1,)) + steps, np.int64)


def _is_mask(e: Any) -> bool:
    if isinstance(e, ws.Tensor):
        return np.dtype(e.dtype).kind == "b"
    return isinstance(e, np.ndarray) and e.dtype.kind == "b"


def subtensor(x: Any, index: Any) -> Any:
    """x[index]."""
    template = Template(x, index)

    def compute(x: Any, *parts: Any) -> Any:
        return take(x, template.filled(parts))

    op = Apply("subtensor", compute, [x, *template.tensors], [tuple(template.sizes)], [x.dtype])
    op.template = template  # type: ignore[attr-defined]
    return op.outputs[0]


def take(x: Any, index: Sequence[Any]) -> Any:
    """Elements of a value; an index has an entry for each axis."""
    index = [*index, *[slice(None)] * (len(shape_of(x)) - sum(e is not None for e in index))]
    if not is_var(x) and not any(is_var(e) or isinstance(e, _Run) for e in index):
        return x[tuple(index)]
    dtype, entries, axis = dtype_of(x), [], 0
    for e in index:  # what leaves the axis where it is
        if e is None:
            sizes = shape_of(x)
            x = reshape(x, (*sizes[:axis], 1, *sizes[axis:]))
            entries.append(slice(None))
        elif isinstance(e, slice):
            x = _cut(x, axis, e)
            entries.append(slice(None))
        elif isinstance(e, _Run):
            x = along(x, e.places(), axis)
            entries.append(slice(None))
        else:
            entries.append(e if is_var(e) else np.asarray(e))
        axis += 1
    advanced = [i for i, e in enumerate(entries) if not isinstance(e, slice)]
    arrays = [i for i in advanced if len(shape_of(entries[i]))]
    if len(arrays) < 2:  # numbers first, from the last axis on
        for i in reversed(advanced):
            if i not in arrays:
                x = along(x, entries[i], i)
        at = [i - sum(j < i for j in advanced if j not in arrays) for i in arrays]
        front = arrays and len(advanced) > 1 and not _adjacent(advanced)
        for i, place in zip(arrays, at, strict=True):
            x = along(x, entries[i], place)
            if front:  # as numpy has it
                n = len(shape_of(entries[i]))
                moved = range(place, place + n)
                rest = [a for a in range(len(shape_of(x))) if a not in moved]
                x = transpose(x, (*moved, *rest))
        return tagged(x, dtype) if is_var(x) else x
    return _several(x, entries, advanced, dtype)


def _adjacent(places: Sequence[int]) -> bool:
    return places[-1] - places[0] == len(places) - 1


def _cut(x: Any, axis: int, e: slice) -> Any:
    n = shape_of(x)[axis]
    start, stop, step = e.indices(n)
    if step > 0:
        return part(x, axis, start, max(start, stop), step)
    count = len(range(start, stop, step))
    low = start + (count - 1) * step if count else 0
    x = part(x, axis, low, start + 1 if count else 0, -step)
    return F.flip(x, [axis]) if is_var(x) else np.flip(x, axis)


def _several(x: Any, entries: list[Any], advanced: list[int], dtype: Any) -> Any:
    """Elements at places that several arrays name together."""
    sizes = shape_of(x)
    rest = [i for i in range(len(sizes)) if i not in advanced]
    moved = transpose(x, (*advanced, *rest))
    ats = same_rank(*[_from_front(entries[i], sizes[i]) for i in advanced])
    shape = np.broadcast_shapes(*map(shape_of, ats))
    flat: Any = np.zeros(shape, np.int64)
    for i, at in zip(advanced, ats, strict=True):  # one index into the axes as one
        flat = _sum(_scaled(flat, sizes[i]), at, shape)
    rows = reshape(moved, (int(np.prod([sizes[i] for i in advanced])), *[sizes[i] for i in rest]))
    y = along(rows, flat, 0)
    if advanced[0] and _adjacent(advanced):
        n, first = len(shape), advanced[0]
        order = [*range(n, n + first), *range(n), *range(n + first, len(shape_of(y)))]
        y = transpose(y, order)
    return tagged(y, dtype) if is_var(y) else y


def _from_front(at: Any, size: int) -> Any:
    if is_var(at):
        return at + F.mul_scalar(F.less_scalar(at, 0.0), float(size))
    if at.size and (at.min() < -size or at.max() >= size):
        raise IndexError(f"index {at.max()} is out of bounds for a size of {size}")
    return np.where(at < 0, at + size, at).astype(np.int64)


def _scaled(x: Any, n: int) -> Any:
    return F.mul_scalar(x, float(n)) if is_var(x) else x * n


def _sum(a: Any, b: Any, shape: Sequence[int]) -> Any:
    if is_var(a) or is_var(b):
        a, b = (broadcast(var(v), shape) for v in (a, b))
        return tagged(a + b, np.int64)
    return a + b


def scattered(x: Any, index: Sequence[Any], value: Any, add: bool) -> Any:
    """x with other values, or with values added, where an index says."""
    sizes = shape_of(x)
    first, *others = index if len(index) else (slice(None),)
    rows = not isinstance(first, (slice, _Run)) and first is not None and len(sizes)
    if rows and all(isinstance(e, slice) and e == slice(None) for e in others):
        at = _from_front(first if is_var(first) else np.asarray(first), sizes[0])
        shape = shape_of(at)
        filled = broadcast(value, (*shape, *sizes[1:]))
        flat = reshape(at, (1, int(np.prod(shape))))
        filled = reshape(filled, (int(np.prod(shape)), *sizes[1:]))
        return _scatter(x, flat, filled, add)
    places = take(np.arange(int(np.prod(sizes)), dtype=np.int64).reshape(sizes), index)
    filled = broadcast(value, shape_of(places))
    n = int(np.prod(shape_of(places)))
    flat = _scatter(
        reshape(x, (int(np.prod(sizes)),)), reshape(places, (1, n)), reshape(filled, (n,)), add
    )
    return reshape(flat, sizes)


def _scatter(x: Any, places: Any, values: Any, add: bool) -> Any:
    if is_var(places):
        return OPS["scatter_nd"](var(values), places, var(x), add=add)
    return scatter(x, places, values, "add" if add else "none")
