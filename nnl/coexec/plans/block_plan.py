# SPDX-License-Identifier: Apache-2.0
"""The plan of a block: a call on the buffers of what it reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nnl.coexec.plans.calls import NONE
from nnl.core.arrays.array import NdArray
from nnl.core.graph.node import Value
from nnl.core.settings.context import SPACES
from nnl.graph.lowering.lowering import lower
from nnl.graph.plan.plan import Plan
from nnl.graph.program.program import SPACE

if TYPE_CHECKING:
    from nnl.coexec.plans.blocks import Block


class BlockPlan:
    """A block whose calls have no kernels of the library: they run one by one.

    Attributes:
        keeps: Numbers of the results that it gives.
    """

    def __init__(self, block: Block, keeps: Sequence[int]) -> None:
        self.block, self.keeps = block, tuple(keeps)

    def __call__(self, bufs: Sequence[Any]) -> list[Any]:
        """Results for the buffers of what the block reads, in the order of `keeps`."""
        made: list[Any] = []
        for call, numbers in zip(self.block.calls, self.block.numbers, strict=True):
            ins = [None if n == NONE else made[n] if n >= 0 else bufs[-2 - n] for n in numbers]
            made += call.compute(ins)
        return [made[n] for n in self.keeps]


def plan_of(block: Block, keeps: Sequence[int]) -> Any:
    """The plan of a block: one of the library where its kernels are used.

    Programs inside of steps have the same: nothing lasts from run to run, such as the order in
    which weights lie, as other blocks read the same arrays.

    Returns:
        None where the library has no kernel for some of it.
    """
    lib = SPACES[SPACE].library()
    if lib is None or not any([b.fused for c in block.calls for b in c.target.backends]):
        return BlockPlan(block, keeps)
    leaves = [Value.leaf(NdArray.unwritten(s)) for s in block.specs]
    made: list[Value] = []
    alias: list[int] = []  # by number: the one whose memory it is
    nodes = []
    for call, numbers in zip(block.calls, block.numbers, strict=True):
        node = call.node(
            [None if n == NONE else made[n] if n >= 0 else leaves[-2 - n] for n in numbers]
        )
        nodes.append(node)
        for i, nd in enumerate(node.outs or ()):
            made.append(Value.of(node, i, nd.spec, False, nd))
            seen = numbers[0] if call.bound.view else len(alias)
            alias.append(alias[seen] if 0 <= seen < len(alias) else seen)
    kept = {made[n].key for n in keeps}
    program, binding = lower(nodes, kept, plain=kept)
    plan = Plan.of(program, binding, inside=True)
    if plan.native is None or any([s.kernel is None for s in plan.native_steps]):
        return None
    if plan.native_prepared or binding.ordered:
        return None
    ins = [binding.slot_of.get(v.key, 0) for v in leaves]
    for slot, nd in binding.given:
        if slot not in ins:  # a constant that a pass has found
            plan.point(slot, nd.read(SPACE))
    computed = {o for step in plan.steps for o in step.outs}
    buffers: list[int] = []  # slots that get memory of their own at every run
    owner: dict[int, int] = {}
    outs = []
    for n in keeps:
        slot = plan.slot_of[made[n].key]
        root = plan.root.get(slot, slot)
        spec = made[n].spec
        if root in computed and root not in buffers:
            buffers.append(root)
        elif root not in computed and root not in ins:
            return None
        # of what dynamic mode has memory of its own for, and the plan has not
        copied = owner.setdefault(root, alias[n]) != alias[n] or (root in ins and alias[n] >= 0)
        where = buffers.index(root) if root in computed else len(keeps) + ins.index(root)
        same = program.slots[root].spec.shape == spec.shape
        outs.append((where, None if same else spec.shape, copied))
    shown = {plan.root.get(s, s) for s in [plan.slot_of[made[n].key] for n in keeps]}
    over = _overwritten(plan, [0 if s in shown else s for s in ins], buffers)
    shapes = [(r, program.slots[r].spec.shape, program.slots[r].spec.dtype) for r in buffers]
    for r in buffers:
        plan.slots[r] = None
    return lib.BlockPlan(plan, plan.native, tuple(keeps), ins, shapes, over, outs)


def _overwritten(plan: Plan, ins: Sequence[int], buffers: Sequence[int]) -> list[int]:
    """For each slot that is computed the position of what is read whose memory it may be, or -1.

    That is the input of the step that computes it, if no later step reads that.

    Args:
        ins: Slots of what is read, 0 for what nothing may be written over.
    """
    native: Any = plan.native
    steps = [[[plan.root.get(s, s) for s in x] for x in (s.ins, s.outs)] for s in plan.native_steps]
    last = {s: t for t, (read, _) in enumerate(steps) for s in read}
    found = dict.fromkeys(buffers, -1)
    for t, (read, computed) in enumerate(steps):
        for o, slot in enumerate(computed):
            for i, s in enumerate(read):
                if slot not in found or s not in ins or last[s] != t or ins.count(s) > 1:
                    continue
                mine = plan.program.slots[slot].spec.nbytes == plan.program.slots[s].spec.nbytes
                if ins.index(s) not in found.values() and mine and native.may_overwrite(t, o, i):
                    found[slot] = ins.index(s)
    return list(found.values())
