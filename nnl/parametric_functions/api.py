# SPDX-License-Identifier: Apache-2.0
"""The decorator that gives a function a parameter scope and the argument `name`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from nnl.core.arguments.annotations import checker, shown
from nnl.core.arrays.spec import ShapeError
from nnl.core.parameters.parameter import LOOKUP, name_layer

Description = tuple[str, str, str, bool]


def parametric_function_api(
    scope_name: str | None = None, param_desc: Sequence[Description] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function that gets its parameters with `get_parameter_or_create`.

    The decorated function takes one more argument, name=None, and runs in the parameter scope
    `name/scope_name`, or `scope_name` without a name. If it raises, the parameters that it has
    registered until then are removed.

    Args:
        scope_name: Name of the scope; that of the function if left out.
        param_desc: Of each parameter: name, what it is, its shape and whether it needs a
            gradient. For help() alone: the function itself says what there is, and whether it
            learns, by get_parameter_or_create(need_grad=...).

    Example:
        >>> @PF.parametric_function_api("scale", [("s", "Factor", "(1, n)", True)])
        ... def scale(x):
        ...     s = PF.get_parameter_or_create("s", (1, x.shape[1]), I.ConstantInitializer(2))
        ...     return x * s
        >>> scale(array([[1, 2]]), name="ex").d
        array([[2., 4.]], dtype=float32)
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        scope = scope_name or function.__name__
        own = len(scope.split("/"))
        signature = inspect.signature(function)
        positional = len(signature.parameters)
        ours = function.__module__.startswith("nnl.")
        check = checker(function)

        @wraps(function)
        def with_scope(*args: Any, name: str | None = None, **kw: Any) -> Any:
            if len(args) == positional + 1 and name is None:  # name given by position
                *args, name = args  # type: ignore[assignment]
            if name is not None and not isinstance(name, str):
                raise TypeError(f"{function.__name__}: name is {shown(name)}, wanted a str")
            if ours:
                args, kw = check(args, kw)
            try:
                return LOOKUP.in_scope(function, scope, own, name, args, kw)
            except ShapeError as e:
                name_layer(e, function.__name__)
                raise

        last = inspect.Parameter("name", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
        with_scope.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*signature.parameters.values(), last]
        )
        with_scope.__doc__ = _documented(function.__doc__, scope, param_desc or ())
        return with_scope

    return decorate


def _documented(doc: str | None, scope: str, descriptions: Sequence[Description]) -> str:
    lines = [
        inspect.cleandoc(doc or ""),
        "",
        f"Parameters, in the scope [name/]{scope}:",
        *(
            f"    {name}: {what}, {shape}" + ("." if need_grad else ", without gradient.")
            for name, what, shape, need_grad in descriptions
        ),
    ]
    return "\n".join(lines)
