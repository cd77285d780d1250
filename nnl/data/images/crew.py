# SPDX-License-Identifier: Apache-2.0
"""Processes that make samples, in memory that this process reads without a copy.

The memory is a file without a name, handed to the workers: it is gone when the last process that
has it mapped is, however that ended. Workers end when their standard input does.
"""

from __future__ import annotations

import json
import mmap
import os
import queue
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import numpy as np

from nnl.data.images.work import Damage, Item, Recipe, make_samples

PART = 16  # items at most that a worker is given at a time


def _shared_memory(nbytes: int) -> int:
    """The number of an open file without a name."""
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("nnl_images")
    else:
        with tempfile.TemporaryFile() as file:
            handle = os.dup(file.fileno())
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(handle, 0, nbytes)  # too little memory is an error here, not later
        else:
            os.ftruncate(handle, nbytes)
    except OSError as error:
        os.close(handle)
        raise MemoryError(
            f"open_images: no {nbytes} bytes of shared memory: {error}; "
            "a smaller batch_size or prefetch needs less"
        ) from error
    return handle


class _Worker:
    """One process; one thread at a time talks to it."""

    def __init__(self, handle: int, shape: Sequence[int], recipe: Recipe) -> None:
        # one thread each: there are as many workers as cores, and no more work than pictures
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(p) for p in sys.path)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "nnl.data.images.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            pass_fds=[handle],
            start_new_session=True,  # Ctrl-C is for us, who then end them
        )
        self._say([handle, *shape])
        self._say(asdict(recipe))

    def _say(self, message: Any) -> None:
        try:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")  # type: ignore[union-attr]
            self.process.stdin.flush()  # type: ignore[union-attr]
        except BrokenPipeError:
            pass  # the answer will be missing

    def make(self, slot: int, epoch: int, items: Sequence[Item]) -> Damage:
        self._say([slot, epoch, items])
        answer = self.process.stdout.readline()  # type: ignore[union-attr]
        if not answer.endswith(b"\n"):
            raise RuntimeError(
                f"open_images: worker {self.process.pid} ended with {self.process.wait()} while it "
                f"read {items[0][2][0]} or one of the {len(items) - 1} pictures after it"
            )
        found: Damage = json.loads(answer)
        return found

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()

    def close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            try:
                pipe.close()  # type: ignore[union-attr]
            except BrokenPipeError:
                pass


class Crew:
    """Our engine: `workers` processes, or this one.

    Args:
        shape: (slots, batch_size, size, size, 3) of the memory for samples.
    """

    def __init__(self, recipe: Recipe, shape: Sequence[int], workers: int) -> None:
        self.recipe = recipe
        self._parts = max(1, workers)
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._workers: list[_Worker] = []
        self._pool = None
        if not workers:
            self.slots = np.empty(shape, np.uint8)
            return
        handle = _shared_memory(int(np.prod(shape)))
        try:
            self.slots = np.frombuffer(mmap.mmap(handle, 0), np.uint8).reshape(shape)
            self._workers = [_Worker(handle, shape, recipe) for _ in range(workers)]
        finally:
            os.close(handle)
        for worker in self._workers:
            self._idle.put(worker)
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="nnl_images")

    def submit(self, slot: int, epoch: int, items: Sequence[Item]) -> list[Future[Damage]]:
        """Begin to write the samples of these items into a slot."""
        if self._pool is None:
            done: Future[Damage] = Future()
            done.set_result(make_samples(self.recipe, epoch, items, self.slots[slot]))
            return [done]
        each = min(PART, -(-len(items) // self._parts)) or 1
        parts = [items[i : i + each] for i in range(0, len(items), each)]
        return [self._pool.submit(self._make, slot, epoch, part) for part in parts]

    def _make(self, slot: int, epoch: int, items: Sequence[Item]) -> Damage:
        worker = self._idle.get()
        try:
            return worker.make(slot, epoch, items)
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        """End the workers. Closing twice is allowed."""
        for worker in self._workers:
            worker.end()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.close()
        self._workers = []
