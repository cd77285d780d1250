# SPDX-License-Identifier: Apache-2.0
"""Functions that choose between values by their size: maximum, minimum, sign, where, search."""

from __future__ import annotations

import numpy as np

from nnl.core.arrays.spec import ShapeError, Spec
from nnl.core.ops.op import OPS, Cost, Sample, op
from nnl.functions.arithmetic import Binary, Unary, mul2
from nnl.functions.comparison import (
    OneArray,
    equal_scalar,
    greater,
    greater_equal,
    isinf,
    isnan,
    less,
    less_equal,
    logical_not,
    not_equal_scalar,
)
from nnl.functions.reduction import reshape, sum_to

CATEGORY = "Logical"

__all__ = [
    "maximum2",
    "maximum_scalar",
    "minimum2",
    "minimum_scalar",
    "reset_inf",
    "reset_nan",
    "searchsorted",
    "sign",
    "where",
]


class Reset(OneArray):
    """Common to functions that replace what is not a finite number."""

    val: float = 0.0

    def samples(rng):
        for val in (0.0, -1.5):
            x = rng.normal(size=(2, 3))
            x[0, 1:] = np.nan, np.inf
            yield Sample(x, val=val, order=0)
        yield Sample(rng.normal(size=(2, 3)), val=1.0)
        yield Sample(np.array(np.nan), order=0)
        yield Sample(np.zeros((0, 2)))


@op("reset_nan", nnp="ResetNaN")
class reset_nan(Reset):
    r"""x0 with val in place of NaN. The gradient is 0 there and passes elsewhere.

    $$y = \mathit{val} \text{ if } x_0 \text{ is NaN, else } x_0$$
    """

    def forward(self, xp, x0):
        return xp.where(xp.isnan(x0), xp.asarray(self.val, x0.dtype), x0)

    def elementwise(self, w):
        w("where", w("is_nan"), w.number(self.val), 0)

    def vjp(self, gy, *, x0):
        return mul2(gy, logical_not(isnan(x0)))


@op("reset_inf", nnp="ResetInf")
class reset_inf(Reset):
    r"""x0 with val in place of both infinities. The gradient is 0 there and passes elsewhere.

    $$y = \mathit{val} \text{ if } |x_0| = \infty, \text{ else } x_0$$
    """

    def forward(self, xp, x0):
        return xp.where(xp.isinf(x0), xp.asarray(self.val, x0.dtype), x0)

    def elementwise(self, w):
        w("where", w("is_inf"), w.number(self.val), 0)

    def vjp(self, gy, *, x0):
        return mul2(gy, logical_not(isinf(x0)))


@op("sign", nnp="Sign")
class sign(Unary):
    r"""$y = \mathrm{sgn}(x)$: -1 for negative and 1 for positive x; alpha for 0 and NaN.

    The gradient passes as if y were x (straight through).

    Args:
        x: Any shape.
        alpha: What 0 gives.
    Source: Courbariaux et al., Binarized Neural Networks, arXiv:1602.02830, section 1.3.
    """

    alpha: float = 1.0
    elementwise = "sign", "alpha"

    def forward(self, xp, x, out=None):
        y = xp.subtract(xp.greater(x, 0.0), xp.less(x, 0.0), dtype=x.dtype, out=out)
        if self.alpha != 0.0:
            y += xp.multiply(y == 0.0, self.alpha, dtype=x.dtype)
        return y

    def vjp(self, gy):
        return gy

    def samples(rng):
        for alpha in (1.0, 0.0, -0.5):
            x = rng.normal(size=(3, 4))
            x[0] = 0.0
            yield Sample(x, alpha=alpha, order=0)
        yield Sample(np.array(-2.0), order=0)
        yield Sample(np.zeros((0, 2)), order=0)


