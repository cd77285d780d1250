# SPDX-License-Identifier: Apache-2.0
"""Speculation: a step runs as the path that is expected while Python still goes through it.

Terra's protocol. As soon as all is there that the path of the steps before uses and that is another
array in each step, its plan begins to run in the executor; what it writes is copied before. If
Python then takes another way, the run is cancelled: arrays get the copies back, and the step goes
on as if nothing had been tried.

Source: Kim et al., Terra: Imperative-Symbolic Co-Execution of Imperative Deep Learning Programs,
NeurIPS 2021, appendix C.4.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter
from types import FrameType
from typing import Any, ClassVar

import numpy as np

from nnl.coexec.deferring.deferred_step import DeferredStep
from nnl.coexec.deferring.running import Running
from nnl.coexec.deferring.uninterrupted import whole
from nnl.coexec.plans.calls import NONE, Call, New, Values
from nnl.coexec.plans.expectations import Expectations, Expected
from nnl.coexec.plans.paths import PathNode, Paths
from nnl.coexec.tracing.report import Report
from nnl.core.arrays.array import NdArray
from nnl.core.arrays.bulk import BULK
from nnl.core.graph.node import Value
from nnl.core.graph.variable import Variable
from nnl.core.interpreters.deferring import Deferring
from nnl.core.interpreters.interpreter import EAGER
from nnl.core.settings.context import using
from nnl.graph.lowering.buffer_owners import is_held
from nnl.graph.printing.profile import PROFILES
from nnl.graph.program.program import SPACE

Buffers = dict[str, Any]


class Speculation:
    """A plan that runs before Python has made all of its calls.

    It is the work of those of its arrays that no call has used yet. Who wants one of them before
    gets it as it was: the run is cancelled.

    Attributes:
        now: The one that runs, or has run while Python was in the middle of a step.
        expected: The path that it runs.
    """

    __slots__ = (
        "expected", "_deferred", "_plan", "_written", "_early", "_taken", "_waiting", "_copies",
        "_runs", "_failed",
    )  # fmt: skip

    now: ClassVar[Speculation | None] = None

    def __init__(self, deferred: Speculating, expected: Expected) -> None:
        plan = expected.end.plan
        assert plan is not None
        self.expected, self._deferred, self._plan = expected, deferred, plan
        self._written = {-2 - n for c in _calls(expected.path) for n in c.written if n < NONE}
        self._early: set[int] = set()  # numbers that are in the deferred step's `before` too early
        self._taken: dict[int, Buffers] = {}  # of written arrays that no call has used, by position
        self._waiting: dict[int, NdArray] = {}  # all that no call has used
        # (written array, space, buffer, copy of it, its record's `early`)
        self._copies: list[tuple[NdArray, str, Any, Any, bool]] = []
        self._runs = self._failed = False

    # ---- the beginning ----

    def start(self) -> bool:
        """Begin, if all arrays are there and nothing else runs."""
        if not self._find() or Running.now is not None or not Running.free.acquire(blocking=False):
            return False
        deferred, given = self._deferred, self._deferred.given
        before, works = set(deferred.before), [nd.record.work for nd in given]
        deferred.give_back(None)
        try:
            with using(interpreter=EAGER, origin=None):
                self._start([*given, *self._waiting.values()])
            self._runs = True
        except Exception:  # something cannot be read, or there is no memory: to run it later tells
            Running.free.release()
        for nd, work in zip(given, works, strict=True):
            nd.record.work = work
        for at in {-2 - n for n in before} | (self._written if self._runs else set()):
            if at >= len(given):
                self._taken[at] = _take(self._waiting[at])
                continue
            deferred.before[-2 - at] = _take(given[at])
            if -2 - at not in before:
                self._early.add(-2 - at)
        if self._runs:
            Speculation.now = self
            for nd in self._waiting.values():
                nd.record.work = self
        return self._runs

    def _find(self) -> bool:
        """Find the arrays that no call has used yet; whether all of them can be used."""
        holes, offered = self._plan.holes, self._deferred.offered
        for i in range(len(self._deferred.given), len(holes)):
            at = self.expected.changing.get(i)
            nd = offered[at] if at is not None and at < len(offered) else holes[i]
            if not _is_free(nd) or nd.spec != holes[i].spec:
                return False
            self._waiting[i] = nd
        return len({id(nd.bufs) for nd in self._waiting.values()}) == len(self._waiting)

    def _start(self, arrays: Sequence[NdArray]) -> None:
        plan = self._plan.plan
        executor = Running.executor_of(plan.lib)
        self._plan.take(arrays)
        written = plan.binding.written.arrays
        early = [nd.record.early for nd, _ in written]
        plan.binding.written.before_run()
        plan.binding.point(plan)  # from now on it is these buffers
        bufs = [nd.bufs[space] for nd, space in written]
        room = self._deferred.expectations.room(bufs)
        plan.start(executor, list(zip(room, bufs, strict=True)))
        every = zip(written, bufs, room, early, strict=True)
        self._copies = [(nd, space, buf, copy, e) for (nd, space), buf, copy, e in every]
        self._deferred.report.checkpointed += sum([buf.nbytes for buf in bufs])

    # ---- what arrays ask for that no call has used yet ----

    def fetch(self, nd: NdArray) -> None:
        """Let an array without a buffer have one."""
        self._asked(nd)

    def settle(self, nd: NdArray) -> None:
        """Let somebody get an array's memory."""
        if not nd.bufs or self._deferred.thread == threading.get_ident():
            self._asked(nd)  # else what another thread does with what is only read is its affair

    def give_up(self, nd: NdArray) -> None:
        """Let an array be other memory."""
        self._asked(nd)

    def let_go(self, nd: NdArray) -> None:
        """Let an array be overwritten."""
        self._asked(nd)

    def _asked(self, nd: NdArray) -> None:
        if self._deferred.thread != threading.get_ident():
            self._deferred.run()  # which tells that it cannot be
        for at, waiting in self._waiting.items():
            if waiting.bufs is nd.bufs:
                self.expected.changing[at] = None  # from now on a run begins behind this
        whole(self.cancel)

    def use(self, nd: NdArray) -> int | None:
        """The number of an array that a call uses; None if another one was expected."""
        given = self._deferred.given
        at, number = len(given), -2 - len(given)
        waiting = self._waiting.get(at)
        if waiting is None or waiting.bufs is not nd.bufs:
            return None
        # An interrupt may come at any place: what was taken is always where `cancel` looks for it.
        given.append(nd)
        record = nd.record
        record.work, record.number = self._deferred, number
        if at in self._taken:
            self._deferred.before[number] = self._taken[at]
            self._early.add(number)
            del self._taken[at]
        del self._waiting[at]
        return number

    def reads(self, at: int) -> NdArray | None:
        """What stands in the plan for a given array that it reads."""
        holes, given = self._plan.holes, self._deferred.given
        same = at < len(holes) and holes[at].bufs is given[at].bufs
        return holes[at] if same and at not in self._written else None

    # ---- the end ----

    def stop(self) -> None:
        """Python has taken another way: the rest need not run, and what has run is of no use."""
        if self._runs:
            assert Running.executor is not None
            self._failed = True
            Running.executor.stop()

    def wait(self) -> None:
        """Return when it does not run any more."""
        if self._runs:
            assert Running.executor is not None
            try:
                Running.executor.wait()
            except Exception:  # to run it later tells what
                self._failed = True
            self._runs = False

    def is_right(self) -> bool:
        """Whether the calls of a piece that is at its end are those that have run; waits."""
        holes, deferred = self._plan.holes, self._deferred
        if deferred.at is not self.expected.path[-1] or self._waiting:
            return False
        if BULK.unlike(holes, deferred.given):
            return False
        self.wait()
        return not self._failed

    def finish(self, end: PathNode, wanted: set[int], values: Values) -> bool:
        """Add what is wanted to the values; False if it needs another plan."""
        if end is not self.expected.end or not wanted <= self._plan.wanted:
            self.undo()
            return False
        plan = self._plan.plan
        plan.binding.written.after_run(plan.slots)
        self._plan.add(wanted, values)
        self._end()
        self.expected.end.runs += 1
        return True

    def cancel(self) -> None:
        """Let all arrays be as if nothing had been tried, in the middle of the step."""
        deferred = self._deferred
        deferred.speculation = None
        self.undo()
        for number in self.too_early():
            if number in deferred.before:  # else an interrupt came after this was done
                deferred.given[-2 - number].bufs.update(deferred.before[number])
                del deferred.before[number]
        for at, nd in self._waiting.items():
            nd.bufs.update(self._taken.pop(at, {}))
            nd.record.work = None

    def too_early(self) -> set[int]:
        """Numbers of given arrays that have no value already, and no call has written yet."""
        return self._early - {n for c in _calls(self._deferred.path) for n in c.written}

    def undo(self) -> None:
        """Stop, and write back what was written."""
        self.stop()
        self.wait()
        self._restore()
        self._end()
        self.expected.was_wrong()
        self._deferred.report.cancelled += 1

    def _restore(self) -> None:
        """Let what was written be what it was."""
        taken = [*self._taken.values(), *self._deferred.before.values()]
        for nd, space, buf, copy, early in self._copies:
            np.copyto(buf, copy)
            nd.record.early = early
            for bufs in (nd.bufs, *taken):
                if bufs.get(space) is buf:
                    for other in bufs.keys() - {space}:  # a copy that is out of date
                        del bufs[other]

    def _end(self) -> None:
        self._copies = []  # as long as it has a buffer, somebody holds it
        Speculation.now = None
        Running.free.release()


