# SPDX-License-Identifier: Apache-2.0
"""Plan: a program laid out in memory and bound to calls; what static execution runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import Any, cast

import numpy as np

from nnl.core.arguments.origin import name_call, tell
from nnl.core.arrays.array import NdArray
from nnl.core.graph.node import Node
from nnl.core.ops.op import OPS
from nnl.core.settings.context import SPACES, using
from nnl.ext.library import (
    BFLOAT16,
    CHANNELS_LAST,
    TILED,
    DevicePlan,
    Executor,
    Library,
    LibraryPlan,
)
from nnl.graph.lowering.binding import Binding, Key
from nnl.graph.lowering.lowering import NO_GRADIENTS, definition, lower
from nnl.graph.passes import optimise, optimise_inside, optimise_loaded
from nnl.graph.passes.layout.undo import forget_orders, unfuse
from nnl.graph.plan.inner_plan import InnerPlan
from nnl.graph.plan.memory import Storage, computed_in_place, computed_in_results, plan_memory
from nnl.graph.plan.python_steps import Thunk, run_and_copy, run_for_effect, run_into, same_types
from nnl.graph.printing.profile import PROFILES, note
from nnl.graph.printing.summary import account, backend_name, summary
from nnl.graph.program.program import SPACE, Program, Step, space_of

Between = tuple[int, Callable[[], None]]  # (number of steps, what to call after them)
NOTHING: list[Any] = []
OUTSIDE = -1  # the offset of a slot that does not lie in the arena


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
        owns_results: Whether they have memory of their own; else they may be told to lie where
            what is read does.
    """

    owns_results = True

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
        program, binding = lower(nodes, kept, cut, kept - lazy, gradients)
        if as_found and rewrite:
            program.take_orders(CHANNELS_LAST)
        self._build(program, binding, 0 if rewrite else None)

    @classmethod
    def rest(cls, program: Program, binding: Binding, begin: int | None, own: bool = True) -> Plan:
        """The plan of a program that the passes before this one have seen; None: all have."""
        plan = cls.__new__(cls)
        plan.owns_results = own
        plan._build(program, binding, begin)
        return plan

    @classmethod
    def of(cls, program: Program, binding: Binding, inside: bool = False) -> Plan:
        """The plan of a program from a file, whose `native` steps may get kernels here.

        Args:
            inside: Whether it stands inside a step of another one.
        """
        lib = SPACES[program.space].library()
        forget_orders(program)
        if lib is None or not any(s.native for s in program.steps):
            unfuse(program)
        elif inside:
            optimise_inside(program, lib)
        elif program.fused:
            optimise_loaded(program, lib)
        else:
            optimise(program, lib)
        return cls.rest(program, binding, None, own=not inside)

    def _build(self, program: Program, binding: Binding, begin: int | None) -> None:
        self.program, self.binding, self.space = program, binding, program.space
        self.lib = SPACES[program.space].library()
        if self.lib is not None and begin is not None:
            optimise(program, self.lib, begin)
        self.steps, self.slot_of, self.kept = program.steps, binding.slot_of, program.kept
        self.cut = program.cut
        self.second = self.cut < len(self.steps)  # whether there is a second part
        self.root = {i: s.root for i, s in enumerate(program.slots) if s.root != i}
        self.views: dict[int, list[int]] = {}  # of each root
        for i, root in self.root.items():
            self.views.setdefault(root, []).append(i)
        self.slots: list[Any] = [None] * len(program.slots)
        used = {i for s in self.steps for i in s.ins} | self.kept
        used |= {program.root(i) for i in used}
        binding.take(program, used)
        self._lay_out()
        self.loose: set[int] = set()  # leaves whose buffer changes between runs
        self.ready: tuple[dict[Thunk, Step], dict[Thunk, Step]] | None = None
        self.inside: dict[Program, InnerPlan] = {}  # of the programs inside steps
        self.native: LibraryPlan | None = None
        if self.lib is not None:
            self.native = self._native_plan(self.lib)
        else:
            arena = np.empty(self.arena_bytes, np.uint8)
            self._place(lambda at, x: arena[at : at + x.nbytes].view(x.dtype).reshape(x.shape))
            self._point_views(None)
        self.binding.find_prepared(program, self.root)

    # ---- memory ----

    def _lay_out(self) -> None:
        """Give every computed slot a buffer: fixed, in the arena or by itself."""
        program, steps, n = self.program, self.steps, len(self.steps)
        given = {x[0] for x in (*self.binding.given, *self.binding.ordered)}
        pinned = program.kept_roots()
        last = {s: 0 for s in given}
        for t, step in enumerate(steps):
            for s in (*step.ins, *step.outs):
                last[program.root(s)] = t
        for s in pinned:
            last[s] = n
        self.last = last
        self.home: dict[int, int] = {}
        if self.space == SPACE:
            self.home |= computed_in_results(program, pinned, last) if self.owns_results else {}
            self.home |= computed_in_place(program, {x[0] for x in self.binding.given}, pinned)
        storages: dict[int, Storage] = {}
        spans: dict[Any, tuple[int, int, int]] = {}
        for t, step in enumerate(steps):
            for o, s in enumerate(step.outs):
                if program.root(s) != s or s in self.home:
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
        outside = {s for step in self.steps for s in step.outs if s not in self.home}
        outside -= {*self.offsets, *self.root}
        return self.arena_bytes + sum(self.program.slots[s].spec.nbytes for s in outside)

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
            weight = self.program.results.get(slot)
            copies = {} if weight is None else self.binding.array(self.program, weight).bufs
            if BFLOAT16 in copies:
                return copies[BFLOAT16]  # one copy of a weight is enough
            tiled = self.program.slots[slot].order == TILED
            return SPACES[TILED if tiled else self.space].empty(spec.shape, spec.dtype)
        return arena(offset, spec)

    # ---- running without the native library ----

    def _make_ready(self) -> tuple[dict[Thunk, Step], dict[Thunk, Step]]:
        """Bind calls to buffers: a step whose inputs are all fixed becomes one call."""
        fixed = {i for i in range(len(self.slots)) if self.root.get(i, i) not in self.loose}
        parts: tuple[dict[Thunk, Step], dict[Thunk, Step]] = ({}, {})
        for step in self.steps:
            thunk = self._thunk(step, all(s in fixed for s in (*step.ins, *step.outs)))
            if thunk is not None:
                parts[step.second][thunk] = step
        return parts

    def _place(self, arena: Any) -> None:
        for step in self.steps:
            for s in step.outs:
                if s not in self.root and s not in self.home:
                    self.slots[s] = self._buffer(s, arena)

    def _point_views(self, root: int | None) -> None:
        """Let the slots of views be views of their roots' buffers."""
        for r in self.views if root is None else (root,):
            buf = self.slots[r]
            if buf is not None:
                for s in self.views.get(r, ()):
                    self.slots[s] = buf.reshape(self.program.slots[s].spec.shape)

    def _thunk(self, step: Step, fixed: bool) -> Thunk | None:
        """The call of a step on the arrays of its slots; None where there is nothing to do."""
        bound, slots = definition(self.program, step), self.slots
        if step.programs:
            attrs = OPS[step.op].attrs(**step.attrs)
            call = partial(attrs.control, [self._plan_inside(p) for p in attrs.programs])
            return run_and_copy(call, slots, step.ins, step.outs)
        if bound.view:
            return run_for_effect(bound.call, slots, step.ins) if bound.writes else None
        if not bound.into or not same_types(bound, [self.program.slots[o].spec for o in step.outs]):
            return run_and_copy(bound.call, slots, step.ins, step.outs)
        if fixed:
            return partial(bound.call, *[slots[i] for i in step.ins], out=slots[step.outs[0]])
        return run_into(bound.call, slots, step.ins, step.outs[0])

    def _plan_inside(self, program: Program) -> InnerPlan:
        if program not in self.inside:
            self.inside[program] = InnerPlan(program.copy(), Plan.of)
        return self.inside[program]

    # ---- running in the native library ----

    def _native_plan(self, lib: Library) -> LibraryPlan:
        program = self.program
        offsets = [self.offsets.get(i, OUTSIDE) for i in range(len(program.slots))]
        native = lib.Plan(offsets, self.arena_bytes)
        if self.space != SPACE:
            cast(DevicePlan, native).written = program.written()
        arena, start = native.arena, native.arena.address
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
                kernel = lib.python_step(self._named(step, thunk))
            roots = ([program.root(s) for s in x] for x in (step.ins, step.outs))
            ins, outs = ([self.home.get(s, s) for s in x] for x in roots)
            self.native_steps.append(step)
            native.add(program.function(step), kernel, ins, outs, self.workspaces.get(t, OUTSIDE))
            cut += not step.second
            prepared += step.once
        self.native_cut, self.native_size, self.native_prepared = cut, len(native), prepared
        return native

    def point(self, slot: int, buf: Any) -> None:
        """Let a given slot be another buffer from now on."""
        self.slots[slot] = buf
        if self.native is not None:
            self.native.bind_array(slot, buf)
        elif self.ready is not None and slot not in self.loose:
            self.loose.add(slot)
            self.ready = None
        self._point_views(slot)

    def renew(self, slot: int) -> None:
        """Compute a kept value into other memory from the next run on: somebody has the old one."""
        self.point(slot, self._buffer(slot, None))

    # ---- running ----

    def run(self, second: bool = False, between: Sequence[Between] = ()) -> None:
        """Run the first part, or the second.

        Args:
            between: (number of native steps that must have run, what to call then), in order;
                what is due at the end is left to the caller.
        """
        if not second:
            self.binding.written.before_run()
            self.binding.point(self)
        if self.native is None:
            self._run_in_python(second)
        elif second:
            self._run_native(self.native_cut, self.native_size, between)
        else:
            self._prepare()
            self._run_native(self.native_prepared, self.native_cut, between)
        if second or not self.second:
            self.binding.written.after_run(self.slots)

    def _prepare(self) -> None:
        """Run the steps that run only once, if need be."""
        if self.native_prepared and not self.binding.prepared():
            self._run_native(0, self.native_prepared)
            self.binding.mark_prepared()

    def start(self, executor: Executor, copies: list[tuple[Any, Any]] = NOTHING) -> None:
        """Begin a run in another thread; `finish` ends it. For a plan that runs by itself.

        Args:
            copies: (to, from): arrays that are copied before.

        Meanwhile nobody may read what it writes, nor write what it uses.
        """
        self.binding.written.before_run()
        self.binding.point(self)
        self._prepare()
        assert self.native is not None
        executor.start(self.native, self.native_prepared, self.native_cut, copies)

    def finish(self, executor: Executor) -> None:
        """Wait for the end of a run that `start` has begun."""
        try:
            executor.wait()
        except ValueError as e:
            self.name(e, self.native_cut)
            raise
        self.binding.written.after_run(self.slots)

    def run_both(self) -> None:
        """Run the first part and the second."""
        self.run()
        if self.second:
            self.run(second=True)

    def _run_native(self, begin: int, end: int, between: Sequence[Between] = ()) -> None:
        native = self.native
        assert native is not None
        try:
            if not PROFILES:
                for at, call in between:
                    if at >= end:
                        break
                    if at > begin:
                        native.run(begin, at)
                        begin = at
                    call()
                native.run(begin, end)
                return
            with using(profiled=False):  # steps that Python computes are timed as steps
                native.run_timed(begin, end)
        except ValueError as e:
            self.name(e, end)
            raise
        times, starts = native.times, native.starts
        for k in range(begin, end):
            step = self.native_steps[k]
            what, cost, dtype = account(self.program, step)
            origin = self.program.origin(step)
            note(step.op, backend_name(self, step), what, starts[k], times[k], cost, dtype, origin)

    def name(self, e: BaseException, end: int) -> None:
        """Let the error of a run up to a native step name the call that has failed."""
        at = getattr(self.native, "at", end)  # a device does not know
        if at < end:
            step = self.native_steps[at]
            name_call(e, self.program.function(step), self.program.label(step))

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
            for thunk, step in self.ready[second].items():
                if PROFILES:
                    self._run_timed(step, thunk)
                else:
                    thunk()
        except BaseException as e:
            tell(e, self.program.function(step), self.program.label(step))
            raise

    def _run_timed(self, step: Step, thunk: Thunk) -> None:
        start = time.perf_counter_ns()
        with using(profiled=False):  # what the step calls is part of it
            thunk()
        ns = time.perf_counter_ns() - start
        what, cost, dtype = account(self.program, step)
        origin = self.program.origin(step)
        note(step.op, backend_name(self, step), what, start, ns, cost, dtype, origin)

    def run_hooked(self, before: Callable[[Node], None], after: Callable[[Node], None]) -> None:
        """Run the first part step by step, with every step's results readable around hooks.

        The plan must have been made with rewrite=False, and everything kept.
        """
        self.binding.point(self)
        for step in self.steps[: self.cut]:
            thunk = self._thunk(step, fixed=False)
            call = None if thunk is None else self._named(step, thunk)
            node = self.binding.nodes[step.source - 1]
            if step.outs[0] != self.slot_of[(id(node), 0)]:
                assert call is not None
                call()  # it converts an input
                continue
            before(node)
            if call is not None:
                call()
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

    def _named(self, step: Step, thunk: Thunk) -> Thunk:
        """The thunk, with what it raises naming the step."""
        function, label = self.program.function(step), self.program.label(step)

        def run() -> None:
            try:
                thunk()
            except BaseException as e:
                tell(e, function, label)
                raise

        return run
