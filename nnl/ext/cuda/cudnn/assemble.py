# SPDX-License-Identifier: Apache-2.0
"""How the operands of an op become arrays of graphs: their axes, strides, types, and copies."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from nnl.ext.cuda.cudnn.spec import (
    FIRST,
    Array,
    Copy,
    Dims,
    Draft,
    Graph,
    Work,
    channels_last,
    dtype_name,
    rows,
)
from nnl.ext.device.registry import Operand

__all__ = ["Assembly", "Declined", "check_types", "half_of"]

HALVES = ("float16", "bfloat16")
TYPES = ("float32", *HALVES)


class Declined(Exception):
    """A builder has no graph for these operands; the text says why."""


def check_types(*operands: Operand | None) -> None:
    """Decline arrays that are empty or not of floating-point numbers of 16 or 32 bits."""
    for x in operands:
        if x is None:
            continue
        if dtype_name(x.dtype) not in TYPES:
            raise Declined(f"{dtype_name(x.dtype)} is none of {', '.join(TYPES)}")
        if x.size == 0:
            raise Declined("an array is empty")


def half_of(*operands: Operand | None) -> str:
    """The 16-bit type among these, which then is that of the graph; else float32."""
    found = {dtype_name(x.dtype) for x in operands if x is not None} & set(HALVES)
    if len(found) > 1:
        raise Declined("float16 and bfloat16 are mixed")
    return found.pop() if found else "float32"


class Assembly:
    """Collects the steps of a Work: graphs, with copies before and after them.

    `read` and `write` give an array as a graph wants it. Where the operand is not laid out so in
    memory, that is an array in the workspace, and a copy is added.
    """

    def __init__(self) -> None:
        self.before: list[Copy | Graph] = []
        self.graphs: list[Graph] = []
        self.after: list[Copy | Graph] = []
        self.next = FIRST["scratch"]

    def scratch(self, dim: Dims, stride: Dims, dtype: str) -> Array:
        a = Array(self.next, tuple(dim), tuple(stride), dtype)
        self.next += 1
        return a

    def read(self, have: Array, wanted: Array) -> Array:
        """The input `have`, with the sizes, order and type of `wanted`, whose uid is ignored."""
        if same_memory(have, wanted):
            return replace(wanted, uid=have.uid)
        a = self.scratch(wanted.dim, wanted.stride, wanted.dtype)
        self.before.append(Copy(have, a))
        return a

    def write(self, have: Array, wanted: Array) -> Array:
        """The array that a graph writes for the output `have`."""
        if same_memory(have, wanted):
            return replace(wanted, uid=have.uid)
        a = self.scratch(wanted.dim, wanted.stride, wanted.dtype)
        self.after.append(Copy(a, have))
        return a

    def graph(self, draft: Draft) -> None:
        self.graphs.append(draft.graph())

    def cut(self, draft: Draft, made: int) -> Draft:
        """End a graph with an array that it makes; the result is a new one, which has the array."""
        self.graph(draft)
        rest = Draft()
        rest.add(draft.arrays[made])
        return rest

    def work(self) -> Work:
        """All steps in order."""
        return Work((*self.before, *self.graphs, *self.after))


def same_memory(a: Array, b: Array) -> bool:
    """Whether two arrays of one type have each element in the same place."""
    return (
        a.dtype == b.dtype
        and a.dim == b.dim
        and all(n == 1 or s == t for n, s, t in zip(a.dim, a.stride, b.stride, strict=True))
    )


def memory_strides(x: Operand) -> Dims:
    return channels_last(x.shape) if x.channels_last and len(x.shape) > 2 else rows(x.shape)


def image(uid: int, x: Operand, base: int, last: bool) -> Array:
    """Data as (N, C, spatial...), with two spatial axes at least.

    Args:
        base: Number of leading axes, which become one.
        last: Whether the channels are the last axis of the shape.
    """
    shape, stride = x.shape, memory_strides(x)
    if base != 1 and x.channels_last:
        raise Declined(f"base_axis {base} channels-last")
    channel = len(shape) - 1 if last else base
    space = [i for i in range(base, len(shape)) if i != channel]
    lead = stride[base - 1] if base else x.size
    dim = [math.prod(shape[:base]), shape[channel], *(shape[i] for i in space)]
    strides = [lead, stride[channel], *(stride[i] for i in space)]
    return two_axes(Array(uid, tuple(dim), tuple(strides), dtype_name(x.dtype)))


def weight(uid: int, w: Operand, last: bool) -> Array:
    """Weights as (O, C / group, kernel...), with two spatial axes at least."""
    stride = rows(w.shape)
    order = [0, len(w.shape) - 1, *range(1, len(w.shape) - 1)] if last else range(len(w.shape))
    dim, strides = (tuple(t[i] for i in order) for t in (w.shape, stride))
    return two_axes(Array(uid, dim, strides, dtype_name(w.dtype)))


def two_axes(a: Array) -> Array:
    """One spatial axis becomes two, the first of size 1."""
    if len(a.dim) > 3:
        return a
    if len(a.dim) < 3:
        raise Declined("there is no spatial axis")
    n, s = a.dim[2], a.stride[2]
    return replace(a, dim=(*a.dim[:2], 1, n), stride=(*a.stride[:2], n * s, s))


def window(values: Any, rank: int, fill: int) -> Dims:
    """One entry for each spatial axis of an array of this rank, after `two_axes`."""
    return (fill,) * (rank - 2 - len(values)) + tuple(values)


def order_of(*images: Array) -> bool:
    """Whether graphs should see these channels-last: some do, or it makes no difference.

    Raises:
        Declined: One lies in neither order.
    """
    found = set()
    for a in images:
        is_last = same_memory(a, replace(a, stride=channels_last(a.dim)))
        is_first = same_memory(a, replace(a, stride=rows(a.dim)))
        if not is_last and not is_first:
            raise Declined("an array is neither channels-first nor channels-last")
        if is_last != is_first:
            found.add(is_last)
    return True in found or not found


def vector(uid: int, x: Operand, rank: int) -> Array:
    """One value for each channel, as (1, C, 1...)."""
    return Array(uid, (1, x.size, *(1,) * (rank - 2)), (x.size, 1, *(x.size,) * (rank - 2)),
                 dtype_name(x.dtype))  # fmt: skip
