# SPDX-License-Identifier: Apache-2.0
"""Data sources over a function, and over other sources in a row."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from nnl.data.source import DataSource, Sample
from nnl.data.workers import whole

KEPT_ORDERS = 15  # how many epochs the slowest slice may lag behind the fastest


class SimpleDataSource(DataSource):
    """Samples that a function returns by index.

    Orders are numbered by generation: `apply_order` goes to the next one, `reset` does not. Slices
    read the orders by number, so slices of one source never share a sample within an epoch.

    Args:
        load_func: Called with an index in [0, num_examples), returns a tuple, list or array with
            one array-like per variable. It is called once at once, with 0, to count the variables,
            which are named x0, x1, ...
        num_examples: Number of samples.
        shuffle: Whether each generation is a new permutation.
        rng: Generator of the permutations; None is a new RandomState(313).
        num_workers: How many threads load samples ahead; 0 loads each when it is asked for.
        use_multiprocessing: Whether the workers are processes, for a load_func that keeps Python's
            lock. Samples are sent through pipes.
    Raises:
        TypeError: load_func is not callable or does not return a tuple or list, or num_examples
            is not an integer.
        ValueError: num_examples is not positive, num_workers is negative or more than 1024, or
            there are no workers to be processes.
    Example:
        >>> from nnl.utils.data_iterator import SimpleDataSource
        >>> source = SimpleDataSource(lambda i: (i, i**2), 3)
        >>> [source.next() for _ in range(3)]
        [(np.int64(0), np.int64(0)), (np.int64(1), np.int64(1)), (np.int64(2), np.int64(4))]
    """

    called = "SimpleDataSource"  # what errors name

    def __init__(
        self,
        load_func: Callable[[int], Any],
        num_examples: int,
        shuffle: bool = False,
        rng: np.random.RandomState | None = None,
        num_workers: int = 0,
        use_multiprocessing: bool = False,
    ) -> None:
        if not callable(load_func):
            raise TypeError(
                f"{self.called}: load_func is a {type(load_func).__name__}, a function wanted"
            )
        size = whole(self.called, "num_examples", num_examples)
        if size < 1:
            raise ValueError(
                f"{self.called}: num_examples={size}: there are no samples, wanted at least 1"
            )
        super().__init__(shuffle=shuffle, rng=rng)
        self._let_load(load_func)
        first = self._load(0, 0)
        rows = isinstance(first, np.ndarray) and first.ndim > 0  # one per variable
        if not rows and not isinstance(first, tuple | list):
            raise TypeError(
                f"{self.called}: load_func returned a {type(first).__name__} for sample 0, "
                "a tuple of one array per variable wanted"
            )
        self._size = size
        self._variables = [f"x{i}" for i in range(len(first))]
        self._orders: dict[int, Any] = {}
        self._drawn = 0
        self._generation = 0
        self._order_of(0)
        self.reset()
        self._employ(self.called, num_workers, use_multiprocessing)

    def _order_of(self, generation: int) -> Any:
        while self._drawn <= generation:
            drawn = self._rng.permutation(self._size) if self._shuffle else np.arange(self._size)
            self._orders[self._drawn] = drawn
            self._drawn += 1
            self._orders.pop(self._drawn - 1 - KEPT_ORDERS, None)
        if generation not in self._orders:
            raise ValueError(
                f"SimpleDataSource: epoch {generation} was asked for after epoch "
                f"{self._drawn - 1}; slices of one source may be {KEPT_ORDERS} epochs apart"
            )
        return self._orders[generation]

    def _get_data(self, position: int) -> Sample:
        return self._get_data_of_generation(position, self._generation)

    def _get_data_of_generation(self, position: int, generation: int) -> Sample:
        return self._load(self._order_of(generation)[position], generation)

    def apply_order(self) -> None:
        """Change to the order of the next generation."""
        self._generation += 1
        self._order_of(self._generation)


class ConcatDataSource(DataSource):
    """The samples of several sources, one source after the other, or all of them shuffled.

    Args:
        data_source_list: The sources. They must have the same variables and are closed with this.
        shuffle: Whether every epoch is a new permutation of all samples.
        rng: Generator of the permutations; None is a new RandomState(313).
    Raises:
        ValueError: the list is empty, or two sources differ in their variables.
    Example:
        >>> from nnl.utils.data_iterator import ConcatDataSource, SimpleDataSource
        >>> two = [SimpleDataSource(lambda i, k=k: (10 * k + i,), 2) for k in (1, 2)]
        >>> both = ConcatDataSource(two)
        >>> [both.next()[0] for _ in range(4)]
        [np.int64(21), np.int64(11), np.int64(20), np.int64(10)]
    """

    def __init__(
        self,
        data_source_list: Sequence[DataSource],
        shuffle: bool = True,
        rng: np.random.RandomState | None = None,
    ) -> None:
        if not data_source_list:
            raise ValueError("ConcatDataSource: data_source_list is empty")
        variables = data_source_list[0].variables
        for i, source in enumerate(data_source_list):
            if tuple(source.variables) != tuple(variables):
                raise ValueError(
                    f"ConcatDataSource: source {i} has the variables {tuple(source.variables)}, "
                    f"source 0 has {tuple(variables)}"
                )
        super().__init__(shuffle=shuffle, rng=rng)
        self._data_sources = list(data_source_list)
        self.ahead = max(s.ahead for s in data_source_list)
        self._ends = list(accumulate(source.size for source in data_source_list))
        self._size = self._ends[-1]
        self._variables = variables
        self.reset()

    def _get_data(self, position: int) -> Sample:
        index = int(self._indexes[position])
        which = bisect_right(self._ends, index)
        start = self._ends[which - 1] if which else 0
        return self._data_sources[which]._get_data(index - start)

    def reset(self) -> None:
        """Go back to position 0, with a new permutation if shuffle is set."""
        if self._shuffle:
            self._indexes = self._rng.permutation(self._size)
        else:
            self._indexes = np.arange(self._size)
        super().reset()

    def close(self) -> None:
        """Close all sources."""
        for source in self._data_sources:
            source.close()
        super().close()
