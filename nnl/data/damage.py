# SPDX-License-Identifier: Apache-2.0
"""What damaged files of data end in: a ValueError that names the file, before memory is taken."""

from __future__ import annotations

import csv
import math
import os
import struct
import tokenize
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np

MAX_RATIO = 1000  # of the size of an HDF5 array to what it takes in the file; compressed ones too
# What h5py, numpy, Pillow and the standard library raise on files that are damaged.
BROKEN = (
    *(OSError, ValueError, TypeError, LookupError, RuntimeError, ArithmeticError, MemoryError),
    *(EOFError, SyntaxError, csv.Error, struct.error, zlib.error, tokenize.TokenError),
)
_NO_HEADER = (
    *(SyntaxError, TypeError, ValueError, RecursionError, SystemError, MemoryError),
    *(OverflowError, tokenize.TokenError),
)
_OF_THE_SYSTEM = (FileNotFoundError, PermissionError, IsADirectoryError)  # they name the file


@contextmanager
def naming(where: str) -> Iterator[None]:
    """What a damaged file raises becomes a ValueError that begins with `where`."""
    try:
        yield
    except _OF_THE_SYSTEM:
        raise
    except BROKEN as error:
        if isinstance(error, ValueError) and where in str(error):
            raise
        raise ValueError(f"{where}: {error or type(error).__name__}") from error


def skip_npy(file: BinaryIO) -> tuple[int, np.dtype[Any], tuple[int, ...]]:
    """Where the array at the current place of a .npy file lies, its type and shape; go behind it.

    Raises:
        ValueError: It is no array of numbers or text, or claims more bytes than there are.
    """
    try:
        version = np.lib.format.read_magic(file)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else _newer_header
        shape, by_columns, dtype = header(file)
    except _NO_HEADER as error:
        raise ValueError("it begins with no description of an array") from error
    here, end = file.tell(), file.seek(0, os.SEEK_END)
    if dtype.hasobject or min(shape, default=0) < 0:
        raise ValueError(f"it has an array of {dtype} {shape}, wanted numbers")
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes > end - here:
        raise ValueError(f"its array {dtype} {shape} is larger than the {end - here} bytes there")
    file.seek(here + nbytes)
    return here, dtype, shape[::-1] if by_columns else shape


def read_npy(file: BinaryIO) -> np.ndarray[Any, Any]:
    """The array at the current place of a .npy file, whose size is compared with the file first.

    Raises:
        ValueError: As in skip_npy.
    """
    start = file.tell()
    skip_npy(file)
    file.seek(start)
    found: np.ndarray[Any, Any] = np.load(file, allow_pickle=False)
    return found


def _newer_header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    return np.lib.format.read_array_header_2_0(file)


def numbers(dataset: Any, where: str) -> np.ndarray[Any, Any]:
    """An HDF5 dataset as an array.

    Raises:
        ValueError: It holds no numbers, claims far more than the file has, or lies in other files.
    """
    if not hasattr(dataset, "is_virtual"):
        raise ValueError(f"{where} is no array")
    if dataset.external or dataset.is_virtual:
        raise ValueError(f"{where}: its numbers lie in another file, which is not opened")
    claimed, there = dataset.size * dataset.dtype.itemsize, dataset.id.get_storage_size()
    if dataset.dtype.kind not in "fiub" or claimed > MAX_RATIO * there:
        raise ValueError(
            f"{where} is no array of numbers, or larger than the file: "
            f"{dataset.dtype}{list(dataset.shape or ())} in {there} bytes"
        )
    return np.asarray(dataset[()])
