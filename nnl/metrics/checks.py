# SPDX-License-Identifier: Apache-2.0
"""What measures demand of their arguments."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnl.core.arrays.spec import ShapeError

Array = np.ndarray[Any, Any]


def real(function: str, name: str, given: Any, dims: int | None = None) -> Array:
    """An array of float64, finite, not empty, of so many dimensions."""
    array = np.asarray(given, np.float64)
    if dims is not None and array.ndim != dims:
        raise ShapeError(
            f"{function}: {name} has the shape {array.shape}, wanted {dims} dimension(s)"
        )
    if not array.size:
        raise ShapeError(f"{function}: {name} has the shape {array.shape}, which is empty")
    if not np.isfinite(array).all():
        raise ValueError(f"{function}: {name} has numbers that are not finite")
    return array


def classes(function: str, name: str, given: Any, shape: tuple[int, ...] | None = None) -> Array:
    """An array of integers, not negative and not empty; of the shape, if there is one."""
    array = np.asarray(given)
    if array.dtype == bool:
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{function}: {name} has the type {array.dtype}, wanted integers")
    if shape is not None and array.shape != shape:
        raise ShapeError(f"{function}: {name} has the shape {array.shape}, wanted {shape}")
    if not array.size:
        raise ShapeError(f"{function}: {name} has the shape {array.shape}, which is empty")
    if array.min() < 0:
        raise ValueError(f"{function}: {name} has the class {array.min()}, wanted at least 0")
    return array.astype(np.int64)


def alike(function: str, names: tuple[str, str], a: Array, b: Array) -> None:
    """Refuse arrays of two shapes."""
    if a.shape != b.shape:
        raise ShapeError(
            f"{function}: {names[0]} has the shape {a.shape}, {names[1]} {b.shape}: wanted the same"
        )


def positive(function: str, name: str, given: Any) -> None:
    """Refuse numbers that are not above 0."""
    if not given > 0:
        raise ValueError(f"{function}: {name} is {given}, wanted more than 0")
