# SPDX-License-Identifier: Apache-2.0
"""embed, its gradient, and gather.

The gradient is the same at every run: indices are sorted, and each row is added up in an order that
the indices alone fix. An index that is out of range gives NaN, and no gradient.
"""

from __future__ import annotations

import math
from typing import Any

from nnl.ext.device.kernels.chain import At, Chain
from nnl.ext.device.kernels.copies import Fill, plain
from nnl.ext.device.kernels.module import (
    MOST_ELEMENTS,
    Code,
    Ins,
    Launch,
    Launched,
    Outs,
    blocks_for,
    divisor,
    geometry,
    is_real,
    line,
    register,
    typed,
    vector,
    words,
)
from nnl.ext.device.registry import Kernel, Operand

FILES = ("indexing",)
MOST_INDICES = 1 << 17  # of a gradient: sorting compares each with each
PLACES = 32  # of the order that a block sums, as in indexing.cl


def width_for(inner: int, *operands: Operand) -> int:
    """Elements of a thread at a time along an axis of `inner` neighbours."""
    width = vector(*operands)
    return width if inner % width == 0 else 1


class Gather(Launched):
    """(x, index) -> y with x as (batch, outer, n, inner) and index as (batch, m)."""

    def __init__(
        self, x: Operand, index: Operand, y: Operand, outer: int, n: int, m: int, inner: int
    ) -> None:
        self.launches = {}
        for fits, v in ((True, width_for(inner, x, y)), (False, 1)):
            code = Code(
                "gather_rows", "gather(x, index, y, p)", ("const X x", "const L index", "Y y"),
                "GatherP", FILES, (("GATHER", ""), ("V", v), *typed(X=x, L=index, Y=y)),
            )  # fmt: skip
            count = y.size // v
            rest = words(count, n, divisor(inner // v), divisor(m), divisor(outer))
            self.launches[fits] = Launch(code, (blocks_for(count), 1, 1), line(), rest)


def _usable(x: Operand | None, index: Operand | None, y: Operand) -> bool:
    return (
        x is not None
        and index is not None
        and is_real(x, y)
        and plain(x, index, y)
        and bool(x.size and y.size)
        and index.dtype.kind in "iu"
    )


@register("embed")
def embed(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    index, w = ins
    if index is None or w is None or not _usable(w, index, outs[0]):
        return None
    gather = Gather(w, index, outs[0], 1, w.shape[0], index.size, math.prod(w.shape[1:]))
    chain = Chain()
    chain.add(gather, [At("in", 1), At("in", 0)], [At("out", 0)])
    return chain.finish()


@register("gather")
def gather(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    x, index = ins
    if x is None or index is None or not _usable(x, index, outs[0]):
        return None
    b, a = attrs["batch_dims"], attrs["axis"]
    outer, m = math.prod(x.shape[b:a]), math.prod(index.shape[b:])
    return Gather(x, index, outs[0], outer, x.shape[a], m, math.prod(x.shape[a + 1 :]))


class SumRows(Launched):
    """(index, order, gy) -> gw, parts: by `name`, sum_rows or join_rows."""

    def __init__(self, name: str, index: Operand, gy: Operand, gw: Operand) -> None:
        rows, features = gw.shape[0], math.prod(gw.shape[1:])
        self.launches = {}
        arrays = ("const L index", "const i32 order", "const G gy", "Y gw", "f32 parts")
        local = ("i32 from[PLACES]", "i32 row[PLACES + 2]")
        for fits, v in ((True, width_for(features, gy, gw)), (False, 1)):
            code = Code(
                f"{name}_of", f"{name}(index, order, gy, gw, parts, from, row, p)", arrays,
                "SumRowsP", FILES, (("SUM_ROWS", ""), ("V", v), *typed(L=index, G=gy, Y=gw)), local,
            )  # fmt: skip
            threads = min(geometry().threads, -(-features // (v * 32)) * 32)
            tiles = -(-features // (v * threads))
            rest = words(index.size, rows, features, tiles)
            grid = (-(-index.size // PLACES) * tiles, 1, 1)
            self.launches[fits] = Launch(code, grid, (threads, 1, 1), rest)


class Rank(Launched):
    """index -> the order of a stable sort, int32."""

    def __init__(self, index: Operand, rows: int) -> None:
        code = Code(
            "rank_of", "rank(index, order, tile, p)", ("const L index", "i32 order"), "RankP",
            FILES, (("RANK", ""), *typed(L=index)), ("i64 tile[THREADS]",),
        )  # fmt: skip
        grid = (-(-index.size // geometry().threads), 1, 1)
        self.launch_always(Launch(code, grid, line(), words(index.size, rows)))


@register("embed_backward")
def embed_backward(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    index, gy, *added = ins
    gw = outs[0]
    if index is None or gy is None or any(added) or not _usable(gy, index, gw):
        return None
    if index.size > MOST_INDICES or gw.size >= MOST_ELEMENTS:
        return None
    chain = Chain()
    features = gw.size // gw.shape[0]
    order = chain.scratch(4 * index.size)
    parts = chain.scratch(2 * 4 * features * -(-index.size // PLACES))
    chain.add(Rank(index, gw.shape[0]), [At("in", 0)], [order])
    chain.add(Fill(gw, 0.0), [], [At("out", 0)])
    for name in ("sum_rows", "join_rows"):
        sums = SumRows(name, index, gy, gw)
        chain.add(sums, [At("in", 0), order, At("in", 1)], [At("out", 0), parts])
    return chain.finish()
