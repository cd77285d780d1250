# SPDX-License-Identifier: Apache-2.0
"""Minibatches from data sources, read ahead in a thread."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from nnl.core.arguments.annotations import checked
from nnl.data.source import DataSource, DataSourceWithMemoryCache, SlicedDataSource
from nnl.data.source_cache import CacheDataSource
from nnl.data.source_csv import CsvDataSource
from nnl.data.source_file_cache import DataSourceWithFileCache
from nnl.data.source_simple import ConcatDataSource, SimpleDataSource
from nnl.data.workers import given as _given

RandomState = np.random.RandomState
Callback = Callable[[int], object]
Array = np.ndarray[Any, Any]


class _Plan(NamedTuple):
    samples: list[Any]  # or promises of them
    epochs_ended: int
    position: int


class _Batch(NamedTuple):
    data: tuple[Array, ...]
    epochs_ended: int
    position: int  # of the source, after the batch


class DataIterator:
    """Minibatches without end: the last batch of an epoch is filled from the next epoch.

    With shuffle, what fills the last batch comes from the old order and the rest of that epoch
    from the new one, so a sample may come twice or not at all around the end of an epoch.

    Args:
        data_source: Where the samples come from; closed with the iterator.
        batch_size: Number of samples in a batch.
        rng: Generator for slices; None is a new RandomState(313).
        use_thread: Whether a thread reads the next batch while this one is used. An error there is
            raised by the call of next() that would have returned its batch.
        epoch_begin_callbacks: Functions that are called with the number of the epoch that begins,
            from 1 on, by the call of next() that returns its first sample or the last one before.
        epoch_end_callbacks: The same for the number of the epoch that ends, from 0 on.
        stop_exhausted: Whether to stop after the last full batch of the first epoch.
    Raises:
        ValueError: batch_size is not positive, or the source is empty.
    Example:
        >>> from nnl.utils.data_iterator import DataIterator, SimpleDataSource
        >>> with DataIterator(SimpleDataSource(lambda i: (i,), 5), 2) as batches:
        ...     [batches.next()[0].tolist() for _ in range(4)]
        [[0, 1], [2, 3], [4, 0], [1, 2]]
    """

    @checked
    def __init__(
        self,
        data_source: DataSource,
        batch_size: int,
        rng: RandomState | None = None,
        use_thread: bool = True,
        epoch_begin_callbacks: Iterable[Callback] = (),
        epoch_end_callbacks: Iterable[Callback] = (),
        stop_exhausted: bool = False,
    ) -> None:
        if not 1 <= batch_size <= 2**24:
            raise ValueError(f"DataIterator: batch_size={batch_size} is not in [1, 2^24]")
        if data_source.size < 1:
            raise ValueError("DataIterator: data_source has no samples")
        self._rng = RandomState(313) if rng is None else rng
        self._data_source = data_source
        self._batch_size = batch_size
        self._variables = data_source.variables
        self._size = data_source.size
        self._epoch_begin_callbacks = list(epoch_begin_callbacks)
        self._epoch_end_callbacks = list(epoch_end_callbacks)
        self._stop_exhausted = stop_exhausted
        self._use_thread = use_thread
        self._epoch = 0
        self._position = 0
        self._closed = False
        self._pool: ThreadPoolExecutor | None = None
        self._ahead: Future[_Batch | None] | None = None
        self._plans: deque[_Plan | None] = deque()
        if use_thread:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="nnl_data")
        self._reset()

    def _reset(self) -> None:
        """Begin an epoch anew. Scripts rewind with it, so it also drops what was read ahead."""
        if self._ahead is not None:
            self._ahead.exception()  # the thread is done with the source
        self._plans.clear()
        self._data_source.reset()
        self._position = 0
        if self._pool is not None:
            self._ahead = self._pool.submit(self._read_batch)

    def _read_batch(self) -> _Batch | None:
        """Read one batch from the source; None if the data are exhausted. Samples that workers load
        are asked for some batches before."""
        plans, ahead = self._plans, getattr(self._data_source, "ahead", 0)
        while not plans or (plans[-1] is not None and (len(plans) - 1) * self._batch_size < ahead):
            plans.append(self._plan())
        plan = plans.popleft()
        if plan is None:
            return None
        data = self._stack([_given(sample) for sample in plan.samples])
        return _Batch(data, plan.epochs_ended, plan.position)

    def _plan(self) -> _Plan | None:
        source = self._data_source
        take = source.take if getattr(source, "ahead", 0) else source.next
        if self._stop_exhausted and source.position + self._batch_size > self._size:
            return None
        samples = []
        epochs_ended = 0
        for _ in range(self._batch_size):
            samples.append(take())
            if source.position >= self._size and not self._stop_exhausted:
                source.reset()
                epochs_ended += 1
        if epochs_ended:
            source.apply_order()
        return _Plan(samples, epochs_ended, source.position)

    def _stack(self, samples: list[Any]) -> tuple[Array, ...]:
        columns = []
        for i, name in enumerate(self._variables):
            values = [sample[i] for sample in samples]
            if any(isinstance(v, np.ma.MaskedArray) and np.ma.is_masked(v) for v in values):
                raise ValueError(
                    f"DataIterator: {name} has samples with masked elements: filled(0) gives them "
                    "a value"
                )
            try:
                columns.append(np.array(values))
            except ValueError:
                shapes = sorted({np.shape(value) for value in values})
                raise ValueError(
                    f"DataIterator: {name} has samples of the shapes {shapes} in one batch"
                ) from None
        return tuple(columns)

    def next(self) -> tuple[Array, ...]:
        """Return the next batch: for each variable an array with the samples along axis 0.

        Raises:
            StopIteration: the data are exhausted and stop_exhausted is set.
            ValueError: the iterator is closed, or samples of one batch differ in shape.
        """
        if self._closed:
            raise ValueError("DataIterator: next() after close()")
        if self._pool is None or self._ahead is None:
            batch = self._read_batch()
        else:
            ahead, self._ahead = self._ahead, None
            try:
                batch = ahead.result()
            finally:
                self._ahead = self._pool.submit(self._read_batch)
        if batch is None:
            raise StopIteration
        self._position = batch.position
        for _ in range(batch.epochs_ended):
            for callback in self._epoch_end_callbacks:
                callback(self._epoch)
            self._epoch += 1
            for callback in self._epoch_begin_callbacks:
                callback(self._epoch)
        return batch.data

    def __next__(self) -> tuple[Array, ...]:
        return self.next()

    def __iter__(self) -> DataIterator:
        return self

    def __enter__(self) -> DataIterator:
        return self

    def __exit__(
        self,
        type: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the thread and close the data source. Closing twice is allowed."""
        if self._closed:
            return
        self._closed = True
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._data_source.close()

    @property
    def size(self) -> int:
        """Number of samples in an epoch."""
        return self._size

    @property
    def variables(self) -> Any:
        """Names of the variables, in the order of a batch."""
        return self._variables

    @property
    def batch_size(self) -> int:
        """Number of samples in a batch."""
        return self._batch_size

    @property
    def epoch(self) -> int:
        """Number of epochs that the batches returned so far have completed."""
        return self._epoch

    @property
    def position(self) -> int:
        """Number of samples of the present epoch in the batches returned so far."""
        return self._position

    def register_epoch_begin_callback(self, callback: Callback) -> None:
        """Add a function to call with the number of each epoch that begins."""
        self._epoch_begin_callbacks.append(callback)

    def register_epoch_end_callback(self, callback: Callback) -> None:
        """Add a function to call with the number of each epoch that ends."""
        self._epoch_end_callbacks.append(callback)

    def slice(
        self,
        rng: RandomState | None,
        num_of_slices: int | None = None,
        slice_pos: int | None = None,
        slice_start: int | None = None,
        slice_end: int | None = None,
        cache_dir: str | None = None,
        use_cache: bool = False,
        drop_last: bool = False,
    ) -> DataIterator:
        """Return an iterator over a part of the same source, for data-parallel training.

        The part is given by `num_of_slices` and `slice_pos` or by `slice_start` and `slice_end`.
        All slices have one size; if it does not divide the data, the last slice begins earlier
        and shares samples with the one before. The new iterator has the same batch size, a thread,
        and neither callbacks nor stop_exhausted. The source stays open when it is closed.

        Args:
            rng: Generator for caches; None is the iterator's.
            num_of_slices: Number of slices, say the number of workers.
            slice_pos: Number of this slice, say the rank.
            slice_start: First position.
            slice_end: Position after the last.
            cache_dir: Folder for cache files of the slice; None is memory.
            use_cache: Whether to cache the slice, in memory, and before in files if cache_dir.
            drop_last: Whether to leave out the rest of the division.
        Raises:
            ValueError: the part is given neither way, or is empty or outside the data.
        """
        if num_of_slices is not None and slice_pos is not None:
            if not 0 <= slice_pos < num_of_slices:
                raise ValueError(
                    f"DataIterator.slice: slice_pos={slice_pos} is not in "
                    f"[0, num_of_slices={num_of_slices})"
                )
            each = self._size / num_of_slices
            length = math.floor(each) if drop_last else math.ceil(each)
            start = min(slice_pos * length, self._size - length)
            end = start + length
        elif slice_start is not None and slice_end is not None:
            start, end = slice_start, slice_end
        else:
            raise ValueError(
                "DataIterator.slice: give num_of_slices and slice_pos, or slice_start and slice_end"
            )
        rng = self._rng if rng is None else rng
        shuffle = self._data_source.shuffle
        source: DataSource = SlicedDataSource(self._data_source, shuffle, rng, start, end)
        if use_cache:
            if cache_dir is not None:
                prefix = f"cache_sliced_{start:08d}_{end:08d}"
                source = DataSourceWithFileCache(source, cache_dir, prefix, shuffle, rng)
            source = DataSourceWithMemoryCache(source, shuffle, rng)
        return DataIterator(source, self._batch_size)


