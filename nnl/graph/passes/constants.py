# SPDX-License-Identifier: Apache-2.0
"""Compute what does not depend on any input once, when the plan is made."""

from __future__ import annotations

from nnl.core.array import NdArray, Zeros
from nnl.ext.library import Library, is_plain
from nnl.graph.program import Program

MOST_BYTES = 1 << 20  # a larger constant is computed at every run rather than kept


def fold_constants(program: Program, lib: Library) -> None:
    """Replace steps without varying inputs by leaves that hold their values.

    Constants are the results of steps without inputs (a fill, a range), the zeros that stand for
    gradients nobody asked for, and what is computed from these alone.
    """
    slots = program.slots
    constant = {i for i, s in enumerate(slots) if isinstance(s.leaf, Zeros)} | {0}
    viewed = program.views()
    steps = []
    for step in program.steps:
        bound = step.bound
        fixed = bound is not None and not step.writes and not step.view
        fixed = fixed and all(i in constant for i in step.ins)
        fixed = fixed and all(is_plain(v) for v in step.attrs.values())  # else a user's code
        if not fixed or any(
            o in program.kept or o in viewed or slots[o].spec.nbytes > MOST_BYTES for o in step.outs
        ):
            steps.append(step)
            continue
        assert bound is not None
        args = [None if i == 0 else slots[i].leaf.read(program.space) for i in step.ins]  # type: ignore[union-attr]
        values = bound.call(*args)
        for o, value in zip(step.outs, (values,) if bound.single else values, strict=True):
            slots[o].leaf = NdArray.holding(slots[o].spec, program.space, value)
            constant.add(o)
            program.folded[o] = step
    program.steps = steps
