# SPDX-License-Identifier: Apache-2.0
"""The gradient graph of a static graph's output, and the plans that run it."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any

import numpy as np

from nnl.core.arrays.array import NdArray
from nnl.core.arrays.spec import Spec
from nnl.core.graph.autodiff import accumulate, backprop, start_gradient
from nnl.core.graph.node import Node, Value, capture
from nnl.core.graph.variable import Variable
from nnl.core.interpreters.interpreter import STATIC
from nnl.core.settings.context import using
from nnl.graph.lowering.binding import Key
from nnl.graph.plan.plan import Plan
from nnl.graph.plan.progress import Progress
from nnl.graph.program.program import SPACE


class Backward:
    """The recorded gradient graph of one output.

    Attributes:
        gy: Leaf that holds the start gradient.
        leaves: (leaf edge, its gradient's edge).
        edges: (node, output index, gradient's edge) of every intermediate.
        shown: Those of them that stay readable when the others are cleared.
        nodes: What computes the gradients of leaves and those shown, in order.
        all_nodes: What computes all.

    Args:
        shown: Keys of edges.
    """

    def __init__(self, output: Value, forward_nodes: Sequence[Node], shown: Set[Key]) -> None:
        node = output.node
        assert node is not None
        self.output = output
        spec = Spec.of(node.out_specs[output.index].shape, node.target.float_dtype)
        self.gy = NdArray.holding(spec, SPACE, np.ones(spec.shape, spec.dtype))
        self.started: float | None = 1.0  # the number that gy is filled with
        self.borrows = False  # whether its memory is that of the array that was given
        start = Variable.of_edge(Value.leaf(self.gy), self.gy)
        with using(interpreter=STATIC, make_nodes=True, no_grad=False, recompute=False):
            found = backprop([output], [start])
        self.leaves = [(v, g.edge) for v, g in found.leaves.values()]
        self.edges = [
            (n, i, g.edge)
            for n, gys in found.edges.items()
            for i, g in enumerate(gys)
            if g is not None and (n is not node or i != output.index)
        ]
        self.shown = [e for e in self.edges if (id(e[0]), e[1]) in shown]
        done = set(forward_nodes)
        ends = [g for _, g in self.leaves]
        self.nodes, self.all_nodes = (
            [n for n in capture([*ends, *[g for *_, g in edges]]) if n not in done]
            for edges in (self.shown, self.edges)
        )

    def write_start(self, grad: Any, taken: Callable[[], set[int]]) -> None:
        """Put the start gradient in place: where the given array is, if it may be read there.

        Args:
            taken: Gives the ids of buffers that the run writes.
        """
        if type(grad) not in (int, float):
            given = start_gradient(self.output, self.gy.shape, grad)
            given.settle()
            buf = given.bufs.get(SPACE)
            plain = given.spec is self.gy.spec and given.record.family is None
            self.borrows = plain and buf is not None and buf.base is None and id(buf) not in taken()
            if self.borrows:
                self.gy.write(SPACE, buf)
            else:
                self._own()
                self.gy.copy_from(given)
            self.started = None
        elif grad != self.started:
            self._own()
            self.gy.touch(SPACE)[...] = grad
            self.started = grad

    def _own(self) -> None:
        """Have memory that is nobody else's."""
        if self.borrows:
            self.gy.write(SPACE, np.empty(self.gy.spec.shape, self.gy.spec.dtype))
        self.borrows = False


class BackwardPlan:
    """A plan that ends in gradients, and how those reach the arrays of leaves and edges.

    Args:
        publish: The edges among those of `back` whose gradients shall be readable.
    """

    def __init__(
        self, back: Backward, plan: Plan, publish: Sequence[tuple[Node, int, Value]]
    ) -> None:
        self.plan, self.back = plan, back
        self.progress: Progress | None = None
        self.publish = publish
        computed = {o for s in plan.steps for o in s.outs}
        taken = [
            plan.root.get(s, s) for s in (plan.slot_of.get(e.key, 0) for *_, e in self.publish)
        ]
        slots = [plan.slot_of.get(e.key, 0) for _, e in back.leaves]
        taken += slots
        self.start = next((s for s, nd in plan.binding.given if nd is back.gy), 0)
        # A leaf becomes the owner of the buffer of its gradient when nothing else is in it.
        self.leaves = [
            (v, e, s in computed and s not in plan.root and taken.count(s) == 1)
            for (v, e), s in zip(back.leaves, slots, strict=True)
        ]

    def taken(self) -> set[int]:
        """Ids of the buffers of gradients that a run writes."""
        found = {id(buf) for leaf, *_ in self.leaves for buf in leaf.grad.bufs.values()}
        slots = [self.plan.slot_of.get(g.key) for _, g, _ in self.leaves]
        return found | {id(self.plan.slots[s]) for s in slots if s is not None}

    def run(self, second: bool, callbacks: Sequence[Any]) -> None:
        plan = self.plan
        if callbacks:
            self.progress = self.progress or Progress(plan, self.leaves, self.deliver)
            self.progress.begin(callbacks)
        for leaf, g, own in self.leaves:
            grad = leaf.grad
            if own and not grad.zeroing:
                space, buf = plan.published(plan.slot_of[g.key])
                if space in grad.bufs and grad.bufs[space] is buf:
                    grad.write(space, buf.copy())  # else the run would overwrite the sum
        if second and self.start:  # the first part has run with another start gradient
            plan.binding.find(plan, self.start, self.back.gy)
        if callbacks and self.progress is not None:
            self.progress.run(second, callbacks)
        else:
            plan.run(second)
            for leaf, g, own in self.leaves:
                self.deliver(leaf, g, own)
        for node, i, g in self.publish:
            grads = node.grads = node.grads or {}
            nd = grads.setdefault(i, NdArray(g.spec.shape))
            nd.spec = g.spec
            if g.key in plan.slot_of:
                nd.write(*plan.published(plan.slot_of[g.key]))
            else:
                nd.write(plan.space, g.array.read(plan.space).copy())

    def deliver(self, leaf: Value, g: Value, own: bool) -> None:
        """Add a gradient that the plan has computed to that of its leaf."""
        plan, grad, slot = self.plan, leaf.grad, self.plan.slot_of.get(g.key)
        found = (plan.space, g.array.read(plan.space)) if slot is None else plan.published(slot)
        if own and grad.zeroing and not g.spec.is_half:  # also where the buffer is a part of one
            grad.spec = g.spec
            grad.write(*found)
        else:
            accumulate(grad, NdArray.holding(g.spec, *found), own)
