# SPDX-License-Identifier: Apache-2.0
"""The functions that a step calls are put off; its Python runs on without their values.

Every call gives Variables and nodes as in dynamic mode, only that their arrays have no value yet.
What is put off runs as soon as somebody reads or overwrites memory that it makes, reads or writes,
and at the end of the step, by the plan of exactly these calls. So values, gradients, states and
exceptions are those of dynamic mode, whatever the program does in between.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from time import perf_counter
from types import FrameType
from typing import Any

from nnl.coexec.deferring.backward import Sums, backward
from nnl.coexec.deferring.memory import Memory
from nnl.coexec.deferring.running import Running
from nnl.coexec.deferring.shadow import run_both
from nnl.coexec.deferring.uninterrupted import whole
from nnl.coexec.plans.calls import NONE, New, Values, made_here
from nnl.coexec.plans.paths import PathNode, Paths
from nnl.coexec.policy.number_inputs import WITH_INPUT, as_inputs
from nnl.coexec.policy.watch import is_left
from nnl.coexec.tracing.report import Report
from nnl.core.arguments.origin import LOCATION, PASSED, caller
from nnl.core.arrays.array import NdArray
from nnl.core.arrays.bulk import BULK, NOTHING
from nnl.core.arrays.memory_record import MemoryRecord
from nnl.core.arrays.spec import Spec
from nnl.core.graph.dispatch import Bound, apply, bind, execute, new_node, results, visible
from nnl.core.graph.node import Value
from nnl.core.interpreters.deferring import Deferring
from nnl.core.interpreters.interpreter import EAGER
from nnl.core.ops.op import OPS, Op
from nnl.core.settings.context import STATE, using
from nnl.graph.lowering.buffer_owners import is_held
from nnl.graph.printing.profile import PROFILES
from nnl.graph.program.program import SPACE

AT_ONCE = frozenset(["python_function"])  # what they do besides computing must happen in order


class DeferredStep(Memory):
    """What a step has put off, in the order of the calls.

    Attributes:
        step: The interpreter of the step.
        at: Where the calls have led to from the root of all paths.
        path: The places on the way.
        frame: That of the step. outermost: The one that has called it. end: What ends the step.
        copied: {position of a copy in `given`: of which array}.
        sums: What notes the gradients that leaves get.
        gradient_of: Where the function was called whose gradient is computed, in a new pass.
        pieces: (makers, see Edges, and path) of what has run in this step.
    """

    __slots__ = (
        "step", "paths", "report", "frame", "outermost", "end", "shadow", "visited", "at", "path",
        "copied", "sums", "gradient_of", "pieces",
    )  # fmt: skip

    def __init__(
        self,
        step: Deferring,
        paths: Paths,
        report: Report,
        frame: FrameType,
        end: Callable[[], None],
        shadow: bool,
    ) -> None:
        self.step, self.paths, self.report, self.shadow = step, paths, report, shadow
        self.frame, self.outermost, self.end = frame, frame.f_back, end
        self.pieces: list[tuple[dict[int, int], list[PathNode]]] = []
        self.visited: dict[int, int] = {}  # {location: calls of functions of an array and a number}
        super().__init__()
        now = Running.now
        if now is not None and now.thread == self.thread:
            self.behind, now.follower = now, self

    def begin(self) -> None:
        super().begin()
        self.at = self.paths.begin()
        self.path: list[PathNode] = []
        self.copied: dict[int, NdArray] = {}
        self.sums: Sums | None = None
        self.gradient_of: Any = None

    # ---- calls ----

    def apply(
        self, op: Op, attrs: Any, inputs: tuple[Any, ...], edges: Any, bound: Bound, need: bool
    ) -> Any:
        """What dispatch.apply does in dynamic mode, later."""
        if op.name in WITH_INPUT and self._varies(op, attrs):
            return OPS[WITH_INPUT[op.name]](*as_inputs(op, attrs, inputs[0]))
        xs = [None if x is None else x._data for x in inputs]
        datas = self._call(op, attrs, bound, xs, edges if need else None, edges)
        if datas is None:
            return self.at_once(op, attrs, inputs)
        state, node = STATE.__dict__, None
        if need:
            node = new_node(op, attrs, edges, bound, state)
            for nd in datas:
                self.edges.made(nd.record.number, node)
        ys = results(node, inputs, datas, state["recompute"])
        return ys[0] if bound.single else visible(op, ys)

    def execute(
        self, op: Op, attrs: Any, bound: Bound, datas: Sequence[NdArray | None]
    ) -> Sequence[NdArray]:
        """What dispatch.execute does, later."""
        if op.name in WITH_INPUT and self._varies(op, attrs):
            y = OPS[WITH_INPUT[op.name]](*as_inputs(op, attrs, datas[0]))
            return (y,)
        return self._call(op, attrs, bound, datas) or execute(bound, datas)

    def at_once(self, op: Op, attrs: Any, inputs: tuple[Any, ...]) -> Any:
        """Do it now, as without a step."""
        with using(interpreter=EAGER):
            return apply(op, attrs, inputs)

    def calls(self, op: Op, attrs: Any, arrays: Sequence[tuple[NdArray | None, ...]]) -> None:
        """Apply an op that writes its inputs to each of the lists of arrays, later."""
        bounds = self._bind(op, attrs, arrays)
        if self._together(op, attrs, arrays, bounds) is None:
            for datas, bound in zip(arrays, bounds, strict=True):
                if self.step.deferred is self:
                    self.execute(op, attrs, bound, datas)
                else:  # the step is left
                    execute(bound, datas)

    def change(self, op: Op, attrs: Any, arrays: Sequence[tuple[NdArray, ...]]) -> bool:
        """Let the first of each list of arrays become what an op makes of them, later.

        Returns:
            False where that must be done at once.
        """
        bounds = self._bind(op, attrs, arrays)
        for (into, *_), bound in zip(arrays, bounds, strict=True):
            if into.record.own is not None or bound.out_specs != (into.spec,):
                return False
        for into, *_ in arrays:
            self.number(into)
            if into.record.work is not self:  # somebody may hold its memory
                return False
        first = self._together(op, attrs, arrays, bounds)
        if first is None:
            return False
        for number, (into, *_) in enumerate(arrays, first):
            if into.record.number < NONE:
                self.keep_value(into)
            self._take(into, number)
        return True

    def _bind(
        self, op: Op, attrs: Any, arrays: Sequence[tuple[NdArray | None, ...]]
    ) -> list[Bound]:
        target = STATE.target
        specs = [tuple([None if d is None else d.spec for d in datas]) for datas in arrays]
        return [bind(op, attrs, target, s) for s in specs]

    def _together(
        self,
        op: Op,
        attrs: Any,
        arrays: Sequence[tuple[NdArray | None, ...]],
        bounds: Sequence[Bound],
    ) -> int | None:
        """Put calls off that always come together: the number of their first result.

        None where they must be done at once.
        """
        every = [self._numbers(datas, b) for datas, b in zip(arrays, bounds, strict=True)]
        numbers = [n for n in every if n is not None]
        if len(numbers) < len(every) or bounds[0].space != SPACE:
            return None
        key = tuple(bounds), tuple(numbers)
        new = [(op, attrs, b, n) for b, n in zip(bounds, numbers, strict=True)]
        at = self.at.after.get(key) or self._new_place(key, new)
        if at is None:
            return None
        first = len(self.made)
        self.go(at, sum([len(b.out_specs) for b in bounds]))
        return first

    def accumulate(self, into: NdArray, g: NdArray) -> bool:
        """Add a gradient to that of a leaf, later; False where it must be done at once."""
        if self.sums is not None:
            self.sums.add(into, g)
        if g.record.work is not self or g.record.number < NONE:
            return False
        if self.becomes(into, g.record.number, g.spec):
            return True
        if g.spec.is_half or into.record.own is not None:
            return False
        mine = into.record.work is self and into.record.number in self.before
        if is_held(into) if SPACE in into.bufs else mine:
            return False
        add = OPS["add2"]
        attrs: Any = add.default_attrs
        bound = bind(add, attrs, STATE.target, (into.spec, g.spec))
        made = self._call(add, attrs, bound, (into, g))
        if made is None:
            return False
        number = into.record.number
        if number < 0:  # the call reads what the array holds until now
            self.keep_value(into)
        self._take(into, made[0].record.number)
        return True

    def becomes(self, into: NdArray, number: int, spec: Spec) -> bool:
        """Let a lazily zero gradient become this value, if nobody else has its memory."""
        if not into.zeroing or into.record.own is not None or spec.is_half:
            return False
        into.spec = spec
        self._take(into, number)
        return True

    def backward(self, output: Value, grad: Any, clear: bool) -> None:
        """Go backward from an output, later."""
        backward(self, output, grad, clear)

    def _varies(self, op: Op, attrs: Any) -> bool:
        """Whether the number that a function is given is not always the same here."""
        if self.sums is not None or getattr(attrs, "inplace", False):
            return False  # of a pass it is what follows from the graph
        location = LOCATION.now(self.outermost)
        times = self.visited[location] = self.visited.get(location, 0) + 1
        return self.paths.varies(op, attrs, location, times)

    def _take(self, nd: NdArray, number: int) -> None:
        """Let an array be the value of this number."""
        record = nd.lasting_record()
        record.fill, record.work, record.number = None, self, number
        self.taken[id(nd)] = number, nd

    def _call(
        self,
        op: Op,
        attrs: Any,
        bound: Bound,
        datas: Sequence[NdArray | None],
        edges: Any = None,
        called: Sequence[Value | None] | None = None,
    ) -> tuple[NdArray, ...] | None:
        """Put a call off; None where it must be done at once.

        Args:
            edges: Of its inputs, if it has a gradient.
            called: Edges of its inputs, if these are Variables.
        """
        if bound.space != SPACE or op.name in AT_ONCE:
            return None
        numbers = self._numbers(datas, bound)
        if numbers is None:
            return None
        key = bound, numbers, None if edges is None else self.edges.key(edges, numbers)
        at = self.at.after.get(key) or self._new_place(key, [(op, attrs, bound, numbers)], called)
        if at is None:
            return None
        at.visits += 1
        self.at = at
        self.path.append(at)
        first = len(self.made)
        for spec in bound.out_specs:
            nd = NdArray.unwritten(spec)
            nd.record = MemoryRecord(None, "", False, None, None, 1, self, len(self.made))
            self.made.append(nd)
        return tuple(self.made[first:])  # type: ignore[arg-type]

    def _new_place(
        self, key: Any, calls: Sequence[New], called: Sequence[Value | None] | None = None
    ) -> PathNode | None:
        """The place that calls lead to for the first time; None where the step is left instead."""
        watch, sums = self.paths.watch, self.sums
        if not watch.active:
            watch.catch_up((*self.pieces, (self.edges.makers, self.path)))
            self.step.watch = watch
            if called is not None:
                watch.call(*calls[0][:3], called)
        if not (self.shadow or self.paths.may_grow(self.at)):
            self.report.left += 1
            self.leave()
            return None
        self.report.is_new = True
        location = sums.location if sums else self.report.locations.now(self.outermost)
        made = made_here(calls, self.gradient_of or location, location.origin(STATE.layer))
        place = self.paths.add(self.at, key, made, location)
        place.of_variables = called is not None
        return place

    def leave(self) -> None:
        """Do what was put off, and put nothing off any more in this step."""
        self.run()
        self.step.deferred = None

    def go(self, place: PathNode, makes: int) -> None:
        """Put off the calls of a place, which make so many arrays that nobody has."""
        place.visits += 1
        self.at = place
        self.path.append(place)
        self.made += [None] * makes

    def array(self, number: int, spec: Spec | None = None) -> NdArray:
        """The array of a number."""
        if number < 0:
            return self.given[-2 - number]
        nd = self.made[number]
        if nd is None:
            assert spec is not None
            nd = self.made[number] = NdArray.unwritten(spec)
            nd.record = MemoryRecord(version=1, work=self, number=number)
        return nd

    def join(self, before: PathNode, begin: int, end: int) -> PathNode:
        """One place for the calls of a part of the path, and those after it."""
        joined = PathNode("backward", tuple([c for p in self.path[begin:end] for c in p.calls]))
        joined.location = self.path[begin].location
        rest, self.path[begin:] = self.path[end:], [joined]
        self.at = joined
        for p in rest:
            known = self.at.after.get(p.key)
            self.at = known or self.paths.add(self.at, p.key, p.calls, p.location)
            self.path.append(self.at)
        return joined

    def _numbers(self, datas: Sequence[NdArray | None], bound: Bound) -> tuple[int, ...] | None:
        """The numbers of the inputs of a call; None where it must be done at once."""
        key: list[int] = []
        known = len(self.given)
        for nd in datas:
            if nd is None:
                key.append(NONE)
            elif nd.record.work is self:
                key.append(nd.record.number)
            else:
                number = self.number(nd, bound.view)
                if number is None:
                    break
                key.append(number)
        else:
            if not bound.writes:
                return tuple(key)
            written = [nd for i in bound.writes if (nd := datas[i]) is not None]
            if all([nd.record.work is self and nd.record.number < NONE for nd in written]):
                for nd in written:
                    self._will_write(nd)
                return tuple(key)
        self.forget(known)
        return None

    def forget(self, known: int) -> None:
        """Take the numbers away from given arrays that no call uses: all but the first so many."""
        for i, nd in enumerate(self.given[known:], known):
            self.arrive(-2 - i)
            nd.record.work = None
            self.copied.pop(i, None)
        del self.given[known:]

    def number(self, nd: NdArray, shared: bool = False) -> int | None:
        """The number of an array's memory; None where it is not the step's alone.

        Args:
            shared: Whether the result is to be the same memory.
        """
        behind = self.behind
        if behind is not None and nd.record.work is behind:
            with behind.lock:  # another thread may be about to publish it
                return self._number(nd, shared)
        return self._number(nd, shared)

    def _number(self, nd: NdArray, shared: bool) -> int | None:
        record = nd.record
        if record.work is self:
            return record.number
        work = record.work
        if work not in (None, self.behind) or record.own is not None:
            return None
        if nd.blank:
            nd.read_early(f"NdArray {nd.spec}", "a function")
        if SPACE in nd.bufs and is_held(nd):  # the holder may write before the call is done
            if shared and self.sums is None:  # no rule of a gradient writes what it reads
                return None
            self.edges.plain = False  # functions keep the array itself for their gradients
            self.copied[len(self.given)] = nd
            nd = NdArray.holding(nd.spec, SPACE, nd.bufs[SPACE].copy())
        self.given.append(nd)
        record = nd.lasting_record()
        if work is not None and record.work is work:
            self.adopted.add(-1 - len(self.given))
        record.work, record.number = self, -1 - len(self.given)
        return record.number

    def _will_write(self, nd: NdArray) -> None:
        """Take the value away from an array that a call writes, until it is done."""
        number = nd.record.number
        if number not in self.before:
            if not nd.bufs and number not in self.adopted:
                nd.record.work = None
                nd.read(SPACE)
                nd.record.work = self
            # in this order: another thread may publish the value meanwhile
            bufs = self.before[number] = {}
            bufs.update(nd.bufs)
            nd.bufs.clear()
            nd.record.fill = None  # it is not lazily zero any more

    # ---- running ----

    def is_over(self) -> bool:
        """Whether an interrupt has left the step without its end."""
        return is_left(self.frame)

    def run(self) -> None:
        """Do what has been put off.

        Raises:
            ValueError: Another thread asks for it.
        """
        if self.thread != threading.get_ident():
            raise ValueError(
                "coexecution: an array of a step that another thread co-executes was read or "
                "written before the step had computed it: read it there, or after the step "
                "(documentation: coexecution#rules)"
            )
        whole(self.finish, False, caller())

    def finish(self, ends: bool, asked: FrameType | None = None) -> None:
        """Do what has been put off, at the end of the step or as this frame has asked for it."""
        start = perf_counter()
        late = self._take_back()
        at, path, given, taken = self.at, self.path, self.given, self.taken
        before, live = self.before, BULK.living(self.made)
        values: Values = {}
        running = None
        self.pieces.append((self.edges.makers, path))
        try:
            self.begin()
            if path:
                with using(interpreter=EAGER, origin=None):
                    wanted = live.keys() | {number for number, _ in taken.values()}
                    at = self.paths.end(at, wanted, ends)
                    if self.shadow:
                        self.report.compared(run_both(self.paths, at, path, given, wanted, values))
                    elif ends and late is None and self._goes_ahead(at, start):
                        plan = self.paths.ready(at, path, given, wanted)
                        if plan is not None:
                            it = Running(plan, path, given, wanted, live, taken, self.report)
                            running = it if it.start(before) else None
                    if running is None and not self.shadow:
                        self.compute(at, path, given, wanted, values)
        except Exception:
            if late is None:
                raise
        finally:
            if running is None:
                BULK.publish(values, live, taken, NOTHING)
            if path:
                self.report.ran(path, start, asked, running is not None)
                if ends and running is None:
                    self.paths.pace.ran(perf_counter() - start)
        if late is not None:
            raise late  # which this path may have failed with

    def compute(self, *what: Any) -> None:
        """Do Paths.run(*what)."""
        self.paths.run(*what)

    def _take_back(self) -> BaseException | None:
        """Let given arrays be as they were, when the step before is done; its error."""
        given, late = self.given, None
        now = Running.now
        if now is None or now.thread != self.thread or not (given or self.path):
            if self.behind is not None:
                self.behind.follower = None
            self.give_back(None)
            return None
        with now.lock:  # or another thread may be about to publish it
            now.follower = self.behind = None
            self.give_back(now)
            try:
                now.finish()
            except BaseException as e:
                late = e
        BULK.give_back(given, NOTHING, None)
        return late

    def _goes_ahead(self, at: PathNode, now: float) -> bool:
        """Whether the end of a step is to run while Python goes on."""
        pace = self.paths.pace
        if at.plan is None or not at.plan.runs_by_itself or PROFILES:
            pace.interrupted()
            return False
        return pace.next(now)


PASSED |= {f.__code__ for f in (DeferredStep.apply, DeferredStep.execute, DeferredStep._varies)}
