# SPDX-License-Identifier: Apache-2.0
"""Tables of what was made for one shape and may be made again: they keep what was used last."""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import Lock
from typing import Any

from nnl.core.arguments.convert import as_int


class Limit:
    """How many entries each table of a kind keeps, and what all of them have made and dropped."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.made = self.dropped = 0


LIMITS = {"plans": Limit(128), "kernels": Limit(512)}


def set_cache_size(plans: int | None = None, kernels: int | None = None) -> None:
    """Set how much is kept for shapes that may come again; what was not used for longest goes.

    A plan or a kernel that has gone is made again when its shape comes. Smaller numbers take less
    memory where shapes change all the time, larger ones less time; `nnl.profile()` tells how many
    were made and dropped.

    Args:
        plans: Of each function that nnl.compile has returned, one for every combination of
            arguments; 128 at first.
        kernels: Of each function of nnl with one set of attributes; 512 at first.
    Raises:
        ValueError: A number is less than 1.

    Example:
        >>> nn.set_cache_size(plans=128, kernels=512)
    """
    for kind, most in (("plans", plans), ("kernels", kernels)):
        if most is None:
            continue
        try:
            number = as_int(most)
        except (TypeError, OverflowError):
            raise TypeError(f"set_cache_size: {kind} is {most!r}, wanted an int") from None
        if number < 1:
            raise ValueError(f"set_cache_size: {kind} is {number}, wanted 1 or more")
        LIMITS[kind].most = number


class Plans(dict[Any, Any]):
    """The plans of one function by what it was called with, in the order of their latest use.

    Args:
        most: Where it keeps fewer than the limit of all.
    """

    def __init__(self, most: int = sys.maxsize) -> None:
        super().__init__()
        self._most = most
        self._lock = Lock()

    def find(self, key: Any) -> Any:
        with self._lock:
            found = self.get(key)
            if found is not None:
                self[key] = self.pop(key)  # the last one now
            return found

    def put(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` gives, kept; others go before that, so that both are never there at once."""
        limit = LIMITS["plans"]
        with self._lock:
            self.pop(key, None)
            while len(self) >= min(limit.most, self._most):
                self.pop(next(iter(self)))
                limit.dropped += 1
        made = make()
        with self._lock:
            self[key] = made
            limit.made += 1
        return made


class Kernels(dict[Any, Any]):
    """What ops keep for specs and attributes, in two generations: calls in C only look things up.

    When the younger one, this dictionary, is full, it becomes the older one. What is asked for
    again comes back from there; what nobody has asked for goes with it at the next time.
    """

    __slots__ = ("older",)
    older: dict[Any, Any]

    def __init__(self) -> None:
        super().__init__()
        self.older = _NONE

    def find(self, key: Any) -> Any:
        found = self.get(key)
        if found is None and self.older:
            found = self.older.pop(key, None)
            if found is not None:
                self._add(key, found)
        return found

    def put(self, key: Any, value: Any) -> Any:
        """What is kept under a key now: the value, unless another thread has been faster."""
        LIMITS["kernels"].made += 1
        return self._add(key, value)

    def _add(self, key: Any, value: Any) -> Any:
        limit = LIMITS["kernels"]
        if len(self) >= (limit.most + 1) // 2:
            limit.dropped += len(self.older)
            self.older = dict(self) if limit.most > 1 else _NONE
            self.clear()
        return self.setdefault(key, value)


_NONE: dict[Any, Any] = {}