def data_iterator(
    data_source: DataSource,
    batch_size: int,
    rng: RandomState | None = None,
    use_thread: bool = True,
    with_memory_cache: bool = True,
    with_file_cache: bool = False,
    cache_dir: str | None = None,
    epoch_begin_callbacks: Sequence[Callback] = (),
    epoch_end_callbacks: Sequence[Callback] = (),
    stop_exhausted: bool = False,
) -> DataIterator:
    """Iterate over a data source.

    Args:
        data_source: Any DataSource.
        rng: Generator of the caches' orders; None is a new RandomState(313) each.
        with_memory_cache: Whether samples are kept in memory; see DataSourceWithMemoryCache.
        with_file_cache: Whether the source is copied to files first; see DataSourceWithFileCache.
        cache_dir: Folder for these files; None is a temporary one.
        batch_size, use_thread, epoch_begin_callbacks, epoch_end_callbacks, stop_exhausted: See
            DataIterator.
    Example:
        >>> from nnl.utils.data_iterator import SimpleDataSource, data_iterator
        >>> with data_iterator(SimpleDataSource(lambda i: (i,), 4), 2) as batches:
        ...     batches.next()
        (array([0, 1]),)
    """
    shuffle = data_source.shuffle
    if with_file_cache:
        data_source = DataSourceWithFileCache(data_source, cache_dir, shuffle=shuffle, rng=rng)
    if with_memory_cache:
        data_source = DataSourceWithMemoryCache(data_source, shuffle=shuffle, rng=rng)
    return DataIterator(
        data_source,
        batch_size,
        rng=rng,
        use_thread=use_thread,
        epoch_begin_callbacks=epoch_begin_callbacks,
        epoch_end_callbacks=epoch_end_callbacks,
        stop_exhausted=stop_exhausted,
    )


