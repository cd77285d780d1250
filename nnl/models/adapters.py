# SPDX-License-Identifier: Apache-2.0
"""Small matrices that are trained beside weights that stay: low-rank adapters of products."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from nnl import functions as F
from nnl.core.graph.variable import Variable
from nnl.core.parameters.parameter import get_parameter, get_parameter_or_create

A, B, SCALE = PARTS = ("lora_A", "lora_B", "lora_scale")

# of the graphs that this thread makes now
PLANNED: ContextVar[bool] = ContextVar("PLANNED", default=False)
DROPOUT: ContextVar[float] = ContextVar("DROPOUT", default=0.0)


@contextmanager
def setting(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    """Let it have a value in the with block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def parameter(name: str, shape: Any, initializer: Any = None) -> Variable:
    """`get_parameter_or_create`, where a parameter that is frozen stays so."""
    found = get_parameter(name)
    return get_parameter_or_create(
        name, shape, initializer, need_grad=found is None or found.need_grad
    )


def present() -> bool:
    """Whether the product of the current scope has adapters."""
    return get_parameter(A) is not None


def added(y: Any, x: Any) -> Any:
    r"""$y + s\,(x A^T) B^T$ with the adapters of the current scope; y where it has none.

    Args:
        y: (m, width), a product with x (m, n).
    """
    if PLANNED.get():  # every product gets one, to see which there are
        get_parameter_or_create(A, (1, x.shape[-1]))
        get_parameter_or_create(B, (y.shape[-1], 1))
        return y
    if not present():
        return y
    a, b = parameter(A, None), parameter(B, None)
    p = DROPOUT.get()
    x = F.dropout(x, p) if p else x
    low = F.batch_matmul(x, a, transpose_b=True) * parameter(SCALE, None)
    return y + F.batch_matmul(low, b, transpose_b=True)


def put(name: str, a: Any, b: Any, scale: float) -> None:
    """Let the product `name` of the current scope have these adapters."""
    values = {A: np.asarray(a, np.float32), B: np.asarray(b, np.float32)}
    for part, value in values.items():
        get_parameter_or_create(f"{name}/{part}", value.shape, value)
    get_parameter_or_create(f"{name}/{SCALE}", (1, 1), np.float32([[scale]]), need_grad=False)
