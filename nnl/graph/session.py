# SPDX-License-Identifier: Apache-2.0
"""Session: the plans of one static graph, and the executor behind forward() and backward()."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from nnl.core.array import NdArray
from nnl.core.context import EPOCH, SPACES, STATE
from nnl.core.device_views import Views
from nnl.core.graph import Node, Value, capture, readable
from nnl.core.record import LOST, PLAIN
from nnl.core.variable import Variable
from nnl.graph.backward import Backward, BackwardPlan
from nnl.graph.binding import Key
from nnl.graph.infer_again import infer_again
from nnl.graph.lowering import NO_GRADIENTS
from nnl.graph.plan import Plan
from nnl.graph.program import SPACE
from nnl.graph.recompute import cheap_edges, insert_recomputation

logger = logging.getLogger("nnl")

KEEP, TRAIN, INFER, HOOKED = "keep", "train", "infer", "hooked"


class ForwardPlan:
    """A plan whose first part is a forward, and what is readable after it.

    Attributes:
        published: (array, space, buffer) of every edge that has a value after the first part.
        moving: (array, slot) of those that are views of leaves, whose buffers may change.
        lost: Arrays of the edges that have no value.
        overwritten: Those that the second part of the plan overwrites.
        before: Arrays that the plan writes, with memory for what they held before, where a second
            part may turn out not to be what is wanted.
    """

    def __init__(self, nodes: Sequence[Node], plan: Plan) -> None:
        self.plan = plan
        self.published: list[tuple[NdArray, str, Any]] = []
        self.moving: list[tuple[NdArray, int]] = []
        self.lost: list[NdArray] = []
        self.overwritten: list[NdArray] = []
        self.before: list[tuple[NdArray, Any]] = []
        if plan.second:
            empty = SPACES[plan.space].empty
            arrays = [nd for nd, _ in plan.binding.written.arrays]
            self.before = [(nd, empty(nd.spec.shape, nd.spec.dtype)) for nd in arrays]
        leaves = {slot for slot, _ in plan.binding.given}
        for node in nodes:
            for i, nd in enumerate(node.outs or ()):
                slot = plan.alive_at_cut((id(node), i))
                if not slot:
                    self.lost.append(nd)
                    continue
                if plan.root.get(slot, slot) in leaves:
                    self.moving.append((nd, slot))
                else:
                    self.published.append((nd, *plan.published(slot)))
                if slot not in plan.kept:
                    self.overwritten.append(nd)

    def publish(self) -> None:
        """Let the arrays of the graph hold what the plan has computed."""
        for nd, space, buf in self.published:
            if nd.record is PLAIN:  # as write() does, without its call
                bufs = nd.bufs
                bufs.clear()
                bufs[space] = buf
            else:
                nd.write(space, buf)
        plan = self.plan
        for nd, slot in self.moving:
            nd.write(plan.space, plan.slots[slot])
            root = plan.root.get(slot, slot)
            leaf = plan.binding.arrays.get(root)
            if plan.space != SPACE and leaf is not None and leaf is not nd:
                if leaf.bufs.get(plan.space) is plan.slots[root]:
                    Views.link(leaf, nd)


def fingerprint(nodes: Sequence[Node], outputs: Sequence[Value]) -> list[Any]:
    """Everything that a plan was derived from and that can change without a new function."""
    parts: list[Any] = [n.seq for n in nodes]
    edges = [v for n in nodes for v in n.inputs if v is not None]
    for v in (*edges, *outputs):
        parts += [v.key, v.need_grad, v.persistent, v.recompute, v.current_spec]
    return parts


def turn_on_gradients(nodes: Sequence[Node], outputs: Sequence[Value]) -> None:
    """Let gradients through to inputs whose need_grad was set after the functions were called."""
    late: set[Node] = set()
    for node in nodes:
        for v in node.inputs:
            if v is not None and v.node in late:
                v.need_grad = True
        if node.need_grad is False and node.op.differentiable:
            if any(v is not None and v.need_grad for v in node.inputs):
                node.need_grad = True
                late.add(node)
    for v in outputs:
        if v.node in late:
            v.need_grad = True


class Session:
    """Plans of the graph below some outputs, made when first needed and valid until it changes."""

    def __init__(self, outputs: Sequence[Variable]) -> None:
        self.outputs = [v.edge for v in outputs]
        self.nodes = capture(self.outputs)
        infer_again(self.nodes)
        for v in outputs:
            node = v.edge.node
            if (
                node is not None
                and node.outs is not None
                and node.outs[v.edge.index] is not v._data
            ):
                outs = list(node.outs)  # a handle made in dynamic mode brings its own array
                v._data.spec = outs[v.edge.index].spec
                outs[v.edge.index] = v._data
                node.outs = tuple(outs)
        for node in self.nodes:
            node.saved = None
        turn_on_gradients(self.nodes, self.outputs)
        self.epoch = EPOCH.now
        self.print = fingerprint(self.nodes, self.outputs)
        self.plans: dict[str, ForwardPlan] = {}
        self.backwards: dict[tuple[bool, bool], BackwardPlan] = {}
        self.back: Backward | None = None
        self.joint_back: Backward | None = None
        self.last = ""  # mode of the latest forward whose values have not been overwritten
        self.keeps = False  # whether a backward has left intermediates readable
        self.complete = False  # whether everything has been computed at least once
        self.reported = False  # whether callbacks of communicators take the gradients
        self.backward_at = (-1, -1)  # forwards and updates before the latest backward

    def valid(self) -> bool:
        if self.epoch != EPOCH.now:
            if (
                capture(self.outputs) != self.nodes
                or fingerprint(self.nodes, self.outputs) != self.print
            ):
                return False
            self.epoch = EPOCH.now
        return True

    def backward_graph(self) -> Backward:
        if self.back is None:
            self.back = Backward(self.outputs[0], self.nodes, self._readable())
        return self.back

    # ---- forward ----

    def forward(self, mode: str, before: Any = None, after: Any = None) -> None:
        if mode == TRAIN and True not in [v.need_grad for v in self.outputs]:
            mode = INFER
        if before is not None:
            self._forward_hooked(mode, before, after)
            return
        forward = self.plans.get(mode)
        if forward is None:
            forward = self.plans[mode] = ForwardPlan(self.nodes, self._forward_plan(mode))
        for nd, value in forward.before:
            value[...] = nd.read(forward.plan.space)
        forward.plan.run()
        forward.publish()
        for nd in forward.lost:
            if nd.record is not LOST:
                nd.hold(LOST)
        self.last, self.complete = mode, True

    def _forward_hooked(self, mode: str, before: Any, after: Any) -> None:
        """Step by step with everything readable around the hooks; what may go is cleared after."""
        forward = self.plans.get(HOOKED)
        if forward is None:
            forward = self.plans[HOOKED] = ForwardPlan(self.nodes, self._forward_plan(HOOKED))
        forward.plan.run_hooked(before, after)
        forward.publish()
        if mode != KEEP:
            kept = self._readable() | (self._needed_by_gradients() if mode == TRAIN else set())
            for n in self.nodes:
                for i, nd in enumerate(n.outs or ()):
                    if (id(n), i) not in kept:
                        nd.hold(LOST)
        self.last, self.complete = KEEP, True

    def _readable(self) -> set[Key]:
        return readable(self.nodes, self.outputs)

    def compute_missing(self) -> None:
        """Compute what neither this session nor another one has computed yet."""
        missing: set[Node] = set()
        for node in self.nodes:
            sources = [v.node for v in node.inputs if v is not None]
            if not missing.isdisjoint(sources) or any(not nd.written for nd in node.outs or ()):
                missing.add(node)
        if len(missing) == len(self.nodes):
            self.forward(KEEP)
        elif missing:
            nodes = [n for n in self.nodes if n in missing]
            every = {(id(n), i) for n in nodes for i in range(len(n.out_specs))}
            forward = ForwardPlan(nodes, Plan(nodes, every, lazy=every, as_found=True))
            forward.plan.run()
            forward.publish()
        self.complete = True

    def _forward_plan(self, mode: str) -> Plan:
        if mode in (KEEP, HOOKED):
            every = {(id(n), i) for n in self.nodes for i in range(len(n.out_specs))}
            return Plan(self.nodes, every, lazy=every, rewrite=mode == KEEP)
        kept = self._readable()
        if mode == INFER:
            return Plan(self.nodes, kept, lazy=kept)
        if len(self.outputs) > 1 or self.outputs[0].node is None or self.keeps:
            kept |= self._needed_by_gradients()
            return Plan(self.nodes, kept, lazy=kept)
        plan = self._joint_plan(kept, 0.0)
        budget = STATE.memory_budget
        if budget is not None and plan.nbytes > budget:
            plan = self._smaller_plan(kept, plan, budget)
        return plan

    def _joint_plan(self, kept: set[Key], share: float) -> Plan:
        """Forward and backward in one, with a share of the cheap results computed again."""
        # of its own: inserting recomputation changes what the nodes read
        back = self.joint_back = Backward(self.outputs[0], self.nodes, kept)
        again = [k for k in cheap_edges(self.nodes, back.nodes) if k not in kept] if share else []
        also = frozenset(again[: round(share * len(again))])
        second = insert_recomputation(self.nodes, back.nodes, also)
        grads = {e.key: v.array for v, e in back.leaves}
        nodes, lazy = [*self.nodes, *second], kept | {e.key for *_, e in back.shown}
        tiled = NO_GRADIENTS if self.reported else grads  # communicators want them plain
        return Plan(nodes, lazy | set(grads), len(self.nodes), lazy - set(grads), gradients=tiled)

    def _smaller_plan(self, kept: set[Key], plan: Plan, budget: int) -> Plan:
        """A plan inside the memory budget, or else the smallest; the least is computed again."""
        best, back = plan, self.joint_back
        for share in (0.125, 0.25, 0.5, 0.75, 1.0):
            plan = self._joint_plan(kept, share)
            if plan.nbytes < best.nbytes:
                best, back = plan, self.joint_back
            if best.nbytes <= budget:
                break
        else:
            logger.warning(
                "memory_budget: the plan takes %d bytes, which is more than %d; it cannot be made "
                "smaller by computing cheap results again",
                best.nbytes,
                budget,
            )
        self.joint_back = back
        return best

    def _needed_by_gradients(self) -> set[Key]:
        keys: set[Key] = set()
        for n in self.nodes:
            if n.need_grad:
                for _, i in n.op.kept_inputs:
                    variadic = n.op.variadic and i == len(n.op.inputs) - 1
                    keys |= {
                        v.key for v in n.inputs[i : None if variadic else i + 1] if v is not None
                    }
                every = range(len(n.out_specs))
                for _, i in n.op.kept_outputs:
                    keys |= {(id(n), k) for k in (every if n.op.variadic_out else (i,))}
        return keys

    # ---- backward ----

    def prepare_backward(self, clear_buffer: bool) -> None:
        """Have the values that a backward reads, also where forward() has not computed them."""
        if not self.complete:
            self.compute_missing()
        if not clear_buffer:
            self._keep_for_backward()

    def backward(self, grad: Any, clear_buffer: bool, callbacks: Sequence[Any] = ()) -> None:
        joint = self.last == TRAIN and len(self.outputs) == 1 and clear_buffer and not self.keeps
        back = (self.joint_back if joint else None) or self.backward_graph()
        run = self.backwards.get((joint, clear_buffer))
        if run is None:
            run = self.backwards[joint, clear_buffer] = self._backward_plan(
                back, joint, clear_buffer
            )
        back.write_start(grad)
        run.run(joint, callbacks)
        if joint:
            for nd in self.plans[TRAIN].overwritten:
                nd.hold(LOST)
            self.last = ""
            if callbacks and not self.reported:  # the next forward makes a plan for them
                self.reported = True
                self.plans.pop(TRAIN)
                self.backwards = {k: v for k, v in self.backwards.items() if not k[0]}

    def _keep_for_backward(self) -> None:
        """Have all values that a backward reads which leaves intermediates readable.

        A joint plan is made for a backward that clears. Its first part drops values that only its
        own second part can do without, where kernels are fused or edges computed again. Then the
        forward runs once more, with state as it was before, as a plan that keeps them; so does
        every later one.
        """
        if self.last != TRAIN or self.keeps or len(self.outputs) > 1:
            return
        lost = {id(nd) for nd in self.plans[TRAIN].lost}
        nodes = self.backward_graph().all_nodes
        if not any(v is not None and id(v.array) in lost for n in nodes for v in n.inputs):
            return
        forward = self.plans.pop(TRAIN)
        for nd, value in forward.before:
            nd.touch(forward.plan.space)[...] = value
        self.keeps = True
        self.backwards = {k: v for k, v in self.backwards.items() if not k[0]}
        self.forward(TRAIN)

    def _backward_plan(self, back: Backward, joint: bool, clear_buffer: bool) -> BackwardPlan:
        if joint:
            return BackwardPlan(back, self.plans[TRAIN].plan, back.shown)
        infer_again(back.all_nodes)
        publish = back.shown if clear_buffer else back.edges
        kept = {e.key for _, e in back.leaves}
        lazy = {e.key for *_, e in publish} - kept
        nodes = back.nodes if clear_buffer else back.all_nodes
        return BackwardPlan(back, Plan(nodes, kept | lazy, lazy=lazy, as_found=True), publish)


def session_of(outputs: Sequence[Variable]) -> Session:
    """The session of these outputs, kept with the first of them."""
    key = tuple([id(v.edge) for v in outputs])
    sessions = outputs[0].sessions
    if sessions is None:
        sessions = outputs[0].sessions = {}
    session: Session | None = sessions.get(key)
    if session is None or not session.valid():
        session = sessions[key] = Session(outputs)
    return session
