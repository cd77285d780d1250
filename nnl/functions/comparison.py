# SPDX-License-Identifier: Apache-2.0
"""Comparisons and logic: functions whose result is 0 or 1, element by element.

The result has the floating-point type of the context. None of them has a gradient. A NaN counts as
true, and compares as numpy's does: it equals nothing, itself included. Numbers to compare with are
first rounded to the type of the array. Functions of two arrays take arrays of one rank, sizes of 1
stretch, and raise ShapeError where that does not fit.
"""

from __future__ import annotations

import numpy as np

from nnl.core.op import Cost, Sample, op
from nnl.functions.arithmetic import Binary

CATEGORY = "Logical"

__all__ = [
    "equal",
    "equal_scalar",
    "greater",
    "greater_equal",
    "greater_equal_scalar",
    "greater_scalar",
    "isinf",
    "isnan",
    "less",
    "less_equal",
    "less_equal_scalar",
    "less_scalar",
    "logical_and",
    "logical_and_scalar",
    "logical_not",
    "logical_or",
    "logical_or_scalar",
    "logical_xor",
    "logical_xor_scalar",
    "not_equal",
    "not_equal_scalar",
]


def _as_floats(y, dtype, out):
    """Truth values as 0 and 1 of a floating-point type."""
    if out is None:
        return y.astype(dtype)
    out[...] = y
    return out


class Comparison(Binary):
    """Common to 0/1 functions of two arrays."""

    test = ""  # the function of xp that decides

    def forward(self, xp, x0, x1, out=None):
        return _as_floats(getattr(xp, self.test)(x0, x1), x0.dtype, out)

    def samples(rng):
        shapes = [((3, 4), (3, 4)), ((3, 4), (1, 4)), ((3, 1), (1, 4)), ((), ()), ((0,), (0,))]
        for s0, s1 in shapes:
            yield Sample(rng.integers(-1, 2, s0) * 1.0, rng.integers(-1, 2, s1) * 1.0)


class OneArray:
    """Common to functions of one array that NNabla calls x0."""

    def infer(self, x0):
        return x0

    def cost(self, x0):
        return Cost(flops=x0.size, bytes=2 * x0.nbytes)


class ComparisonWithNumber(OneArray):
    """Common to comparisons of an array with a number."""

    test = ""  # the function of xp that decides
    val: float = 1.0

    def forward(self, xp, x0, out=None):
        return _as_floats(getattr(xp, self.test)(x0, self.val), x0.dtype, out)

    def samples(rng):
        for shape, val in (((3, 4), 0.0), ((3, 4), 1.0), ((), 1.0), ((0, 2), -1.0)):
            yield Sample(rng.integers(-1, 2, shape) * 1.0, val=val)
        yield Sample(np.array([0.1, 0.3, -0.1]), val=0.1)


class LogicWithNumber(OneArray):
    """Common to logical functions of an array and a truth value."""

    test = ""  # the function of xp that decides
    val: bool

    def forward(self, xp, x0, out=None):
        return _as_floats(getattr(xp, self.test)(x0, self.val), x0.dtype, out)

    def samples(rng):
        for val in (True, False):
            for shape in ((3, 4), (), (0, 2)):
                yield Sample(rng.integers(-1, 2, shape) * 0.5, val=val)


class Predicate(OneArray):
    """Common to 0/1 functions of one array."""

    test = ""  # the function of xp that decides

    def forward(self, xp, x0, out=None):
        return _as_floats(getattr(xp, self.test)(x0), x0.dtype, out)

    def samples(rng):
        yield Sample(np.array([[0.0, -0.0, 1.0], [np.nan, np.inf, -np.inf]]))
        yield Sample(np.array(0.5))
        yield Sample(np.zeros((0, 2)))


@op("equal", nnp="Equal")
class equal(Comparison):
    """$y = [\\,x_0 = x_1\\,]$: 1 where that holds, else 0."""

    test = "equal"
    elementwise = "equal"


@op("not_equal", nnp="NotEqual")
class not_equal(Comparison):
    """$y = [\\,x_0 \\ne x_1\\,]$: 1 where that holds, else 0."""

    test = "not_equal"
    elementwise = "not_equal"


@op("greater", nnp="Greater")
class greater(Comparison):
    """$y = [\\,x_0 > x_1\\,]$: 1 where that holds, else 0."""

    test = "greater"
    elementwise = "greater"


@op("greater_equal", nnp="GreaterEqual")
class greater_equal(Comparison):
    """$y = [\\,x_0 \\ge x_1\\,]$: 1 where that holds, else 0."""

    test = "greater_equal"
    elementwise = "greater_equal"