class _Samples(SimpleDataSource):
    called = "data_iterator_simple"


def data_iterator_simple(
    load_func: Callable[[int], Any],
    num_examples: int,
    batch_size: int,
    shuffle: bool = False,
    rng: RandomState | None = None,
    use_thread: bool = True,
    with_memory_cache: bool = False,
    with_file_cache: bool = False,
    cache_dir: str | None = None,
    epoch_begin_callbacks: Sequence[Callback] = (),
    epoch_end_callbacks: Sequence[Callback] = (),
    stop_exhausted: bool = False,
    num_workers: int = 0,
    use_multiprocessing: bool = False,
) -> DataIterator:
    """Iterate over samples that a function returns by index: see SimpleDataSource, data_iterator.

    A number n becomes a batch of the shape (batch_size,); labels for a Variable of the shape
    (batch_size, 1) are given as [n]. With num_workers, threads or processes load several samples at
    once; batches are the same, in the same order, and an error notes the index of its sample.

    Example:
        >>> from nnl.utils.data_iterator import data_iterator_simple
        >>> with data_iterator_simple(lambda i: (i, 2 * i), 4, 2) as batches:
        ...     [x.tolist() for x in batches.next()]
        [[0, 1], [0, 2]]
    """
    return data_iterator(
        _Samples(load_func, num_examples, shuffle, rng, num_workers, use_multiprocessing),
        batch_size,
        use_thread=use_thread,
        with_memory_cache=with_memory_cache,
        with_file_cache=with_file_cache,
        cache_dir=cache_dir,
        epoch_begin_callbacks=epoch_begin_callbacks,
        epoch_end_callbacks=epoch_end_callbacks,
        stop_exhausted=stop_exhausted,
    )


