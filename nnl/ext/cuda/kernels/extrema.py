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
    Code,
    Dims,
    Ins,
    Launch,
    Outs,
    blocks_for,
    divisor,
    is_real,
    type_of,
    words,
)
from nnl.ext.cuda.kernels.patterns import Space, Split, split
from nnl.ext.cuda.registry import Kernel, Operand, register


class Extremum(Kernel):
    """x -> y and places, or places alone."""

    def __init__(self, largest: bool, x: Operand, outs: Outs, g: Split) -> None:
        self.alone = len(outs) == 1
        form = "columns" if g.k2 > 1 else "rows"
        types = [type_of(v) for v in (x, x if self.alone else outs[0], outs[-1])]
        name = "_".join(t.replace(" ", "") for t in ("extremum", form, str(int(largest)), *types))
        body = f"typedef ExtremumP<{', '.join(types)}> {name}_P;\n"
        body += f"KERNEL({name}, {name}_P) {{ extremum_{form}<{str(largest).lower()}>(p); }}\n"
        grid: Dims = (blocks_for(g.groups), 1, 1)
        block: Dims = (THREADS, 1, 1)
        if form == "rows":
            grid, block = (-(-g.groups // (THREADS // 32)), 1, 1), (32, THREADS // 32, 1)
        rest = words(divisor(g.k1), divisor(g.r1), g.r0, g.k2, g.groups, g.reduced, 1)
        code = Code(name, ("elementwise.cuh", "extrema.cuh"), body)
        self.launch = Launch(code, grid, block, rest)

    def run(
        self, ins: Sequence[int | None], outs: Sequence[int], workspace: int, stream: int
    ) -> None:
        self.launch.run([ins[0], 0 if self.alone else outs[0], outs[-1]], stream)


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


class Chosen(Kernel):
    """(x, places) -> y: one element of each group, or into each."""

    def __init__(self, back: bool, x: Operand, index: Operand, y: Operand, g: Split) -> None:
        types = [type_of(v) for v in (x, index, y)]
        name = "_".join(t.replace(" ", "") for t in ("chosen", str(int(back)), *types))
        body = f"typedef ChosenP<{', '.join(types)}> {name}_P;\n"
        body += f"KERNEL({name}, {name}_P) {{ chosen<{str(back).lower()}>(p); }}\n"
        rest = words(divisor(g.k1), divisor(g.r1), g.r0, g.k2, g.groups, g.reduced, 1)
        code = Code(name, ("elementwise.cuh", "extrema.cuh"), body)
        self.launch = Launch(code, (blocks_for(g.groups), 1, 1), (THREADS, 1, 1), rest)

    def run(
        self, ins: Sequence[int | None], outs: Sequence[int], workspace: int, stream: int
    ) -> None:
        self.launch.run([ins[0], ins[1], outs[0]], stream)


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
