# SPDX-License-Identifier: Apache-2.0
"""Calls of the functions in kernels/, and what they are called with."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, fields

Key = Hashable  # of an array: an edge's key, or a Work


@dataclass(frozen=True)
class Window:
    """How a window of three axes moves: the fields of nnl_window, in their order."""

    size: tuple[int, ...]
    out: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    pad: tuple[int, ...]

    def __str__(self) -> str:
        parts = (getattr(self, f.name) for f in fields(self))
        return f"&(const nnl_window){{{', '.join(f'{{{_list(p)}}}' for p in parts)}}}"


@dataclass(frozen=True)
class Sizes:
    """An array of int."""

    values: tuple[int, ...]

    def __str__(self) -> str:
        return f"(const int[]){{{_list(self.values)}}}"


def _list(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))


@dataclass(frozen=True)
class Read:
    """An array that a call reads."""

    key: Key


@dataclass(frozen=True)
class Written:
    """An array that a call writes."""

    key: Key


@dataclass(eq=False)
class Work:
    """Memory that one call writes and reads; nobody needs it before or after.

    Attributes:
        size: In floats.
        most: At any sizes; `size` says it where left out.
        spare: Whether the call does without, at these sizes.
    """

    size: int
    most: int | None = None
    spare: bool = False


@dataclass(frozen=True)
class Call:
    """A call of a kernel.

    Attributes:
        kernel: Its name, which is also that of its file.
        arguments: In C, but for arrays; None is NULL.
    """

    kernel: str
    arguments: tuple[int | Window | Sizes | Read | Written | Work | None, ...]
