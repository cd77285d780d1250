# SPDX-License-Identifier: Apache-2.0
"""Sparse constants of .tflite files, as plain arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnl.converters.tflite.flatbuffer import Damaged

SPARSE = 1  # format of a level; 0 is dense


def dense(what: str, sparsity: Mapping[str, Any], values: Any, shape: Sequence[int]) -> Any:
    """The array whose stored values stand in the order of levels.

    A level goes along one axis, or along one axis of blocks, those of which axis d are block_map's
    axes; `traversal_order` names them. Each place of the levels before holds, if the level is
    dense, every number of the axis, else those from `segments[i]` to `segments[i + 1]` of
    `indices`, where i counts the places.

    Raises:
        Damaged: The levels do not fit the shape, or the number of values.
    """
    order, blocks, levels = (sparsity[k] for k in ("traversal_order", "block_map", "levels"))
    rank = len(shape)
    sizes = dict(zip(order, [level["dense_size"] for level in levels], strict=False))
    wanted = list(range(rank + len(blocks)))
    if sorted(order) != wanted or len(levels) != len(wanted) or len(set(blocks)) < len(blocks):
        raise Damaged(f"damaged: {what} has the sparse axes {order}, with {list(shape)}")
    inner = {d: sizes[rank + k] for k, d in enumerate(blocks)}  # sizes of blocks by their axis
    places = {a: np.zeros(1, np.int64) for a in order[:1]}
    count = 1
    for axis, level in zip(order, levels, strict=True):
        repeats, along = _along(what, level, count, len(values))
        places = {a: np.repeat(p, repeats) for a, p in places.items()} | {axis: along}
        count = len(along)
    if count != len(values):
        raise Damaged(f"damaged: {what} has {len(values)} values for {count} places")
    at = []
    for d, n in enumerate(shape):
        index = places[d]
        if d in inner:
            index = index * inner[d] + places[rank + blocks.index(d)]
        if index.size and not (0 <= index.min() and index.max() < n):
            raise Damaged(f"damaged: {what} has values outside of {list(shape)}")
        at.append(index)
    y = np.zeros(tuple(shape), values.dtype)
    y[tuple(at)] = values
    return y


def _along(what: str, level: Mapping[str, Any], count: int, most: int) -> tuple[Any, Any]:
    """How often each of `count` places goes on, and the numbers along the axis of a level."""
    if level["format"] != SPARSE:
        n = level["dense_size"]
        if n < 1 or count * n > most:
            raise Damaged(f"damaged: {what} has more places than its {most} values")
        return n, np.tile(np.arange(n), count)
    segments, indices = (_vector(what, level, k) for k in ("segments", "indices"))
    repeats = np.diff(segments)
    if len(segments) != count + 1 or segments[0] or repeats.min() < 0:
        raise Damaged(f"damaged: {what} has {len(segments)} segments for {count} places")
    if len(indices) != segments[-1]:
        raise Damaged(f"damaged: {what} has {len(indices)} indices, wanted {segments[-1]}")
    return repeats, indices


def _vector(what: str, level: Mapping[str, Any], key: str) -> Any:
    kind, read = level[f"{key}_type"], level[key]
    if kind not in (1, 2, 3) or read is None:
        raise Damaged(f"damaged: {what} has no {key}")
    found = np.asarray(read(f"Vector{kind}")["values"], np.int64)
    if not len(found) and key == "segments":
        raise Damaged(f"damaged: {what} has no {key}")
    return found
