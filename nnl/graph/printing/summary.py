# SPDX-License-Identifier: Apache-2.0
"""What the steps of a plan are, where they run and what they cost, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nnl.core.graph.origin import place as place_of
from nnl.core.interpreters.context import STATE, resolve
from nnl.core.ops.op import OPS, Cost
from nnl.graph.printing.profile import arithmetic_type, least_s, shapes_text
from nnl.graph.program.program import Program, Step

if TYPE_CHECKING:
    from nnl.graph.plan.plan import Plan


def place(plan: Plan, step: Step) -> str:
    """Where a step runs: in the library's kernels, or by its definition."""
    return places(plan)[step.kernel is None]


def places(plan: Plan) -> tuple[str, str]:
    """What a step with a kernel is called, and one without."""
    return plan.lib.traits.places if plan.lib is not None else ("native", "numpy")


def account(program: Program, step: Step) -> tuple[str, Cost, np.dtype[Any]]:
    """The shapes of a step, what it costs, and the type of its arithmetic."""
    slots = program.slots
    ins = [slots[i].spec if i else None for i in step.ins]
    outs = [slots[o].spec for o in step.outs]
    return shapes_text(ins, outs), cost(program, step), arithmetic_type(ins, outs)


def cost(program: Program, step: Step) -> Cost:
    """What a step costs; of a fused one, what the steps that it stands for compute."""
    arrays = [program.slots[i].spec.nbytes for i in (*step.ins, *step.outs) if i]
    return Cost(sum(_flops(program, s) for s in _leaves_of(step)), sum(arrays))


def summary(plan: Plan) -> str:
    """See Plan.summary."""
    lines = [
        f"{'step':<32} {'where':<7} {'ms':>9} {'GFLOP/s':>8} {'GB/s':>6} {'of peak':>7}  arrays"
    ]
    native = plan.native
    times = native.times if native is not None else []
    steps = plan.native_steps if native is not None else plan.steps
    for k, step in enumerate(steps):
        what, costs, dtype = account(plan.program, step)
        ns = max(times[k] if times else 0, 1)
        source = plan.program.sources[step.source]
        target = STATE.target if source is None else resolve(*source.context)
        layer = place_of(plan.program.origin(step))
        share = least_s(costs, dtype, target) * 1e9 / ns if times and times[k] else 0.0
        lines.append(
            f"{step.op:<32} {place(plan, step):<7} {ns // 1000 / 1e3:>9.3f} "
            f"{costs.flops / ns:>8.1f} {costs.bytes / ns:>6.1f} {share:>7.0%}  {what}  "
            f"{layer}".rstrip()
        )
    kernels = sum(s.kernel is not None for s in steps)
    lines.append(
        f"{len(steps)} steps, {kernels} of them {places(plan)[0]}; "
        f"arena {plan.arena_bytes} bytes for {plan.naive_bytes}"
    )
    return "\n".join([*lines, *getattr(native, "notes", ())])


def _leaves_of(step: Step) -> list[Step]:
    """The recorded steps that a fused one stands for."""
    return [p for part in step.replaced for p in _leaves_of(part)] if step.replaced else [step]


def _flops(program: Program, step: Step) -> int:
    if not hasattr(OPS[step.op].attrs_class, "cost"):
        return 0
    specs = [program.slots[i].spec if i else None for i in step.ins]
    found: Cost = OPS[step.op].attrs(**step.attrs).cost(*specs)
    return found.flops
