# SPDX-License-Identifier: Apache-2.0
"""Back to what does not depend on a library: plain orders, and the steps that fused ones were."""

from __future__ import annotations

from nnl.ext.library import CHANNELS_LAST, HOST
from nnl.graph.passes.layout.kernels import CONVERT
from nnl.graph.program.program import Program, Step


def forget_orders(program: Program) -> None:
    """Drop the steps that `choose_kernels` puts in between, so that it can choose anew."""
    same: dict[int, int] = {}
    kept = program.kept | set(program.carries.values())
    steps = []
    for step in program.steps:
        source, target = (*step.ins, 0)[0], step.outs[0]
        if step.op == CONVERT and target not in kept:
            same[target] = source
        elif step.op == CONVERT and source not in kept and not program.slots[source].given:
            same[source] = target
        else:
            steps.append(step)

    def named(i: int) -> int:
        while i in same:
            i = same[i]
        return i

    for step in steps:
        step.ins = tuple([named(i) for i in step.ins])
        step.outs = tuple([named(i) for i in step.outs])
    program.steps = steps
    for slot in program.slots:
        slot.root = program.root(named(slot.root))
        if slot.order == CHANNELS_LAST:
            slot.order = HOST


def unfuse(program: Program) -> None:
    """Put the steps that fused ones were made from in their place, all in the plain order."""
    for o in program.results:  # copies of weights that an update makes
        program.kept.discard(o)
    program.results.clear()
    for slot in program.slots:
        slot.order = HOST
    program.steps = [s for step in program.steps for s in _parts(step)]


def _parts(step: Step) -> list[Step]:
    return [s for part in step.replaced for s in _parts(part)] if step.replaced else [step]
