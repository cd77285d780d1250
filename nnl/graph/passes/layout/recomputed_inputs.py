# SPDX-License-Identifier: Apache-2.0
"""Keep the input of a normalization for backward, and compute its result from it again there."""

from __future__ import annotations

from nnl.ext.library import Library
from nnl.graph.passes.fusing.normalization import FORWARD
from nnl.graph.program.program import Program, Step


def forget_normalized(program: Program, lib: Library) -> None:
    """In plans cut in two, drop relu(batch_normalization(x)) after forward.

    The gradient of the normalization needs x in any case. What else reads the result in backward,
    usually the gradient of a convolution's weights, gets it from x and the statistics once more:
    one pass over memory, just before that reader finds it in cache. Not where something was added:
    that would have to be kept instead.
    """
    if not lib.traits.computes_again:
        return
    first: dict[int, Step] = {}
    viewed = program.views()
    for step in program.steps:
        if step.op == FORWARD and not step.second and not step.ins[5] and step.attrs["batch_stat"]:
            y = step.outs[0]
            if y not in program.kept and y not in viewed:
                first[y] = step
    again: dict[int, int] = {}
    steps: list[Step] = []
    for step in program.steps:
        if step.second:
            for i in step.ins:
                if i in first and i not in again:
                    steps.append(_repeated(program, first[i]))
                    again[i] = steps[-1].outs[0]
            step.ins = tuple([again.get(i, i) for i in step.ins])
        steps.append(step)
    program.steps = steps


def _repeated(program: Program, step: Step) -> Step:
    x, beta, gamma, *_ = step.ins
    outs = [program.new_slot(program.slots[o].spec) for o in step.outs]
    attrs = {**step.attrs, "batch_stat": False}
    return Step.of(FORWARD, attrs, (x, beta, gamma, *step.outs[1:3], 0), outs, second=True)
