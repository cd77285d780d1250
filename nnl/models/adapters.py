# SPDX-License-Identifier: Apache-2.0
"""Small matrices that are trained beside weights that stay: low-rank adapters of products."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from nnl import functions as F
from nnl.core.graph.variable import Variable
from nnl.core.interpreters.switches import no_grad
from nnl.core.parameters.parameter import get_parameter, get_parameter_or_create

A, B, SCALE, MAGNITUDE, SQUARES = PARTS = (
    "lora_A", "lora_B", "lora_scale", "lora_magnitude_vector", "lora_squares",
)  # fmt: skip

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


def added(plain: Callable[[Any], Any], x: Any) -> Any:
    r"""$y = x W^T$ with the adapters of the current scope: $y + s\,(x A^T) B^T$, or

    $m\,(x (W + s B A)^T) / \|W + s B A\|$ where they have magnitudes m of its rows; backward takes
    the norm as constant.

    Args:
        plain: Gives y of x, (m, n).
    Source: Hu et al., LoRA, arXiv:2106.09685; Liu et al., DoRA, arXiv:2402.09353, section 4.
    """
    y = plain(x)
    if PLANNED.get():  # every product gets one, to see which there are
        get_parameter_or_create(A, (1, x.shape[-1]))
        get_parameter_or_create(B, (y.shape[-1], 1))
        return y
    if not present():
        return y
    a, b, scale = parameter(A, None), parameter(B, None), parameter(SCALE, None)
    p = DROPOUT.get()
    x = F.dropout(x, p) if p else x
    delta = F.batch_matmul(F.batch_matmul(x, a, transpose_b=True) * scale, b, transpose_b=True)
    if get_parameter(MAGNITUDE) is None:
        return y + delta
    with no_grad():
        # |W_i + s B_i A|^2 without the sum of both, which is as large as W
        columns = F.transpose(b, (1, 0))
        cross = F.sum(plain(a) * columns, axis=0, keepdims=True)
        inner = F.batch_matmul(a, a, transpose_b=True)
        own = F.sum(F.batch_matmul(inner, columns) * columns, axis=0, keepdims=True)
        norm = (parameter(SQUARES, None) + scale * (cross * 2.0 + scale * own)) ** 0.5
    share = F.reshape(parameter(MAGNITUDE, None), norm.shape) / norm
    if not p:
        return (y + delta) * share
    return y + (share - 1.0) * plain(x) + share * delta


def put(name: str, values: Mapping[str, Any], scale: float, w: Any) -> None:
    """Let the product `name` of the current scope have adapters, {A, B and MAGNITUDE: an array}.

    Args:
        w: Its weights, where it has magnitudes.
    """
    for part, value in values.items():
        array = np.asarray(value, np.float32)
        get_parameter_or_create(f"{name}/{part}", array.shape, array)
    fixed = {SCALE: np.float32([[scale]])}
    if MAGNITUDE in values:
        fixed[SQUARES] = (np.asarray(w, np.float32) ** 2).sum(1)[None]
    for part, array in fixed.items():
        get_parameter_or_create(f"{name}/{part}", array.shape, array, need_grad=False)


def summed(w: Any, parts: Mapping[str, Any]) -> Any:
    """The weights that a product with these and its adapters amounts to."""
    found = w + parts[SCALE] * (parts[B] @ parts[A])
    if MAGNITUDE in parts:
        found *= (parts[MAGNITUDE] / np.linalg.norm(found, axis=1))[:, None]
    return found
