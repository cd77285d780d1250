# SPDX-License-Identifier: Apache-2.0
"""Checks the arguments of plain functions by their annotations, as ops check their attributes."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import numpy as np

from nnl.core.arguments.convert import (
    CONVERT,
    OneForAll,
    as_bool,
    as_int,
    as_ints,
    held_as,
    wanted_instead,
)
from nnl.core.arguments.suggest import did_you_mean

Input = Any  # a Variable or an NdArray
Check = Callable[[tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]


def shown(value: Any) -> str:
    """How a message shows a value: as it is written, or by its type where that is long."""
    if hasattr(value, "spec"):  # an array of ours: its contents say nothing
        return type(value).__name__
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else type(value).__name__


def values_of(x: Any) -> str:
    """What to write for the values of a Variable or NdArray x as a numpy array."""
    return "x.d" if hasattr(x, "edge") else "x.data"


def numbers(name: str, value: Any, wanted: str) -> np.ndarray[Any, Any]:
    """What a function was given as an array of numbers, in the machine's order of bytes.

    Raises:
        TypeError: It is none, has elements that no array of ours can hold, or masked ones.
    """
    hint, got = "", ""
    try:
        a: Any = np.asarray(value)
    except ValueError:  # lists of different lengths
        a = None
    except (TypeError, RuntimeError) as e:  # torch says what to do with a tensor
        a, hint = None, f": {e}"
    if a is not None:
        own = held_as(a.dtype)
        masked = isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value)
        if own is not None and not masked:
            return a if a.dtype == own else a.astype(own)  # type: ignore[no-any-return]
        if masked:
            got, hint = "array with masked elements", ": filled(0) gives them a value"
        elif isinstance(value, np.ndarray):
            got = f"array of {value.dtype}"
            hint = ": astype(np.float64) gives it 64 bits" if value.dtype.kind == "f" else ""
    if hasattr(value, "spec"):
        hint = f": write {values_of(value)} for its values"
    raise TypeError(f"{name}: got {got or shown(value)}, wanted {wanted}{hint}")


def _ints(value: Any) -> tuple[int, ...]:
    if type(value) is not tuple and not np.iterable(value):
        raise TypeError
    return as_ints(value)


def _shape(value: Any) -> tuple[int, ...]:
    shape = _ints(value)
    if any(n < 0 for n in shape) or math.prod(shape) > 2**60:
        raise ValueError
    return shape


def _spatial(value: Any) -> tuple[int, ...]:
    if type(value) is not tuple and not np.iterable(value):
        raise OneForAll(CONVERT["int"][0](value))
    return _ints(value)


def _int_or_ints(value: Any) -> Any:
    return as_int(value) if type(value) is int or not np.iterable(value) else _ints(value)


def numpy_type(name: str, value: Any) -> np.dtype[Any]:
    """The dtype that a function was given as its argument `dtype`, in our order of bytes."""
    try:
        dtype = held_as(np.dtype(value))
    except (TypeError, ValueError):
        dtype = None
    if dtype is None:
        raise TypeError(f"{name}: dtype is {shown(value)}, wanted a type of numpy") from None
    return dtype


def flag(name: str, arg: str, value: Any) -> bool:
    """The value of a flag, or a TypeError that names the function and the argument."""
    try:
        return as_bool(value)
    except TypeError:
        raise TypeError(f"{name}: {arg} is {shown(value)}, wanted a bool") from None


def _callable(value: Any) -> Any:
    if not callable(value):
        raise TypeError
    return value


def _rng(value: Any) -> Any:
    if not callable(getattr(value, "uniform", None)):
        raise TypeError
    return value


def _number(value: Any) -> Any:
    CONVERT["float"][0](value)
    return value  # an int stays one


def _pair(value: Any) -> Any:
    low, high = value
    if not math.isfinite(low) or not math.isfinite(high):
        raise ValueError
    return _number(low), _number(high)


def _int_pair(value: Any) -> Any:
    low, high = _ints(value)
    if low >= high:
        raise ValueError
    return low, high


def as_input(value: Any) -> Any:
    if not hasattr(value, "spec"):
        raise TypeError
    return value


def _iterable(value: Any) -> Any:
    iter(value)
    return value


def _dict(value: Any) -> Any:
    if not isinstance(value, dict):
        raise TypeError
    return value


# Annotation -> (conversion, what is wanted); annotations that are not here are not checked.
KINDS: dict[str, tuple[Callable[[Any], Any], str]] = {
    **{k: CONVERT[k] for k in ("int", "str", "bool")},
    "float": (_number, "a number"),
    "tuple[float, float]": (_pair, "two finite numbers"),
    "tuple[int, int]": (_int_pair, "two ints, the first of them smaller"),
    "Sequence[int]": (_ints, "a sequence of ints"),
    "Shape": (_shape, "sizes >= 0 that fit into memory"),
    "int | Sequence[int]": (_int_or_ints, "an int or a sequence of ints"),
    "Callable[[Any], Any]": (_callable, "a function"),
    "Rng": (_rng, "a numpy.random.RandomState"),
    "RandomState": (_rng, "a numpy.random.RandomState"),
    "np.random.RandomState": (_rng, "a numpy.random.RandomState"),
    "Input": (as_input, "nnl.Variable or nnl.NdArray"),
    "Iterable[Callback]": (_iterable, "several functions"),
    "dict[str, Any]": (_dict, "a dict"),
}
# Type of a value -> conversions that give it as it is; of a tuple, if it has ints alone.
USUAL: dict[type, set[Callable[[Any], Any]]] = {
    int: {as_int, _int_or_ints},
    bool: {as_bool},
    str: {CONVERT["str"][0]},
    tuple: {_ints, _int_or_ints, _spatial},
}
# Arguments that are a Sequence[int] with one for each spatial axis.
SPATIAL = frozenset(["kernel", "pad", "stride", "dilation", "output_padding", "output_size"])
# Names for annotations that are written often.
ALIASES = {
    "Apply": "Callable[[Any], Any] | None",
    "Activation": "Callable[[Any], Any] | None",
    "Init": "dict[str, Any] | None",
    "Rng": "np.random.RandomState | None",
}


def usual(
    args: Sequence[Any],
    kw: Mapping[str, Any],
    positional: Sequence[tuple[str, Any]],
    kinds: Mapping[str, Any],
    types: Mapping[type, Any],
) -> bool:
    """Whether all conversions of a call would give what they are given.

    Args:
        positional: Names of what can be given by position, and their kinds.
        kinds: {name: (conversion, what is wanted, default), None for what is not converted}.
        types: See USUAL.
    """
    if len(args) > len(positional) or not all([arg in kinds for arg in kw]):
        return False
    pairs = zip([*args, *kw.values()], [*positional[: len(args)], *kw], strict=True)
    for value, arg in pairs:
        kind = kinds[arg] if isinstance(arg, str) else arg[1]
        if kind is None or value is kind[2]:
            continue
        if kind[0] not in types.get(type(value), ()):
            return False
        ints = value if type(value) is tuple else (value,) if type(value) is int else ()
        if not all([type(n) is int and -(2**63) <= n < 2**63 for n in ints]):
            return False
    return True


class Usual:
    """That function; an attribute, so that a library can take its place."""

    def __init__(self) -> None:
        self.check: Callable[..., bool] = usual

    def asked_of(self, check: Callable[..., bool]) -> None:
        """Let a library say it."""
        self.check = check


CHECKS = Usual()


def checker(function: Callable[..., Any]) -> Check:
    """A function that converts the arguments of a call, or raises a TypeError that names one."""
    name = function.__name__
    if name.startswith("__"):  # of an object: users know its class
        name = function.__qualname__.split(".")[-2]
    kinds: dict[str, tuple[Callable[[Any], Any], str, Any]] = {}
    parameters = inspect.signature(function).parameters
    for p in parameters.values():
        text = ALIASES.get(str(p.annotation), str(p.annotation))
        kind = text.removesuffix(" | None")
        if kind in KINDS:
            default = None if kind != text else p.default
            to, wanted = KINDS[kind]
            if to is _ints and p.name in SPATIAL:
                to = _spatial
            kinds[p.name] = to, wanted, default
    closed = all(p.kind is not p.VAR_KEYWORD for p in parameters.values())
    positional = [
        (p.name, kinds.get(p.name))
        for p in parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]

    every = {arg: kinds.get(arg) for arg in parameters}

    def check(args: tuple[Any, ...], kw: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if CHECKS.check(args, kw, positional, every, USUAL):
            return args, kw
        out = list(args)
        try:
            for i, (value, (arg, kind)) in enumerate(zip(args, positional, strict=False)):  # noqa: B007
                if kind is not None and value is not kind[2]:
                    out[i] = kind[0](value)
            for arg, value in kw.items():
                kind = kinds.get(arg)
                if kind is None:
                    if closed and arg not in parameters:
                        break
                elif value is not kind[2]:
                    kw[arg] = kind[0](value)
            else:
                return tuple(out), kw
        except OneForAll as e:
            axes = max(getattr(out[0], "ndim", 4) - 2, 1) if out else 2
            one = e.args[0]
            raise TypeError(f"{name}: {arg} is {one}, {wanted_instead(one, axes)}") from None
        except (TypeError, ValueError, OverflowError, RuntimeError):  # torch raises the last
            to, wanted, _ = kind  # type: ignore[misc]
            got = type(value).__name__ if to is as_input else shown(value)
            raise TypeError(f"{name}: {arg} is {got}, wanted {wanted}") from None
        raise TypeError(f"{name}() has no argument {arg!r}{did_you_mean(arg, parameters)}")

    return check


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function so that its arguments are checked by their annotations."""
    check = checker(function)

    @wraps(function)
    def with_checks(*args: Any, **kw: Any) -> Any:
        args, kw = check(args, kw)
        return function(*args, **kw)

    return with_checks
