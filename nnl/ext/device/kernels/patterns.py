# SPDX-License-Identifier: Apache-2.0
"""How arrays lie in memory relative to the elements that a kernel runs over."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nnl.ext.device.registry import Operand


def memory_order(rank: int, channels_last: bool) -> list[int]:
    """Axes from the slowest to the fastest."""
    if channels_last and rank > 2:
        return [0, *range(2, rank), 1]
    return list(range(rank))


def strides_of(shape: Sequence[int], channels_last: bool = False) -> tuple[int, ...]:
    """Distances in elements of neighbours along every axis."""
    strides, step = [0] * len(shape), 1
    for a in reversed(memory_order(len(shape), channels_last)):
        strides[a] = step
        step *= shape[a]
    return tuple(strides)


@dataclass(frozen=True)
class Space:
    """The elements that a kernel runs over, numbered in the order in which they lie in memory."""

    shape: tuple[int, ...]
    order: tuple[int, ...]  # axes from the slowest to the fastest

    @classmethod
    def of(cls, shape: Sequence[int], channels_last: bool = False) -> Space:
        """The elements of an array."""
        return cls(tuple(shape), tuple(memory_order(len(shape), channels_last)))

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Pattern:
    """Where element i of a space finds its value: sizes and strides, the slowest axis first.

    Neighbouring axes that form one run are merged, axes of size 1 are left out.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def is_number(self) -> bool:
        """Whether all elements see the same value."""
        return not any(self.strides)

    @property
    def is_full(self) -> bool:
        """Whether element i sees value i."""
        return self.strides == (1,) and self.offset == 0

    @property
    def is_dense(self) -> bool:
        """Whether it is full, or of one element."""
        return self.is_full or not self.sizes

    def takes(self, width: int) -> bool:
        """Whether runs of `width` elements see neighbours, or all the same value."""
        if self.is_number:
            return True
        if self.sizes[-1] % width or self.strides[-1] not in (0, 1):
            return False
        return self.strides[-1] == 0 or not any(
            n % width for n in (*self.strides[:-1], self.offset)
        )


def pattern_of(space: Space, strides: Sequence[int], offset: int = 0) -> Pattern:
    """The pattern of an array with these strides along the axes of the space."""
    sizes: list[int] = []
    steps: list[int] = []
    for a in space.order:
        n, step = space.shape[a], strides[a]
        if n == 1:
            continue
        if sizes and steps[-1] == step * n:
            sizes[-1] *= n
            steps[-1] = step
        else:
            sizes.append(n)
            steps.append(step)
    return Pattern(tuple(sizes), tuple(steps), offset)


def stretched(space: Space, x: Operand, aligned: Sequence[int] | None = None) -> Pattern | None:
    """The pattern of an array that stretches along axes of size 1; None if it does not fit.

    Args:
        aligned: The shape of x, with axes of size 1 added or left out; missing leading axes count
            as 1.
    """
    shape = x.shape if aligned is None else tuple(aligned)
    lead = len(space.shape) - len(shape)
    if lead < 0 or any(n not in (1, m) for n, m in zip(shape, space.shape[lead:], strict=True)):
        return None
    dense = strides_of(x.shape, x.channels_last)
    own = iter([s for s, n in zip(dense, x.shape, strict=True) if n != 1])
    strides = [0] * lead + [0 if n == 1 else next(own) for n in shape]
    return pattern_of(space, strides)


@dataclass(frozen=True)
class Split:
    """A space seen as five axes, kept and reduced ones by turns; some may be of size 1.

    Element ((((k0 R0 + r0) K1 + k1) R1 + r1) K2 + k2) belongs to the group (k0 K1 + k1) K2 + k2.
    """

    k0: int
    r0: int
    k1: int
    r1: int
    k2: int

    @property
    def groups(self) -> int:
        return self.k0 * self.k1 * self.k2

    @property
    def reduced(self) -> int:
        return self.r0 * self.r1


def split(space: Space, axes: Sequence[int]) -> Split | None:
    """The space by whether axes are reduced; None if kinds alternate too often."""
    kinds: list[bool] = [False]
    sizes: list[int] = [1]
    for a in space.order:
        n, reduced = space.shape[a], a in axes
        if n == 1:
            continue
        if kinds[-1] == reduced:
            sizes[-1] *= n
        else:
            kinds.append(reduced)
            sizes.append(n)
    if len(sizes) > 5:
        return None
    if len(sizes) in (2, 3):  # one run of reduced elements: the last is the faster one
        sizes = [sizes[0], 1, 1, *sizes[1:]]
    return Split(*sizes, *[1] * (5 - len(sizes)))


def kept_in_order(space: Space, axes: Sequence[int], out: Operand) -> bool:
    """Whether a reduced array lies in the order of its groups."""
    kept = [a for a in space.order if a not in axes and space.shape[a] != 1]
    if len(out.shape) == len(space.shape):
        place = {a: a for a in kept}
    else:
        left = [a for a in range(len(space.shape)) if a not in axes]
        if len(left) != len(out.shape):
            return False
        place = {a: left.index(a) for a in kept}
    dense = strides_of(out.shape, out.channels_last)
    steps = [dense[place[a]] for a in kept]
    return steps == sorted(steps, reverse=True) and [out.shape[place[a]] for a in kept] == [
        space.shape[a] for a in kept
    ]
