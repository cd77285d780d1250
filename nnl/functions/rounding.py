# SPDX-License-Identifier: Apache-2.0
"""Rounding to whole numbers, and the remainder of a division."""

from __future__ import annotations

import numpy as np

from nnl.core.ops.op import Onnx, Sample, op
from nnl.functions.arithmetic import Binary, Unary, div2, memory_for, mul2, mul_scalar, sub2
from nnl.functions.elementary import unlink
from nnl.functions.reduction import sum_to

CATEGORY = "Math"

__all__ = ["ceil", "floor", "mod2", "round"]


class Rounding(Unary):
    """Common to functions with whole results; their gradient passes as if y were x."""

    def vjp(self, gy):
        return gy

    def samples(rng):
        halves = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.49999997])
        for x in (halves, 3 * rng.normal(size=(3, 4)), np.array(1.2), np.zeros((0, 2))):
            yield Sample(x, order=0)


@op("round", nnp="Round")
class round(Rounding):
    r"""$y = \mathrm{sgn}(x) \lfloor |x| + 1/2 \rfloor$: the nearest number, halves away from 0.

    The gradient passes straight through.
    """

    elementwise = "round"

    def forward(self, xp, x, out=None):
        y = memory_for(xp, x, out)
        whole = xp.trunc(x)
        xp.subtract(x, whole, out=y)  # exact, unlike x + 0.5; NaN for infinities
        xp.multiply(y, 2.0, out=y)
        xp.fmin(y, 1.0, out=y)  # drops the NaN
        xp.fmax(y, -1.0, out=y)
        return xp.add(xp.trunc(y, out=y), whole, out=y)


@op("ceil", nnp="Ceil", onnx=Onnx("Ceil"))
class ceil(Rounding):
    r"""$y = \lceil x \rceil$, the smallest whole number not below x.

    The gradient passes straight through.
    """

    ufunc = "ceil"
    elementwise = "ceil"


@op("floor", nnp="Floor", onnx=Onnx("Floor"))
class floor(Rounding):
    r"""$y = \lfloor x \rfloor$, the largest whole number not above x.

    The gradient passes straight through.
    """

    ufunc = "floor"
    elementwise = "floor"


@op("mod2", nnp="Mod2", keep=("x0", "x1"))
class mod2(Binary):
    r"""$y = x_0 - x_1\,\mathrm{trunc}(x_0 / x_1)$, the remainder of x0 / x1; sizes of 1 stretch.

    Floating-point arrays, and integers with fmod, give the remainder with the sign of x0, as C's
    fmod does. Integers without fmod give the one with the sign of x1, as Python's % does.

    Args:
        x0, x1: Arrays of one rank, taken as they are; x1 is converted to the dtype of x0.
        fmod: Which remainder integers give.
    Returns:
        An array of the dtype of x0.
    Raises:
        ShapeError: The ranks differ, or two sizes differ and neither is 1.
        TypeError: An array is one of bool.
    """

    fmod: bool = False
    elementwise = "fmod"

    def infer(self, x0, x1):
        for name, x in (("x0", x0), ("x1", x1)):
            if x.dtype.kind == "b":
                raise TypeError(f"mod2: {name} is {x}, wanted numbers")
        return super().infer(x0, x1)

    def forward(self, xp, x0, x1, out=None):
        whole = x0.dtype.kind in "iu"
        remainder = xp.remainder if whole and not self.fmod else xp.fmod
        return remainder(x0, x1.astype(x0.dtype, copy=False), out=out)

    def vjp(self, gy, *, x0, x1, y, need):
        g1 = None
        if need[1]:
            quotient = unlink(round(div2(sub2(x0, y), x1)))  # locally constant
            g1 = sum_to(mul_scalar(mul2(gy, quotient), -1.0), x1.shape)
        return sum_to(gy, x0.shape) if need[0] else None, g1

    def samples(rng):
        a, b = np.array([[5.3, -5.3, 0.2]]), np.array([[3.0], [-2.0]])
        for fmod in (False, True):
            yield Sample(a, b, fmod=fmod)
            yield Sample(np.array([5, -5, 7]), np.array([3, 3, -4]), fmod=fmod)
        yield Sample(np.array(5.3), np.array(2.0))
        yield Sample(np.zeros((0, 2)), np.zeros((0, 2)))
