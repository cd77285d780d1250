# SPDX-License-Identifier: Apache-2.0
"""Samples in files, by number: lines of JSON, rows of Parquet's tables."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from nnl.data.urls import local_files

Array = np.ndarray[Any, Any]
Sample = dict[str, Any]

MIXED = 16  # blocks whose samples are shuffled together, and kept in memory meanwhile
PIECE = 1 << 24  # bytes in which lines are looked for at once


class File(Protocol):
    """A file of samples."""

    sizes: Sequence[int]  # samples in each block: what is read at once

    def sample(self, index: int) -> Sample:
        """What a sample says."""

    def place(self, index: int) -> str:
        """Where it stands, for errors."""


class Lines:
    """A file with an object of JSON in each line; empty lines are none."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDONLY)
        ends = np.concatenate([np.zeros(1, np.int64), *self._ends()])
        filled = np.flatnonzero(np.diff(ends) > 2)  # no object is shorter, a line's end is not
        self._begin, self._end, self._line = ends[filled], ends[filled + 1], filled + 1
        self.sizes = [len(filled)]

    def _ends(self) -> Iterator[Array]:
        """Where lines end, a piece of the file after the other."""
        size, at = os.fstat(self._file).st_size, 0
        while at < size:
            piece = np.frombuffer(os.pread(self._file, PIECE, at), np.uint8)
            yield np.flatnonzero(piece == 10) + (at + 1)
            at += len(piece) or size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            yield np.array([size])

    def sample(self, index: int) -> Sample:
        begin, end = int(self._begin[index]), int(self._end[index])
        try:
            found = json.loads(os.pread(self._file, end - begin, begin))
        except (ValueError, RecursionError) as e:
            raise ValueError(f"this is no JSON: {e}") from e
        if not isinstance(found, dict):
            raise ValueError(f"this is {type(found).__name__}, wanted an object")
        return found

    def place(self, index: int) -> str:
        return f"{self.path}, line {self._line[index]}"

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)


class Table:
    """A file of Parquet's form. The latest of its groups of rows stay in memory."""

    def __init__(self, path: str) -> None:
        try:
            import pyarrow as arrow
            import pyarrow.parquet as parquet
        except ImportError as e:
            raise ImportError(
                f"open_texts: {path} is read by pyarrow: pip install 'nnl[parquet]'"
            ) from e
        self.path = path
        try:
            self._file = parquet.ParquetFile(path)
        except (arrow.ArrowException, OSError) as e:
            raise ValueError(f"open_texts: {path} is no file of Parquet's form: {e}") from e
        groups = self._file.metadata
        self.sizes = [groups.row_group(i).num_rows for i in range(groups.num_row_groups)]
        self._ends = np.cumsum(self.sizes)
        self._damaged = arrow.ArrowException
        self._group = lru_cache(MIXED + 2)(self._file.read_row_group)

    def sample(self, index: int) -> Sample:
        group = int(np.searchsorted(self._ends, index, "right"))
        first = int(self._ends[group]) - self.sizes[group]
        try:
            found: Sample = self._group(group).slice(index - first, 1).to_pylist()[0]
        except (self._damaged, OSError) as e:
            raise ValueError(f"the file is damaged: {e}") from e
        return {k: v for k, v in found.items() if v is not None}

    def place(self, index: int) -> str:
        return f"{self.path}, row {index + 1}"


KINDS = {".jsonl": Lines, ".parquet": Table}


class Files:
    """The samples of several files, one after the other.

    Args:
        paths: Files, patterns such as "texts/*.jsonl", or addresses as in local_files.
    Raises:
        ValueError: There is none, one has another ending or is damaged, or all are empty.
        FileNotFoundError: There is no such file.
    """

    def __init__(self, paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> None:
        several = [paths] if isinstance(paths, (str, os.PathLike)) else paths
        found = [
            name
            for path in map(os.fspath, several)
            for name in (sorted(glob.glob(path)) or local_files("open_texts", path))
        ]  # fmt: skip
        self.files: list[File] = []
        for name in found:
            kind = KINDS.get(os.path.splitext(name)[1])
            if kind is None:
                raise ValueError(f"open_texts: {name} is none of {', '.join(KINDS)}")
            self.files.append(kind(name))
        self._first = np.cumsum([0, *(sum(f.sizes) for f in self.files)])
        self.size = int(self._first[-1])
        if not self.size:
            raise ValueError(f"open_texts: there are no samples in {', '.join(found) or 'no file'}")
        sizes = [n for f in self.files for n in f.sizes if n]
        self._blocks = list(zip(np.cumsum([0, *sizes[:-1]]), sizes, strict=True))

    def _at(self, index: int) -> tuple[File, int]:
        i = int(np.searchsorted(self._first, index, "right")) - 1
        return self.files[i], index - int(self._first[i])

    def sample(self, index: int) -> Sample:
        """
        Raises:
            ValueError: It is damaged.
        """
        file, i = self._at(index)
        return file.sample(i)

    def place(self, index: int) -> str:
        """Where a sample stands, for errors."""
        file, i = self._at(index)
        return file.place(i)

    def order(self, seed: int, epoch: int) -> Array:
        """All numbers in the order of an epoch: blocks are shuffled, and samples of neighbours."""
        rng = np.random.Generator(np.random.Philox(key=[seed, epoch]))
        blocks = [np.arange(a, a + n) for a, n in self._blocks]
        some = [blocks[i] for i in rng.permutation(len(blocks))]
        return np.concatenate(
            [
                rng.permutation(np.concatenate(some[i : i + MIXED]))
                for i in range(0, len(some), MIXED)
            ]
        )
