# SPDX-License-Identifier: Apache-2.0
"""The same elements in other shapes, and joins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import nnl.functions as F
import nnl.workspace as ws
from nnl.converters.onnx.importing.shape import padded, reshaped
from nnl.converters.onnx.values.values import dtype_of, is_var, shape_of, tagged, var
from nnl.converters.onnx.values.values import reshape as _reshape
from nnl.converters.onnx.values.values import transpose as _transpose
from nnl.dialects.theano import elementwise as E
from nnl.dialects.theano.elementwise import given
from nnl.dialects.theano.indexing import take
from nnl.dialects.theano.reduction import axes_of
from nnl.dialects.theano.variable import (
    as_tensor_variable,
    cast,
    joint,
    made,
    promoted,
    sizes_of,
    value_now,
)


def integers(x: Any) -> Any:
    """Sizes or indices: an array, or a vector that is computed."""
    if isinstance(x, ws.Tensor):
        return x if x.ndim else x.dimshuffle("x")  # type: ignore[attr-defined]
    values = list(x) if isinstance(x, (list, tuple, np.ndarray)) else [x]
    if any(isinstance(v, ws.Tensor) for v in values):
        return stack([E.cast(v, "int64") for v in values])
    return np.array(values, np.int64)


def numbers(x: Any, what: str) -> tuple[int, ...]:
    return tuple([int(n) for n in value_now(x, what).reshape(-1)])


def count_of(x: Any, what: str) -> int:
    sizes = sizes_of(x)
    if len(sizes) != 1 or (isinstance(x, ws.Tensor) and sizes[0] is None):
        raise ValueError(f"{what}: how many sizes there are is not known: give ndim")
    return int(sizes[0])  # type: ignore[arg-type]


def reshape(x: Any, newshape: Any, ndim: int | None = None) -> Any:
    """The same elements in another shape; -1 stands for what is left."""
    x, shape = given(x), integers(newshape)
    n = count_of(shape, "reshape") if ndim is None else ndim
    sizes: list[int | None] = [None] * n
    if not isinstance(shape, ws.Tensor):
        sizes = [1 if d == 1 else None for d in shape]

    def compute(x: Any, shape: Any) -> Any:
        return reshaped(x, numbers(shape, "the new shape"), False)

    return made("reshape", compute, [x, shape], sizes, x.dtype)


def flatten(x: Any, ndim: int = 1, outdim: int | None = None) -> Any:
    """The axes from ndim - 1 on as one."""
    x, n = given(x), ndim if outdim is None else outdim

    def compute(x: Any) -> Any:
        sizes = shape_of(x)[: n - 1]
        rest = int(np.prod(shape_of(x)[n - 1 :]))
        return _reshape(x, (*sizes, rest))

    return made("flatten", compute, [x], (*sizes_of(x)[: n - 1], None), x.dtype)


def dimshuffle(x: Any, *pattern: Any) -> Any:
    """Axes in another order, with new ones of size 1 where the pattern has "x"; those left out
    must be of size 1."""
    x = given(x)
    if len(pattern) == 1 and isinstance(pattern[0], (list, tuple)):
        pattern = tuple(pattern[0])
    n = len(sizes_of(x))
    kept = [int(p) % n for p in pattern if p != "x"]
    if len(set(kept)) < len(kept) or any(not -n <= p < n for p in pattern if p != "x"):
        raise ValueError(f"dimshuffle: {pattern} of {n} axes")
    dropped = [i for i in range(n) if i not in kept]
    known_sizes = sizes_of(x)
    for i in dropped:
        if known_sizes[i] not in (1, None):
            raise ValueError(f"dimshuffle: axis {i} is left out and of size {known_sizes[i]}")

    def compute(x: Any) -> Any:
        sizes = shape_of(x)
        if any(sizes[i] != 1 for i in dropped):
            raise ValueError(f"dimshuffle: {pattern} leaves out an axis of {sizes} that is not 1")
        x = _transpose(x, (*kept, *dropped))
        return _reshape(x, [1 if p == "x" else sizes[p] for p in pattern])

    sizes = [1 if p == "x" else known_sizes[p] for p in pattern]
    return made("dimshuffle", compute, [x], sizes, x.dtype)


def transpose(x: Any, axes: Any = None) -> Any:
    """Axes in another order, reversed if none is given."""
    x = given(x)
    order = range(len(sizes_of(x)))[::-1] if axes is None else axes
    return dimshuffle(x, *order)


def swapaxes(x: Any, axis1: int, axis2: int) -> Any:
    """Two axes take each other's place."""
    order = list(range(len(sizes_of(given(x)))))
    order[axis1], order[axis2] = order[axis2], order[axis1]
    return dimshuffle(x, *order)


