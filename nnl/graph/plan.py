# SPDX-License-Identifier: Apache-2.0
"""Plan: a program laid out in memory and bound to calls; what static execution runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from nnl.core.array import NdArray
from nnl.core.context import SPACES, STATE, using
from nnl.core.graph import Node
from nnl.core.origin import name_call, tell
from nnl.ext.library import CHANNELS_LAST, TILED, Library
from nnl.graph.holders import HOLDERS, Written, is_held, read_in_order
from nnl.graph.memory import plan_memory
from nnl.graph.passes import optimise
from nnl.graph.profile import PROFILES, note
from nnl.graph.program import NO_GRADIENTS, SPACE, Key, Program, Step, space_of
from nnl.graph.summary import account, place, summary
from nnl.graph.thunks import Thunk, run_and_copy, run_for_effect, run_into

OUTSIDE = -1  # the offset of a slot that does not lie in the arena
_plans = count()


class Storage:
    """A piece of memory that slots share one after the other: when it is first and last used."""

    __slots__ = ("first", "last", "nbytes", "pinned")

    def __init__(self, first: int, nbytes: int) -> None:
        self.first = self.last = first
        self.nbytes, self.pinned = nbytes, False


class Plan:
    """Steps over slots.

    Edges that no node of the plan computes are its leaves; they are read from their arrays at
    every run. Everything else has memory of its own for good: in an arena planned by liveness or,
    for what is kept, in an array of its own. With the native library the whole list is one call
    into C++, which calls back for steps that have no native kernel.

    Args:
        nodes: In an order in which they can run.
        kept: Keys of edges whose value must survive the run.
        cut: Number of nodes in the first part; edges computed there and used later live until then.
        lazy: Keys among kept that may stay in the order the kernels like; see `published`.
        rewrite: Whether passes may fuse, move and drop steps.
        as_found: Whether leaves that another plan has left channels-last are read in that order.
        gradients: {key among kept: array it is the gradient of, if known}; they may be tiled.

    Attributes:
        slots: The buffers by slot, after a run.
        arena_bytes: Size of the shared memory. naive_bytes: sum of what lives in it.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        kept: set[Key],
        cut: int | None = None,
        lazy: Set[Key] = frozenset(),
        rewrite: bool = True,
        as_found: bool = False,
        gradients: Mapping[Key, NdArray | None] = NO_GRADIENTS,
    ) -> None:
        self.prepared_from: list[NdArray] = []
        self.aliases: Counter[int] = Counter()
        self.bound: set[int] = set()  # leaves that HOLDERS counts
        self._keep_alive = list(nodes)  # keys are ids of these
        self.program = program = Program(nodes, kept, cut, kept - lazy, gradients)
        self.space = program.space
        self.lib = SPACES[self.space].library()
        if rewrite and self.lib is not None:
            if as_found:
                program.take_orders()
            optimise(program, self.lib)
        self.steps, self.slot_of, self.kept = program.steps, program.slot_of, program.kept
        self.cut = program.cut
        self.second = self.cut < len(self.steps)  # whether there is a second part
        self.root = {i: s.root for i, s in enumerate(program.slots) if s.root != i}
        self.slots: list[Any] = [None] * len(program.slots)
        used = {i for s in self.steps for i in s.ins} | self.kept
        used |= {program.root(i) for i in used}
        leaves = [
            (i, s.leaf) for i, s in enumerate(program.slots) if s.leaf is not None and i in used
        ]
        orders = [program.copies.get(i, program.slots[i].order) for i, _ in leaves]
        spaces = [
            (*leaf, space_of(self.space, order)) for leaf, order in zip(leaves, orders, strict=True)
        ]
        self.leaves = [(i, nd) for i, nd, space in spaces if space == self.space]
        self.ordered = [x for x in spaces if x[2] != self.space]
        written = {program.root(s.ins[i]) for s in self.steps for i in s.writes}
        made = {o for s in self.steps if s.kernel is not None for o in s.outs}
        results = [(*x, i) for i, x in program.results.items() if i in made]
        arrays = [(nd, space) for i, nd, space in spaces if i in written]
        self.written = Written(self.space, arrays, results)
        self._lay_out()
        self.mark = f"prepared {next(_plans)}"  # in an array's buffers: unchanged since
        self.loose: set[int] = set()  # leaves whose buffer changes between runs
        self.ready: tuple[dict[Thunk, Step], dict[Thunk, Step]] | None = None
        self.native: Any = None
        if self.lib is not None:
            self.native = self._native_plan(self.lib)
        else:
            arena = np.empty(self.arena_bytes, np.uint8)
            self._place(lambda at, x: arena[at : at + x.nbytes].view(x.dtype).reshape(x.shape))
            self._point_views(None)

    # ---- memory ----

    def _lay_out(self) -> None:
        """Give every computed slot a buffer: fixed, in the arena or by itself."""
        program, steps, n = self.program, self.steps, len(self.steps)
        leaf_slots = {x[0] for x in (*self.leaves, *self.ordered)}
        pinned = program.kept_roots()
        last = {s: 0 for s in leaf_slots}
        for t, step in enumerate(steps):
            for s in (*step.ins, *step.outs):
                last[program.root(s)] = t
        for s in pinned:
            last[s] = n
        self.last = last
        storages: dict[int, Storage] = {}
        spans: dict[Any, tuple[int, int, int]] = {}
        for t, step in enumerate(steps):
            for o, s in enumerate(step.outs):
                if program.root(s) != s:
                    continue
                storage = self._take_over(step, t, o, s, storages, pinned)
                if storage is None:
                    storage = Storage(t, program.slots[s].spec.nbytes)
                    storage.pinned = s in pinned
                storage.last = max(storage.last, last[s])
                storages[s] = storage
            if step.kernel is not None and step.kernel.workspace:
                spans["workspace", t] = t, t, step.kernel.workspace
        for x in storages.values():
            if not x.pinned:
                spans[x] = x.first, x.last, x.nbytes
        offsets, self.arena_bytes = plan_memory(spans)
        self.naive_bytes = sum(b for _, _, b in spans.values())
        self.offsets = {s: offsets[x] for s, x in storages.items() if not x.pinned}
        self.workspaces = {k[1]: v for k, v in offsets.items() if type(k) is tuple}

    def _take_over(
        self,
        step: Step,
        t: int,
        o: int,
        s: int,
        storages: dict[int, Storage],
        pinned: set[int],
    ) -> Storage | None:
        """The storage of an input that dies here and that output o may be written over."""
        if step.kernel is None or s in pinned:
            return None
        roots = [self.program.root(i) for i in step.ins]
        nbytes = self.program.slots[s].spec.nbytes
        for r in roots:
            old = storages.get(r)
            if old is None or old.pinned or self.last[r] != t or old.last != t:
                continue
            if any(storages.get(q) is old for q in step.outs):
                continue  # another output lies there, one that nobody reads
            if old.nbytes == nbytes and all(
                step.kernel.may_overwrite(o, j) for j, q in enumerate(roots) if q == r
            ):
                return old
        return None

    @property
    def nbytes(self) -> int:
        """Bytes of everything that the plan computes, shared memory counted once."""
        own = sum(
            self.program.slots[s].spec.nbytes
            for step in self.steps
            for s in step.outs
            if s not in self.offsets and s not in self.root
        )
        return self.arena_bytes + own

    def alive_at_cut(self, key: Key) -> int:
        """The slot that has the value of an edge when the first part has run; 0 if none has.

        Where kernels of the second part want another order in memory, that form may be the only one
        left.
        """
        slot: int = self.slot_of[key]
        for form in (slot, *self.program.forms.get(slot, ())):
            if self.last.get(self.root.get(form, form), -1) >= self.cut:
                return int(form)
        return 0

    def _buffer(self, slot: int, arena: Any) -> Any:
        """The array of a computed slot: in the arena, or of its own."""
        spec = self.program.slots[slot].spec
        offset = self.offsets.get(slot)
        if offset is None:
            nd, space = self.program.results.get(slot, (None, ""))
            if nd is not None and space in nd.bufs:
                return nd.bufs[space]  # one copy of a weight is enough
            tiled = self.program.slots[slot].order == TILED
            return SPACES[TILED if tiled else self.space].empty(spec.shape, spec.dtype)
        return arena(offset, spec)

    # ---- running without the native library ----

    def _make_ready(self) -> tuple[dict[Thunk, Step], dict[Thunk, Step]]:
        """Bind calls to buffers: a step whose inputs are all fixed becomes one call."""
        fixed = {i for i in range(len(self.slots)) if self.root.get(i, i) not in self.loose}
        parts: tuple[dict[Thunk, Step], dict[Thunk, Step]] = ({}, {})
        for step in self.steps:
            thunk = self._thunk(step, all(s in fixed for s in step.ins))
            if thunk is not None:
                parts[step.second][thunk] = step
        return parts

    def _place(self, arena: Any) -> None:
        for step in self.steps:
            for s in step.outs:
                if s not in self.root:
                    self.slots[s] = self._buffer(s, arena)

    def _point_views(self, root: int | None) -> None:
        """Let the slots of views be views of their roots' buffers."""
        for s, r in self.root.items():
            buf = self.slots[r]
            if (root is None or r == root) and buf is not None:
                self.slots[s] = buf.reshape(self.program.slots[s].spec.shape)

    def _thunk(self, step: Step, fixed: bool) -> Thunk | None:
        """The call of a step on the arrays of its slots; None where there is nothing to do."""
        bound, slots = step.bound, self.slots
        if bound is None:
            raise NotImplementedError(f"plan: {step} has neither a kernel nor a definition")
        if bound.view:
            return run_for_effect(bound.call, slots, step.ins) if bound.writes else None
        if not bound.into:
            return run_and_copy(bound.call, slots, step.ins, step.outs)
        if fixed:
            out = slots[step.outs[0]]
            return partial(bound.call, *[slots[i] for i in step.ins], out=out)
        return run_into(bound.call, slots, step.ins, step.outs[0])

    # ---- running in the native library ----

    def _native_plan(self, lib: Library) -> Any:
        program = self.program
        offsets = [self.offsets.get(i, OUTSIDE) for i in range(len(program.slots))]
        native: Any = lib.Plan(offsets, self.arena_bytes)
        if self.space != SPACE:
            native.written = {program.root(s.ins[i]) for s in self.steps for i in s.writes}
        arena = native.arena
        start = arena.address
        self._place(lambda at, x: lib.array_at(start + at, x.shape, x.dtype, arena))
        for i, buf in enumerate(self.slots):
            if buf is not None and offsets[i] == OUTSIDE:
                native.bind_array(i, buf)
        self._point_views(None)
        cut = prepared = 0
        self.native_steps: list[Step] = []
        for t, step in enumerate(self.steps):
            kernel = step.kernel
            if kernel is None:
                thunk = self._thunk(step, fixed=False)
                if thunk is None:
                    continue
                kernel = lib.python_step(_named(step, thunk))
            ins, outs = ([program.root(s) for s in x] for x in (step.ins, step.outs))
            self.native_steps.append(step)
            native.add(step.function, kernel, ins, outs, self.workspaces.get(t, OUTSIDE))
            cut += not step.second
            prepared += step.once
        self.native_cut, self.native_size, self.native_prepared = cut, len(native), prepared
        self._find_leaves_of_preparation()
        return native

    def _find_leaves_of_preparation(self) -> None:
        """The leaves that the steps which run only once depend on."""
        roots = {self.program.root(i) for s in self.steps if s.once for i in s.ins}
        self.prepared_from = [nd for i, nd in self.leaves if i in roots]
        # Aliases that passes have made refer to a leaf's buffer too, and nobody else sees them.
        made = {o for s in self.steps for o in s.outs}
        self.aliases = Counter([r for i, r in self.root.items() if i not in made])

    def _prepare(self) -> None:
        """Run the steps at the front, unless all leaves behind them are as they were.

        Whoever writes to an array through NdArray removes the mark. Somebody who holds the numpy
        array itself may write to it unseen; as long as there is such a holder nothing is trusted,
        nor is a buffer that is part of another array.
        """
        for nd in self.prepared_from:
            if self.mark not in nd.bufs or is_held(nd):
                break
        else:
            return
        self._run_native(0, self.native_prepared)
        for nd in self.prepared_from:
            if not is_held(nd):  # else the holder may write, and let go before the next run
                nd.bufs[self.mark] = True

    def _bind_leaves(self) -> None:
        """Point the plan at the buffers that its leaves have now."""
        slots, space = self.slots, self.space
        for slot, nd in self.leaves:
            if slots[slot] is not nd.bufs.get(space, self):
                self.find_leaf(slot, nd)
        for slot, nd, ordered in self.ordered:
            buf = nd.bufs.get(ordered)
            if buf is None or SPACE in nd.bufs:
                buf = read_in_order(nd, ordered)
            if slots[slot] is not buf:
                self._bind_leaf(slot, nd, buf)

    def find_leaf(self, slot: int, nd: NdArray) -> None:
        """Point the plan at the buffer that a leaf has now."""
        if not nd.bufs:
            nd.read_early(*self._reader_of(nd))
        on_host = self.space == SPACE
        try:
            buf = nd.read(SPACE) if on_host else self.native.follow(slot, nd, self.space)
        except ValueError as e:  # it was cleared
            raise ValueError("{}, read by {}: {}".format(*self._reader_of(nd), e)) from None
        if self.slots[slot] is not buf:
            self._bind_leaf(slot, nd, buf)

    def _reader_of(self, nd: NdArray) -> tuple[str, str]:
        """Names of an array that is a leaf, and of the first function that reads it."""
        for node in self._keep_alive:
            for v in node.inputs:
                if v is not None and v.array is nd:
                    return v.label, node.label
        return f"NdArray {nd.spec}", "a plan"

    def _bind_leaf(self, slot: int, nd: NdArray, buf: Any) -> None:
        if self.native is not None and not buf.flags.c_contiguous:
            buf = buf.copy()
            if nd in self.written:  # what the run writes must reach the array
                nd.write(self.space, buf)
        nd.bufs.pop(self.mark, None)  # another buffer, whoever marked the array
        self._let_go(slot)
        self.bound.add(slot)
        HOLDERS[id(buf)] += 1 + self.aliases[slot]
        self.slots[slot] = buf
        if self.native is not None:
            self.native.bind_array(slot, buf)
        elif self.ready is not None and slot not in self.loose:
            self.loose.add(slot)
            self.ready = None
        self._point_views(slot)

    def __del__(self) -> None:
        for nd in self.prepared_from:
            nd.bufs.pop(self.mark, None)
        for slot in self.bound:
            self._let_go(slot)

    def _let_go(self, slot: int) -> None:
        """Stop counting the references of this plan to the buffer of a leaf."""
        buf = self.slots[slot]
        if buf is not None:
            HOLDERS[id(buf)] -= 1 + self.aliases[slot]
            if not HOLDERS[id(buf)]:
                del HOLDERS[id(buf)]

    # ---- running ----

    def run(self, second: bool = False) -> None:
        """Run the first part, or the second."""
        if not second:
            self.written.before_run()
            self._bind_leaves()
        if self.native is None:
            self._run_in_python(second)
        elif second:
            self._run_native(self.native_cut, self.native_size)
        else:
            if self.native_prepared:
                self._prepare()
            self._run_native(self.native_prepared, self.native_cut)
        if second or not self.second:
            self.written.after_run(self.slots)

    def run_both(self) -> None:
        """Run the first part and the second."""
        self.run()
        self.run(second=True)

    def _run_native(self, begin: int, end: int) -> None:
        try:
            if not PROFILES:
                self.native.run(begin, end)
                return
            with using(profiled=False):  # steps that Python computes are timed as steps
                self.native.run_timed(begin, end)
        except ValueError as e:
            at = getattr(self.native, "at", end)  # a device does not know
            if at < end:
                step = self.native_steps[at]
                name_call(e, step.function, step.label)
            raise
        times, starts = self.native.times, self.native.starts
        for k in range(begin, end):
            step = self.native_steps[k]
            what, cost, dtype = account(self.program, step)
            note(step.op, place(self, step), what, starts[k], times[k], cost, dtype, step.origin)

    def summary(self) -> str:
        """A table of the steps: where each runs, what it does, and what it took in the latest run.

        Times and rates are those of the latest run inside nnl.profile(), 0 without one. "of peak"
        is how close a step comes to what limits it on this machine, arithmetic of its type or
        memory. On a device it also tells which steps are outside of the recorded graphs, and why.
        """
        return summary(self)

    def _run_in_python(self, second: bool) -> None:
        if self.ready is None:
            self.ready = self._make_ready()
        try:
            for thunk in self.ready[second]:
                if PROFILES:
                    STATE.origin = self.ready[second][thunk].origin
                thunk()
        except BaseException as e:
            step = self.ready[second][thunk]
            tell(e, step.function, step.label)
            raise
        finally:
            STATE.origin = None

    def run_hooked(self, before: Callable[[Node], None], after: Callable[[Node], None]) -> None:
        """Run the first part step by step, with every step's results readable around hooks.

        The plan must have been made with rewrite=False, and everything kept.
        """
        self._bind_leaves()
        for step in self.steps[: self.cut]:
            node = step.node
            assert node is not None
            thunk = self._thunk(step, fixed=False)
            before(node)
            if thunk is not None:
                _named(step, thunk)()
            for nd, s in zip(node.outs or (), step.outs, strict=True):
                nd.write(self.space, self.slots[s])
            after(node)

    def published(self, slot: int) -> tuple[str, Any]:
        """The memory space and the buffer in which an array can hold the value of a slot."""
        buf = self.slots[slot]
        order = self.program.slots[slot].order
        if order == CHANNELS_LAST:
            n, c, *pixels = buf.shape
            buf = buf.reshape(n, *pixels, c)
        return space_of(self.space, order), buf

    def value(self, key: Key) -> Any:
        """The buffer of an edge after a run."""
        return self.slots[self.slot_of[key]]


def _named(step: Step, thunk: Thunk) -> Thunk:
    """The thunk, with what it raises naming the step."""

    def run() -> None:
        try:
            thunk()
        except BaseException as e:
            tell(e, step.function, step.label)
            raise

    return run
