# SPDX-License-Identifier: Apache-2.0
"""How a parameter lies on a mesh, and Variables that say so."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nnl.communicators.parallel.mesh import Axis
from nnl.core.graph.variable import Variable
from nnl.core.ops.op import OPS
from nnl.solvers.split import cut_piece

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Split:
    """One axis of a parameter, cut over ranks.

    Attributes:
        axis: Of the parameter. over: The ranks.
        groups: The axis is this many runs of equal length, each of them cut by itself: 3 for
            query, key and value one after the other.
    """

    axis: int
    over: Axis
    groups: int = 1


@dataclass(frozen=True)
class Layout:
    """Where the elements of a parameter lie.

    Attributes:
        shape: Of the whole parameter.
        split: Its axes that are cut over ranks, which leaves each a block.
        pieces: The ranks that store equal pieces of the block's elements, one after the other.
        data: Other ranks that store the same and have other data.
        pipe: The ranks among which only this one's stage has the parameter.
        again: The whole is put together again in backward, not kept.
        counted: Whether its gradient is a part of the norm of all; else another stage's copy is.
    """

    shape: tuple[int, ...]
    split: tuple[Split, ...] = ()
    pieces: Axis | None = None
    data: Axis | None = None
    pipe: Axis | None = None
    again: bool = False
    counted: bool = True

    @property
    def block(self) -> tuple[int, ...]:
        """The shape in which functions use it on this rank."""
        shape = list(self.shape)
        for s in self.split:
            shape[s.axis] //= s.over.size
        return tuple(shape)

    @property
    def stored(self) -> tuple[int, ...]:
        """The shape in which this rank stores it."""
        if self.pieces is None:
            return self.block
        return (-(-math.prod(self.block) // self.pieces.size),)

    def cut(self, whole: Array) -> Array:
        """What this rank stores of a whole array."""
        split = [(s.axis, s.over.size, s.over.place, s.groups) for s in self.split]
        whole = np.ascontiguousarray(whole[block_index(whole.shape, split)])
        if self.pieces is None:
            return whole
        own: Array = cut_piece(np, whole, self.pieces.size, self.pieces.place)
        return own

    def axes(self) -> list[Axis]:
        """The axes whose ranks have different elements, without pipe."""
        return [s.over for s in self.split] + ([] if self.pieces is None else [self.pieces])


def block_index(shape: Sequence[int], split: Iterable[Sequence[int]]) -> tuple[Any, ...]:
    """Where a block lies in an array of this shape.

    Args:
        split: (axis, number of ranks, place of the rank, groups) of each split axis; at most one
            has several groups.
    """
    at: list[Any] = [slice(None)] * len(shape)
    for axis, n, place, groups in split:
        run = shape[axis] // groups
        part = run // n
        starts = [g * run + place * part for g in range(groups)]
        at[axis] = np.concatenate([np.arange(k, k + part) for k in starts])
        if groups == 1:
            at[axis] = slice(starts[0], starts[0] + part)
    return tuple(at)


class LaidOut(Variable):
    """A parameter that says how it lies; as any other where each rank stores what it uses."""

    __slots__ = ("layout",)
    layout: Layout

    @staticmethod
    def of(value: Array, layout: Layout, name: str, need_grad: bool) -> LaidOut:
        """A parameter that stores this rank's part."""
        return LaidOut.over(Variable.from_numpy_array(value, need_grad=need_grad), layout, name)

    @staticmethod
    def over(plain: Variable, layout: Layout, name: str) -> LaidOut:
        """A variable of this rank's part as such a parameter."""
        v = Variable.of_edge(plain.edge, plain.data, LaidOut)
        assert isinstance(v, LaidOut)
        v.layout, v.name = layout, name
        return v

    @property
    def used_shape(self) -> tuple[int, ...]:
        """The shape that functions ask for."""
        return self.layout.block

    def handle(self, need_grad: bool | None = None) -> Variable:
        """As of any parameter; where it is stored in pieces, what puts them together."""
        leaf, layout = super().handle(need_grad), self.layout
        if layout.pieces is None:
            return leaf
        data = layout.data
        whole: Variable = OPS["unshard"](
            leaf,
            comm=layout.pieces.comm,
            group=layout.pieces.group,
            shape=layout.block,
            data="" if data is None or data.size == 1 else data.group,
        )
        whole.recompute = layout.again
        return whole


def layout_of(v: Any) -> Layout:
    """The layout of a parameter; one that every rank has whole for a plain Variable."""
    found = getattr(v, "layout", None)
    return found if isinstance(found, Layout) else Layout(v.shape)


def with_pieces(layout: Layout, pieces: Axis, data: Axis, again: bool) -> Layout:
    """The same, with each block stored in pieces."""
    return replace(layout, pieces=pieces, data=data, again=again)
