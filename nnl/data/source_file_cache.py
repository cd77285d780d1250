# SPDX-License-Identifier: Apache-2.0
"""A data source that copies another one into cache files and reads those."""

from __future__ import annotations

import os
import tempfile
import threading
from bisect import bisect_right
from itertools import accumulate
from typing import Any

import numpy as np

from nnl.core.parameters.atomic import replacing
from nnl.data.cache_files import FORMATS, INDEX, INFO, read_samples, write_lines, write_samples
from nnl.data.settings import settings
from nnl.data.source import DataSource, Sample, logger
from nnl.data.workers import given


class DataSourceWithFileCacheError(ValueError):
    """The samples of a source cannot be stored together in one cache file."""


def _array(value: Any) -> np.ndarray[Any, Any]:
    """An array keeps its dtype; numbers and lists of them, such as .csv cells, become float32."""
    return value if isinstance(value, np.ndarray) else np.asarray(value, np.float32)


class DataSourceWithFileCache(DataSource):
    """Copy a source into cache files at once, then read those.

    With shuffle, an epoch goes through the files in random order and through the samples of each
    file in random order, so that every file is read once. The constructor reads the whole source.

    Args:
        data_source: The source to copy; closed with this one.
        cache_dir: Folder for the files, made if missing, kept; None is a temporary folder that is
            removed by close().
        cache_file_name_prefix: Start of the cache files' names.
        shuffle: Whether every epoch has a new order.
        rng: Generator of the orders; None is a new RandomState(313).
    Raises:
        ValueError: `settings.cache_file_format` is neither .npy nor .h5.
        DataSourceWithFileCacheError: samples differ in shape.
    Example:
        >>> from nnl.utils.data_iterator import DataSourceWithFileCache, SimpleDataSource
        >>> source = SimpleDataSource(lambda i: (np.array([i]),), 3)
        >>> kept = DataSourceWithFileCache(source, cache_dir="ex_cache")
        >>> kept.size
        3
    """

    def __init__(
        self,
        data_source: DataSource,
        cache_dir: str | None = None,
        cache_file_name_prefix: str = "cache",
        shuffle: bool = False,
        rng: np.random.RandomState | None = None,
    ) -> None:
        if settings.cache_file_format not in FORMATS:
            raise ValueError(
                f"DataSourceWithFileCache: settings.cache_file_format="
                f"{settings.cache_file_format!r} is not one of {FORMATS}"
            )
        super().__init__(shuffle=shuffle, rng=rng)
        self._data_source = data_source
        self._variables = data_source.variables
        self._size = data_source.size
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if cache_dir is None:
            where = settings.cache_location or None
            self._temporary = tempfile.TemporaryDirectory(prefix="nnl_cache_", dir=where)
            cache_dir = self._temporary.name
        self._cache_dir = cache_dir
        self._lock = threading.Lock()
        self._loaded: tuple[int, dict[str, Any]] = (-1, {})
        self._file_names: list[str] = []
        self._file_sizes: list[int] = []
        try:
            self._create_cache(cache_file_name_prefix)
        except BaseException:
            if self._temporary is not None:
                self._temporary.cleanup()
            raise
        self._original_order = list(range(self._size))
        self._arrange(
            list(range(len(self._file_sizes))), [list(range(n)) for n in self._file_sizes]
        )

    def _create_cache(self, prefix: str) -> None:
        os.makedirs(self._cache_dir, exist_ok=True)
        logger.info("copying %d samples to the cache %s", self._size, self._cache_dir)
        write_files(self._data_source, self._cache_dir, 0, self._size, prefix)
        files = write_index(self._data_source, self._cache_dir, prefix)
        self._file_names, self._file_sizes = [*files], [*files.values()]

    def _arrange(self, file_order: list[int], row_orders: list[list[int]]) -> None:
        """Read the files in this order, and the rows of each file in its order."""
        starts = [0, *accumulate(self._file_sizes)]
        self._file_order, self._row_orders = file_order, row_orders
        self._ends = list(accumulate(self._file_sizes[i] for i in file_order))
        self._order = [starts[i] + row for i in file_order for row in row_orders[i]]

    def _get_data(self, position: int) -> Sample:
        place = bisect_right(self._ends, position)
        which = self._file_order[place]
        row = self._row_orders[which][position - (self._ends[place] - self._file_sizes[which])]
        with self._lock:
            if self._loaded[0] != which:
                path = os.path.join(self._cache_dir, self._file_names[which])
                self._loaded = (which, read_samples(path, self._variables))
            columns = self._loaded[1]
        return tuple(columns[name][row] for name in self._variables)

    def reset(self) -> None:
        """Go back to position 0, with a new order if shuffle is set."""
        if self._shuffle:
            file_order = self._rng.permutation(self._file_order).tolist()
            row_orders = [self._rng.permutation(rows).tolist() for rows in self._row_orders]
            self._arrange(file_order, row_orders)
        self._data_source.reset()
        self._generation += 1
        super().reset()

    def close(self) -> None:
        """Close data_source, and remove the cache if its folder is temporary."""
        if not self._closed:
            self._data_source.close()
            if self._temporary is not None:
                self._temporary.cleanup()
        super().close()


