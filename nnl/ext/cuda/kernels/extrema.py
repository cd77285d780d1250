# SPDX-License-Identifier: Apache-2.0
"""max and min that tell where the element is; without places they are reductions (programs.py)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from nnl.ext.cuda.kernels.copies import plain
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
