# SPDX-License-Identifier: Apache-2.0
"""Session: the plans of one static graph, and the executor behind forward() and backward()."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any
from weakref import ref

from nnl.core.arrays.array import NdArray
from nnl.core.arrays.device_views import Views
from nnl.core.arrays.memory_record import LOST, PLAIN
from nnl.core.graph.node import Node, Value, capture, readable
from nnl.core.graph.variable import Variable
from nnl.core.settings.context import EPOCH, SPACES, STATE
from nnl.graph.execution.backward import Backward, BackwardPlan
from nnl.graph.lowering.binding import Key
from nnl.graph.lowering.infer_again import infer_again
from nnl.graph.lowering.lowering import NO_GRADIENTS
from nnl.graph.plan.plan import Plan
from nnl.graph.plan.recompute import cheap_edges, insert_recomputation
from nnl.graph.program.program import SPACE

logger = logging.getLogger("nnl")

KEEP, TRAIN, INFER, HOOKED = "keep", "train", "infer", "hooked"
# Sessions that have run forward, and may have cleared what others want, or go on with a joint plan.
FORWARDS: set[ref[Session]] = set()


class PlanOnPaper(Plan):
    """A plan that only says what it would take."""

    def _native_plan(self, lib: Any) -> Any:
        """Memory for it is never asked for."""


class ForwardPlan:
    """A plan whose first part is a forward, and what is readable after it.

    Attributes:
        published: (array, space, buffer) of every edge that has a value after the first part.
        moving: (array, slot) of those that are views of leaves, whose buffers may change.
        lost: Arrays of the edges that have no value.
        overwritten: Those that the second part of the plan overwrites.
        writes: Ids of the arrays that have a value after it.
        before: Arrays that the plan writes, with memory for what they held before, where it may
            have to run again for values that it drops.
    """

    def __init__(self, nodes: Sequence[Node], plan: Plan, drops: bool = False) -> None:
        self.plan = plan
        self.published: list[tuple[NdArray, str, Any]] = []
        self.moving: list[tuple[NdArray, int]] = []
        self.lost: list[NdArray] = []
        self.overwritten: list[NdArray] = []
        self.before: list[tuple[NdArray, Any]] = []
        if drops:
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
        self.writes = {id(nd) for nd, *_ in (*self.published, *self.moving)}

    def save_state(self) -> None:
        """Note what the arrays hold that the run is to write."""
        for nd, value in self.before:
            value[...] = nd.read(self.plan.space)

    def run_again(self) -> None:
        """Run from the noted state, for the arrays that are cleared; everything else stays."""
        plan, space = self.plan, self.plan.space
        now = [(nd, nd.read(space).copy()) for nd, _ in self.before]
        try:
            for nd, value in self.before:
                nd.touch(space)[...] = value
            plan.run()
        finally:
            for nd, value in now:
                nd.touch(space)[...] = value
        moving = [(nd, space, plan.slots[slot]) for nd, slot in self.moving]
        for nd, where, buf in (*self.published, *moving):
            if nd.clear_called:
                nd.write(where, buf)

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
        self.joint = False  # whether the backward that is prepared is the second part of a plan
        self.latest = False  # whether no other graph has computed some of these values since then
        self.train = any(n.need_grad for n in self.nodes)
        self.arrays = {id(nd) for n in self.nodes for nd in n.outs or ()}
        self.wanted: set[Key] = set()  # what other graphs have asked for after forwards of this one
        self.reads: list[tuple[Key, NdArray]] | None = None  # of the gradients; see _read
        self.ref = ref(self)
        self.previous: Session | None = None  # with other flags, whose forward was the latest
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
        if mode == TRAIN and not self.train:
            mode = INFER
        if before is not None:
            self._forward_hooked(mode, before, after)
            return
        forward = self.plans.get(mode)
        if forward is None:
            plan = self._forward_plan(mode)
            forward = self.plans[mode] = ForwardPlan(self.nodes, plan, mode == TRAIN)
        if forward.before:
            forward.save_state()
        forward.plan.run()
        forward.publish()
        for nd in forward.lost:
            if nd.record is not LOST:
                nd.hold(LOST)
        if len(FORWARDS) > 1 or not self.latest:
            self._tell_others(forward)
        self.last, self.complete = mode, True

    def _tell_others(self, forward: ForwardPlan) -> None:
        """Note a forward for the graphs that have functions in common with this one."""
        for halfway in [*FORWARDS]:
            other = halfway()
            if other is None:
                FORWARDS.discard(halfway)
            elif other.latest and not forward.writes.isdisjoint(other.arrays):
                other.latest = False
        FORWARDS.add(self.ref)
        self.latest, self.previous = True, None

    def _forward_hooked(self, mode: str, before: Any, after: Any) -> None:
        """Step by step with everything readable around the hooks; what may go is cleared after."""
        forward = self.plans.get(HOOKED)
        if forward is None:
            plan = self._forward_plan(HOOKED)
            forward = self.plans[HOOKED] = ForwardPlan(self.nodes, plan, True)
        forward.save_state()
        forward.plan.run_hooked(before, after)
        forward.publish()
        if mode != KEEP:
            kept = self._readable() | (self._needed() if mode == TRAIN else set())
            for n in self.nodes:
                for i, nd in enumerate(n.outs or ()):
                    if (id(n), i) not in kept:
                        nd.hold(LOST)
        self._tell_others(forward)
        self.last, self.complete = HOOKED if mode == TRAIN else mode, True

    def _readable(self) -> set[Key]:
        return readable(self.nodes, self.outputs)

    def compute_missing(self) -> None:
        """Compute what neither this session nor another one has computed yet.

        What was cleared meanwhile comes back for what gradients read; what nobody wants and has to
        be computed from it stays as it is.
        """
        missing: set[Node] = set()
        for node in self.nodes:
            sources = [v.node for v in node.inputs if v is not None]
            if not missing.isdisjoint(sources) or any(not nd.written for nd in node.outs or ()):
                missing.add(node)
        if len(missing) == len(self.nodes):
            self.forward(KEEP)
        elif missing:
            nodes = self._computable(missing)
            every = {(id(n), i) for n in nodes for i in range(len(n.out_specs))}
            if nodes:
                forward = ForwardPlan(nodes, Plan(nodes, every, lazy=every, as_found=True))
                forward.plan.run()
                forward.publish()
        self.complete = True

    def _computable(self, missing: set[Node]) -> list[Node]:
        """Those nodes, without such as gradients do not read and whose inputs were cleared."""
        read = {key for key, _ in self._read()}
        needed: set[Node] = set()
        for n in reversed(self.nodes):
            if n in needed or any((id(n), i) in read for i in range(len(n.out_specs))):
                needed.add(n)
                if n in missing:
                    needed.update([v.node for v in n.inputs if v is not None and v.node])
        done: list[Node] = []
        gone: set[Node] = set()
        for n in self.nodes:
            if n not in missing:
                continue
            inputs = [v for v in n.inputs if v is not None and v.node is not None]
            lost = [v for v in inputs if v.node not in missing and v.array.clear_called]
            if n in needed:
                self._bring_back([(v.key, v.array) for v in lost])
            elif lost or any(v.node in gone for v in inputs):
                gone.add(n)
                continue
            done.append(n)
        return done

    def plan_on_paper(self) -> Plan:
        """What training would run, without the memory for it."""
        return self._joint_plan(self._readable(), 0.0, PlanOnPaper)

    def _forward_plan(self, mode: str) -> Plan:
        if mode in (KEEP, HOOKED):
            every = {(id(n), i) for n in self.nodes for i in range(len(n.out_specs))}
            return Plan(self.nodes, every, lazy=every, rewrite=mode == KEEP)
        kept = self._readable()
        if mode == INFER:
            return Plan(self.nodes, kept, lazy=kept)
        if len(self.outputs) > 1 or not self.outputs[0].need_grad or self.keeps:
            kept |= self._needed()
            return Plan(self.nodes, kept, lazy=kept)
        plan = self._joint_plan(kept, 0.0)
        budget = STATE.memory_budget
        if budget is not None and plan.nbytes > budget:
            plan = self._smaller_plan(kept, plan, budget)
        return plan

    def _joint_plan(self, kept: set[Key], share: float, kind: type[Plan] = Plan) -> Plan:
        """Forward and backward in one, with a share of the cheap results computed again."""
        # of its own: inserting recomputation changes what the nodes read
        back = self.joint_back = Backward(self.outputs[0], self.nodes, kept)
        again = [k for k in cheap_edges(self.nodes, back.nodes) if k not in kept] if share else []
        also = frozenset(again[: round(share * len(again))])
        second = insert_recomputation(self.nodes, back.nodes, also)
        grads = {e.key: v.array for v, e in back.leaves}
        nodes, lazy = [*self.nodes, *second], kept | {e.key for *_, e in back.shown}
        tiled = NO_GRADIENTS if self.reported else grads  # communicators want them plain
        kept = lazy | set(grads)
        return kind(nodes, kept, len(self.nodes), lazy - set(grads), gradients=tiled)

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

    def _needed(self) -> set[Key]:
        """Keys of edges that gradients of these functions read, and that others have asked for."""
        keys = set(self.wanted)
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

    def _read(self) -> list[tuple[Key, NdArray]]:
        """Keys and arrays of the edges of the graph that the gradients of all others read."""
        if self.reads is None:
            edges = [v for n in self.backward_graph().all_nodes for v in n.inputs if v is not None]
            ours = {v.key: v.array for v in edges if v.node is not None}
            self.reads = [(k, nd) for k, nd in ours.items() if id(nd) in self.arrays]
        return self.reads

    def prepare_backward(self, clear_buffer: bool) -> None:
        """Have the values that a backward reads, where no forward has computed or kept them too."""
        if not self.complete:
            self.compute_missing()
        self.joint = False
        if self.latest and self.last == KEEP:
            return
        if self.latest and self.last == TRAIN and clear_buffer and not self.keeps:
            self.joint = len(self.outputs) == 1 and self.joint_back is not None
        if not self.joint:
            self._bring_back([(k, nd) for k, nd in self._read() if nd.clear_called])

    def _bring_back(self, lost: Sequence[tuple[Key, NdArray]]) -> None:
        """Have values that forwards have cleared, of this graph or others with its functions.

        A forward keeps what gradients of its own functions read, and not always: a joint plan is
        made for a backward that clears, and its second part can do without some. So the forward
        that has cleared a value runs once more, with the state that it began with, as a plan that
        keeps it; so does every later one. What is there stays as it is.
        """
        found = [self, self.previous, *[halfway() for halfway in list(FORWARDS)]] if lost else []
        sessions = [s for s in found if s is not None and s.last in (TRAIN, HOOKED)]
        for _, nd in lost:
            for session in sessions:
                if nd.clear_called and id(nd) in session.arrays:  # else it came with another one
                    session._run_again({key for key, _ in lost})

    def _run_again(self, wanted: set[Key]) -> None:
        """Compute the latest forward again, for what is lost and gradients or others want."""
        first = self.plans.pop(self.last)
        self.wanted |= wanted
        self.keeps = True
        self.backwards = {k: v for k, v in self.backwards.items() if not k[0]}
        again = self.plans[TRAIN] = ForwardPlan(self.nodes, self._forward_plan(TRAIN))
        again.before, self.last = first.before, TRAIN
        again.run_again()

    def backward(self, grad: Any, clear_buffer: bool, callbacks: Sequence[Any] = ()) -> None:
        joint = self.joint
        back = (self.joint_back if joint else None) or self.backward_graph()
        run = self.backwards.get((joint, clear_buffer))
        if run is None:
            run = self.backwards[joint, clear_buffer] = self._backward_plan(
                back, joint, clear_buffer
            )
        back.write_start(grad, run.taken)
        run.run(joint, callbacks)
        if joint:
            for nd in self.plans[TRAIN].overwritten:
                nd.hold(LOST)
            self.last = ""
            if callbacks and not self.reported:  # the next forward makes a plan for them
                self.reported = True
                self.plans.pop(TRAIN)
                self.backwards = {k: v for k, v in self.backwards.items() if not k[0]}

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
        session, before = Session(outputs), session
        session.previous = before and (before if before.last else before.previous)
        sessions[key] = session
    return session
