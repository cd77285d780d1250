# SPDX-License-Identifier: Apache-2.0
"""Threads that run programs of one file: those that only read at once, who writes alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition, Lock
from typing import Any


class Turns:
    """Runs that read the same arrays take place at once, one that writes them by itself.

    Args:
        most: Runs at once; more of them have memory of their own and are no faster.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most or max(os.cpu_count() or 1, 2)
        self._turn = Lock()  # held by the one that waits: the next ones come after it
        self._count = Lock()  # of what is running
        self._changed, self._running, self._waits = Condition(self._count), 0, False
        self._shared = _Shared(self)

    def shared(self) -> _Shared:
        return self._shared

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self._turn:
            if self._running:  # which only becomes less meanwhile
                with self._count:
                    self._until(1)
            yield

    def begin(self) -> None:
        with self._turn, self._count:
            if self._running >= self._most:
                self._until(self._most)
            self._running += 1

    def end(self) -> None:
        with self._count:
            self._running -= 1
            if self._waits:
                self._changed.notify()

    def _until(self, fewer: int) -> None:
        self._waits = True
        try:
            self._changed.wait_for(lambda: self._running < fewer)
        finally:
            self._waits = False


class _Shared:
    """A run beside others, without what a generator costs; it has no state of its own."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def __enter__(self) -> None:
        self._turns.begin()

    def __exit__(self, *error: Any) -> None:
        self._turns.end()


class Runners:
    """One runner for each thread that runs a program at this time; they stay for the next ones.

    Args:
        make: A new one, which runs in one thread at a time, with memory of its own.
        writes: Whether they change arrays that others read.
    """

    def __init__(self, make: Callable[[], Any], turns: Turns, writes: bool) -> None:
        self._make, self._turns, self._writes = make, turns, writes
        self.idle: list[Any] = []

    def run(self, values: Any) -> Any:
        with self._turns.alone() if self._writes else self._turns.shared():
            try:
                runner = self.idle.pop()
            except IndexError:
                runner = self._make()
            try:
                return runner.run(values)
            finally:
                self.idle.append(runner)
