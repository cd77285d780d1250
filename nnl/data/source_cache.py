# SPDX-License-Identifier: Apache-2.0
"""A data source over a folder of cache files, read ahead by threads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from nnl.data.cache_files import FORMATS, INDEX, INFO, read_index, read_samples, read_variables
from nnl.data.settings import settings
from nnl.data.source import DataSource, Sample

Columns = dict[str, Any]


class CacheReaderWithPrefetch:
    """Read cache files, and read those that come next in other threads.

    Args:
        cachedir: Folder of the files.
        num_threads: Number of files that are read at the same time.
        variables: Names of the variables.
    """

    def __init__(self, cachedir: str, num_threads: int, variables: Sequence[str]) -> None:
        self._cachedir = cachedir
        self._variables = variables
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="nnl_cache")
        self._ahead: dict[str, Future[Columns]] = {}

    def _read(self, file_name: str) -> Columns:
        return read_samples(os.path.join(self._cachedir, file_name), self._variables)

    def open_and_prefetch_cache(
        self, file_name: str, file_names_to_prefetch: Sequence[str]
    ) -> Columns:
        """Return the arrays of a file, and begin to read other files.

        An error of a read in a thread is raised here, when that file is asked for.
        """
        waiting = self._ahead.pop(file_name, None)
        for dropped in self._ahead.keys() - set(file_names_to_prefetch):
            self._ahead.pop(dropped).cancel()
        for name in file_names_to_prefetch:
            if name not in self._ahead:
                self._ahead[name] = self._pool.submit(self._read, name)
        return self._read(file_name) if waiting is None else waiting.result()

    def close(self) -> None:
        """Stop the threads. Closing twice is allowed."""
        self._ahead.clear()
        self._pool.shutdown(wait=True, cancel_futures=True)


class CachePrefetcher:
    """Read one cache file at a time in another thread: request it, then read it.

    Args:
        cachedir: Folder of the files.
        variables: Names of the variables.
    """

    def __init__(self, cachedir: str, variables: Sequence[str]) -> None:
        self._cachedir = cachedir
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="nnl_cache")
        self._variables = variables
        self._name: str | None = None
        self._pending: Future[Columns] | None = None

    def read_cache(self, file_name: str, variables: Sequence[str]) -> Columns:
        """Read a file now, in this thread."""
        return read_samples(os.path.join(self._cachedir, file_name), variables)

    def request(self, cache_file_name: str) -> None:
        """Begin to read a file."""
        self._name = cache_file_name
        self._pending = self._pool.submit(self.read_cache, cache_file_name, self._variables)

    def check_if_hit(self, fn: str) -> bool:
        """Whether the file requested last is `fn`."""
        return self._name == fn

    def read(self) -> Columns:
        """Wait for the requested file and return its arrays; an error of the thread is raised.

        Raises:
            ValueError: no file was requested.
        """
        if self._pending is None:
            raise ValueError("CachePrefetcher: read() without a request() before it")
        pending, self._pending, self._name = self._pending, None, None
        return pending.result()

    def close(self) -> None:
        """Stop the thread. Closing twice is allowed."""
        self._pool.shutdown(wait=True, cancel_futures=True)


class CacheDataSource(DataSource):
    """The samples in a folder of cache files.

    With shuffle, an epoch goes through the files in random order and through the samples of each
    file in random order; the files that come next are read ahead.

    Args:
        cachedir: Folder of the files, as DataSourceWithFileCache and `CreateCache` make it.
        shuffle: Whether every epoch has a new order.
        rng: Generator of the orders; None is a new RandomState(313).
        normalize: Whether to return uint8 arrays as float32 divided by 255.
    Raises:
        FileNotFoundError: there is no cache file, or its variables' names are missing.
    Example:
        >>> from nnl.utils.data_iterator import CacheDataSource, SimpleDataSource
        >>> from nnl.utils.data_iterator import DataSourceWithFileCache
        >>> source = SimpleDataSource(lambda i: (np.array([i]),), 3)
        >>> DataSourceWithFileCache(source, cache_dir="ex_cached").close()
        >>> CacheDataSource("ex_cached").next()
        (array([0]),)
    """

    def __init__(
        self,
        cachedir: str,
        shuffle: bool = False,
        rng: np.random.RandomState | None = None,
        normalize: bool = False,
    ) -> None:
        super().__init__(shuffle=shuffle, rng=rng)
        self._cachedir = cachedir
        self._normalize = normalize
        self._variables = None
        index = os.path.join(cachedir, INDEX)
        if os.path.exists(index):
            self.initialize_cache_files_with_index(index)
        else:
            self._files: list[tuple[str, int]] = []
            for name in sorted(os.listdir(cachedir)):
                if name.endswith(FORMATS):
                    self.initialize_cache_files(name)
        if not self._files:
            raise FileNotFoundError(f"CacheDataSource: {cachedir} holds no cache file")
        self.initialize_cache_info(os.path.join(cachedir, INFO))
        self._size = sum(n for _, n in self._files)
        self._reader = CacheReaderWithPrefetch(cachedir, settings.prefetched_files, self._variables)
        self._loaded: tuple[str, Columns] = ("", {})
        self._generation = -1
        self.reset()

    def initialize_cache_files_with_index(self, index_filename: str) -> None:
        """Take the list of files from an index file."""
        self._files = read_index(index_filename)

    def initialize_cache_files(self, filename: str) -> None:
        """Add one file of the folder to the list."""
        if self._variables is None:
            self._variables = read_variables(self._cachedir, filename)
        columns = read_samples(os.path.join(self._cachedir, filename), self._variables[:1])
        self._files.append((filename, len(columns[self._variables[0]])))

    def initialize_cache_info(self, info_filename: str) -> None:
        """Take the variables' names from an info file, or from the first .h5 file."""
        self._variables = read_variables(os.path.dirname(info_filename), self._files[0][0])

    def _get_data(self, position: int) -> Sample:
        name, row = self._order[position]
        if self._loaded[0] != name:
            place = self._file_order.index(name) + 1
            ahead = self._file_order[place : place + settings.prefetched_files]
            columns = self._reader.open_and_prefetch_cache(name, ahead)
            there = len(columns[self._variables[0]])
            if row >= there:
                raise ValueError(f"CacheDataSource: {self._cachedir}: {name} has {there} samples")
            self._loaded = name, columns
        return tuple(self._value(self._loaded[1][v][row]) for v in self._variables)

    def _value(self, value: Any) -> Any:
        if self._normalize and value.dtype == np.uint8:
            return value.astype(np.float32) * (1.0 / 255)
        return value

    def reset(self) -> None:
        """Go back to position 0, with a new order if shuffle is set."""
        files = list(self._files)
        if self._shuffle:
            files = [files[i] for i in self._rng.permutation(len(files))]
        self._file_order = [name for name, _ in files]
        self._order = [
            (name, row)
            for name, n in files
            for row in (self._rng.permutation(n).tolist() if self._shuffle else range(n))
        ]
        self._generation += 1
        super().reset()

    def close(self) -> None:
        """Stop the threads that read ahead."""
        self._reader.close()
        super().close()
