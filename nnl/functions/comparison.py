# SPDX-License-Identifier: Apache-2.0
"""Comparisons and logic: functions whose result is 0 or 1, element by element.

The result has the floating-point type of the context. None of them has a gradient. A NaN counts as
true, and compares as numpy's does: it equals nothing, itself included. Numbers to compare with are
first rounded to the type of the array. Functions of two arrays take arrays of one rank, sizes of 1
stretch, and raise ShapeError where that does not fit.
"""

from __future__ import annotations

import numpy as np

from nnl.core.ops.op import Cost, Sample, op
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


def _truth(kind: type, name: str, nnp: str, when: str, words: str = "that holds", code: str = ""):
    """The function `name` of a kind.

    Args:
        when, words: Where it is 1, as a formula and in words.
        code: Its instruction in programs of elements, if that has another name.
    """
    test = name.removesuffix("_scalar")
    number = ("val",) if issubclass(kind, (ComparisonWithNumber, LogicWithNumber)) else ()
    body = {
        "__doc__": f"$y = [\\,{when}\\,]$: 1 where {words}, else 0.",
        "__module__": __name__,
        "test": test,
        "elementwise": (code or test, *number) if number else code or test,
    }
    return op(name, nnp=nnp)(type(name, (kind,), body))


equal = _truth(Comparison, "equal", "Equal", "x_0 = x_1")
not_equal = _truth(Comparison, "not_equal", "NotEqual", r"x_0 \ne x_1")
greater = _truth(Comparison, "greater", "Greater", "x_0 > x_1")
greater_equal = _truth(Comparison, "greater_equal", "GreaterEqual", r"x_0 \ge x_1")
less = _truth(Comparison, "less", "Less", "x_0 < x_1")
less_equal = _truth(Comparison, "less_equal", "LessEqual", r"x_0 \le x_1")

_Number = ComparisonWithNumber
equal_scalar = _truth(_Number, "equal_scalar", "EqualScalar", "x_0 = val")
not_equal_scalar = _truth(_Number, "not_equal_scalar", "NotEqualScalar", r"x_0 \ne val")
greater_scalar = _truth(_Number, "greater_scalar", "GreaterScalar", "x_0 > val")
greater_equal_scalar = _truth(_Number, "greater_equal_scalar", "GreaterEqualScalar", r"x_0 \ge val")
less_scalar = _truth(_Number, "less_scalar", "LessScalar", "x_0 < val")
less_equal_scalar = _truth(_Number, "less_equal_scalar", "LessEqualScalar", r"x_0 \le val")

logical_and = _truth(
    Comparison, "logical_and", "LogicalAnd", r"x_0 \ne 0 \wedge x_1 \ne 0", "both are not 0"
)
logical_or = _truth(
    Comparison, "logical_or", "LogicalOr", r"x_0 \ne 0 \vee x_1 \ne 0", "one or both are not 0"
)
logical_xor = _truth(
    Comparison, "logical_xor", "LogicalXor", r"(x_0 \ne 0) \ne (x_1 \ne 0)", "exactly one is not 0"
)
logical_and_scalar = _truth(
    LogicWithNumber,
    "logical_and_scalar",
    "LogicalAndScalar",
    r"x_0 \ne 0 \wedge val",
    "x0 is not 0 and val is true",
)
logical_or_scalar = _truth(
    LogicWithNumber,
    "logical_or_scalar",
    "LogicalOrScalar",
    r"x_0 \ne 0 \vee val",
    "x0 is not 0 or val is true",
)
logical_xor_scalar = _truth(
    LogicWithNumber,
    "logical_xor_scalar",
    "LogicalXorScalar",
    r"(x_0 \ne 0) \ne val",
    "either x0 is not 0 or val is true",
)
logical_not = _truth(Predicate, "logical_not", "LogicalNot", "x_0 = 0", "x0 is 0")
isnan = _truth(Predicate, "isnan", "IsNaN", r"x_0 \ne x_0", "x0 is NaN", "is_nan")
isinf = _truth(
    Predicate, "isinf", "IsInf", r"|x_0| = \infty", "x0 is infinite, of either sign", "is_inf"
)
