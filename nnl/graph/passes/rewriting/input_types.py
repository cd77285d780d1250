# SPDX-License-Identifier: Apache-2.0
"""Inputs in numpy's default types get, in files, the types that they are computed with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from nnl.graph.program.program import Program

DEFAULTS = (np.dtype(np.float64), np.dtype(np.int64))  # of random numbers and of whole ones


def narrow_inputs(program: Program, inputs: Iterable[int]) -> None:
    """Give input slots, and views of them, the type of `computed_type`. No pass may have run."""
    views = program.views()
    for i in inputs:
        dtype = computed_type(program, i)
        if dtype != program.slots[i].spec.dtype:
            group = {i} | views.get(i, set())
            for v in group:
                program.slots[v].spec = program.slots[v].spec.with_dtype(dtype)
            _drop_casts(program, group, dtype)


def computed_type(program: Program, i: int) -> np.dtype[Any]:
    """The type to which every function converts an input in float64 or int64.

    Where some want whole numbers and some want floats, it is what the floats are. An input that a
    function, the caller or the next run takes as it is has its own type.
    """
    given = program.slots[i].spec.dtype
    group = {i} | program.views().get(i, set())
    ends = {*program.outputs.values(), *program.carries, *program.carries.values()}
    if given not in DEFAULTS or not group.isdisjoint(ends):
        return given
    found: dict[np.dtype[Any], None] = {}
    written = program.written()
    for step in program.steps:
        if group.isdisjoint(step.ins):
            continue
        if step.op == "cast" and program.function(step) != "cast" and step.outs[0] not in written:
            found[program.slots[step.outs[0]].spec.dtype] = None
        elif not step.view or step.converts or step.writes:
            return given
    floats = [d for d in found if d.kind not in "iu"]
    chosen = floats or list(found)
    return chosen[0] if len(chosen) == 1 else given


def _drop_casts(program: Program, group: set[int], dtype: np.dtype[Any]) -> None:
    """Let readers of conversions, that convert nothing any more, read the values themselves."""
    same: dict[int, int] = {}
    steps = []
    for step in program.steps:
        step.ins = tuple([same.get(i, i) for i in step.ins])
        if step.op == "cast" and step.ins[0] in group:
            made = step.outs[0]
            if program.slots[made].spec.dtype == dtype and made not in program.kept:
                same[made] = step.ins[0]
                continue
        steps.append(step)
    program.steps = steps
    for slot in program.slots:  # views of what a conversion has made
        if slot.root in same:
            slot.root = program.root(same[slot.root])