@op("gate")
class gate:
    """gy where low < x < high, else 0: the gradient of functions that clip.

    Args:
        gy: The gradient of the clipped array.
        x: Same shape as gy.
        low, high: Bounds; None for no bound on that side.
        closed: Let x at a bound count as inside.
    """

    low: float | None = None
    high: float | None = None
    closed: bool = False

    def infer(self, gy, x):
        return gy

    def forward(self, xp, gy, x, out=None):
        mask = None
        if self.low is not None:
            mask = xp.greater_equal(x, self.low) if self.closed else xp.greater(x, self.low)
        if self.high is not None:
            below = xp.less_equal(x, self.high) if self.closed else xp.less(x, self.high)
            mask = below if mask is None else xp.logical_and(mask, below)
        # a multiplication, because selection by an irregular mask is 13 times slower in numpy
        return xp.positive(gy, out=out) if mask is None else xp.multiply(gy, mask, out=out)

    def elementwise(self, w):
        end, g = "_equal" if self.closed else "", 0
        if self.low is not None:
            g = w("gate_greater" + end, g, 1, w.number(self.low))
        if self.high is not None:
            g = w("gate_less" + end, g, 1, w.number(self.high))
        if g == 0:
            w("copy")

    def vjp(self, gy, *, x):
        return gate(gy, x, low=self.low, high=self.high, closed=self.closed), None

    def cost(self, gy, x):
        return Cost(flops=gy.size, bytes=3 * gy.nbytes)

    def samples(rng):
        x = np.array([[-1.0, 0.0, 0.5], [1.0, 2.0, -0.5]])
        for low, high in ((0.0, None), (None, 1.0), (0.0, 1.0), (None, None)):
            for closed in (False, True):
                gy = rng.normal(size=(2, 3))
                yield Sample(gy, x, low=low, high=high, closed=closed, grad=(True, False))
        yield Sample(np.array(1.0), np.array(2.0), low=0.0, grad=(True, False))
        yield Sample(np.zeros((0, 2)), np.zeros((0, 2)), low=0.0, grad=(True, False))


class Extreme(Binary):
    """Common to maximum and minimum; the last sample has equal elements."""

    def samples(rng):
        yield from Binary.samples(rng)
        x0, x1 = rng.integers(-1, 2, (2, 3, 4)) * 1.0
        yield Sample(x0, x1, order=0)


@op("maximum2", nnp="Maximum2")
class maximum2(Extreme):
    r"""$y = \max(x_0, x_1)$, element by element; sizes of 1 stretch.

    A NaN counts as missing: the other one is taken. Where both are equal the gradient goes to x1.

    Args:
        x0, x1: Arrays of one rank.
    Raises:
        ShapeError: The ranks differ, or two sizes differ and neither is 1.
    """

    ufunc = "fmax"
    elementwise = "larger"

    def vjp(self, gy, *, x0, x1, need):
        return (
            sum_to(mul2(gy, greater(x0, x1)), x0.shape) if need[0] else None,
            sum_to(mul2(gy, less_equal(x0, x1)), x1.shape) if need[1] else None,
        )


@op("minimum2", nnp="Minimum2")
class minimum2(Extreme):
    r"""$y = \min(x_0, x_1)$, element by element; sizes of 1 stretch.

    A NaN counts as missing: the other one is taken. Where both are equal the gradient goes to x1.

    Args:
        x0, x1: Arrays of one rank.
    Raises:
        ShapeError: The ranks differ, or two sizes differ and neither is 1.
    """

    ufunc = "fmin"
    elementwise = "smaller"

    def vjp(self, gy, *, x0, x1, need):
        return (
            sum_to(mul2(gy, less(x0, x1)), x0.shape) if need[0] else None,
            sum_to(mul2(gy, greater_equal(x0, x1)), x1.shape) if need[1] else None,
        )


class Bound(Unary):
    """Common to functions that clip on one side.

    Their gradients look at x: y is rounded where 16 bits are stored, and then on either side of a
    bound that 16 bits do not hold.
    """

    val: float = 1.0

    def samples(rng):
        for shape, val in (((3, 4), 0.0), ((2, 3), 1.0), ((), 0.25), ((0, 2), -1.0)):
            yield Sample(rng.normal(size=shape), val=val)
        yield Sample(np.array([0.0, 1.0, 2.0]), val=1.0, order=0)


@op("maximum_scalar", nnp="MaximumScalar")
class maximum_scalar(Bound):
    r"""$y = \max(x, val)$; val for NaN. The gradient passes where $x > val$."""

    elementwise = "larger", "val"

    def forward(self, xp, x, out=None):
        return xp.fmax(x, self.val, out=out)

    def vjp(self, gy, *, x):
        return gate(gy, x, low=self.val)


@op("minimum_scalar", nnp="MinimumScalar")
class minimum_scalar(Bound):
    r"""$y = \min(x, val)$; val for NaN. The gradient passes where $x < val$."""

    elementwise = "smaller", "val"

    def forward(self, xp, x, out=None):
        return xp.fmin(x, self.val, out=out)

    def vjp(self, gy, *, x):
        return gate(gy, x, high=self.val)


