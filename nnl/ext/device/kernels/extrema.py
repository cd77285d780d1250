# SPDX-License-Identifier: Apache-2.0
"""max and min that tell where the element is, and pick and place, which go by such places.

Without places max and min are reductions, see programs.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from nnl.ext.device.kernels.chain import At, Chain
from nnl.ext.device.kernels.copies import Fill, plain
from nnl.ext.device.kernels.module import (
    Code,
    Dims,
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
    words,
)
from nnl.ext.device.kernels.patterns import Space, Split, split
from nnl.ext.device.registry import Kernel, Operand

FILES = ("extrema",)


def group_words(g: Split) -> bytes:
    """The words of a Groups in common.cl."""
    return words(divisor(g.k1), divisor(g.r1), g.r0, g.k2, g.groups, g.reduced, 1)


class Extremum(Launched):
    """x -> y and places, or places alone."""

    def __init__(self, largest: bool, x: Operand, outs: Outs, g: Split) -> None:
        self.alone = len(outs) == 1
        form = "columns" if g.k2 > 1 else "rows"
        types = typed(X=x, Y=x if self.alone else outs[0], I=outs[-1])
        grid: Dims = (blocks_for(g.groups), 1, 1)
        block, used = line(), ""
        local: tuple[str, ...] = ()
        if form == "rows":
            team = geometry().team
            rows = geometry().threads // team
            grid, block = (-(-g.groups // rows), 1, 1), (team, rows, 1)
            local, used = ("f32 values[THREADS]", "u32 places[THREADS]"), "values, places, "
        code = Code(
            f"extremum_in_{form}", f"extremum_{form}(x, y, place, {used}p)",
            ("const X x", "Y y", "I place"), "Groups", FILES,
            (("IS_LARGEST", int(largest)), *types), local,
        )  # fmt: skip
        self.launch_always(Launch(code, grid, block, group_words(g)))

    def run(
        self, ins: Sequence[int | None], outs: Sequence[int], workspace: int, stream: Any
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
        code = Code(
            "chosen_elements", "chosen(x, place, y, p)", ("const X x", "const I place", "Y y"),
            "Groups", FILES, (("BACK", int(back)), *typed(X=x, I=index, Y=y)),
        )  # fmt: skip
        grid = (blocks_for(g.groups), 1, 1)
        self.launch_always(Launch(code, grid, line(), group_words(g)))


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
