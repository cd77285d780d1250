# SPDX-License-Identifier: Apache-2.0
"""Stands in for CuPy's module for Thrust: sorts by numpy, when it is the stream's turn."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from on_stream import bytes_at, enqueue

available = True


def get_build_version() -> int:
    return 200800


def _stream() -> int:
    from cupy.cuda import get_current_stream  # not there yet when this module is imported

    return int(get_current_stream().ptr)


def _view(address: int, shape: Any, dtype: Any) -> np.ndarray[Any, Any]:
    dtype = np.dtype(dtype)
    return bytes_at(address, math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)


def sort(dtype: Any, data: int, keys: int, shape: Any) -> None:
    """Sort along the last axis, in place."""
    shape = tuple(shape)

    def work() -> None:
        x = _view(data, shape, dtype)
        x[...] = np.sort(x, axis=-1, kind="stable")

    enqueue(_stream(), work)


def argsort(dtype: Any, idx: int, data: int, keys: int, shape: Any) -> None:
    """Sort along the last axis, and write where elements were; data is sorted too."""
    shape = tuple(shape)

    def work() -> None:
        x, order = _view(data, shape, dtype), _view(idx, shape, np.int64)
        order[...] = np.argsort(x, axis=-1, kind="stable")
        x[...] = np.take_along_axis(x, order, -1)

    enqueue(_stream(), work)


def lexsort(dtype: Any, idx: int, keys: int, k: int, n: int) -> None:
    """Write the order of n columns of k keys, of which the last one counts most."""

    def work() -> None:
        _view(idx, (n,), np.int64)[...] = np.lexsort(_view(keys, (k, n), dtype))

    enqueue(_stream(), work)
