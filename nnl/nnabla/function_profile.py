# SPDX-License-Identifier: Apache-2.0
"""Python's profiler around one Python function, all calls together."""

from __future__ import annotations

import atexit
import cProfile
import pstats
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

__all__ = ["profile"]


class FunctionProfile:
    """What profile() attaches to a function as `profiler`.

    Only one function is profiled at a time: calls of others inside it count as its own.
    """

    profiling = False

    def __init__(
        self,
        fn: Callable[..., Any],
        condition: Callable[..., bool] | None = None,
        profile_class: Callable[[], Any] = cProfile.Profile,
        print_freq: int = 0,
        sort_keys: Sequence[str] | None = None,
        print_restrictions: Sequence[Any] | None = None,
    ) -> None:
        self.fn, self.condition, self.profile_class = fn, condition, profile_class
        self.print_freq = print_freq
        self.sort_keys = sort_keys or ("cumulative", "time", "calls")
        self.print_restrictions = print_restrictions or (40,)
        self.reset_stats()
        atexit.register(self.print_stats)

    def __call__(self, *args: Any, **kw: Any) -> Any:
        if self.condition is not None and not self.condition(*args, **kw):
            return self.fn(*args, **kw)
        self.ncalls += 1
        if FunctionProfile.profiling:
            return self.fn(*args, **kw)
        profiler = self.profile_class()
        FunctionProfile.profiling = True
        try:
            return profiler.runcall(self.fn, *args, **kw)
        finally:
            FunctionProfile.profiling = False
            if self.stats is None:
                self.stats = pstats.Stats(profiler)
            else:
                self.stats.add(profiler)
            if self.print_freq and self.ncalls % self.print_freq == 0:
                self.print_stats()

    def reset_stats(self) -> None:
        """Forget what was measured."""
        self.stats: Any = None
        self.ncalls = 0

    def print_stats(self, reset: bool = True) -> None:
        """Print what was measured since the last reset, and reset unless told not to."""
        if self.stats is None:
            return
        code = self.fn.__code__
        print("--- Function Profiling ---")
        print(f'File "{code.co_filename}", line {code.co_firstlineno}, function {self.fn.__name__}')
        self.stats.sort_stats(*self.sort_keys)
        self.stats.print_stats(*self.print_restrictions)
        print("--------------------------")
        if reset:
            self.reset_stats()


def profile(fn: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Decorate a function: its profile is printed every `print_freq` calls and at the end.

    Args:
        fn: The function. Left out, options can be given: @profile(print_freq=10).
        condition: Called with the arguments of each call; only where it is True, it is profiled.
        profile_class: cProfile.Profile or a class like it.
        print_freq: Calls between two prints; 0 prints at the end only.
        sort_keys, print_restrictions: See pstats.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        profiler = FunctionProfile(function, **options)

        @wraps(function)
        def wrapped(*args: Any, **kw: Any) -> Any:
            return profiler(*args, **kw)

        wrapped.profiler = profiler  # type: ignore[attr-defined]
        return wrapped

    return decorate if fn is None else decorate(fn)
