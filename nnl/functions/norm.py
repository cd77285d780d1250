# SPDX-License-Identifier: Apache-2.0
"""Norms over axes."""

from __future__ import annotations

import math

from nnl.core.ops.op import OPS, Sample, op
from nnl.functions.reduction import Reduction, added, spread

CATEGORY = "Reduction"

__all__ = ["norm"]


def sign_of(x):
    """-1 or 1, which is NNabla's sign of 0. The function `sign` would pass gradients on."""
    return OPS["add_scalar"](OPS["mul_scalar"](OPS["greater_equal_scalar"](x, 0.0), 2.0), -1.0)


@op("norm", wide=True, nnp="Norm")
class norm_op:
    r"""$(\sum |x|^p)^{1/p}$ over axes."""

    p: float = 2.0
    axes: tuple[int, ...] | None = None
    keep_dims: bool = False
    resolve, cost = Reduction.resolve, Reduction.cost

    def infer(self, x):
        check_order("norm", self.p)
        return Reduction.infer(self, x)

    def forward(self, xp, x, out=None):
        if self.p == 2:
            y = added(xp, x * x, self.axes, self.keep_dims, out)
            return xp.sqrt(y, out=out)
        power = xp.abs(x)
        if self.p != 1:
            power **= self.p
        y = added(xp, power, self.axes, self.keep_dims, out)
        return y if self.p == 1 else xp.power(y, x.dtype.type(1 / self.p), out=out)

    def vjp(self, gy, *, x, y):
        mul, p = OPS["mul2"], self.p
        if p == 1:
            return mul(spread(gy, x, self.axes), sign_of(x))
        # a norm of 0 counts as 1 here, so that the gradient there is 0
        safe = OPS["add2"](y, OPS["equal_scalar"](y, 0.0))
        g = spread(mul(gy, OPS["pow_scalar"](safe, 1 - p)), x, self.axes)
        if p == 2:
            return mul(g, x)
        sign = sign_of(x)
        return mul(g, mul(OPS["pow_scalar"](mul(x, sign), p - 1), sign))

    def samples(rng):
        x = rng.uniform(0.5, 2, (2, 3, 4)) * rng.choice([-1, 1], (2, 3, 4))
        for p in (1.0, 1.5, 2.0, 3.0):
            for axes, keep in ((None, False), ((1,), True), ((0, 2), False)):
                yield Sample(x, p=p, axes=axes, keep_dims=keep)


def norm(x, p=None, axis=None, keepdims=False):
    r"""$y = (\sum |x|^p)^{1/p}$ over axes; its gradient where it is 0 is 0.

    Args:
        x: Any shape.
        p: Order, at least 1 and finite; 2 if left out.
        axis: An int or several; all axes if left out. Negative ones count from the end.
        keepdims: Keep reduced axes with size 1.
    Raises:
        ValueError: p is less than 1, or infinite.
        ShapeError: An axis is out of range or given twice.
    Example:
        >>> F.norm(array([[3, 4], [6, 8]]), axis=1).d
        array([ 5., 10.], dtype=float32)
    """
    return norm_op(x, p=2.0 if p is None else p, axes=axis, keep_dims=keepdims)


def check_order(name, p):
    """Raise unless p is the order of a norm that has a gradient."""
    if not 1 <= p < math.inf:
        raise ValueError(f"{name}: p is {p}, wanted a finite number >= 1")
