# SPDX-License-Identifier: Apache-2.0
"""Where a function was called: the layer, file and line that messages and profiles name."""

from __future__ import annotations

import os
from sys import _getframe
from types import CodeType
from typing import Any

# (parameter scope, the caller's code, which of its instructions); made into text only when asked
Origin = tuple[tuple[str, ...], CodeType | None, int]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class _Files(dict[str, bool]):
    """Whether the code of a file is this package's, or Python's own."""

    def __missing__(self, name: str) -> bool:
        ours = self[name] = name.startswith((_PACKAGE, "<frozen "))
        return ours


_OURS = _Files()


def here(layer: tuple[str, ...], depth: int = 2) -> Origin:
    """The innermost caller that is not part of this package, with the scope it is in.

    Args:
        depth: How far up the stack it is at least; every frame that is looked at costs.
    """
    try:
        frame: Any = _getframe(depth)
        while _OURS[frame.f_code.co_filename]:
            frame = frame.f_back
    except (AttributeError, ValueError):  # there is no such caller
        return layer, None, 0
    return layer, frame.f_code, frame.f_lasti


def place(origin: Origin | str | None) -> str:
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
    where = place(origin)
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
