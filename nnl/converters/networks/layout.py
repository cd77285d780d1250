# SPDX-License-Identifier: Apache-2.0
"""Orders of axes: what formats with channels last need, with few transpositions.

A value is an array as the target holds it, and the order of its axes there: axis k of what is held
is axis order[k] of the value in the network. Functions that treat all axes alike keep the order of
what they get, others ask for the order that they need, so arrays are transposed where two that
differ meet, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence

Order = tuple[int, ...]


def plain(rank: int) -> Order:
    """Axes as the network has them."""
    return tuple(range(rank))


def channels_last(rank: int, base: int = 1) -> Order:
    """The axis `base` behind all others."""
    return (*range(base), *range(base + 1, rank), base)


def channels_first(rank: int, base: int = 1) -> Order:
    """The last axis before those from `base` on."""
    return (*range(base), rank - 1, *range(base, rank - 1))


def permuted(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """A shape in another order."""
    return tuple([shape[i] for i in order])


def step(old: Order, new: Order) -> Order:
    """The axes for transposing what is held in one order to get another."""
    return tuple([old.index(axis) for axis in new])


def moves_nothing(shape: Sequence[int], axes: Sequence[int]) -> bool:
    """Whether transposing by these axes keeps all elements in their places: only axes of size 1
    move."""
    kept = [a for a in axes if shape[a] != 1]
    return kept == sorted(kept)


def held_axes(axes: Sequence[int], order: Order) -> tuple[int, ...]:
    """Where axes of the value are in what is held."""
    return tuple([order.index(a % len(order)) for a in axes])


def without(order: Order, axes: Sequence[int]) -> Order:
    """The order of the axes that stay when some go."""
    gone = {a % len(order) for a in axes}
    kept = sorted(set(order) - gone)
    return tuple([kept.index(a) for a in order if a not in gone])


def merged(shape: Sequence[int], axes: Sequence[int]) -> tuple[list[int], list[int]]:
    """The same transposition of fewer axes: those that stay side by side become one, those of size
    1 go.

    Returns:
        Shape and axes.
    """
    kept = [a for a in axes if shape[a] != 1]
    runs: list[list[int]] = []
    for a in kept:
        if runs and _next(runs[-1][-1], shape) == a:
            runs[-1].append(a)
        else:
            runs.append([a])
    starts = sorted(r[0] for r in runs)
    sizes = dict((r[0], _size(shape, r)) for r in runs)
    return [sizes[s] for s in starts], [starts.index(r[0]) for r in runs]


def _next(axis: int, shape: Sequence[int]) -> int:
    """The axis after one, without those of size 1."""
    return next((a for a in range(axis + 1, len(shape)) if shape[a] != 1), -1)


def _size(shape: Sequence[int], axes: Sequence[int]) -> int:
    size = 1
    for a in axes:
        size *= shape[a]
    return size
