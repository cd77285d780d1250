# SPDX-License-Identifier: Apache-2.0
"""Hooks called before and after every function, and around every solver call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = [
    "set_function_post_hook",
    "set_function_pre_hook",
    "set_solver_post_hook",
    "set_solver_pre_hook",
    "unset_function_post_hook",
    "unset_function_pre_hook",
    "unset_solver_post_hook",
    "unset_solver_pre_hook",
]

Hook = Callable[[Any], None]


class Hooks:
    """Named callables of two moments."""

    __slots__ = ("pre", "post", "active")  # read by calls of ops in C, too

    def __init__(self) -> None:
        self.pre: dict[Any, Hook] = {}
        self.post: dict[Any, Hook] = {}
        self.active = False

    def set(self, table: dict[Any, Hook], key: Any, hook: Hook | None) -> None:
        if hook is None:
            table.pop(key, None)
        elif not callable(hook):
            raise TypeError(f"hook {key!r} is {type(hook).__name__}, wanted a callable or None")
        else:
            table[key] = hook
        self.active = bool(self.pre or self.post)

    def before(self, node: Any) -> None:
        _call(self.pre, node)

    def after(self, node: Any) -> None:
        _call(self.post, node)


def _call(table: dict[Any, Hook], node: Any) -> None:
    from nnl.core.graph.function import Function

    for hook in list(table.values()):
        hook(Function(node))


HOOKS = Hooks()
SOLVER_HOOKS = Hooks()


def set_function_pre_hook(key: Any, function_pre_hook: Hook | None) -> None:
    """Call `function_pre_hook(function)` before every function that runs.

    Example:
        >>> names = []
        >>> nn.set_function_pre_hook("ex", lambda function: names.append(function.name))
        >>> F.exp(array([1, 2])).forward()
        >>> nn.unset_function_pre_hook("ex")
        >>> names
        ['Exp']
    """
    HOOKS.set(HOOKS.pre, key, function_pre_hook)


def set_function_post_hook(key: Any, function_post_hook: Hook | None) -> None:
    """Call `function_post_hook(function)` after every function that runs.

    Example:
        >>> names = []
        >>> nn.set_function_post_hook("ex", lambda function: names.append(function.name))
        >>> F.exp(array([1, 2])).forward()
        >>> nn.unset_function_post_hook("ex")
        >>> names
        ['Exp']
    """
    HOOKS.set(HOOKS.post, key, function_post_hook)


def unset_function_pre_hook(key: Any) -> None:
    """Remove the hook of this key.

    Example:
        >>> nn.set_function_pre_hook("ex", print)
        >>> nn.unset_function_pre_hook("ex")
    """
    HOOKS.set(HOOKS.pre, key, None)


def unset_function_post_hook(key: Any) -> None:
    """Remove the hook of this key.

    Example:
        >>> nn.set_function_post_hook("ex", print)
        >>> nn.unset_function_post_hook("ex")
    """
    HOOKS.set(HOOKS.post, key, None)


def set_solver_pre_hook(key: Any, solver_pre_hook: Callable[[], None] | None) -> None:
    """Call `solver_pre_hook()` before every step of a solver that touches parameters.

    Example:
        >>> calls = []
        >>> nn.set_solver_pre_hook("ex", lambda: calls.append(1))
        >>> S.Sgd(0.1).zero_grad()
        >>> nn.unset_solver_pre_hook("ex")
    """
    SOLVER_HOOKS.set(SOLVER_HOOKS.pre, key, solver_pre_hook)  # type: ignore[arg-type]


def set_solver_post_hook(key: Any, solver_post_hook: Callable[[], None] | None) -> None:
    """Call `solver_post_hook()` after every step of a solver that touches parameters.

    Example:
        >>> calls = []
        >>> nn.set_solver_post_hook("ex", lambda: calls.append(1))
        >>> S.Sgd(0.1).zero_grad()
        >>> nn.unset_solver_post_hook("ex")
    """
    SOLVER_HOOKS.set(SOLVER_HOOKS.post, key, solver_post_hook)  # type: ignore[arg-type]


def unset_solver_pre_hook(key: Any) -> None:
    """Remove the hook of this key.

    Example:
        >>> nn.set_solver_pre_hook("ex", print)
        >>> nn.unset_solver_pre_hook("ex")
    """
    SOLVER_HOOKS.set(SOLVER_HOOKS.pre, key, None)


def unset_solver_post_hook(key: Any) -> None:
    """Remove the hook of this key.

    Example:
        >>> nn.set_solver_post_hook("ex", print)
        >>> nn.unset_solver_post_hook("ex")
    """
    SOLVER_HOOKS.set(SOLVER_HOOKS.post, key, None)