def squeeze(x: Any, axis: Any = None) -> Any:
    """Without axes of size 1: those given, or all that are known to be so."""
    sizes = sizes_of(given(x))
    gone = (
        axes_of(axis, len(sizes))
        if axis is not None
        else [i for i, d in enumerate(sizes) if d == 1]
    )
    return dimshuffle(x, *[i for i in range(len(sizes)) if i not in gone])


def shape_padleft(x: Any, n_ones: int = 1) -> Any:
    """With new axes of size 1 in front."""
    return dimshuffle(x, *["x"] * n_ones, *range(len(sizes_of(given(x)))))


def shape_padright(x: Any, n_ones: int = 1) -> Any:
    """With new axes of size 1 behind."""
    return dimshuffle(x, *range(len(sizes_of(given(x)))), *["x"] * n_ones)


def shape_padaxis(x: Any, axis: int) -> Any:
    """With a new axis of size 1."""
    order: list[Any] = list(range(len(sizes_of(given(x)))))
    order.insert(axis % (len(order) + 1), "x")
    return dimshuffle(x, *order)


def expand_dims(x: Any, axis: int) -> Any:
    """With a new axis of size 1."""
    return shape_padaxis(x, axis)


def _as_broadcast(x: Any, sizes: Sequence[int | None]) -> Any:
    x = given(x)

    def compute(x: Any) -> Any:
        bad = [i for i, d in enumerate(sizes) if d == 1 and shape_of(x)[i] != 1]
        if bad:
            raise ValueError(f"axis {bad[0]} is of size {shape_of(x)[bad[0]]}, wanted 1")
        return x

    return made("rebroadcast", compute, [x], sizes, x.dtype)


def addbroadcast(x: Any, *axes: int) -> Any:
    """x, of which these axes are of size 1."""
    sizes = sizes_of(given(x))
    at = [a % len(sizes) for a in axes]
    return _as_broadcast(x, [1 if i in at else d for i, d in enumerate(sizes)])


def unbroadcast(x: Any, *axes: int) -> Any:
    """x, of which these axes need not be of size 1."""
    sizes = sizes_of(given(x))
    at = [a % len(sizes) for a in axes]
    return _as_broadcast(x, [None if i in at else d for i, d in enumerate(sizes)])


def patternbroadcast(x: Any, broadcastable: Sequence[bool]) -> Any:
    """x, of which the axes with True are of size 1."""
    return _as_broadcast(x, [1 if b else None for b in broadcastable])


def specify_shape(x: Any, shape: Any) -> Any:
    """x, where it has this shape; an error where it has not."""
    x, shape = given(x), integers(shape)

    def compute(x: Any, shape: Any) -> Any:
        wanted = numbers(shape, "the shape")
        if shape_of(x) != wanted:
            raise ValueError(f"specify_shape: got {shape_of(x)}, wanted {wanted}")
        return x

    return made("specify_shape", compute, [x, shape], sizes_of(x), x.dtype)


def join(axis: int, *tensors: Any) -> Any:
    """Tensors one behind the other along an axis."""
    values = [given(x) for x in tensors]
    n = len(sizes_of(values[0]))
    if any(len(sizes_of(v)) != n for v in values):
        raise TypeError("Join() can only join tensors with the same number of dimensions.")
    dtype, at = promoted(*values), axes_of(axis, n)[0]
    sizes = [None if i == at else d for i, d in enumerate(sizes_of(values[0]))]

    def compute(*values: Any) -> Any:
        values = tuple([cast(v, dtype) for v in values])
        if not any(map(is_var, values)):
            return np.concatenate(values, at)
        return tagged(F.concatenate(*map(var, values), axis=at), dtype)

    return made("join", compute, values, sizes, dtype)


