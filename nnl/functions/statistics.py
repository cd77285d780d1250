# SPDX-License-Identifier: Apache-2.0
"""Variance, standard deviation and the logarithm of a sum of exponentials, made of functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nnl.core.arguments.annotations import Input, checked
from nnl.functions.arithmetic import add2, mul2, mul_scalar, pow_scalar, sub2
from nnl.functions.comparison import equal_scalar
from nnl.functions.elementary import exp, log, unlink
from nnl.functions.reduction import max, mean, reshape, sum
from nnl.functions.selection import reset_inf

CATEGORY = "Reduction"

__all__ = ["var", "std", "logsumexp"]


Axes = int | Sequence[int] | None


@checked
def var(x: Input, axis: Axes = None, keepdims: bool = False, ddof: float = 0):
    r"""Variance over axes: $y = \frac{1}{n - d} \sum_i (x_i - \mu)^2$ with mean $\mu$, d is ddof.

    Args:
        x: Any shape.
        axis: An int or several; all axes if left out. Negative ones count from the end.
        keepdims: Keep reduced axes with size 1.
        ddof: 0 divides by the number of elements, as numpy does; 1, PyTorch's default, by one
            less. Where nothing is left to divide by, the result is no finite number.
    Raises:
        ShapeError: An axis is out of range or given twice.
    Example:
        >>> F.var(array([[1, 3], [2, 8]]), axis=1).d
        array([1., 9.], dtype=float32)
    """
    middle = mean(x, axis=axis, keepdims=True)
    centred = sub2(x, middle)
    square = mul2(centred, centred)
    if not ddof:
        return mean(square, axis=axis, keepdims=keepdims)
    n = x.size / (middle.size or 1)
    total = sum(square, axis=axis, keepdims=keepdims)
    return mul_scalar(total, 1 / (n - ddof) if n > ddof else math.inf)


@checked
def std(x: Input, axis: Axes = None, keepdims: bool = False, ddof: float = 0):
    r"""Standard deviation over axes: $y = \sqrt{v}$ of the `var` v; its gradient at 0 is 0.

    Arguments and errors are those of `var`.

    Example:
        >>> F.std(array([[1, 3], [2, 8]]), axis=1).d
        array([1., 3.], dtype=float32)
    """
    square = var(x, axis=axis, keepdims=keepdims, ddof=ddof)
    # 1 in place of 0, and taken away again: the root has no gradient at 0
    none = equal_scalar(square, 0.0)
    return sub2(pow_scalar(add2(square, none), 0.5), none)


@checked
def logsumexp(x: Input, axis: Axes = None, keepdims: bool = False):
    r"""$y = \ln \sum_i e^{x_i}$ over axes, without overflow.

    Args:
        x: Any shape.
        axis: An int or several; all axes if left out. Negative ones count from the end.
        keepdims: Keep reduced axes with size 1.
    Raises:
        ShapeError: An axis is out of range or given twice, or there is no element along one.
    Example:
        >>> F.logsumexp(array([[1000, 1000], [0, 0]]), axis=1).d
        array([1000.6932,    0.6931], dtype=float32)
    """
    # it cancels, so it needs no gradient; an infinite one would not cancel
    top = unlink(reset_inf(max(x, axis=axis, keepdims=True)))
    total = sum(exp(sub2(x, top)), axis=axis, keepdims=keepdims)
    return add2(log(total), top if keepdims else reshape(top, total.shape))
