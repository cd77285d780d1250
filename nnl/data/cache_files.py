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

from nnl.core.parameters.atomic import replacing
from nnl.data.damage import naming, numbers, read_npy

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
    """Read one cache file: the array of each variable.

    Raises:
        ValueError: The file is damaged.
    """
    with naming(f"the cache file {path}"):
        if path.endswith(".h5"):
            import h5py

            with h5py.File(path, "r") as h5:
                found = {name: numbers(h5[name], repr(name)) for name in variables}
        else:
            with open(path, "rb") as file:
                found = {name: read_npy(file) for name in variables}
        sizes = {name: y.shape[:1] for name, y in found.items()}
        if len(set(sizes.values())) > 1 or () in sizes.values():
            raise ValueError(f"its variables have the numbers of samples {sizes}")
    return found


def read_variables(folder: str, first_file: str) -> list[str]:
    """Names of the variables of a cache.

    Raises:
        FileNotFoundError: the cache is of .npy files and has no cache_info.csv.
    """
    info = os.path.join(folder, INFO)
    if os.path.exists(info):
        with naming(info), open(info, encoding="utf-8", newline="") as file:
            found = [row[0] for row in csv.reader(file) if row]
            if not found:
                raise ValueError("it has no name of a variable")
            return found
    if not first_file.endswith(".h5"):
        raise FileNotFoundError(
            f"CacheDataSource: {folder} has .npy files but no {INFO} with the variables' names"
        )
    import h5py

    path = os.path.join(folder, first_file)
    with naming(f"the cache file {path}"), h5py.File(path, "r") as h5:
        return list(h5)


def read_index(index_file: str) -> list[tuple[str, int]]:
    """(file name, number of samples) of every cache file that an index lists.

    Raises:
        ValueError: A line is no such thing, or a file has fewer bytes than samples.
    """
    folder = os.path.dirname(index_file)
    with naming(index_file), open(index_file, encoding="utf-8", newline="") as file:
        found = [(row[0], int(row[1])) for row in csv.reader(file) if row]
        if any(n < 1 or os.path.basename(name) != name for name, n in found):
            raise ValueError("wanted a line with file name,number of samples for each file")
        for name, n in found:
            if n > os.path.getsize(os.path.join(folder, name)):
                raise ValueError(f"{name} is too small for {n} samples")
    return found
