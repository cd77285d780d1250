# SPDX-License-Identifier: Apache-2.0
"""What the steps of a plan are, where they run and what they cost, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nnl.core.arguments.origin import line_of
from nnl.core.ops.op import Cost
from nnl.core.settings.context import STATE, resolve
from nnl.graph.printing.profile import arithmetic_type, least_s, shapes_text
from nnl.graph.program.costs import cost
from nnl.graph.program.program import Program, Step

if TYPE_CHECKING:
    from nnl.graph.plan.plan import Plan


def backend_name(plan: Plan, step: Step) -> str:
    """Where a step runs: in the library's kernels, or by its definition."""
    return backend_names(plan)[step.kernel is None]


def backend_names(plan: Plan) -> tuple[str, str]:
    """What a step with a kernel is called, and one without."""
    return plan.lib.traits.places if plan.lib is not None else ("native", "numpy")


def account(program: Program, step: Step) -> tuple[str, Cost, np.dtype[Any]]:
    """The shapes of a step, what it costs, and the type of its arithmetic."""
    slots = program.slots
    ins = [slots[i].spec if i else None for i in step.ins]
    outs = [slots[o].spec for o in step.outs]
    return shapes_text(ins, outs), cost(program, step), arithmetic_type(ins, outs)


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
        layer = line_of(plan.program.origin(step))
        share = least_s(costs, dtype, target) * 1e9 / ns if times and times[k] else 0.0
        lines.append(
            f"{step.op:<32} {backend_name(plan, step):<7} {ns // 1000 / 1e3:>9.3f} "
            f"{costs.flops / ns:>8.1f} {costs.bytes / ns:>6.1f} {share:>7.0%}  {what}  "
            f"{layer}".rstrip()
        )
    kernels = sum(s.kernel is not None for s in steps)
    lines.append(
        f"{len(steps)} steps, {kernels} of them {backend_names(plan)[0]}; "
        f"arena {plan.arena_bytes} bytes for {plan.naive_bytes}"
    )
    return "\n".join([*lines, *getattr(native, "notes", ())])