@op("less", nnp="Less")
class less(Comparison):
    """$y = [\\,x_0 < x_1\\,]$: 1 where that holds, else 0."""

    test = "less"
    elementwise = "less"


@op("less_equal", nnp="LessEqual")
class less_equal(Comparison):
    """$y = [\\,x_0 \\le x_1\\,]$: 1 where that holds, else 0."""

    test = "less_equal"
    elementwise = "less_equal"


@op("equal_scalar", nnp="EqualScalar")
class equal_scalar(ComparisonWithNumber):
    """$y = [\\,x_0 = val\\,]$: 1 where that holds, else 0."""

    test = "equal"
    elementwise = "equal", "val"


@op("not_equal_scalar", nnp="NotEqualScalar")
class not_equal_scalar(ComparisonWithNumber):
    """$y = [\\,x_0 \\ne val\\,]$: 1 where that holds, else 0."""

    test = "not_equal"
    elementwise = "not_equal", "val"


@op("greater_scalar", nnp="GreaterScalar")
class greater_scalar(ComparisonWithNumber):
    """$y = [\\,x_0 > val\\,]$: 1 where that holds, else 0."""

    test = "greater"
    elementwise = "greater", "val"


@op("greater_equal_scalar", nnp="GreaterEqualScalar")
class greater_equal_scalar(ComparisonWithNumber):
    """$y = [\\,x_0 \\ge val\\,]$: 1 where that holds, else 0."""

    test = "greater_equal"
    elementwise = "greater_equal", "val"


@op("less_scalar", nnp="LessScalar")
class less_scalar(ComparisonWithNumber):
    """$y = [\\,x_0 < val\\,]$: 1 where that holds, else 0."""

    test = "less"
    elementwise = "less", "val"


@op("less_equal_scalar", nnp="LessEqualScalar")
class less_equal_scalar(ComparisonWithNumber):
    """$y = [\\,x_0 \\le val\\,]$: 1 where that holds, else 0."""

    test = "less_equal"
    elementwise = "less_equal", "val"


@op("logical_and", nnp="LogicalAnd")
class logical_and(Comparison):
    r"""1 where both are not 0, else 0: $y = [\,x_0 \ne 0 \wedge x_1 \ne 0\,]$."""

    test = "logical_and"
    elementwise = "logical_and"


@op("logical_or", nnp="LogicalOr")
class logical_or(Comparison):
    r"""1 where one of them or both are not 0, else 0: $y = [\,x_0 \ne 0 \vee x_1 \ne 0\,]$."""

    test = "logical_or"
    elementwise = "logical_or"


@op("logical_xor", nnp="LogicalXor")
class logical_xor(Comparison):
    r"""1 where exactly one of them is not 0, else 0: $y = [\,(x_0 \ne 0) \ne (x_1 \ne 0)\,]$."""

    test = "logical_xor"
    elementwise = "logical_xor"


@op("logical_and_scalar", nnp="LogicalAndScalar")
class logical_and_scalar(LogicWithNumber):
    r"""1 where x0 is not 0 and val is true, else 0: $y = [\,x_0 \ne 0 \wedge val\,]$."""

    test = "logical_and"
    elementwise = "logical_and", "val"


@op("logical_or_scalar", nnp="LogicalOrScalar")
class logical_or_scalar(LogicWithNumber):
    r"""1 where x0 is not 0 or val is true, else 0: $y = [\,x_0 \ne 0 \vee val\,]$."""

    test = "logical_or"
    elementwise = "logical_or", "val"


@op("logical_xor_scalar", nnp="LogicalXorScalar")
class logical_xor_scalar(LogicWithNumber):
    r"""1 where either x0 is not 0 or val is true, else 0: $y = [\,(x_0 \ne 0) \ne val\,]$."""

    test = "logical_xor"
    elementwise = "logical_xor", "val"


@op("logical_not", nnp="LogicalNot")
class logical_not(Predicate):
    r"""1 where x0 is 0, else 0: $y = [\,x_0 = 0\,]$."""

    test = "logical_not"
    elementwise = "logical_not"


@op("isnan", nnp="IsNaN")
class isnan(Predicate):
    r"""1 where x0 is NaN, else 0: $y = [\,x_0 \ne x_0\,]$."""

    test = "isnan"
    elementwise = "is_nan"


@op("isinf", nnp="IsInf")
class isinf(Predicate):
    r"""1 where x0 is infinite, of either sign, else 0: $y = [\,|x_0| = \infty\,]$."""

    test = "isinf"
    elementwise = "is_inf"
