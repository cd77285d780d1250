# SPDX-License-Identifier: Apache-2.0
"""Data sets described by a .csv file, and their copy into cache files."""

from __future__ import annotations

import csv
import os
from typing import Any

import numpy as np

from nnl.data.damage import naming
from nnl.data.loader import FileReader, get_file_extension, load
from nnl.data.source import DataSource, Sample
from nnl.data.source_file_cache import DataSourceWithFileCache


class CsvDataSource(DataSource):
    """The rows of a .csv file.

    A column's header is a variable's name, optionally followed by `__` and an index (the columns
    of one variable make a vector, in the order they stand in), optionally by `:` and a label that
    is not used. Columns whose header starts with # are left out. A cell is a number or the name of
    a file, relative to the .csv file's folder, that `nnl.data.loader.load` reads.

    Args:
        filename: The .csv file, or its http(s) address.
        shuffle: Whether every epoch is a new permutation of the rows.
        rng: Generator of the permutations; None is a new RandomState(313).
        normalize: Whether images are divided by 255.
    Raises:
        ValueError: the file has no header, or a row another number of cells than the header.
    Example:
        >>> from nnl.utils.data_iterator import CsvDataSource
        >>> table = [[1, 2, 0], [3, 4, 1]]
        >>> np.savetxt("ex.csv", table, delimiter=",", header="x__0,x__1,y", comments="")
        >>> rows = CsvDataSource("ex.csv")
        >>> rows.variables, rows.next()
        (('x', 'y'), ([1.0, 2.0], [0.0]))
    """

    def __init__(
        self,
        filename: str,
        shuffle: bool = False,
        rng: np.random.RandomState | None = None,
        normalize: bool = False,
    ) -> None:
        super().__init__(shuffle=shuffle, rng=rng)
        self._filename = os.fspath(filename)
        self._normalize = normalize
        self._filereader = FileReader(self._filename)
        where = f"CsvDataSource: {self._filename}"
        with naming(where), self._filereader.open(textmode=True) as file:
            reader = csv.reader(file)
            header = next(reader, [])
            numbered = [(reader.line_num, row) for row in reader if row]
        if not header:
            raise ValueError(f"{where} has no header")
        if not numbered:
            raise ValueError(f"{where} has a header and no rows")
        for line, row in numbered:
            if len(row) != len(header):
                raise ValueError(
                    f"CsvDataSource: {self._filename}, line {line} has {len(row)} cells, the "
                    f"header {len(header)}"
                )
        self._rows = [row for _, row in numbered]
        self._read_header(header)
        self._size = len(self._rows)
        self._original_order = list(range(self._size))
        self.reset()

    def original(self) -> str:
        """The text of the file, which caches keep."""
        with self._filereader.open(textmode=True) as file:
            text: str = file.read()
        return text

    def _read_header(self, header: list[str]) -> None:
        self._columns: dict[str, list[int]] = {}
        self._vectors: set[str] = set()
        for i, title in enumerate(header):
            if title.startswith("#"):
                continue
            name, is_vector, _ = title.split(":", 1)[0].partition("__")
            self._columns.setdefault(name, []).append(i)
            if is_vector:
                self._vectors.add(name)
        self._variables = tuple(self._columns)

    def _value(self, cell: str) -> Any:
        """A number, or what is in the file that the cell names."""
        try:
            return float(cell)
        except ValueError:
            extension = get_file_extension(cell)
        if not extension:
            raise ValueError(
                f"CsvDataSource: {self._filename}: {cell!r} is neither a number nor a file name"
            )
        where = f"CsvDataSource: {self._filename}: {cell!r}"
        with naming(where), self._filereader.open(cell) as file:
            return load(extension)(file, normalize=self._normalize)

    def _get_data(self, position: int) -> Sample:
        row = self._rows[self._order[position]]
        sample = []
        for name, columns in self._columns.items():
            values = [self._value(row[i]) for i in columns]
            if name in self._vectors or isinstance(values[0], float):
                sample.append(values if isinstance(values[0], float) else np.array(values))
            else:
                sample.append(values[0])
        return tuple(sample)

    def reset(self) -> None:
        """Go back to the first row, in a new order if shuffle is set."""
        if self._shuffle:
            self._order = self._rng.permutation(self._size).tolist()
        else:
            self._order = list(range(self._size))
        self._generation += 1
        super().reset()


class CreateCache(CsvDataSource):
    """Copy the data set of a .csv file into a folder of cache files.

    Args:
        input_csv_filename: See CsvDataSource.
        rng: Generator of the order; None is a new RandomState(313).
        shuffle: Whether the rows are copied in random order.
        num_of_threads: Accepted for compatibility; rows are read one after the other.
    """

    def __init__(
        self,
        input_csv_filename: str,
        rng: np.random.RandomState | None = None,
        shuffle: bool = False,
        num_of_threads: int | None = None,
    ) -> None:
        super().__init__(input_csv_filename, shuffle=shuffle, rng=rng)

    def create(
        self,
        output_cache_dirname: str,
        normalize: bool = True,
        cache_file_name_prefix: str = "cache",
    ) -> None:
        """Write the cache files, which CacheDataSource reads.

        Args:
            output_cache_dirname: Folder for the files, made if missing.
            normalize: Whether images are divided by 255.
            cache_file_name_prefix: Start of the cache files' names.
        """
        self._normalize = normalize
        DataSourceWithFileCache(
            self, output_cache_dirname, cache_file_name_prefix, shuffle=self._shuffle
        )
