# SPDX-License-Identifier: Apache-2.0
"""Join the updates of a solver's parameters: one kernel that divides all of them over threads."""

from __future__ import annotations

from typing import Any

from nnl.ext.native import kernel_names, plain_attributes
from nnl.graph.passes.dtypes import computes_as_is
from nnl.graph.program import Program, Step

KERNEL = "multi_update"


def join_updates(program: Program, lib: Any) -> None:
    """Neighbouring updates by one rule with the same attributes become one step.

    Updates are neighbours if only other updates stand between them. Their results, views of the
    weights, stay where they are.
    """
    if KERNEL not in kernel_names(lib):
        return
    steps: list[Step] = []
    run: list[Step] = []

    def end_run() -> None:
        steps.extend([_joined(run)] if len(run) > 1 else run)
        run.clear()

    for step in program.steps:
        update = step.native and step.view and bool(step.writes) and step.op in kernel_names(lib)
        update = update and computes_as_is(program, step)
        if run and not (update and _alike(step, run[0])):
            end_run()
        if update:
            run.append(step)
        else:
            steps.append(step)
    end_run()
    program.steps = steps


def _alike(a: Step, b: Step) -> bool:
    return (a.op, a.attrs, a.second, len(a.ins)) == (b.op, b.attrs, b.second, len(b.ins))


def _joined(run: list[Step]) -> Step:
    first = run[0]
    attrs = {"rule": first.op, **plain_attributes(first.attrs)}
    ins = [i for s in run for i in s.ins]
    step = Step(KERNEL, attrs, ins, [s.outs[0] for s in run], first.second, run)
    n = len(first.ins)
    step.writes = tuple(k * n + p for k in range(len(run)) for p in first.writes)
    return step
