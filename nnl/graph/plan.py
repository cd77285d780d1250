# SPDX-License-Identifier: Apache-2.0
"""Plan: a graph lowered to a list of calls on buffers that are fixed in advance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from nnl.core.array import NdArray
from nnl.core.dispatch import Bound, bind
from nnl.core.graph import Node, Value
from nnl.graph.memory import plan_memory

Key = tuple[int, int]
Thunk = Callable[[], Any]
SPACE = "host"


class Step:
    """One node of a plan: the call and the slots it reads and writes (slot 0 holds None)."""

    __slots__ = ("node", "bound", "ins", "outs", "dead")

    def __init__(self, node: Node, bound: Bound, ins: tuple[int, ...], outs: tuple[int, ...]):
        self.node, self.bound, self.ins, self.outs = node, bound, ins, outs
        self.dead: list[int] = []  # slots that nothing reads after this step


def infer_again(nodes: Iterable[Node]) -> None:
    """Run the shape rules from the leaves' present specs and update the arrays of the nodes."""
    for node in nodes:
        specs = tuple([None if v is None else v.current_spec for v in node.inputs])
        node.out_specs = bind(node.op, node.attrs, node.target, specs).out_specs
        if node.outs is None:  # recorded in dynamic mode
            node.outs = tuple([NdArray.unwritten(s) for s in node.out_specs])
        for nd, spec in zip(node.outs, node.out_specs, strict=True):
            if nd.spec is not spec:
                nd.spec, nd.bufs = spec, {}