@op("where", nnp="Where")
class where:
    r"""x_true where condition is not 0, x_false elsewhere.

    $$y_i = x^{\mathit{true}}_i \text{ if } c_i \ne 0, \text{ else } x^{\mathit{false}}_i$$

    Args:
        condition: Any shape that x_true's begins with; one element then chooses for all that lie
            after it. It gets no gradient.
        x_true, x_false: Arrays of one shape.
    Raises:
        ShapeError: The shapes do not fit.
    Example:
        >>> F.where(array([1, 0]), array([5, 5]), array([7, 7])).d
        array([5., 7.], dtype=float32)
    """

    def infer(self, condition, x_true, x_false):
        if x_true.shape != x_false.shape:
            raise ShapeError(
                f"where: x_true {x_true} and x_false {x_false} must have the same shape"
            )
        if x_true.shape[: len(condition.shape)] != condition.shape:
            raise ShapeError(
                f"where: the shape of x_true {x_true} must begin with that of condition {condition}"
            )
        return x_true

    def forward(self, xp, condition, x_true, x_false):
        rest = x_true.ndim - condition.ndim
        mask = (condition != 0).reshape(condition.shape + (1,) * rest)
        return xp.where(mask, x_true, x_false)

    def elementwise(self, w):
        # one element of the condition for all that lie behind it
        w.shapes[0] += (1,) * (len(w.shapes[1]) - len(w.shapes[0]))
        w("where", 0, 1, 2)

    def vjp(self, gy, *, condition, x_true_spec, need):
        rest = len(x_true_spec.shape) - len(condition.shape)
        if rest:
            condition = reshape(condition, condition.shape + (1,) * rest)
        return (
            None,
            mul2(gy, not_equal_scalar(condition, 0.0)) if need[1] else None,
            mul2(gy, equal_scalar(condition, 0.0)) if need[2] else None,
        )

    def cost(self, condition, x_true, x_false):
        return Cost(flops=x_true.size, bytes=condition.nbytes + 3 * x_true.nbytes)

    def samples(rng):
        for c, x in (((2, 3), (2, 3)), ((2,), (2, 3)), ((), (2, 3)), ((), ()), ((0,), (0, 2))):
            yield Sample(
                rng.integers(-1, 2, c) * 0.5,
                rng.normal(size=x),
                rng.normal(size=x),
                grad=(False, True, True),
            )


@op("searchsorted", nnp="SearchSorted")
class searchsorted:
    r"""Where each value would go in a sorted sequence: $y = |\{i : s_i < v\}|$, those before it.

    Args:
        sorted_sequence: (..., M), ascending along the last axis; not checked.
        values: (..., N), the same leading sizes.
        right: Count elements equal to the value as coming before it.
    Returns:
        (..., N), numbers from 0 to M in the floating-point type of the context. No gradient.
    Raises:
        ShapeError: Rank 0, or the ranks or leading sizes differ.
    """

    right: bool = False

    def infer(self, sorted_sequence, values):
        s, v = sorted_sequence.shape, values.shape
        if not s or len(s) != len(v) or s[:-1] != v[:-1]:
            raise ShapeError(
                f"searchsorted: sorted_sequence {sorted_sequence} and values {values} must have "
                "the same sizes but for the last axis"
            )
        return Spec.of(v, values.dtype)

    def forward(self, xp, sorted_sequence, values):
        side = "right" if self.right else "left"
        y = xp.empty(values.shape, values.dtype)
        for row in np.ndindex(values.shape[:-1]):  # xp searches in one sequence at a time
            y[row] = xp.searchsorted(sorted_sequence[row], values[row], side=side)
        return y

    def portable(self, sorted_sequence, values):
        s, v = sorted_sequence.shape, values.shape
        one, other = reshape(sorted_sequence, (*s[:-1], 1, s[-1])), reshape(values, (*v, 1))
        before = OPS["less_equal" if self.right else "less"](one, other)
        return OPS["sum"](before, axes=(len(v),), keep_dims=False)

    def cost(self, sorted_sequence, values):
        steps = max(sorted_sequence.shape[-1], 1).bit_length()
        return Cost(flops=values.size * steps, bytes=sorted_sequence.nbytes + 2 * values.nbytes)

    def samples(rng):
        for right in (False, True):
            for lead in ((), (2,), (2, 3)):
                s = np.sort(rng.integers(0, 6, (*lead, 5)), axis=-1) * 1.0
                yield Sample(s, rng.integers(-1, 7, (*lead, 4)) * 1.0, right=right)
        yield Sample(np.zeros((2, 3)), np.zeros((2, 0)))
