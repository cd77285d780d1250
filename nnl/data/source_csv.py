# SPDX-License-Identifier: Apache-2.0
"""Data sets described by a .csv file, and their copy into cache files."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from nnl.data import table
from nnl.data.damage import naming
from nnl.data.loader import FileReader, get_file_extension, load, load_image
from nnl.data.source import DataSource, Sample
from nnl.data.source_file_cache import DataSourceWithFileCache


class CsvDataSource(DataSource):
    """The rows of a .csv file.

    A column's header is a variable's name, optionally followed by `__` and an index (the columns
    of one variable make a vector, in the order they stand in), optionally by `:` and a label that
    is not used. Columns whose header starts with # are left out. A cell is a number or the name of
    a file, relative to the .csv file's folder, that `nnl.data.loader.load` reads. Commas divide
    cells; where the header has none, semicolons or tabs do.

    Args:
        filename: The .csv file, or its http(s) address.
        shuffle: Whether every epoch is a new permutation of the rows.
        rng: Generator of the permutations; None is a new RandomState(313).
        normalize: Whether images are divided by 255.
        encoding: Of the file: "cp932" is Shift JIS. None is UTF-8, or UTF-16 where its mark is.
        channels: What images are converted to: 1 grey, 3 colours, 4 with transparency. None keeps
            what each has, which must be the same then.
        num_workers, use_multiprocessing: See SimpleDataSource.
    Raises:
        ValueError: the file has no header or names two columns alike, a row has another number of
            cells than the header, or the file another encoding.
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
        encoding: str | None = None,
        channels: int | None = None,
        num_workers: int = 0,
        use_multiprocessing: bool = False,
    ) -> None:
        super().__init__(shuffle=shuffle, rng=rng)
        if channels not in (None, 1, 3, 4):
            raise ValueError(f"CsvDataSource: channels={channels} is not one of 1, 3, 4")
        self._filename = os.fspath(filename)
        self._normalize, self._encoding, self._channels = normalize, encoding, channels
        self._filereader = FileReader(self._filename)
        self._folder = os.path.dirname(self._filename) or "."
        self._where = f"CsvDataSource: {self._filename}"
        with naming(self._where):
            self._table = table.read_table(self.original(), self._where)
        if not self._table.rows:
            raise ValueError(f"{self._where} has a header and no rows")
        self._columns = table.variables(self._table.header)
        for name, (columns, is_vector) in self._columns.items():
            if len(columns) > 1 and not is_vector:
                raise ValueError(
                    f"{self._where}: {len(columns)} columns of the header are {name!r}: those of a "
                    f"vector are {name}__0, {name}__1, others have names of their own"
                )
        self._variables = tuple(self._columns)
        self._first_images: dict[str, tuple[int, str]] = {}  # channels, and where
        self._size = len(self._table.rows)
        self._original_order = list(range(self._size))
        self._let_load(self._row)
        self.reset()
        self._employ("CsvDataSource", num_workers, use_multiprocessing)

    def original(self) -> str:
        """The text of the file, which caches keep."""
        with self._filereader.open() as file:
            return table.read_text(file.read(), self._where, self._encoding)

    def place(self, position: int) -> str:
        """Where a sample stands."""
        return f"{self._filename}, line {self._table.lines[self._order[position]]}"

    def _value(self, cell: str, row: int, column: int) -> Any:
        """A number, or what is in the file that the cell names."""
        try:
            return float(cell)
        except ValueError:
            extension = get_file_extension(cell)
        title = self._table.header[column]
        where = f"{self._where}, line {self._table.lines[row]}, column {title}: {cell!r}"
        if not cell.strip():
            raise ValueError(f"{where}: the cell is empty")
        if not extension or extension[1:].isdecimal():
            why = table.why_no_number(cell)
            raise ValueError(f"{where} is neither a number nor a file name{why}")
        loader, options = _loader_at(where, extension), {}
        if loader is load_image and self._channels is not None:
            options["channels"] = self._channels
        name = table.file_name(cell, self._folder)
        try:
            with naming(where), self._filereader.open(name) as file:
                value = loader(file, normalize=self._normalize, **options)
        except FileNotFoundError:
            why = table.why_missing(name, self._folder)
            raise FileNotFoundError(f"{where}: there is no such file{why}") from None
        except (PermissionError, IsADirectoryError) as error:
            raise type(error)(f"{where}: {error.strerror}") from None
        if loader is load_image:
            self._check_channels(title, value.shape[0], where)
        return value

    def _check_channels(self, title: str, channels: int, where: str) -> None:
        """Raise where grey and colour images are together."""
        known, before = self._first_images.setdefault(title, (channels, where))
        if channels != known:
            raise ValueError(
                f"{where} has {channels} channels, that of {before.partition(', ')[2]} {known}: "
                "channels=1 or 3 converts all of them, and so does "
                "nnl create_image_classification_dataset -c"
            )

    def _get_data(self, position: int) -> Sample:
        return self._load(self._order[position], self._generation)

    def _row(self, row: int) -> Sample:
        cells = self._table.rows[row]
        sample = []
        for columns, is_vector in self._columns.values():
            values = [self._value(cells[i], row, i) for i in columns]
            if is_vector or isinstance(values[0], float):
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


def _loader_at(where: str, extension: str) -> Any:
    """The loader of files with this extension, or an error that begins with `where`."""
    with naming(where):
        return load(extension)


class CreateCache(CsvDataSource):
    """Copy the data set of a .csv file into a folder of cache files.

    Args:
        input_csv_filename: See CsvDataSource.
        rng: Generator of the order; None is a new RandomState(313).
        shuffle: Whether the rows are copied in random order.
        num_of_threads: Accepted for compatibility; rows are read one after the other.
        encoding, channels: See CsvDataSource.
    """

    def __init__(
        self,
        input_csv_filename: str,
        rng: np.random.RandomState | None = None,
        shuffle: bool = False,
        num_of_threads: int | None = None,
        encoding: str | None = None,
        channels: int | None = None,
    ) -> None:
        super().__init__(
            input_csv_filename, shuffle=shuffle, rng=rng, encoding=encoding, channels=channels
        )

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