def data_iterator_csv_dataset(
    uri: str,
    batch_size: int,
    shuffle: bool = False,
    rng: RandomState | None = None,
    use_thread: bool = True,
    normalize: bool = True,
    with_memory_cache: bool = True,
    with_file_cache: bool = True,
    cache_dir: str | None = None,
    epoch_begin_callbacks: Sequence[Callback] = (),
    epoch_end_callbacks: Sequence[Callback] = (),
    stop_exhausted: bool = False,
    encoding: str | None = None,
    channels: int | None = None,
    num_workers: int = 0,
    use_multiprocessing: bool = False,
) -> DataIterator:
    """Iterate over the rows of a .csv file: see CsvDataSource, data_iterator.

    Example:
        >>> from nnl.utils.data_iterator import data_iterator_csv_dataset
        >>> table = [[1, 0], [3, 1]]
        >>> np.savetxt("ex.csv", table, delimiter=",", header="x,y", comments="")
        >>> with data_iterator_csv_dataset("ex.csv", 2, with_file_cache=False) as batches:
        ...     [column.ravel().tolist() for column in batches.next()]
        [[1.0, 3.0], [0.0, 1.0]]
    """
    return data_iterator(
        CsvDataSource(
            uri, shuffle, rng, normalize, encoding, channels, num_workers, use_multiprocessing
        ),
        batch_size,
        use_thread=use_thread,
        with_memory_cache=with_memory_cache,
        with_file_cache=with_file_cache,
        cache_dir=cache_dir,
        epoch_begin_callbacks=epoch_begin_callbacks,
        epoch_end_callbacks=epoch_end_callbacks,
        stop_exhausted=stop_exhausted,
    )


def data_iterator_cache(
    uri: str,
    batch_size: int,
    shuffle: bool = False,
    rng: RandomState | None = None,
    use_thread: bool = True,
    normalize: bool = True,
    with_memory_cache: bool = True,
    epoch_begin_callbacks: Sequence[Callback] = (),
    epoch_end_callbacks: Sequence[Callback] = (),
    stop_exhausted: bool = False,
) -> DataIterator:
    """Iterate over a folder of cache files: see CacheDataSource, data_iterator.

    Example:
        >>> from nnl.utils.data_iterator import DataSourceWithFileCache, SimpleDataSource
        >>> from nnl.utils.data_iterator import data_iterator_cache
        >>> source = SimpleDataSource(lambda i: (np.array([i]),), 3)
        >>> DataSourceWithFileCache(source, cache_dir="ex_again").close()
        >>> with data_iterator_cache("ex_again", 3) as batches:
        ...     batches.next()[0].ravel()
        array([0, 1, 2])
    """
    return data_iterator(
        CacheDataSource(uri, shuffle=shuffle, rng=rng, normalize=normalize),
        batch_size,
        use_thread=use_thread,
        with_memory_cache=with_memory_cache,
        epoch_begin_callbacks=epoch_begin_callbacks,
        epoch_end_callbacks=epoch_end_callbacks,
        stop_exhausted=stop_exhausted,
    )


def data_iterator_concat_datasets(
    data_source_list: Sequence[DataSource],
    batch_size: int,
    shuffle: bool = False,
    rng: RandomState | None = None,
    use_thread: bool = True,
    with_memory_cache: bool = True,
    with_file_cache: bool = False,
    cache_dir: str | None = None,
    epoch_begin_callbacks: Sequence[Callback] = (),
    epoch_end_callbacks: Sequence[Callback] = (),
    stop_exhausted: bool = False,
) -> DataIterator:
    """Iterate over several data sources as one: see ConcatDataSource, data_iterator.

    Example:
        >>> from nnl.utils.data_iterator import SimpleDataSource, data_iterator_concat_datasets
        >>> two = [SimpleDataSource(lambda i, k=k: (10 * k + i,), 2) for k in (1, 2)]
        >>> with data_iterator_concat_datasets(two, 4) as batches:
        ...     batches.next()[0].tolist()
        [10, 11, 20, 21]
    """
    return data_iterator(
        ConcatDataSource(data_source_list, shuffle=shuffle, rng=rng),
        batch_size,
        use_thread=use_thread,
        with_memory_cache=with_memory_cache,
        with_file_cache=with_file_cache,
        cache_dir=cache_dir,
        epoch_begin_callbacks=epoch_begin_callbacks,
        epoch_end_callbacks=epoch_end_callbacks,
        stop_exhausted=stop_exhausted,
    )
