# SPDX-License-Identifier: Apache-2.0
"""max and min that tell where the element is, and pick and place, which go by such places.

Without places max and min are reductions, see programs.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from nnl.ext.cuda.kernels.chain import At, Chain
from nnl.ext.cuda.kernels.copies import Fill, plain
from nnl.ext.cuda.kernels.module import (
    THREADS,
    Dims,
    Ins,
    Launch,
    Launched,
    Outs,
    blocks_for,
    code_of,
    divisor,
    is_real,
    type_of,
    words,
)
from nnl.ext.cuda.kernels.patterns import Space, Split, split
from nnl.ext.cuda.registry import register
from nnl.ext.device.registry import Kernel, Operand

FILES = ("elementwise.cuh", "extrema.cuh")


def group_words(g: Split) -> bytes:
    """The words of a Groups in elementwise.cuh."""
    return words(divisor(g.k1), divisor(g.r1), g.r0, g.k2, g.groups, g.reduced, 1)


class Extremum(Launched):
    """x -> y and places, or places alone."""

    def __init__(self, largest: bool, x: Operand, outs: Outs, g: Split) -> None:
        self.alone = len(outs) == 1
        form = "columns" if g.k2 > 1 else "rows"
        types = [type_of(v) for v in (x, x if self.alone else outs[0], outs[-1])]
        call = f"extremum_{form}<{str(largest).lower()}>"
        name = ("extremum", form, int(largest), *types)
        code = code_of(FILES, f"ExtremumP<{', '.join(types)}>", call, *name)
        grid: Dims = (blocks_for(g.groups), 1, 1)
        block: Dims = (THREADS, 1, 1)
        if form == "rows":
            grid, block = (-(-g.groups // (THREADS // 32)), 1, 1), (32, THREADS // 32, 1)
        self.launch_always(Launch(code, grid, block, group_words(g)))

    def run(
        self, ins: Sequence[int | None], outs: Sequence[int], workspace: int, stream: int
    ) -> None:
        super().run(ins, [0, *outs] if self.alone else outs, workspace, stream)


def _extremum(largest: bool, attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    x = ins[0]
    if x is None or not (attrs.get("with_index") or attrs.get("only_index")) or not x.size:
        return None
    if not is_real(x) or not plain(x, *outs) or outs[-1].dtype.kind not in "iu":
        return None
    if len(outs) > 1 and not is_real(outs[0]):
        return None
    groups = split(Space.of(x.shape), attrs["axes"])
    return None if groups is None else Extremum(largest, x, outs, groups)


register("max")(partial(_extremum, True))
register("min")(partial(_extremum, False))


class Chosen(Launched):
    """(x, places) -> y: one element of each group, or into each."""

    def __init__(self, back: bool, x: Operand, index: Operand, y: Operand, g: Split) -> None:
        types = [type_of(v) for v in (x, index, y)]
        call, name = f"chosen<{str(back).lower()}>", ("chosen", int(back), *types)
        code = code_of(FILES, f"ChosenP<{', '.join(types)}>", call, *name)
        grid = (blocks_for(g.groups), 1, 1)
        self.launch_always(Launch(code, grid, (THREADS, 1, 1), group_words(g)))


def _groups(
    attrs: dict[str, Any], small: Operand | None, large: Operand | None, index: Operand | None
) -> Split | None:
    """The groups of the larger array that the smaller has an element for."""
    if small is None or large is None or index is None or index.dtype.kind not in "iu":
        return None
    if not is_real(small, large) or not plain(small, large, index):
        return None
    if not small.size or not large.size:
        return None
    return split(Space.of(large.shape), attrs["axes"])


@register("pick")
def pick(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    """0 where the index is negative; NaN where it is too large."""
    x, index = ins
    groups = _groups(attrs, outs[0], x, index)
    if groups is None or x is None or index is None:
        return None
    return Chosen(False, x, index, outs[0], groups)


@register("place")
def place(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    """Zeros with an element in each group."""
    x, index = ins
    groups = _groups(attrs, x, outs[0], index)
    if groups is None or x is None or index is None:
        return None
    chain = Chain()
    chain.add(Fill(outs[0], 0.0), [], [At("out", 0)])
    put = Chosen(True, x, index, outs[0], groups)
    chain.add(put, [At("in", 0), At("in", 1)], [At("out", 0)])
    return chain.finish()
