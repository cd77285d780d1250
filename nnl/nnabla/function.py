# SPDX-License-Identifier: Apache-2.0
"""Functions as NNabla's classes, function.ReLU(ctx, inplace=False)(x), beside Function itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nnl.core.graph.function import Function
from nnl.core.interpreters.switches import context_scope
from nnl.core.ops.op import OPS
from nnl.core.ops.python_function import PythonFunction
from nnl.core.settings.context import Context

__all__ = ["Function", "PythonFunction"]


def __getattr__(name: str) -> Any:
    op = next((op for op in OPS.values() if op.nnp == name), None)
    if op is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def make(ctx: Context, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        arguments = {**dict(zip(op.fields, args, strict=False)), **kwargs}

        def function(*inputs: Any, **outputs: Any) -> Any:
            with context_scope(ctx):
                return op(*inputs, **arguments, **outputs)

        return function

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"Fix context and arguments of {op.name}; call the result with its inputs."
    return make
