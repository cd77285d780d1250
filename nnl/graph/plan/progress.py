# SPDX-License-Identifier: Apache-2.0
"""Telling communicators about gradients while the plan that computes them still runs."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from nnl.core.arrays.array import NdArray
from nnl.core.arrays.spec import Spec
from nnl.core.graph.node import Value, capture
from nnl.ext.library import LibraryPlan
from nnl.graph.plan.plan import Plan

Leaf = tuple[Value, Value, bool]  # leaf, its gradient, whether it may own the plan's buffer


class BackwardCallback(Protocol):
    """What backward(communicator_callbacks=...) takes: a communicator's all_reduce_callback."""

    def begin(self, order: Sequence[tuple[NdArray, Spec]]) -> None: ...

    def home(self, nd: NdArray, spec: Spec) -> Any: ...

    def ready(self, nd: NdArray) -> None: ...

    def finish(self) -> None: ...

    def record(self) -> None: ...


def check_callbacks(callbacks: Sequence[Any]) -> None:
    """Raise TypeError unless all are callbacks of communicators."""
    for i, c in enumerate(callbacks):
        if not all(hasattr(c, m) for m in ("begin", "home", "ready", "finish", "record")):
            raise TypeError(
                f"backward: communicator_callbacks[{i}] is {type(c).__name__}, wanted what "
                "a communicator's all_reduce_callback returns"
            )


def reports_to(
    output: Value, callbacks: Sequence[BackwardCallback]
) -> Callable[[NdArray], None] | None:
    """What tells callbacks of complete gradients while a graph without a plan goes backward.

    None where a gradient may get another dtype on the way, as at the first time in float64: then
    callbacks find all of them in the end.
    """
    for c in callbacks:
        c.begin([])  # graphs may differ, and all processes must take the gradients in one order
    for node in capture([output]) if callbacks else ():
        for v in node.inputs:
            if v is not None and v.node is None and v.need_grad:
                if v.grad.spec.dtype != node.target.float_dtype:
                    return None

    def ready(grad: NdArray) -> None:
        for c in callbacks:
            c.ready(grad)

    return ready if callbacks else None


class Progress:
    """One part of a plan that ends in gradients, and when each of them is complete.

    A gradient is reported when no later step reads or writes it. The native library runs the steps
    up to that point in one call and the rest in the next; the numpy backend runs all steps first.

    Args:
        deliver: Adds a gradient that the plan has computed to that of its leaf.
    """

    def __init__(self, plan: Plan, leaves: Sequence[Leaf], deliver: Callable[..., None]) -> None:
        self.plan, self.deliver = plan, deliver
        uses = _last_uses(plan)
        slots = [plan.slot_of.get(g.key, 0) for _, g, _ in leaves]
        end = len(plan.native_steps) if plan.native is not None else 0
        self.due = [uses.get(plan.program.root(s), end) if s else end for s in slots]
        order = sorted(range(len(leaves)), key=self.due.__getitem__)
        self.due = [self.due[i] for i in order]
        self.leaves = [leaves[i] for i in order]

    def begin(self, callbacks: Sequence[BackwardCallback]) -> None:
        """Announce the gradients; let the plan write them where the callbacks want them."""
        plan = self.plan
        parts = Counter([id(leaf.grad) for leaf, *_ in self.leaves])
        coming = {id(leaf.grad): (leaf.grad, _stored(g.spec)) for leaf, g, _ in self.leaves}
        for c in callbacks:
            c.begin(list(coming.values()))
            for leaf, g, own in self.leaves:
                if own and plan.native is not None and parts[id(leaf.grad)] == 1:
                    home = c.home(leaf.grad, g.spec)
                    if home is not None:
                        _move(plan, plan.slot_of[g.key], home)

    def run(self, second: bool, callbacks: Sequence[BackwardCallback]) -> None:
        """Run the plan."""
        left = Counter([id(leaf.grad) for leaf, *_ in self.leaves])

        def report(leaf: Leaf) -> None:
            self.deliver(*leaf)
            grad = leaf[0].grad
            left[id(grad)] -= 1
            if not left[id(grad)]:  # a shared parameter has several parts
                for c in callbacks:
                    c.ready(grad)

        waiting = deque(self.leaves)
        calls = [(at, lambda: report(waiting.popleft())) for at in self.due]
        self.plan.run(second, calls)
        while waiting:  # complete at the end only
            report(waiting.popleft())


def _stored(spec: Spec) -> Spec:
    """The spec in which a leaf keeps a gradient of this one."""
    return spec.with_dtype("float32") if spec.is_half else spec


def _last_uses(plan: Plan) -> dict[int, int]:
    """{slot: how many native steps must have run before nobody reads or writes it any more}."""
    steps = plan.native_steps if plan.native is not None else []
    root = plan.program.root
    return {root(s): k + 1 for k, step in enumerate(steps) for s in (*step.ins, *step.outs)}


def _move(plan: Plan, slot: int, buf: Any) -> None:
    """Let a slot that the plan keeps for itself be another buffer."""
    if plan.slots[slot] is not buf and plan.slots[slot].shape == buf.shape:
        plan.slots[slot] = buf
        cast(LibraryPlan, plan.native).bind_array(slot, buf)
        plan._point_views(slot)
