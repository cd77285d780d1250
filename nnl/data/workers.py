# SPDX-License-Identifier: Apache-2.0
"""Samples that threads or processes load, and the random numbers that each may draw."""

from __future__ import annotations

import operator
import os
import pickle
import random
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context, parent_process
from typing import Any

import numpy as np

Load = Callable[[int], Any]
Seed = tuple[int, ...]

MOST = 1024  # workers
_NOW = threading.local()  # the seed of the sample that this thread loads, and its generator


def sample_rng() -> np.random.RandomState:
    """The generator of the sample that is being loaded, for use in a function that loads one.

    It depends on the iterator's `rng`, the epoch and the index, and not on who loads what when: so
    augmentation is the same with any number of workers.

    Raises:
        RuntimeError: No sample is being loaded.
    Example:
        >>> from nnl.utils.data_iterator import data_iterator_simple, sample_rng
        >>> def load(i):
        ...     return (i + 0.1 * sample_rng().rand(),)
        >>> def first(workers):
        ...     with data_iterator_simple(load, 8, 4, num_workers=workers) as batches:
        ...         return batches.next()[0].tolist()
        >>> first(0) == first(2)
        True
    """
    seed = getattr(_NOW, "seed", None)
    if seed is None:
        raise RuntimeError("sample_rng: no sample is being loaded by this thread")
    if _NOW.rng is None:
        _NOW.rng = np.random.RandomState(np.random.MT19937(np.random.SeedSequence(seed)))
    rng: np.random.RandomState = _NOW.rng
    return rng


def load_one(load: Load, index: int, seed: Seed) -> Any:
    """The sample, loaded by this thread; an error notes which one it was."""
    _NOW.seed, _NOW.rng = seed, None
    try:
        return load(index)
    except Exception as error:
        _note(error, index)
        raise
    finally:
        _NOW.seed = _NOW.rng = None


def _note(error: BaseException, index: int) -> None:
    text = f"while sample {index} was loaded"
    if text not in getattr(error, "__notes__", ()):
        error.add_note(text)


class Promise:
    """A sample that a worker loads."""

    __slots__ = ("future", "index")

    def __init__(self, future: Future[Any], index: int) -> None:
        self.future, self.index = future, index

    def result(self) -> Any:
        """Wait for it.

        Raises:
            What loading it raises; BrokenProcessPool if the process has died.
        """
        try:
            return self.future.result()
        except Exception as error:  # of the pool, too
            _note(error, self.index)
            raise


def given(sample: Any) -> Any:
    """The sample itself, once it is there."""
    return sample.result() if isinstance(sample, Promise) else sample


def whole(where: str, name: str, value: Any) -> int:
    """A whole number.

    Raises:
        TypeError: It is none.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{where}: {name}={value!r} is not an integer") from None


def employed(where: str, load: Load, num_workers: int, use_multiprocessing: bool) -> Workers | None:
    """The workers, None for none.

    Raises:
        TypeError: num_workers is no whole number.
        ValueError: It is negative or too large, or there are no workers to be processes.
    """
    count, least = whole(where, "num_workers", num_workers), int(bool(use_multiprocessing))
    if not least <= count <= MOST:
        raise ValueError(
            f"{where}: num_workers={count} with use_multiprocessing={use_multiprocessing}, "
            f"wanted {least} to {MOST}"
        )
    return Workers(load, count, bool(use_multiprocessing)) if count else None


class Workers:
    """Threads or processes that call one function.

    Args:
        load: Called with an index.
        count: How many there are.
        processes: Whether they are processes; on Linux they are forked now, and `load` may be any
            function, elsewhere it is pickled.
    """

    def __init__(self, load: Load, count: int, processes: bool) -> None:
        self._load = load
        self._pool: Executor
        self._processes = processes
        if processes:
            context = get_context("fork" if sys.platform == "linux" else None)
            self._pool = ProcessPoolExecutor(count, context, _begin, (load,))
            self._pool.submit(os.getpid).result()  # now, before other threads run
        else:
            self._pool = ThreadPoolExecutor(count, thread_name_prefix="nnl_load")

    def submit(self, index: int, seed: Seed) -> Promise:
        """Let a worker load a sample."""
        if self._processes:
            return Promise(self._pool.submit(_load_in_process, index, seed), index)
        return Promise(self._pool.submit(load_one, self._load, index, seed), index)

    def close(self) -> None:
        """Stop them, after the samples that are being loaded."""
        self._pool.shutdown(wait=True, cancel_futures=True)


_OF_PROCESS: list[Load] = []  # of a worker process: its function


def _begin(load: Load) -> None:
    """What a worker process does first."""
    _OF_PROCESS.append(load)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is told, and ends it
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _load_in_process(index: int, seed: Seed) -> Any:
    """The sample; global generators, which all processes share at first, begin anew for each."""
    one, two = np.random.SeedSequence(seed).generate_state(2)
    np.random.seed(one)
    random.seed(int(two))
    try:
        return load_one(_OF_PROCESS[-1], index, seed)
    except Exception as error:
        raise _portable(error) from None


def _portable(error: Exception) -> Exception:
    """The error, or one with its text where it cannot be sent to another process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever its class does
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
