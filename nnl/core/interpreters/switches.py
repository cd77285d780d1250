# SPDX-License-Identifier: Apache-2.0
"""Switches that scripts use: the context in force, define-by-run, no_grad, recomputation.

What is set holds in the thread that sets it, and in threads that begin to use nnl later; a with
block holds in its thread only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from nnl.core.arguments.annotations import flag
from nnl.core.interpreters.interpreter import EAGER, STATIC
from nnl.core.settings.context import STATE, Context, set_defaults, using


def set_default_context(ctx: Context) -> None:
    """Use `ctx` for every function called from now on.

    Example:
        >>> nn.set_default_context(nn.get_current_context())
    """
    if not isinstance(ctx, Context):
        raise TypeError(f"set_default_context: ctx is {type(ctx).__name__}, wanted nnl.Context")
    set_defaults(context=ctx, target=ctx.target)


def get_current_context() -> Context:
    """The context in force.

    Example:
        >>> nn.get_current_context().array_class
        'CpuCachedArray'
    """
    return STATE.context


@contextmanager
def context_scope(ctx: Context) -> Iterator[Context]:
    """Use `ctx` inside the with block.

    Example:
        >>> with nn.context_scope(nn.Context(["cpu:double"])), nn.auto_forward():
        ...     F.exp(array([1])).d.dtype
        dtype('float64')
    """
    if not isinstance(ctx, Context):
        raise TypeError(f"context_scope: ctx is {type(ctx).__name__}, wanted nnl.Context")
    with using(context=ctx, target=ctx.target):
        yield ctx


def set_auto_forward(auto: bool) -> None:
    """Compute functions when they are called (True) or at forward() (False, the default).

    Example:
        >>> nn.set_auto_forward(False)
        >>> nn.get_auto_forward()
        False
    """
    auto = flag("set_auto_forward", "auto", auto)
    now = STATE.interpreter.switched(auto)
    set_defaults(interpreter=EAGER if auto else STATIC)
    STATE.interpreter = now


def get_auto_forward() -> bool:
    """Whether functions compute when they are called.

    Example:
        >>> nn.get_auto_forward()
        False
    """
    return STATE.auto_forward


@contextmanager
def auto_forward(auto: bool = True) -> Iterator[None]:
    """Compute functions when they are called inside the with block.

    Example:
        >>> with nn.auto_forward():
        ...     (array([1, 2]) * 3).d
        array([3., 6.], dtype=float32)
    """
    with using(auto_forward=bool(auto)):
        yield


@contextmanager
def no_grad(no_grad_: bool = True) -> Iterator[None]:
    """Functions called inside the with block take no part in backward().

    Example:
        >>> w = nn.Variable((2,), need_grad=True)
        >>> with nn.no_grad():
        ...     y = w * 2
        >>> y.need_grad
        False
    """
    with using(no_grad=bool(no_grad_)):
        yield


@contextmanager
def recompute(recompute_: bool = True) -> Iterator[None]:
    """Mark what functions return inside the with block: drop it after forward, compute it again
    in backward. It takes effect in static graphs run with clear_no_need_grad, and in training steps
    of nnl.compile.

    Example:
        >>> with nn.recompute():
        ...     h = F.exp(nn.Variable((2,), need_grad=True))
        >>> h.recompute
        True
    """
    with using(recompute=bool(recompute_)):
        yield


def recompute_fn(recompute_: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: call the function inside recompute(recompute_).

    Example:
        >>> @nn.recompute_fn()
        ... def cheap(x):
        ...     return F.exp(x)
        >>> cheap(nn.Variable((2,), need_grad=True)).recompute
        True
    """

    def decorate(f: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(f)
        def wrapped(*args: Any, **kw: Any) -> Any:
            with recompute(recompute_):
                return f(*args, **kw)

        return wrapped

    return decorate


def set_global_recompute(recompute: bool) -> None:
    """Mark everything that functions return from now on for recomputation.

    Example:
        >>> nn.set_global_recompute(False)
    """
    set_defaults(recompute=bool(recompute))


def get_global_recompute() -> bool:
    """Whether variables are made with `recompute` set."""
    return STATE.recompute
