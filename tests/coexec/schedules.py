# SPDX-License-Identifier: Apache-2.0
"""Executors for what runs ahead that are as late, as early or as odd as one can be."""

from __future__ import annotations

import random
import threading
import time
from functools import partial
from typing import Any

import numpy as np
import pytest

import nnl as nn
from nnl.coexec.deferring.running import Running
from nnl.ext.native import library
from nnl.graph.plan.plan import Plan
from nnl.graph.program.program import SPACE

native = pytest.mark.skipif(library() is None, reason="needs the native engine")
plain = partial(nn.coexecute, ahead=0)
ahead = partial(nn.coexecute, ahead=1)
speculating = partial(nn.coexecute, speculate=True)


def in_thread(f: Any) -> Any:
    found: list[Any] = []

    def work() -> None:
        with nn.auto_forward():
            found.append(f())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    return found[0]


class Schedule:
    """Runs a plan at once, when somebody waits, or in a thread after a while: drawn for each."""

    def __init__(self, seed: int, ways: str = "early late thread") -> None:
        self.rng, self.ways = random.Random(seed), ways.split()
        self.begun = self.ended = 0
        self.error: Exception | None = None

    def start(self, plan: Any, begin: int, end: int, copies: Any) -> None:
        assert self.begun == self.ended, "two runs at once"
        self.begun += 1
        self.error = None
        self.stopped = False
        self.copies = copies
        self.run = partial(self._run, plan, begin, end)
        way = self.rng.choice(self.ways)
        self.thread: threading.Thread | None = None
        if way == "early":
            self._work(0.0)
        elif way == "thread":
            self.thread = threading.Thread(target=self._work, args=(self.rng.random() * 2e-3,))
            self.thread.start()

    def _copy(self) -> None:
        for to, array in self.copies:
            np.copyto(to, array)
        self.copies = ()  # an error keeps what is on the stack, and buffers would have a holder

    def _run(self, plan: Any, begin: int, end: int) -> None:
        """Run a plan; one that was stopped up to some step."""
        self._copy()
        if isinstance(plan, Plan) and not self.stopped:
            plan._run_in_python(False)
        elif isinstance(plan, Plan):
            thunks, _ = plan.ready or plan._make_ready()
            for thunk in list(thunks)[: self.rng.randint(0, len(thunks))]:
                thunk()
        else:
            plan.run(begin, self.rng.randint(begin, end) if self.stopped else end)

    def stop(self) -> None:
        self.stopped = True

    def _work(self, seconds: float) -> None:
        time.sleep(seconds)
        try:
            self.run()
        except Exception as e:
            self.error = e
        del self.run  # which holds the plan
        self.ended += 1

    def wait(self) -> None:
        if self.thread is not None:
            self.thread.join(60)
            assert not self.thread.is_alive()
        elif self.ended < self.begun:
            self._work(0.0)
        if self.error is not None:
            raise self.error


def use(schedule: Schedule, monkeypatch: Any) -> None:
    """Let plans run so, those of the numpy backend too."""
    start = Plan.start

    def runs_by_itself(plan: Plan) -> bool:
        return plan.space == SPACE and not plan.second

    def begin(self: Plan, executor: Any, copies: Any = ()) -> None:
        if self.native is not None:
            start(self, executor, copies)
            return
        self.binding.written.before_run()
        self.binding.point(self)
        executor.start(self, 0, 0, copies)

    monkeypatch.setattr("nnl.coexec.plans.paths.runs_by_itself", runs_by_itself)
    monkeypatch.setattr(Plan, "start", begin)
    monkeypatch.setattr(Running, "executor", schedule)