class Speculating(DeferredStep):
    """A step that runs as it is expected to go on.

    Attributes:
        expectations: Of the program.
        offered: Arrays that the step was called with.
        speculation: What runs.
        expected: What the present piece of the step is expected to be.
        piece: How many there were before.
    """

    __slots__ = ("expectations", "offered", "speculation", "expected", "piece")

    def __init__(
        self,
        step: Deferring,
        paths: Paths,
        report: Report,
        frame: FrameType,
        end: Callable[[], None],
        expectations: Expectations,
        offered: Sequence[NdArray],
    ) -> None:
        self.expectations, self.offered = expectations, offered
        self.speculation: Speculation | None = None
        self.piece = 0
        super().__init__(step, paths, report, frame, end, False)
        self._expect()

    def _expect(self) -> None:
        self.expected = self.expectations.of(self.piece)
        self.trigger = None if self.expected is None else self.expected.trigger()

    # ---- calls ----

    def go(self, place: PathNode, makes: int) -> None:
        super().go(place, makes)
        if place is self.trigger:
            whole(self._speculate)

    def _call(self, *what: Any) -> tuple[NdArray, ...] | None:
        made = super()._call(*what)
        if self.at is self.trigger:
            whole(self._speculate)
        return made

    def _speculate(self) -> None:
        """Begin to run what is expected."""
        expected, self.trigger = self.expected, None
        assert expected is not None
        plan = expected.end.plan
        if plan is None or self.sums is not None or self.behind is not None or PROFILES:
            return
        speculation = Speculation(self, expected)
        if speculation.start():
            self.speculation = speculation
            self.report.speculated += 1

    def fetch(self, nd: NdArray) -> None:
        self._need(nd)
        if not nd.bufs:
            super().fetch(nd)

    def let_go(self, nd: NdArray) -> None:
        self._need(nd)
        super().let_go(nd)

    def accumulate(self, into: NdArray, g: NdArray) -> bool:
        self._need(into)
        return super().accumulate(into, g)

    def _need(self, nd: NdArray) -> None:
        """Let a given array that no call has written yet have the value that it has."""
        speculation = self.speculation
        if speculation is None or nd.record.work is not self:
            return
        if self.thread == threading.get_ident() and nd.record.number in speculation.too_early():
            whole(speculation.cancel)

    def _new_place(
        self, key: Any, calls: Sequence[New], called: Sequence[Value | None] | None = None
    ) -> PathNode | None:
        if self.speculation is not None:
            self.speculation.stop()
        return super()._new_place(key, calls, called)

    def _number(self, nd: NdArray, shared: bool) -> int | None:
        speculation = self.speculation
        if speculation is not None and nd.record.work is speculation:
            number = speculation.use(nd)
            if number is not None:
                return number
            whole(speculation.cancel)
        return super()._number(nd, shared)

    def forget(self, known: int) -> None:
        if self.speculation is not None and known < len(self.given):
            self.speculation.cancel()
        super().forget(known)

    def keep_value(self, nd: NdArray) -> None:
        at, hole = -2 - nd.record.number, None
        if self.speculation is not None:
            hole = self.speculation.reads(at)
            if hole is None:
                self.speculation.cancel()
        super().keep_value(nd)
        if hole is not None:
            hole.bufs, hole.record = self.given[at].bufs, self.given[at].lasting_record()

    # ---- running ----

    def finish(self, ends: bool, asked: FrameType | None = None) -> None:
        if self.speculation is not None:
            start = perf_counter()
            if not self.speculation.is_right():
                self.speculation.cancel()
            self.report.running += perf_counter() - start
            self.report.waited(start, asked)
        try:
            super().finish(ends, asked)
        finally:
            speculation, self.speculation = self.speculation, None
            if speculation is not None:  # something has failed before its results were wanted
                speculation.undo()
        if not ends:
            self._expect()

    def compute(
        self,
        end: PathNode,
        path: Sequence[PathNode],
        given: Sequence[NdArray],
        wanted: set[int],
        values: Values,
    ) -> None:
        speculation, self.speculation = self.speculation, None
        expected = self.expectations.note(self.piece, end, path)
        self.piece += 1
        if speculation is not None and speculation.finish(end, wanted, values):
            return
        expected.compare(given, self.offered)
        super().compute(end, path, given, wanted, values)


def arrays_of(args: Iterable[Any], kw: Mapping[str, Any]) -> list[NdArray]:
    """The arrays among arguments, and in lists of them."""
    found: list[NdArray] = []
    for value in (*args, *kw.values()):
        for v in value if type(value) in (list, tuple) else (value,):
            if isinstance(v, Variable):
                found.append(v._data)
            elif isinstance(v, NdArray):
                found.append(v)
    return found


def _calls(path: Iterable[PathNode]) -> list[Call]:
    return [c for p in path for c in p.calls]


def _take(nd: NdArray) -> Buffers:
    """Take the buffers away from an array."""
    bufs = dict(nd.bufs)
    nd.bufs.clear()
    return bufs


def _is_free(nd: NdArray) -> bool:
    """Whether an array has a value that a plan can use unseen."""
    record = nd.record
    if record.work is not None or record.own is not None or record.views is not None:
        return False
    return bool(nd.bufs) and not (SPACE in nd.bufs and is_held(nd))


def _wait() -> None:
    """Let nothing run while the process is copied, or ends."""
    if Speculation.now is not None:
        Speculation.now.wait()


atexit.register(_wait)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait)