def concatenate(tensor_list: Sequence[Any], axis: int = 0) -> Any:
    """Tensors one behind the other along an axis."""
    if isinstance(tensor_list, ws.Tensor):
        raise TypeError("The 'tensors' argument must be either a tuple or a list of tensors")
    return join(axis, *tensor_list)


def stack(*tensors: Any, **options: Any) -> Any:
    """Tensors of one shape along a new axis."""
    axis = options.get("axis", 0)
    if len(tensors) == 2 and isinstance(tensors[0], (list, tuple)) and isinstance(tensors[1], int):
        tensors, axis = tensors[:1], tensors[1]
    parts = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else tensors
    values = [given(x) for x in parts]
    dtype = promoted(*values)
    sizes: list[int | None] = list(joint(*values))
    at = axis % (len(sizes) + 1)
    sizes.insert(at, len(values))

    def compute(*values: Any) -> Any:
        values = tuple([cast(v, dtype) for v in values])
        if not any(map(is_var, values)):
            return np.stack(values, at)
        return tagged(F.stack(*map(var, values), axis=at), dtype)

    return made("stack", compute, values, sizes, dtype)


def stacklists(arg: Any) -> Any:
    """Nested lists of tensors as one tensor."""
    if isinstance(arg, (list, tuple)):
        return stack([stacklists(x) for x in arg])
    return arg


def split(x: Any, splits_size: Any, n_splits: int, axis: int = 0) -> list[Any]:
    """Parts of these sizes along an axis."""
    x, ends, start = as_tensor_variable(x), splits_size, 0
    at, parts = axes_of(axis, x.ndim)[0], []
    for i in range(n_splits):
        stop = start + ends[i]
        parts.append(x[(slice(None),) * at + (slice(start, stop),)])
        start = stop
    return parts


def repeat(x: Any, repeats: Any, axis: int | None = None) -> Any:
    """Each element several times, along an axis, or of all in one row."""
    x = given(x)
    times = given(repeats)
    sizes: list[int | None] = [None] if axis is None else list(sizes_of(x))
    at = 0 if axis is None else axes_of(axis, len(sizes))[0]
    sizes[at] = None

    def compute(x: Any, times: Any) -> Any:
        x = _reshape(x, (int(np.prod(shape_of(x))),)) if axis is None else x
        places = np.repeat(np.arange(shape_of(x)[at]), value_now(times, "repeats"))
        return take(x, (slice(None),) * at + (places,))

    return made("repeat", compute, [x, times], sizes, x.dtype)


def tile(x: Any, reps: Any, ndim: int | None = None) -> Any:
    """Copies of x side by side."""
    x, times = given(x), integers(reps)
    n = ndim or max(len(sizes_of(x)), count_of(times, "tile"))

    def compute(x: Any, times: Any) -> Any:
        counts = numbers(times, "reps")
        if not is_var(x):
            return np.tile(x, counts)
        return tagged(F.tile(x, counts), dtype_of(x))

    return made("tile", compute, [x, times], (None,) * n, x.dtype)


def pad(x: Any, pad_width: Any, mode: str = "constant", constant_values: float = 0) -> Any:
    """Values around x."""
    x = given(x)
    widths = np.broadcast_to(np.asarray(pad_width), (len(sizes_of(x)), 2))

    def compute(x: Any) -> Any:
        if not is_var(x):
            options = {"constant_values": constant_values} if mode == "constant" else {}
            return np.pad(x, widths, mode, **options)  # type: ignore[call-overload]
        return padded(x, widths[:, 0], widths[:, 1], mode, constant_values)

    return made("pad", compute, [x], (None,) * len(widths), x.dtype)