class Plan:
    """Steps over slots; what static execution runs.

    Edges that no node of the plan computes are its leaves; they are read from their arrays at
    every run. A kernel that can write into a given buffer gets one for good, from an arena planned
    by liveness or, for kept edges, of its own; a kernel that cannot returns a new array every time.

    Args:
        nodes: In an order in which they can run.
        kept: Keys of edges whose value must survive the run.
        cut: Number of nodes in the first part; edges computed there and used later live until then.

    Attributes:
        arena_bytes: Size of the shared memory. naive_bytes: sum of what lives in it.
    """

    def __init__(self, nodes: Sequence[Node], kept: set[Key], cut: int | None = None) -> None:
        self.cut = len(nodes) if cut is None else cut
        self.slots: list[Any] = [None]
        self.slot_of: dict[Key, int] = {}
        self.leaves: list[tuple[int, NdArray]] = []
        self.steps: list[Step] = []
        self._keep_alive = list(nodes)  # keys are ids of these
        for node in nodes:
            self._lower(node)
        self._liveness(kept)
        self.loose: set[int] = set()  # leaves whose buffer changes between runs
        self.ready: tuple[list[Thunk], list[Thunk]] | None = None

    # ---- building ----

    def _lower(self, node: Node) -> None:
        ins = tuple([0 if v is None else self._input_slot(v) for v in node.inputs])
        specs = tuple([None if v is None else v.current_spec for v in node.inputs])
        bound = bind(node.op, node.attrs, node.target, specs)
        if bound.space != SPACE:
            raise NotImplementedError(f"plan: {node.op.name} runs in {bound.space}, wanted {SPACE}")
        outs = []
        for i in range(len(bound.out_specs)):
            outs.append(len(self.slots))
            self.slot_of[(id(node), i)] = len(self.slots)
            self.slots.append(None)
        self.steps.append(Step(node, bound, ins, tuple(outs)))

    def _input_slot(self, value: Value) -> int:
        key = value.key
        slot = self.slot_of.get(key)
        if slot is None:
            slot = self.slot_of[key] = len(self.slots)
            self.slots.append(None)
            self.leaves.append((slot, value.array))
        return slot

    def _liveness(self, kept: set[Key]) -> None:
        """Decide for every slot whether its buffer is fixed, shared or new at each run."""
        n = len(self.steps)
        leaf_slots = {s for s, _ in self.leaves}
        root: dict[int, int] = {}  # slot of a view -> slot whose memory it is
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for t, step in enumerate(self.steps):
            for s in step.ins:
                last[root.get(s, s)] = t
            for s in step.outs:
                if step.bound.view:
                    root[s] = root.get(step.ins[0], step.ins[0])
                else:
                    first[s] = t
                last[root.get(s, s)] = max(t, last.get(root.get(s, s), 0))
        self.kept = {self.slot_of[k] for k in kept if k in self.slot_of}
        pinned = {root.get(s, s) for s in self.kept}
        self.root = root
        self.last = {s: n if s in pinned else last.get(s, 0) for s in (*first, *leaf_slots)}
        into = {s for step in self.steps if step.bound.into for s in step.outs if s in first}
        shared = {s: first[s] for s in into if s not in pinned}
        spec = {
            s: spec
            for step in self.steps
            for s, spec in zip(step.outs, step.bound.out_specs, strict=True)
        }
        spans = {s: (t, self.last[s], spec[s].nbytes) for s, t in shared.items()}
        offsets, self.arena_bytes = plan_memory(spans)
        self.naive_bytes = sum(b for _, _, b in spans.values())
        self.arena = np.empty(self.arena_bytes, np.uint8)
        self.buffers: dict[int, Any] = {}
        for s in into:
            x = spec[s]
            if s in offsets:
                view = self.arena[offsets[s] : offsets[s] + x.nbytes].view(x.dtype)
                self.buffers[s] = view.reshape(x.shape)
            else:
                self.buffers[s] = np.empty(x.shape, x.dtype)
        for s, t in self.last.items():
            if t < n and s not in leaf_slots and s not in into:
                self.steps[t].dead.append(s)
        for s, r in root.items():
            if r not in leaf_slots and r not in into and self.last[r] < n:
                self.steps[self.last[r]].dead.append(s)

    def alive_at_cut(self, key: Key) -> bool:
        """Whether the edge still has its value when the first part has run."""
        slot = self.slot_of[key]
        return self.last.get(self.root.get(slot, slot), 0) >= self.cut

    # ---- running ----

    def _make_ready(self) -> tuple[list[Thunk], list[Thunk]]:
        """Bind calls to buffers: a step whose buffers are all fixed becomes one call."""
        slots = self.slots
        fixed = {s for s, _ in self.leaves if s not in self.loose} | {0}
        parts: tuple[list[Thunk], list[Thunk]] = ([], [])
        self.hooked: list[tuple[Node, Thunk | None]] = []
        for t, step in enumerate(self.steps):
            part = parts[t >= self.cut]
            call, outs = step.bound.call, step.outs
            known = all(s in fixed for s in step.ins)
            thunk: Thunk | None
            if step.bound.view and known and not step.bound.writes:
                slots[outs[0]] = call(*[slots[s] for s in step.ins])
                fixed.add(outs[0])
                thunk = None
            elif step.bound.into:
                buf = slots[outs[0]] = self.buffers[outs[0]]
                fixed.add(outs[0])
                if known:
                    thunk = partial(call, *[slots[s] for s in step.ins], out=buf)
                else:
                    thunk = _call_into(call, slots, step.ins, buf)
            else:
                thunk = _call(call, slots, step.ins, outs, step.bound.single)
            if thunk is not None:
                part.append(thunk)
            self.hooked.append((step.node, thunk))
            if step.dead:
                part.append(_free(slots, step.dead))
        return parts

    def run(self, second: bool = False) -> None:
        """Run the first part, or the second."""
        slots = self.slots
        ready = self.ready
        if not second:
            for slot, nd in self.leaves:
                buf = nd.bufs.get(SPACE)
                if buf is None:
                    buf = nd.read(SPACE)
                if slots[slot] is not buf:
                    if ready is not None and slot not in self.loose:
                        self.loose.add(slot)
                        ready = None
                    slots[slot] = buf
            if ready is None:
                ready = self.ready = self._make_ready()
        for thunk in ready[second]:  # type: ignore[index]
            thunk()

    def run_hooked(self, before: Callable[[Node], None], after: Callable[[Node], None]) -> None:
        """Run the first part step by step, with every step's results readable around hooks."""
        for slot, nd in self.leaves:
            self.slots[slot] = nd.read(SPACE)
        self.ready = self._make_ready()
        for node, thunk in self.hooked[: self.cut]:
            before(node)
            if thunk is not None:
                thunk()
            for i, nd in enumerate(node.outs or ()):
                nd.write(SPACE, self.slots[self.slot_of[(id(node), i)]])
            after(node)

    def value(self, key: Key) -> Any:
        """The buffer of an edge after a run."""
        return self.slots[self.slot_of[key]]


def _call(
    call: Any, slots: list[Any], ins: tuple[int, ...], outs: tuple[int, ...], single: bool
) -> Thunk:
    if single:
        out = outs[0]

        def one() -> None:
            slots[out] = call(*[slots[i] for i in ins])

        return one

    def several() -> None:
        for o, y in zip(outs, call(*[slots[i] for i in ins]), strict=True):
            slots[o] = y

    return several


def _call_into(call: Any, slots: list[Any], ins: tuple[int, ...], buf: Any) -> Thunk:
    def into() -> None:
        call(*[slots[i] for i in ins], out=buf)

    return into


def _free(slots: list[Any], dead: list[int]) -> Thunk:
    def free() -> None:
        for i in dead:
            slots[i] = None

    return free
