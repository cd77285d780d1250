# SPDX-License-Identifier: Apache-2.0
"""What users give as a value, made into what shapes and attributes hold."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache
from math import copysign
from typing import Any

import numpy as np


def number(value: Any) -> Any:
    """A number; an array of one element is that element, as for NNabla."""
    return value.item() if isinstance(value, np.ndarray) and value.size == 1 else value


def as_int(value: Any) -> int:
    """The int that a number is: 11.0 is 11, as in `maps / 2`.

    Raises:
        TypeError: It is not integral, or not a number.
        OverflowError: It does not fit into 64 bits.
    """
    if type(value) is int and -(2**63) <= value < 2**63:
        return value
    value = number(value)
    if isinstance(value, (float, np.floating)) and value.is_integer():
        value = int(value)
    n = int(operator.index(int(value) if isinstance(value, np.bool_) else value))
    if not -(2**63) <= n < 2**63:
        raise OverflowError("wanted 64 bits at most")
    return n


def as_ints(values: Any) -> tuple[int, ...]:
    """Each of some numbers as an int."""
    return tuple([as_int(v) for v in values])


def int_or_ints(value: Any) -> tuple[int, ...]:
    """Some ints; one alone is taken as a sequence of one."""
    return as_ints(value) if np.iterable(value) else (as_int(value),)


_WIDTHS = {"int": (8, 16, 32, 64), "uint": (8, 16, 32, 64), "float": (16, 32, 64)}
_NUMBERS = ["bool", *(f"{kind}{bits}" for kind, widths in _WIDTHS.items() for bits in widths)]
_HELD: dict[str, np.dtype[Any]] = {name: np.dtype(name) for name in _NUMBERS}


@cache
def held_as(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """The dtype in which arrays hold elements of a dtype: in the machine's order of bytes.

    None if they cannot: complex numbers, text, times, objects, and numbers of other widths than
    kernels know. bfloat16 is the one type that numpy does not know itself.
    """
    return dtype if dtype.name == "bfloat16" else _HELD.get(dtype.name)


class Spatial(tuple[int, ...]):
    """Declares an attribute that has an int for each spatial axis, so that one is not enough."""


LARGEST_ENTRY = 2**31 - 1  # of an attribute with an int for each spatial axis


class OneForAll(TypeError):
    """One int was given where every spatial axis wants its own."""


def wanted_instead(value: Any, axes: int, kind: str = "an int") -> str:
    """The text of an error for a number that was given instead of a tuple."""
    return f"wanted {kind} for each spatial axis: {(value,) * axes}"


def as_bool(value: Any) -> bool:
    """The value as a flag; numbers and None are taken as such, nothing else is."""
    if not isinstance(value, (bool, int, float, np.generic, type(None))):
        raise TypeError
    return bool(value)


def _floats(value: Any) -> tuple[float, ...]:
    return tuple(float(v) for v in value)


def _str(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _float(value: Any) -> float:
    if isinstance(value, str):
        raise TypeError
    return float(number(value))


# Kind of an attribute -> what converts a value, and what to call it in messages
CONVERT: dict[str, tuple[Callable[[Any], Any], str]] = {
    "int": (as_int, "an int"),
    "float": (_float, "a float"),
    "bool": (as_bool, "a bool"),
    "str": (_str, "a str"),
    "tuple[int, ...]": (int_or_ints, "a sequence of ints"),
    "tuple[float, ...]": (_floats, "a sequence of floats"),
    "object": (lambda v: v, "any object"),
}


def has_negative_zero(value: Any) -> bool:
    """Whether a value is -0.0 or a sequence with one; it equals 0.0, and caches must not mind."""
    if isinstance(value, (tuple, list)):
        return any(has_negative_zero(v) for v in value)
    return isinstance(value, (float, np.floating)) and not value and copysign(1.0, value) < 0


def exact(value: Any) -> Any:
    """A key that tells apart what compares equal: True, 1 and 1.0; 0.0 and -0.0."""
    if isinstance(value, tuple):
        return tuple([exact(v) for v in value])
    return type(value), value, has_negative_zero(value)
