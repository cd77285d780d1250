# SPDX-License-Identifier: Apache-2.0
"""The files of a data cache.

A cache is a folder with some samples per file, `<prefix>_<first>_<last>.npy` or `.h5`, both indexes
with 8 digits; `cache_index.csv` with a line `file name,number of samples` per file; and, for .npy,
`cache_info.csv` with a variable's name per line. A .npy file holds one array per variable, one
after the other in that order, a .h5 file one data set per variable. Axis 0 is the sample.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from nnl.core.atomic import replacing

Array = np.ndarray[Any, Any]
FORMATS = (".npy", ".h5")
INDEX, INFO = "cache_index.csv", "cache_info.csv"


def write_lines(path: str, lines: Iterable[str]) -> None:
    """Write a text file of these lines."""
    with replacing(path) as temporary:
        temporary.write_text("".join(line + "\n" for line in lines), encoding="utf-8", newline="")


def write_samples(path: str, columns: dict[str, Array]) -> None:
    """Write one cache file; the format follows from the file name."""
    with replacing(path) as temporary:
        if path.endswith(".h5"):
            import h5py

            with h5py.File(temporary, "w") as h5:
                for name, column in columns.items():
                    h5.create_dataset(name, data=column)
        else:
            with open(temporary, "wb") as file:
                for column in columns.values():
                    np.save(file, column, allow_pickle=False)


def read_samples(path: str, variables: Sequence[str]) -> dict[str, Array]:
    """Read one cache file: the array of each variable."""
    if path.endswith(".h5"):
        import h5py

        with h5py.File(path, "r") as h5:
            return {name: h5[name][...] for name in variables}
    with open(path, "rb") as file:
        return {name: np.load(file, allow_pickle=False) for name in variables}


def read_variables(folder: str, first_file: str) -> list[str]:
    """Names of the variables of a cache.

    Raises:
        FileNotFoundError: the cache is of .npy files and has no cache_info.csv.
    """
    info = os.path.join(folder, INFO)
    if os.path.exists(info):
        with open(info, encoding="utf-8", newline="") as file:
            return [row[0] for row in csv.reader(file) if row]
    if not first_file.endswith(".h5"):
        raise FileNotFoundError(
            f"CacheDataSource: {folder} has .npy files but no {INFO} with the variables' names"
        )
    import h5py

    with h5py.File(os.path.join(folder, first_file), "r") as h5:
        return list(h5)


def read_index(index_file: str) -> list[tuple[str, int]]:
    """(file name, number of samples) of every cache file that an index lists."""
    with open(index_file, encoding="utf-8", newline="") as file:
        return [(row[0], int(row[1])) for row in csv.reader(file) if row]
