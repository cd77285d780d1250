# SPDX-License-Identifier: Apache-2.0
"""Activations with a gate: one half of the features, bent, multiplies the other."""

from __future__ import annotations

from typing import Any

from nnl.core.arguments.annotations import Input, checked
from nnl.core.arrays.spec import ShapeError, check_axis
from nnl.functions.arithmetic import add_scalar, mul2, mul_scalar
from nnl.functions.erf import erf
from nnl.functions.slicing import slice
from nnl.functions.smooth_activation import gelu, swish

CATEGORY = "Activation"

__all__ = ["swiglu", "geglu"]


@checked
def swiglu(x: Input, up: Input | None = None, axis: int = -1) -> Any:
    r"""$y = \mathrm{swish}(x)\, u$ with $\mathrm{swish}(x) = x\,\sigma(x)$, the gate of Llama.

    Args:
        x: The gate; without `up` the gate, then u, side by side along axis.
        up: u, of the shape of x.
        axis: What is halved where up is left out.
    Returns:
        Of the shape of u.
    Raises:
        ShapeError: The shapes differ, or the axis has an odd size.
    Source: Shazeer, GLU Variants Improve Transformer, arXiv:2002.05202.
    Example:
        >>> F.swiglu(array([[1, 3]])).d
        array([[2.1932]], dtype=float32)
    """
    gate, up = halves("swiglu", x, up, axis)
    return mul2(swish(gate), up)


@checked
def geglu(x: Input, up: Input | None = None, axis: int = -1, approximate: bool = True) -> Any:
    r"""$y = \mathrm{gelu}(x)\, u$, the gate of Gemma.

    Args:
        x, up, axis: As of `swiglu`.
        approximate: gelu by tanh, as of `gelu`, else $x\,(1 + \mathrm{erf}(x / \sqrt 2)) / 2$.
    Returns:
        Of the shape of u.
    Raises:
        ShapeError: The shapes differ, or the axis has an odd size.
    Source: Shazeer, GLU Variants Improve Transformer, arXiv:2002.05202.
    Example:
        >>> F.geglu(array([[1, 3]])).d
        array([[2.5236]], dtype=float32)
    """
    gate, up = halves("geglu", x, up, axis)
    if approximate:
        return mul2(gelu(gate), up)
    bent = mul_scalar(add_scalar(erf(mul_scalar(gate, 0.5**0.5)), 1.0), 0.5)
    return mul2(mul2(gate, bent), up)


def halves(name: str, x: Any, up: Any, axis: int) -> tuple[Any, Any]:
    """(gate, u) from what a function was given."""
    if up is not None:
        if x.shape != up.shape:
            raise ShapeError(f"{name}: x {x.spec} and up {up.spec} must have the same shape")
        return x, up
    axis = check_axis(name, axis, x.spec)
    n = x.shape[axis]
    if n % 2:
        raise ShapeError(f"{name}: x {x.spec} has an odd size along axis {axis}, wanted two halves")
    start, stop = [0] * len(x.shape), list(x.shape)
    middle = [*start], [*stop]
    middle[0][axis] = middle[1][axis] = n // 2
    return slice(x, start, middle[1]), slice(x, middle[0], stop)
