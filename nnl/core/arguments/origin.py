# SPDX-License-Identifier: Apache-2.0
"""Where a function was called: the layer, file and line that messages and profiles name."""

from __future__ import annotations

import os
from collections.abc import Callable
from sys import _getframe
from types import CodeType, FrameType
from typing import Any

# (parameter scope, the caller's code, which of its instructions); made into text only when asked
Origin = tuple[tuple[str, ...], CodeType | None, int]

_PACKAGE = os.path.realpath(__file__).rpartition(f"{os.sep}core{os.sep}")[0] + os.sep


class _Files(dict[str, bool]):
    """Whether the code of a file is this package's, or Python's own."""

    def __missing__(self, name: str) -> bool:
        ours = self[name] = name.startswith((_PACKAGE, "<frozen "))
        return ours


_OURS = _Files()


def is_ours(code: CodeType) -> bool:
    """Whether code is this package's, or Python's own."""
    return _OURS[code.co_filename]


def here(layer: tuple[str, ...], depth: int = 2) -> Origin:
    """The innermost caller that is not part of this package, with the scope it is in.

    Args:
        depth: How far up the stack it is at least; every frame that is looked at costs.
    """
    frame = caller(depth + 1)
    return (layer, None, 0) if frame is None else (layer, frame.f_code, frame.f_lasti)


def caller(depth: int = 2) -> FrameType | None:
    """The frame of the innermost caller that is not part of this package; None if there is none."""
    try:
        frame: Any = _getframe(depth)
        while _OURS[frame.f_code.co_filename]:
            frame = frame.f_back
    except (AttributeError, ValueError):
        return None
    return frame  # type: ignore[no-any-return]


PASSED: set[CodeType] = set()  # functions that a library may do the work of, without their frames


def starts(code: CodeType) -> list[int]:
    """For each of its instructions the first one that has the same place in the source.

    Where a frame is within a call depends on what Python has specialised the call to, which may
    change after some iterations of a loop; these instructions have one place. Nothing for a
    function of `PASSED`.
    """
    if code in PASSED:
        return []
    found: list[int] = []
    before = None
    for i, place in enumerate(code.co_positions()):
        same = place == before and place[2] is not None  # the column, which may be left out
        found.append(found[-1] if same else i)
        before = place
    return found


class _Known(dict[int, tuple[CodeType, list[int]]]):
    """The starts of every code that was met, by its id; it is kept alive with them."""

    def of(self, code: CodeType) -> list[int]:
        if id(code) not in self:
            if len(self) == 10_000:  # programs that make code as they run must not fill memory
                self.clear()
            self[id(code)] = code, starts(code)
        return self[id(code)][1]


_KNOWN = _Known()


def _location(stop: FrameType | None = None, /) -> int:
    frame: FrameType | None = _getframe(1)
    parts: list[int] = []
    while frame is not None and frame is not stop:
        code = frame.f_code
        if numbers := _KNOWN.of(code):
            parts += id(code), numbers[frame.f_lasti // 2]
        frame = frame.f_back
    return hash(tuple(parts)) % 2**64


class Location:
    """Where the program of the calling thread is, as a number of 64 bits.

    It follows from the code and the instruction of every running frame: two calls have the same
    number if the whole chain of calls that leads to them is the same, but for those of `PASSED`.

    Attributes:
        now: (stop) -> the number of the caller and of its callers up to the frame `stop`, which
            does not count (all of them for None).
    """

    def __init__(self) -> None:
        self.now: Callable[..., int] = _location

    def asked_of(self, now: Callable[..., int]) -> None:
        """Let a library say it faster."""
        self.now = now


LOCATION = Location()


def line_of(origin: Origin | str | None) -> str:
    """ "block1/conv1 (train.py:12)", as far as it is known; "" otherwise."""
    if origin is None or isinstance(origin, str):  # a text comes from a file
        return origin or ""
    layer, code, at = origin
    parts = ["/".join(layer)] if layer else []
    if code is not None:
        line = next((n for start, end, n in code.co_lines() if start <= at < end), None)
        parts.append(f"({os.path.basename(code.co_filename)}:{line or code.co_firstlineno})")
    return " ".join(parts)


def at(name: str, origin: Origin | str | None) -> str:
    """A function's name with where it was called: "embed in tok (train.py:12)"."""
    where = line_of(origin)
    return f"{name} {'' if where.startswith('(') else 'in '}{where}" if where else name


def name_call(error: BaseException, name: str, label: str) -> bool:
    """Let an error's text say which call has raised it, if it begins with the function's name.

    "embed: ..." and "embed() ..." become "embed in tok (train.py:12): ...".
    """
    text = error.args[0] if error.args else None
    if label == name or not isinstance(text, str) or not isinstance(error, (ValueError, TypeError)):
        return False
    for start in (f"{name}: ", f"{name}() "):
        if text.startswith(start):
            error.args = (label + text[len(name) :].removeprefix("()"), *error.args[1:])
            return True
    return text.startswith(label)


def tell(error: BaseException, name: str, label: str) -> None:
    """Let an error say which call has raised it: in its text, else in a note."""
    if not name_call(error, name, label) and label != name:
        error.add_note(f"in {label}")
