# SPDX-License-Identifier: Apache-2.0
"""Shape and dtype of an array, interned, and the one error class for shapes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from functools import cache
from threading import RLock
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from nnl.core.arguments.convert import as_ints, held_as


class ShapeError(ValueError):
    """An array's shape or rank does not fit the function it was given to."""


class TooLarge(ShapeError):
    """No memory holds an array of this shape."""


@cache
def _name_of(dtype: np.dtype[Any]) -> str:
    return dtype.name


_FLOAT = np.dtype(np.float32)
_MAKING = RLock()  # so that no two threads make one spec


class Spec:
    """Shape and dtype of one array. Equal specs are the same object, so they compare by identity;
    those that nobody holds any more are forgotten, except for the latest.

    Attributes:
        shape: Tuple of non-negative ints.
        dtype: numpy dtype.
        size: Number of elements.
        is_half: Whether they are floating-point numbers of 16 bits.
    """

    __slots__ = ("shape", "dtype", "size", "is_half", "__weakref__")
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    size: int
    is_half: bool
    _table: WeakValueDictionary[Any, Spec] = WeakValueDictionary()
    _known: dict[Any, Any] = _table.data  # type: ignore[attr-defined]  # faster than its get()
    _latest: deque[Spec] = deque(maxlen=4096)  # programs make and drop the same ones

    @classmethod
    def of(cls, shape: Sequence[int], dtype: Any = _FLOAT) -> Spec:
        key = (tuple(shape), np.dtype(dtype))
        try:
            held = cls._known.get(key)
        except TypeError:  # unhashable
            raise TypeError(f"shape is {key[0]!r}, wanted a sequence of ints") from None
        spec = None if held is None else held()
        if spec is None:
            try:
                dims = as_ints(key[0])
            except TypeError:
                raise TypeError(f"shape is {key[0]!r}, wanted a sequence of ints") from None
            except OverflowError:
                raise TooLarge(f"an array of shape {key[0]} is larger than any memory") from None
            if any(n < 0 for n in dims):
                raise ShapeError(f"shape is {dims}, wanted sizes >= 0")
            if (own := held_as(key[1])) is None:
                raise TypeError(f"dtype is {key[1]}, which no array of nnl has")
            spec = object.__new__(cls)
            spec.shape, spec.dtype, spec.size = dims, own, math.prod(dims)
            spec.is_half = spec.dtype.itemsize == 2 and spec.is_float
            with _MAKING:
                spec = cls._table.setdefault((dims, own), spec)
                cls._latest.append(spec)
        return spec

    def checked(self) -> Spec:
        """This spec, if an array of it can be anywhere at all."""
        if self.size >= 2**55 and self.nbytes >= 2**63:  # the first alone is faster
            raise TooLarge(f"{self} is larger than any memory")
        return self

    @property
    def type_name(self) -> str:
        """The name of the dtype, which numpy makes anew every time it is asked."""
        return _name_of(self.dtype)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def is_float(self) -> bool:
        """Whether the elements are floating-point numbers, of any width."""
        return self.dtype.kind in "fV"  # V: bfloat16, which numpy does not know itself

    def with_shape(self, shape: Sequence[int]) -> Spec:
        """The spec of another shape and the same dtype."""
        return Spec.of(shape, self.dtype)

    def with_dtype(self, dtype: Any) -> Spec:
        """The spec of another dtype and the same shape."""
        return self if dtype == self.dtype else Spec.of(self.shape, dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return Spec.of, (self.shape, self.dtype)

    def __repr__(self) -> str:
        return f"{self.type_name}{list(self.shape)}"


def check_axis(name: str, axis: int, x: Spec, arg: str = "x") -> int:
    """`axis` counted from the front, or a ShapeError that names the function.

    Args:
        name: The function that asks, for the message.
        axis: Index in [-n, n) for x of rank n.
        x: Spec of the argument called `arg`.
    """
    n = len(x.shape)
    if not -n <= axis < n:
        raise ShapeError(f"{name}: axis {axis} is outside [-{n}, {n}) for {arg} {x}")
    return axis + n if axis < 0 else axis


def check_axes(name: str, axes: Sequence[int], x: Spec, arg: str = "x") -> tuple[int, ...]:
    """Every axis counted from the front; a repeated axis is an error."""
    out = tuple(check_axis(name, a, x, arg) for a in axes)
    if len(set(out)) != len(out):
        raise ShapeError(f"{name}: axes {tuple(axes)} name an axis of {arg} {x} twice")
    return out


def check_rank(name: str, arg: str, x: Spec, *ranks: int) -> None:
    """Raise unless x has one of the given ranks."""
    if len(x.shape) not in ranks:
        wanted = " or ".join(str(r) for r in ranks)
        raise ShapeError(f"{name}: {arg} {x} has rank {len(x.shape)}, wanted {wanted}")


def check_same_shape(name: str, arg0: str, x0: Spec, arg1: str, x1: Spec) -> None:
    """Raise unless both arguments have one shape."""
    if x0.shape != x1.shape:
        raise ShapeError(f"{name}: {arg0} {x0} and {arg1} {x1} must have the same shape")


def broadcast_shape(name: str, x0: Spec, x1: Spec) -> tuple[int, ...]:
    """Shape of two arrays of one rank combined element by element; sizes of 1 stretch.

    Raises:
        ShapeError: The ranks differ (there is no broadcasting between ranks) or two sizes differ
            and neither is 1.
    """
    s0, s1 = x0.shape, x1.shape
    if s0 == s1:
        return s0
    if len(s0) != len(s1):
        raise ShapeError(f"{name}: x0 {x0} and x1 {x1} must have the same rank")
    if any(a != b and a != 1 and b != 1 for a, b in zip(s0, s1, strict=True)):
        raise ShapeError(f"{name}: x0 {x0} and x1 {x1} do not broadcast")
    return tuple(b if a == 1 else a for a, b in zip(s0, s1, strict=True))
