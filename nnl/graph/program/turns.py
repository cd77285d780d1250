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
        self._changed, self._running = Condition(), 0

    @contextmanager
    def shared(self) -> Iterator[None]:
        with self._turn, self._changed:
            self._changed.wait_for(lambda: self._running < self._most)
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify()

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self._turn:
            with self._changed:
                self._changed.wait_for(lambda: not self._running)
            yield


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
