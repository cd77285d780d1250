# SPDX-License-Identifier: Apache-2.0
"""Join the updates of a solver's parameters: one kernel that divides all of them over threads."""

from __future__ import annotations

from nnl.ext.library import Library, kernel_names
from nnl.graph.program.program import Program, Step

KERNEL = "multi_update"
# An update that depends on whether gradients are finite. Libraries that have the kernel which
# follows the loss scale take it as an attribute of the joint one.
GUARDED, FOLLOW = "guarded_step", "follow_loss_scale"
MASTERED = "master_update"


def join_updates(program: Program, lib: Library) -> None:
    """Neighbouring updates by one rule with the same attributes become one step.

    Updates are neighbours if only other updates stand between them. Their results, views of the
    weights, stay where they are.
    """
    names = kernel_names(lib)
    if KERNEL not in names:
        return
    steps: list[Step] = []
    run: list[Step] = []

    def end_run() -> None:
        guarded = bool(run) and run[0].op == GUARDED
        steps.extend([joined(run)] if len(run) > 1 or guarded else run)
        run.clear()

    for step in program.steps:
        update = is_update(program, step, lib)
        if run and not (update and _alike(step, run[0])):
            end_run()
        if update:
            run.append(step)
        else:
            steps.append(step)
    end_run()
    program.steps = steps


def _alike(a: Step, b: Step) -> bool:
    guards = (s.ins[-2:] if s.op == GUARDED else () for s in (a, b))
    same = (a.op, a.attrs, a.second, len(a.ins)) == (b.op, b.attrs, b.second, len(b.ins))
    return same and next(guards) == next(guards)


def is_update(program: Program, step: Step, lib: Library) -> bool:
    """Whether a step is an update of a parameter, its first input, and has a kernel."""
    if not (step.native and step.view and 0 in step.writes):
        return False
    names = kernel_names(lib)
    if step.op == GUARDED:
        known = FOLLOW in names and step.attrs["rule"].op.name in names
    else:
        known = step.op in names
    return known and not step.converts


def joined(run: list[Step]) -> Step:
    """One step for some updates by the same rule."""
    first = run[0]
    attrs, n = {"rule": first.op, **first.attrs}, len(first.ins)
    if first.op == MASTERED:
        attrs = {"rule": attrs["rule"], "masters": attrs["dtype"], **attrs}
        del attrs["dtype"]
    guards: tuple[int, ...] = ()
    if first.op == GUARDED:
        rule, n, guards = first.attrs["rule"], n - 2, first.ins[-2:]
        attrs = {"rule": rule.op.name, **rule.as_dict(), "guarded": True}
        attrs["gradient_decay"] = first.attrs["decay"]
    ins = [*[i for s in run for i in s.ins[:n]], *guards]
    attrs |= {"count": len(run), "inputs": n}
    step = Step.of(KERNEL, attrs, ins, [s.outs[0] for s in run], first.second, run)
    step.writes = tuple(k * n + p for k in range(len(run)) for p in first.writes)
    return step