def _files(source: DataSource, prefix: str) -> dict[str, tuple[int, int]]:
    """The cache files of a source: from which sample to which one."""
    step, size = settings.file_cache_rows, source.size
    ranges = [(start, min(start + step, size)) for start in range(0, size, step)]
    return {f"{prefix}_{a:08d}_{b - 1:08d}{settings.cache_file_format}": (a, b) for a, b in ranges}


def write_files(
    source: DataSource, folder: str, first: int, last: int, prefix: str = "cache"
) -> None:
    """Write those of a source's cache files that begin from sample `first` on and before `last`."""
    from tqdm import tqdm

    with tqdm(total=last - first, desc="cache", unit="sample", disable=None) as progress:
        for name, (start, end) in _files(source, prefix).items():
            if not first <= start < last:
                continue
            samples = []
            found: Any = (source._get_data(i) for i in range(start, end))
            for sample in list(found) if source.ahead else found:
                samples.append(given(sample))
                progress.update()
            write_samples(os.path.join(folder, name), _columns(source, samples, start))


def write_index(source: DataSource, folder: str, prefix: str = "cache") -> dict[str, int]:
    """Write what a cache has besides its files; how many samples each of these has."""
    files = {name: end - start for name, (start, end) in _files(source, prefix).items()}
    write_lines(os.path.join(folder, INDEX), [f"{name},{n}" for name, n in files.items()])
    if settings.cache_file_format == ".npy":
        write_lines(os.path.join(folder, INFO), source.variables)
    original = getattr(source, "original", None)
    if original is not None:
        with replacing(os.path.join(folder, "original.csv")) as file:
            file.write_text(original(), encoding="utf-8", newline="")
    before, now = source._original_order, source._order
    if before is not None and now is not None:
        pairs = zip(before, now, strict=False)
        write_lines(os.path.join(folder, "order.csv"), [f"{a},{b}" for a, b in pairs])
    return files


def _columns(source: DataSource, samples: list[Sample], start: int) -> dict[str, Any]:
    columns = {}
    for i, name in enumerate(source.variables):
        values = [_array(sample[i]) for sample in samples]
        for offset, value in enumerate(values):
            if value.shape != values[0].shape:
                this, first = source.place(start + offset), source.place(start)
                sizes = ""
                if value.ndim == values[0].ndim == 3:
                    sizes = "; nnl create_image_classification_dataset makes pictures alike"
                raise DataSourceWithFileCacheError(
                    f"DataSourceWithFileCache: {name} of {this} has the shape {value.shape}, "
                    f"of {first} {values[0].shape}; samples in a file cache must be of one "
                    f"shape{sizes}"
                )
        columns[name] = np.array(values)
    return columns
