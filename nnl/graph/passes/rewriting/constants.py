# SPDX-License-Identifier: Apache-2.0
"""Compute what does not depend on any input once, when the plan is made."""

from __future__ import annotations

from typing import Any

from nnl.core.settings.context import SPACES
from nnl.ext.library import Library, is_plain
from nnl.graph.lowering.lowering import definition
from nnl.graph.program.program import CONSTANT, Program

MOST_BYTES = 1 << 20  # a larger constant is computed at every run rather than kept


def fold_constants(program: Program, lib: Library) -> None:
    """Replace steps without varying inputs, if nothing writes their results, by their values.

    Constants are the results of steps without inputs (a fill, a range), the zeros that stand for
    gradients nobody asked for, and what is computed from these alone.
    """
    slots, space = program.slots, SPACES[program.space]
    constant = {i for i, s in enumerate(slots) if s.role == CONSTANT} | {0}
    read: dict[int, Any] = {0: None}  # {slot: its buffer where the program runs}
    own = program.kept | program.views().keys() | program.written()
    steps = []
    for step in program.steps:
        fixed = not step.writes and not step.view and all(i in constant for i in step.ins)
        fixed = fixed and all(is_plain(v) for v in step.attrs.values())  # else a user's code
        if not fixed or any(o in own or slots[o].spec.nbytes > MOST_BYTES for o in step.outs):
            steps.append(step)
            continue
        bound = definition(program, step)
        for i in step.ins:
            if i not in read:
                read[i] = space.from_host(slots[i].data)  # type: ignore[arg-type]
        values = bound.call(*[read[i] for i in step.ins])
        for o, value in zip(step.outs, (values,) if bound.single else values, strict=True):
            slots[o].role, slots[o].data = CONSTANT, space.to_host(value)
            read[o] = value
            constant.add(o)
            program.folded[o] = step
    program.steps = steps
