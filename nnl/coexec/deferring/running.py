# SPDX-License-Identifier: Apache-2.0
"""The plan of a step that runs while Python is in the next one.

The executor only runs kernels, over buffers that nobody else can get at: an array that they write
has no buffer as long, and one that they read cannot be written. All that is known of arrays is
changed by Python, when somebody asks for one of them, and before the next step's plan begins.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar

from nnl.coexec.deferring.uninterrupted import whole
from nnl.coexec.plans.calls import Values
from nnl.coexec.plans.paths import PathNode, PathPlan, run_what_goes
from nnl.core.arguments.origin import caller
from nnl.core.arrays.array import NdArray
from nnl.core.arrays.bulk import BULK
from nnl.core.arrays.memory_record import MemoryRecord
from nnl.core.interpreters.interpreter import EAGER
from nnl.core.settings.context import using
from nnl.ext.library import Executor

if TYPE_CHECKING:
    from nnl.coexec.deferring.memory import Memory
    from nnl.coexec.tracing.report import Report


class Running:
    """A plan that runs, and the arrays whose work that is. There is one at a time.

    A step that follows may adopt such arrays: their work is then the step's, which comes here
    before it needs more of them than a number.

    Attributes:
        now: What runs, or has run and was not asked for yet.
        executor: What runs it. free: Held while it does.
        follower: The next step of this thread.
    """

    __slots__ = (
        "thread", "follower", "_plan", "_path", "_given", "_wanted", "_live", "_before", "_taken",
        "_adopted", "_report", "lock", "_busy", "_over", "_error",
    )  # fmt: skip

    now: ClassVar[Running | None] = None
    executor: ClassVar[Executor | None] = None
    free: ClassVar[threading.Lock] = threading.Lock()

    def __init__(
        self,
        plan: PathPlan,
        path: Sequence[PathNode],
        given: list[NdArray],
        wanted: set[int],
        live: dict[int, NdArray],
        taken: dict[int, tuple[int, NdArray]],
        report: Report,
    ) -> None:
        self.thread = threading.get_ident()
        self.follower: Memory | None = None
        self._plan, self._path, self._given, self._wanted = plan, path, given, wanted
        self._live, self._taken, self._report = live, taken, report
        self._before: dict[int, dict[str, Any]] = {}
        self._adopted: list[MemoryRecord] = []
        self.lock, self._busy, self._over = threading.RLock(), False, False
        self._error: Exception | None = None

    def start(self, before: dict[int, Any]) -> bool:
        """Begin, unless something runs already.

        Args:
            before: By number, the given arrays that it writes.
        """
        if not Running.free.acquire(blocking=False):
            return False
        plan = self._plan.plan
        try:
            plan.start(Running.executor_of(plan.lib))
        except Exception:  # something cannot be read: to run it at once says what
            Running.free.release()
            return False
        with self.lock:  # another thread may ask for what it has already
            Running.now = self
            self._before = BULK.hand_over(self._given, self._live, self._taken, before, self)
        return True

    @classmethod
    def executor_of(cls, library: Any) -> Executor:
        """The one executor that there is; made when it is first needed."""
        cls.executor = cls.executor or library.Executor()
        return cls.executor

    # ---- what arrays ask for ----

    def fetch(self, nd: NdArray) -> None:
        """Let an array without a buffer have one."""
        self.stall()

    def settle(self, nd: NdArray) -> None:
        """Let somebody get an array's memory."""
        self.stall()

    def give_up(self, nd: NdArray) -> None:
        """Let an array be other memory."""
        self.stall()

    def let_go(self, nd: NdArray) -> None:
        """Let an array be overwritten."""
        with self.lock:
            if self._over or id(nd) not in self._taken or self.thread != threading.get_ident():
                self.stall()
            else:
                del self._taken[id(nd)]
                nd.record.work = None

    # ---- the end ----

    def stall(self) -> None:
        """Wait, as the program's present line wants something."""
        if self._busy or self._over:
            self.finish()
            return
        start = perf_counter()
        try:
            whole(self.finish)
        finally:
            self._report.waited(start, caller())

    def finish(self) -> None:
        """Wait for the end, and give arrays their values.

        Raises:
            Exception: What a kernel has raised. The thread that has started it gets that, too.
        """
        with self.lock:
            if self._busy:
                return  # it asks itself
            if not self._over:
                self._busy = True
                try:
                    self._publish()
                finally:
                    self._busy = False
            error = self._error
            if error is None or self.thread == threading.get_ident():
                self._error = None
                if Running.now is self:
                    Running.now = None
            if error is not None:
                raise error

    def keep(self, error: Exception) -> None:
        """Raise an error at the next occasion, once more."""
        self._error, Running.now = error, self

    def _publish(self) -> None:
        """Do all that."""
        follower, given = self.follower, self._given
        suspended = []
        if follower is not None:
            follower.behind = None  # it adopts nothing any more
            for nd in (*given, *self._live.values(), *[nd for _, nd in self._taken.values()]):
                if nd.record.work is follower:
                    self._adopted.append(nd.record)
                    nd.record.work = self
            suspended = follower.suspend()
        BULK.put_back(given, self._before)
        values: Values = {}
        try:
            assert Running.executor is not None
            self._plan.plan.finish(Running.executor)
            self._plan.add(self._wanted, values)
        except Exception as e:
            self._error = e
            try:
                with using(interpreter=EAGER, origin=None):
                    run_what_goes(self._path, given, self._wanted, values)
            except Exception as e:
                self._error = e
        then = {id(record): follower for record in self._adopted}
        BULK.publish(values, self._live, self._taken, then)
        BULK.go_on(given, self, then)
        if follower is not None:
            follower.resume(suspended)
        self._over = True
        Running.free.release()
        self._given, self._live, self._taken, self._adopted = [], {}, {}, []
        self._before.clear()


def _end() -> None:
    """Let nothing run while the process is copied, or ends."""
    now = Running.now
    if now is not None:
        now.finish()


def _end_for_now() -> None:
    now = Running.now
    try:
        _end()
    except Exception as e:
        assert now is not None
        now.keep(e)


def _forget() -> None:
    """A copy of the process has no thread for the executor."""
    if Running.executor is not None:
        Running.executor = type(Running.executor)()


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_end_for_now, after_in_child=_forget)
