# SPDX-License-Identifier: Apache-2.0
"""The handler of operators that are one nnl function, made from the `Onnx` data of the function."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from nnl.converters.onnx.values.values import same_rank, var
from nnl.core.ops.op import Op


@cache
def table_handler(op: Op) -> Callable[..., Any]:
    """A handler that calls `op` with the attributes its table entry names."""
    names = {} if op.onnx is None else op.onnx.attrs

    def handler(ctx: Any, node: Any, *values: Any) -> Any:
        given = {
            ours: getattr(node, theirs)
            for ours, theirs in names.items()
            if getattr(node, theirs) is not None
        }
        inputs = [var(v) for v in values]
        if len(inputs) > 1:
            inputs = same_rank(*inputs)
        return op(*inputs, **given)

    return handler
