# SPDX-License-Identifier: Apache-2.0
"""Clipping of values and of gradients, by bounds or by norm."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nnl.core.arguments.annotations import Input, checked
from nnl.core.arrays.array import NdArray
from nnl.core.arrays.spec import ShapeError, check_axes
from nnl.core.graph.variable import Variable
from nnl.core.ops.op import Cost, Sample, op
from nnl.functions.arithmetic import add2, div2, mul2, mul_scalar, pow_scalar
from nnl.functions.comparison import equal_scalar, isnan
from nnl.functions.reduction import sum as sum_axes
from nnl.functions.selection import (
    maximum2,
    maximum_scalar,
    minimum2,
    minimum_scalar,
    where,
)

CATEGORY = "Normalization"

__all__ = ["clip_by_norm", "clip_by_value", "clip_grad_by_norm", "clip_grad_by_value"]


@checked
def clip_by_value(x: Input, min: Any, max: Any) -> Any:
    r"""$y = \min(\max(x, min), max)$, element by element; max where min > max.

    The gradient passes to x where min < x < max; a bound that is an array gets it elsewhere.

    Args:
        x: Variable or NdArray of any shape.
        min, max: Numbers, or arrays of x's rank whose sizes of 1 stretch.
    Raises:
        ShapeError: A bound is an array that does not fit.
        TypeError: A bound is neither array nor number.
        ValueError: A bound is NaN.
    Example:
        >>> F.clip_by_value(array([-3, 0, 5]), -1, 2).d
        array([-1.,  0.,  2.], dtype=float32)
    """
    bounds = {"min": min, "max": max}
    for name, bound in bounds.items():
        if isinstance(bound, (Variable, NdArray)):
            continue
        if not isinstance(bound, (int, float, np.number)):
            raise TypeError(
                f"clip_by_value: {name} is {type(bound).__name__}, wanted a number, nnl.Variable "
                "or nnl.NdArray"
            )
        if math.isnan(bound):
            raise ValueError(f"clip_by_value: {name} is nan, wanted a number")
        bounds[name] = float(bound)
    low, high = bounds["min"], bounds["max"]
    y = maximum_scalar(x, low) if isinstance(low, float) else maximum2(x, low)
    return minimum_scalar(y, high) if isinstance(high, float) else minimum2(y, high)


@checked
def clip_by_norm(x: Input, clip_norm: Any, axis: int | tuple[int, ...] | None = None) -> Any:
    r"""x scaled down where its Euclidean norm is above c: $y = x\,c / \max(\|x\|, c)$.

    Args:
        x: Variable or NdArray of any shape.
        clip_norm: Positive number, or an array of positive numbers that stretches to x's shape.
        axis: Axes of the norm, an int or several; all if left out.
    Raises:
        ShapeError: An axis is out of range, or clip_norm is an array that does not fit.
        TypeError: clip_norm is neither array nor number.
        ValueError: clip_norm is a number that is not positive.
    Source: Pascanu, Mikolov and Bengio, On the difficulty of training Recurrent Neural Networks,
        arXiv:1211.5063, algorithm 1 (there for gradients).
    Example:
        >>> F.clip_by_norm(array([3, 4]), 1).d
        array([0.6, 0.8], dtype=float32)
    """
    if isinstance(clip_norm, (Variable, NdArray)):
        ratio = div2(x, clip_norm)
    elif not isinstance(clip_norm, (int, float, np.number)):
        raise TypeError(
            f"clip_by_norm: clip_norm is {type(clip_norm).__name__}, wanted a number, nnl.Variable "
            "or nnl.NdArray"
        )
    elif not clip_norm > 0:
        raise ValueError(f"clip_by_norm: clip_norm is {clip_norm}, wanted a positive number")
    else:
        ratio = mul_scalar(x, 1.0 / float(clip_norm))
    # Bounded before the root: what is short enough gets a factor of exactly 1, and the gradient is
    # finite where x is 0.
    squares = sum_axes(mul2(ratio, ratio), axis, keepdims=True)
    return mul2(x, pow_scalar(maximum_scalar(squares, 1.0), -0.5))


class Passing:
    """Common to functions that copy x and change its gradient only."""

    def forward(self, xp, x, *bounds, out=None):
        return xp.positive(x, out=out)


@op("clip_grad_by_value", nnp="ClipGradByValue")
class clip_grad_by_value(Passing):
    r"""$y = x$; the gradient is clipped, $g_x = \min(\max(g_y, min), max)$. NaN stays NaN.

    Args:
        x: Any shape.
        min, max: Arrays of x's rank whose sizes of 1 stretch. max counts where min > max.
    Raises:
        ShapeError: min or max does not stretch to the shape of x.
    """

    elementwise = "copy"

    def infer(self, x, min, max):
        for name, bound in (("min", min), ("max", max)):
            fits = len(bound.shape) == len(x.shape) and all(
                a in (1, b) for a, b in zip(bound.shape, x.shape, strict=True)
            )
            if not fits:
                raise ShapeError(
                    f"clip_grad_by_value: {name} {bound} does not stretch to the shape of x {x}"
                )
        return x

    def vjp(self, gy, *, min, max):
        clipped = minimum2(maximum2(gy, min), max)
        return where(isnan(gy), gy, clipped), None, None

    def cost(self, x, min, max):
        return Cost(flops=0, bytes=2 * x.nbytes)

    def samples(rng):
        for shape, bound in (((2, 3), (2, 3)), ((2, 3), (1, 3)), ((), ()), ((0, 2), (1, 1))):
            low, high = np.full(bound, -0.1), np.full(bound, 0.2)
            yield Sample(rng.normal(size=shape), low, high, order=0)


@op("clip_grad_by_norm", nnp="ClipGradByNorm")
class clip_grad_by_norm(Passing):
    r"""x itself; its gradient gets the Euclidean norm c: $g_x = c\,g_y / \|g_y\|$.

    As in NNabla, shorter gradients are lengthened too. A gradient of norm 0 stays 0.

    Args:
        x: Any shape.
        clip_norm: The norm c; 1 if left out.
        axes: Axes of the norm; all if left out.
    Raises:
        ShapeError: An axis is out of range or given twice.
    Source: Pascanu, Mikolov and Bengio, On the difficulty of training Recurrent Neural Networks,
        arXiv:1211.5063 (there only for gradients above the norm).
    """

    clip_norm: float | None = None
    axes: tuple[int, ...] | None = None
    elementwise = "copy"

    def resolve(self, x):
        axes = range(len(x.shape)) if self.axes is None else self.axes
        return {
            "clip_norm": 1.0 if self.clip_norm is None else self.clip_norm,
            "axes": check_axes("clip_grad_by_norm", axes, x),
        }

    def infer(self, x):
        return x

    def vjp(self, gy):
        norm = pow_scalar(sum_axes(mul2(gy, gy), self.axes, keepdims=True), 0.5)
        norm = add2(norm, equal_scalar(norm, 0.0))
        return div2(mul_scalar(gy, self.clip_norm), norm)

    def cost(self, x):
        return Cost(flops=0, bytes=2 * x.nbytes)

    def samples(rng):
        for clip_norm, axes in ((None, None), (0.5, (0,)), (2.0, (0, 2)), (1.0, (1,))):
            x = rng.normal(size=(2, 3, 2))
            yield Sample(x, clip_norm=clip_norm, axes=axes, order=0)
        yield Sample(np.zeros((0, 2)), order=0)
