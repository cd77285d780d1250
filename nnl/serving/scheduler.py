# SPDX-License-Identifier: Apache-2.0
"""Continuous batching: texts join and leave the batch of a decoder while others are written."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from nnl.models.generation.sampling import Sampling
from nnl.models.generation.speaking import Said

Array = np.ndarray[Any, Any]


class Rows(Protocol):
    """The texts that a decoder has read, one in each row; see `nnl.models.generation.cached`."""

    batch: int
    capacity: int
    chunk: int
    texts: list[list[int]]

    def keep(self, row: int, length: int) -> None: ...

    def feed(self, rows: Sequence[Sequence[int]]) -> Array: ...


class _Busy(Exception):
    """There is no room for another text in the queue."""


@dataclass
class Job:
    """A text to be written.

    Attributes:
        prompt: Tokens, at least one.
        most: How many to write.
        rng: What is drawn with.
        said: What is written, as text.
        tell: Called in the scheduler's thread with (piece, end): new text, and why the text has
            ended: "stop", "length" or "error: ..."; None while it goes on.
    """

    prompt: list[int]
    most: int
    how: Sampling
    rng: np.random.Generator
    said: Said
    tell: Callable[[str, str | None], None]
    row: int = -1
    unread: list[int] = field(default_factory=list)
    cancelled: bool = False
    since: float = field(default_factory=time.monotonic)


class Scheduler:
    """Writes the texts of jobs with one decoder, in a thread of its own.

    A text waits until a row is free. Prompts are read in pieces, between which the other texts get
    a token each, so that a long prompt does not stop them. A row that has read the beginning of a
    prompt for another text before is chosen for it, and does not read that again.

    Args:
        ends: Tokens that end a text.
        waiting: How many jobs may wait.
        count: Called with (event, number): "read" and "written" tokens, "first" for the seconds
            from a job to its first token.
    """

    def __init__(
        self,
        rows: Rows,
        ends: Sequence[int],
        waiting: int = 64,
        count: Callable[[str, float], None] = lambda event, n: None,
    ) -> None:
        self.rows, self.ends, self.most_waiting, self.count = rows, set(ends), waiting, count
        self.queue: deque[Job] = deque()
        self.running: list[Job | None] = [None] * rows.batch
        self._reads_next = True
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="nnl serve", daemon=True)
        self._thread.start()

    @property
    def load(self) -> tuple[int, int]:
        """How many texts are being written, and how many wait."""
        return sum(job is not None for job in self.running), len(self.queue)

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue jobs, all or none.

        Raises:
            _Busy: More would wait than may. ValueError: A prompt is empty or too long.
        """
        for job in jobs:
            if not 0 < len(job.prompt) < self.rows.capacity:
                raise ValueError(
                    f"the prompt has {len(job.prompt)} tokens, wanted 1 to {self.rows.capacity - 1}"
                )
        with self._changed:
            free = sum(job is None for job in self.running)
            if len(self.queue) + len(jobs) > self.most_waiting + free:
                raise _Busy(f"{len(self.queue)} texts wait already")
            self.queue.extend(jobs)
            self._changed.notify()

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Nobody wants these any more; they end before their next token."""
        with self._changed:
            for job in jobs:
                job.cancelled = True
            self._changed.notify()

    def close(self) -> None:
        """End all texts, with an error, and the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    # ---- the thread ----

    def _work(self) -> None:
        while self._admit():
            try:
                self._step()
            except Exception as e:  # the texts of this batch fail, the server goes on
                for i, job in enumerate(self.running):
                    if job is not None:
                        self.rows.keep(i, 0)
                        self._end(job, f"error: {e}")
        for job in [*self.queue, *filter(None, self.running)]:
            job.tell("", "error: the server stops")

    def _admit(self) -> bool:
        """Wait for work and give it rows; False at the end."""
        with self._changed:
            while True:
                for job in [j for j in self.running if j is not None and j.cancelled]:
                    self._leave(job)
                self.queue = deque(j for j in self.queue if not j.cancelled)
                if self._closed:
                    return False
                if self.queue or any(self.running):
                    break
                self._changed.wait()
            while self.queue and None in self.running:
                job = self.queue.popleft()
                free = [i for i, other in enumerate(self.running) if other is None]
                known = {i: _common(self.rows.texts[i], job.prompt[:-1]) for i in free}
                row = max(free, key=lambda i: (known[i], -len(self.rows.texts[i])))
                self.rows.keep(row, known[row])
                job.row, job.unread = row, job.prompt[known[row] :]
                self.running[row] = job
            return True

    def _step(self) -> None:
        """One run of the decoder: pieces of prompts, or a token for each text."""
        jobs = [job for job in self.running if job is not None]
        reading = [job for job in jobs if len(job.unread) > 1]
        if len(reading) == len(jobs) or (reading and self._reads_next):
            chosen, self._reads_next = reading, False
        else:
            chosen, self._reads_next = [j for j in jobs if len(j.unread) == 1], True
        fed: list[list[int]] = [[] for _ in self.running]
        for job in chosen:
            fed[job.row] = job.unread[: self.rows.chunk]
        scores = self.rows.feed(fed)
        for job in chosen:
            self.count("read" if len(job.unread) > 1 else "written", len(fed[job.row]))
            del job.unread[: self.rows.chunk]
            if not job.unread:
                self._write(job, scores[job.row])

    def _write(self, job: Job, scores: Array) -> None:
        if not job.said.tokens:
            self.count("first", time.monotonic() - job.since)
        token = job.how.choose(scores, job.prompt + job.said.tokens, job.rng)
        if token in self.ends:
            return self._end(job, "stop")
        piece = job.said.add(token)
        length = len(job.said.tokens)
        if job.said.stopped:
            return self._end(job, "stop", piece)
        if length >= job.most or len(job.prompt) + length >= self.rows.capacity:
            return self._end(job, "length", piece)
        job.unread = [token]
        if piece:
            job.tell(piece, None)

    def _end(self, job: Job, why: str, piece: str = "") -> None:
        self._leave(job)
        job.tell(piece + job.said.rest() if not why.startswith("error") else "", why)

    def _leave(self, job: Job) -> None:
        self.running[job.row] = None


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two texts begin with alike."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
