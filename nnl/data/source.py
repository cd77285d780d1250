# SPDX-License-Identifier: Apache-2.0
"""Data sources: a fixed number of samples, each a tuple of arrays, read one by one.

A source has a position. `next()` returns the sample there and advances; `reset()` goes back to 0.
A reader that wraps around in the middle of a batch calls `reset()` at the wrap and `apply_order()`
after the batch: sources that keep generations of orders change to the next order only then.
"""

from __future__ import annotations

import copy
import logging
from types import TracebackType
from typing import Any

import numpy as np

from nnl.core.arguments.annotations import checked
from nnl.data.settings import settings
from nnl.data.workers import Load, Workers, employed, given, load_one

Sample = Any  # a tuple of one array-like per variable

logger = logging.getLogger("nnl")


class DataSource:
    """Base of all data sources.

    A subclass sets `_size` and `_variables` in its constructor and defines `_get_data(position)`.
    If it shuffles, its `reset` draws a new order from `_rng` and then calls the base's.

    Args:
        shuffle: Whether the order changes from epoch to epoch.
        rng: Generator of the orders; None is a new RandomState(313).
    Example:
        >>> from nnl.utils.data_iterator import DataSource
        >>> class Squares(DataSource):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self._variables, self._size = ("x",), 5
        ...     def _get_data(self, position):
        ...         return (np.array([position**2]),)
        >>> Squares().next()
        (array([0]),)
    """

    ahead = 0  # samples to ask for before they are needed, which workers load
    _workers: Workers | None = None

    @checked
    def __init__(self, shuffle: bool = False, rng: np.random.RandomState | None = None) -> None:
        self._rng = np.random.RandomState(313) if rng is None else rng
        self._shuffle = shuffle
        self._variables: Any = None
        self._size = 0
        self._position = 0
        self._generation = -1
        self._order: Any = None
        self._original_order: Any = None
        self._closed = False

    def _get_data(self, position: int) -> Sample:
        """Return the sample at a position of the current order."""
        raise NotImplementedError(
            f"{type(self).__name__}: define _get_data(position) to return a tuple of arrays"
        )

    def _get_data_of_generation(self, position: int, generation: int) -> Sample:
        """Return the sample at a position of the order of a generation, if the source keeps it."""
        return self._get_data(position)

    def place(self, position: int) -> str:
        """What errors call the sample at a position of the current order."""
        return f"sample {position}"

    def _let_load(self, load: Load) -> None:
        """Let `_load` give load(index)."""
        self._loading = load
        # a copy draws, so that the orders are what they would be without
        self._seed = int(copy.deepcopy(self._rng).randint(2**31))

    def _employ(self, where: str, num_workers: int, use_multiprocessing: bool) -> None:
        """Let workers do it, if there are any: the last step of a constructor."""
        load = self._loading
        self._workers = employed(where, load, num_workers, use_multiprocessing)
        self.ahead = 2 * int(num_workers)

    def _load(self, index: int, generation: int) -> Sample:
        """The sample of an index, or the promise of it."""
        seed = (self._seed, generation, int(index))
        if self._workers is None:
            return load_one(self._loading, index, seed)
        return self._workers.submit(index, seed)

    def next(self) -> Sample:
        """Return the sample at the current position and advance."""
        return given(self.take())

    def take(self) -> Any:
        """The same, or the promise of a sample that a worker loads."""
        data = self._get_data(self._position)
        self._position += 1
        return data

    def __next__(self) -> Sample:
        return self.next()

    def reset(self) -> None:
        """Go back to position 0."""
        self._position = 0

    def apply_order(self) -> None:
        """Change to the next order, in sources that keep orders by generation."""

    def close(self) -> None:
        """Stop workers, and release what the source holds. Closing twice is allowed."""
        if self._workers is not None:
            self._workers.close()
        self._closed = True

    def __enter__(self) -> DataSource:
        return self

    def __exit__(
        self,
        type: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def variables(self) -> Any:
        """Names of the variables of a sample, a tuple or list of str."""
        return self._variables

    @property
    def size(self) -> int:
        """Number of samples in an epoch."""
        return self._size

    @property
    def position(self) -> int:
        """Number of samples read of this epoch."""
        return self._position

    @property
    def order(self) -> Any:
        """The order of this epoch, or None if the source keeps none."""
        return self._order

    @property
    def shuffle(self) -> bool:
        """Whether the order changes from epoch to epoch."""
        return self._shuffle

    @shuffle.setter
    def shuffle(self, value: bool) -> None:
        self._shuffle = value


class SlicedDataSource(DataSource):
    """The samples [slice_start, slice_end) of every order of another source.

    Slices of the same bounds in several processes, made from sources with equal generators, never
    share a sample within an epoch. A slice does not move the position of its source.

    Args:
        data_source: The source to slice. It stays open when the slice is closed.
        shuffle, rng: As in DataSource; the order comes from data_source in either case.
        slice_start: First position; None is 0.
        slice_end: Position after the last; None is the size of data_source.
    Raises:
        ValueError: the slice is empty or not inside data_source.
    Example:
        >>> from nnl.utils.data_iterator import SimpleDataSource, SlicedDataSource
        >>> source = SimpleDataSource(lambda i: (i,), 10)
        >>> part = SlicedDataSource(source, slice_start=5, slice_end=7)
        >>> part.size, part.next()
        (2, (np.int64(5),))
    """

    def __init__(
        self,
        data_source: DataSource,
        shuffle: bool = False,
        rng: np.random.RandomState | None = None,
        slice_start: int | None = None,
        slice_end: int | None = None,
    ) -> None:
        start = 0 if slice_start is None else slice_start
        end = data_source.size if slice_end is None else slice_end
        if not 0 <= start < end <= data_source.size:
            raise ValueError(
                f"SlicedDataSource: slice_start={slice_start}, slice_end={slice_end} is no range "
                f"inside the {data_source.size} samples of data_source"
            )
        super().__init__(shuffle=shuffle, rng=rng)
        self._data_source = data_source
        self._slice_start, self._slice_end = start, end
        self.ahead = data_source.ahead
        self._size = end - start
        self._variables = data_source.variables
        self._generation = 0

    def _get_data(self, position: int) -> Sample:
        return self._data_source._get_data_of_generation(
            self._slice_start + position, self._generation
        )

    def apply_order(self) -> None:
        """Change to the next order of the sliced source."""
        self._generation += 1

    def reset(self) -> None:
        """Go back to the first sample of the slice; a source that shuffles in reset does so."""
        position = self._data_source._position
        self._data_source.reset()
        self._data_source._position = position
        super().reset()


class DataSourceWithMemoryCache(DataSource):
    """Keep the samples of another source in memory once they are read.

    The first two epochs come in the order of data_source, later ones in orders of this source's
    generator. A data set larger than `settings.memory_cache_bytes`, judged by its first sample, is
    not kept: then everything passes through to data_source.

    Args:
        data_source: The source to keep; closed with this one.
        shuffle: Whether to draw a new order each epoch, from the third on.
        rng: Generator of the orders; None is a new RandomState(313).
    Example:
        >>> from nnl.utils.data_iterator import DataSourceWithMemoryCache, SimpleDataSource
        >>> kept = DataSourceWithMemoryCache(SimpleDataSource(lambda i: (i, 2 * i), 3))
        >>> kept.next(), kept.next()
        ((np.int64(0), np.int64(0)), (np.int64(1), np.int64(2)))
    """

    def __init__(
        self,
        data_source: DataSource,
        shuffle: bool = False,
        rng: np.random.RandomState | None = None,
    ) -> None:
        super().__init__(shuffle=shuffle, rng=rng)
        self._data_source = data_source
        self._variables = data_source.variables
        self._size = data_source.size
        self._order = list(range(self._size))
        self._samples: list[Sample] = [None] * self._size
        self._missing = self._size
        self.ahead = data_source.ahead
        sample_bytes = sum(np.asarray(value).nbytes for value in given(data_source._get_data(0)))
        self._on_memory = sample_bytes * self._size <= settings.memory_cache_bytes
        logger.debug("memory cache: %s", "on" if self._on_memory else "the data set is too large")

    def _get_data(self, position: int) -> Sample:
        if not self._on_memory:
            return self._data_source._get_data(position)
        index = self._order[position]
        if self._samples[index] is None:
            self._samples[index] = self._data_source._get_data(index)
            self._missing -= 1
        return self._samples[index]

    def _get_data_of_generation(self, position: int, generation: int) -> Sample:
        if self._on_memory:
            return self._get_data(position)
        return self._data_source._get_data_of_generation(position, generation)

    def reset(self) -> None:
        """Go back to position 0, with a new order from the third epoch on if shuffle is set."""
        if not self._on_memory:
            self._data_source.reset()
        elif self._missing < self._size:
            self._generation += 1
            if self._shuffle and self._generation > 0:
                self._order = self._rng.permutation(self._size).tolist()
            if not self._missing:  # else the rest is still to be read in the old order
                self._data_source.reset()
        super().reset()

    def apply_order(self) -> None:
        """Change to the next order of data_source, if its samples are not kept."""
        if not self._on_memory:
            self._data_source.apply_order()

    def close(self) -> None:
        """Close data_source too."""
        if not self._closed:
            self._data_source.close()
        super().close()
