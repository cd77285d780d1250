# SPDX-License-Identifier: Apache-2.0
"""Elementary functions of mathematics, and the two functions that change nothing."""

from __future__ import annotations

import numpy as np

from nnl.core.ops.op import OPS, Cost, Onnx, Sample, op
from nnl.functions.arithmetic import (
    Binary,
    Unary,
    add2,
    add_scalar,
    div2,
    memory_for,
    mul2,
    mul_scalar,
    pow_scalar,
    r_sub_scalar,
    sub2,
)
from nnl.functions.comparison import equal_scalar
from nnl.functions.reduction import sum_to

CATEGORY = "Math"
LARGEST = float(np.finfo(np.float32).max)

__all__ = [
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cos",
    "cosh",
    "exp",
    "identity",
    "log",
    "sin",
    "sinc",
    "sinh",
    "tan",
    "tanh",
    "unlink",
]


class OnReals(Unary):
    """Common to functions defined for every number."""

    def samples(rng):
        for shape in ((3, 4), (2, 3, 2), (), (0, 2)):
            yield Sample(rng.normal(size=shape))


class OnUnitInterval(Unary):
    """Common to functions defined between -1 and 1."""

    def samples(rng):
        for shape in ((3, 4), (), (0, 2)):
            yield Sample(rng.uniform(-0.9, 0.9, shape))


@op("identity", nnp="Identity", keep=("x",), onnx=Onnx("Identity"))
class identity(OnReals):
    """$y = x$: a copy of x, of its own dtype."""

    elementwise = "copy"

    def forward(self, xp, x, out=None):  # xp.positive has no booleans
        if out is None:
            return x.copy()
        out[...] = x
        return out

    def vjp(self, gy):
        return gy


@op("unlink", nnp="Unlink", keep=("x",), view=True)
class unlink:
    """$y = x$, sharing its memory, where backward stops: $g_x = 0$."""

    elementwise = "copy"

    def infer(self, x):
        return x

    def forward(self, xp, x):
        return x.view()

    def cost(self, x):
        return Cost(flops=0, bytes=0)

    def samples(rng):
        for shape in ((2, 3), (), (0, 2)):
            yield Sample(rng.normal(size=shape))


@op("abs", nnp="Abs", onnx=Onnx("Abs"))
class abs(OnReals):
    """$y = |x|$. The gradient at 0 is that of the right side, +1."""

    ufunc = "absolute"
    elementwise = "absolute"

    def vjp(self, gy, *, x):
        return abs_backward(gy, x)

    def samples(rng):
        yield from OnReals.samples(rng)
        yield Sample(np.array([-1.0, -0.0, 0.0, 1.0]), order=0)


@op("abs_backward")
class abs_backward:
    """gy where x >= 0, -gy where x < 0."""

    elementwise = "absolute_backward"

    def infer(self, gy, x):
        return gy

    def forward(self, xp, gy, x, out=None):
        y = xp.multiply(xp.less(x, 0.0), -2.0, dtype=x.dtype, out=out)  # 1 - 2 or 1 - 0
        y += 1.0
        y *= gy
        return y

    def vjp(self, gy, *, x):
        return abs_backward(gy, x), None

    def cost(self, gy, x):
        return Cost(flops=2 * gy.size, bytes=3 * gy.nbytes)

    def samples(rng):
        x = np.array([[-1.0, 0.0, 2.0], [-3.0, 1.0, -0.5]])
        yield Sample(rng.normal(size=(2, 3)), x, grad=(True, False))
        yield Sample(np.array(1.0), np.array(-2.0), grad=(True, False))
        yield Sample(np.zeros((0, 2)), np.zeros((0, 2)), grad=(True, False))


@op("exp", nnp="Exp", onnx=Onnx("Exp"))
class exp(OnReals):
    """$y = e^x$."""

    ufunc = "exp"
    elementwise = "exp"

    def vjp(self, gy, *, y):
        return mul2(gy, y)


@op("log", nnp="Log", onnx=Onnx("Log"))
class log(Unary):
    r"""$y = \ln x$; -inf at 0, NaN below. The gradient is $1 / x$ everywhere."""

    ufunc = "log"
    elementwise = "log"

    def vjp(self, gy, *, x):
        return div2(gy, x)


@op("sin", nnp="Sin", onnx=Onnx("Sin"))
class sin(OnReals):
    r"""$y = \sin x$, of x in radians."""

    ufunc = "sin"
    elementwise = "sin"

    def vjp(self, gy, *, x):
        return mul2(gy, cos(x))


@op("cos", nnp="Cos", onnx=Onnx("Cos"))
class cos(OnReals):
    r"""$y = \cos x$, of x in radians."""

    ufunc = "cos"
    elementwise = "cos"

    def vjp(self, gy, *, x):
        return mul_scalar(mul2(gy, sin(x)), -1.0)


@op("tan", nnp="Tan", onnx=Onnx("Tan"))
class tan(OnUnitInterval):
    r"""$y = \tan x$, of x in radians."""

    ufunc = "tan"
    elementwise = "tan"

    def vjp(self, gy, *, y):
        return mul2(gy, add_scalar(mul2(y, y), 1.0))


@op("sinh", nnp="Sinh", onnx=Onnx("Sinh"))
class sinh(OnReals):
    r"""$y = (e^x - e^{-x}) / 2$."""

    ufunc = "sinh"
    elementwise = "sinh"

    def vjp(self, gy, *, x):
        return mul2(gy, cosh(x))


@op("cosh", nnp="Cosh", onnx=Onnx("Cosh"))
class cosh(OnReals):
    r"""$y = (e^x + e^{-x}) / 2$."""

    ufunc = "cosh"
    elementwise = "cosh"

    def vjp(self, gy, *, x):
        return mul2(gy, sinh(x))


@op("tanh", nnp="Tanh", onnx=Onnx("Tanh"))
class tanh(OnReals):
    r"""$y = \sinh x / \cosh x$, between -1 and 1."""

    ufunc = "tanh"
    elementwise = "tanh"

    def vjp(self, gy, *, y):
        return tanh_backward(gy, y)


@op("tanh_backward")
class tanh_backward:
    """$g_y (1 - y^2)$."""

    elementwise = "tanh_backward"

    def infer(self, gy, y):
        return gy

    def forward(self, xp, gy, y, out=None):
        gx = memory_for(xp, y, out)
        xp.multiply(y, y, out=gx)
        xp.subtract(1.0, gx, out=gx)
        return xp.multiply(gx, gy, out=gx)

    def vjp(self, ggx, *, gy, y, need):
        return (
            tanh_backward(ggx, y) if need[0] else None,
            mul_scalar(mul2(ggx, mul2(gy, y)), -2.0) if need[1] else None,
        )

    def cost(self, gy, y):
        return Cost(flops=3 * gy.size, bytes=3 * gy.nbytes)

    def samples(rng):
        for shape in ((3, 4), (), (0, 2)):
            yield Sample(rng.normal(size=shape), rng.uniform(-0.9, 0.9, shape))


@op("asin", nnp="ASin", onnx=Onnx("Asin"))
class asin(OnUnitInterval):
    r"""$y = \arcsin x$, in radians, from -pi/2 to pi/2; NaN outside [-1, 1]."""

    ufunc = "arcsin"
    elementwise = "asin"

    def vjp(self, gy, *, x):
        return mul2(gy, pow_scalar(_one_minus_square(x), -0.5))


@op("acos", nnp="ACos", onnx=Onnx("Acos"))
class acos(OnUnitInterval):
    r"""$y = \arccos x$, in radians, from 0 to pi; NaN outside [-1, 1]."""

    ufunc = "arccos"
    elementwise = "acos"

    def vjp(self, gy, *, x):
        return mul_scalar(mul2(gy, pow_scalar(_one_minus_square(x), -0.5)), -1.0)


def _one_minus_square(x):
    """1 - x^2, exact near -1 and 1."""
    return mul2(r_sub_scalar(x, 1.0), add_scalar(x, 1.0))


@op("atan", nnp="ATan", onnx=Onnx("Atan"))
class atan(OnReals):
    r"""$y = \arctan x$: the angle in radians, from -pi/2 to pi/2, whose tangent is x."""

    ufunc = "arctan"
    elementwise = "atan"

    def vjp(self, gy, *, x):
        return div2(gy, add_scalar(mul2(x, x), 1.0))


@op("atan2", nnp="ATan2")
class atan2(Binary):
    r"""$y = \mathrm{arg}(x_1 + i x_0)$: the angle, in radians, of the point at width x1, height x0.

    It is between -pi and pi, and its tangent is $x_0 / x_1$.

    Args:
        x0, x1: Arrays of one rank; sizes of 1 stretch. The gradient at x0 = x1 = 0 is 0.
    Raises:
        ShapeError: The ranks differ, or two sizes differ and neither is 1.
    """

    ufunc = "arctan2"
    elementwise = "atan2"

    def vjp(self, gy, *, x0, x1, need):
        # x1 / r^2 and -x0 / r^2 in units of the larger side, whose square may be no number
        side = OPS["maximum2"](abs(x0), abs(x1))
        is_zero = equal_scalar(side, 0.0)
        unit = add2(OPS["minimum_scalar"](side, LARGEST), is_zero)
        height, width = div2(x0, unit), div2(x1, unit)
        square = add2(add2(mul2(height, height), mul2(width, width)), is_zero)

        def part(side):
            return div2(mul2(gy, div2(side, square)), unit)

        return (
            sum_to(part(width), x0.shape) if need[0] else None,
            sum_to(mul_scalar(part(height), -1.0), x1.shape) if need[1] else None,
        )


@op("asinh", nnp="ASinh", onnx=Onnx("Asinh"))
class asinh(OnReals):
    r"""$y = \ln(x + \sqrt{x^2 + 1})$."""

    ufunc = "arcsinh"
    elementwise = "asinh"

    def vjp(self, gy, *, x):
        return mul2(gy, pow_scalar(add_scalar(mul2(x, x), 1.0), -0.5))


@op("acosh", nnp="ACosh", onnx=Onnx("Acosh"))
class acosh(Unary):
    r"""$y = \ln(x + \sqrt{x^2 - 1})$; NaN below 1."""

    ufunc = "arccosh"
    elementwise = "acosh"

    def vjp(self, gy, *, x):
        square_minus_one = mul2(add_scalar(x, -1.0), add_scalar(x, 1.0))
        return mul2(gy, pow_scalar(square_minus_one, -0.5))

    def samples(rng):
        for shape in ((3, 4), (), (0, 2)):
            yield Sample(rng.uniform(1.5, 3, shape))


@op("atanh", nnp="ATanh", onnx=Onnx("Atanh"))
class atanh(OnUnitInterval):
    r"""$y = \ln((1 + x) / (1 - x)) / 2$; NaN outside [-1, 1]."""

    ufunc = "arctanh"
    elementwise = "atanh"

    def vjp(self, gy, *, x):
        return div2(gy, _one_minus_square(x))


@op("sinc", nnp="Sinc")
class sinc(OnReals):
    r"""$y = \sin x / x$ with x in radians (not $\pi x$, as numpy's), 1 at 0."""

    elementwise = "sinc"

    def forward(self, xp, x, out=None):
        zero = xp.equal(x, 0.0)
        y = xp.sin(x)
        y += zero
        return xp.divide(y, x + zero, out=out)

    def vjp(self, gy, *, x):
        return sinc_backward(gy, x)

    def samples(rng):
        yield Sample(np.array([[-2.0, 0.0, 0.5], [3.0, -7.0, 1.0]]))
        yield Sample(np.array(1.5))
        yield Sample(np.zeros((0, 2)))


@op("sinc_backward")
class sinc_backward:
    r"""$g_y (\cos x - \mathrm{sinc}\,x) / x$, and 0 at 0."""

    elementwise = "sinc_backward"

    def infer(self, gy, x):
        return gy

    def forward(self, xp, gy, x, out=None):
        square = xp.minimum(x * x, 0.25)
        series = 1.0 - square / 238.0  # Taylor's, because the quotient cancels near 0
        for ratio in (180.0, 130.0, 88.0, 54.0, 28.0, 10.0):
            series = 1.0 - series * square / ratio
        zero = xp.equal(x, 0.0)
        divisor = x + zero
        slope = (xp.cos(x) - xp.sin(x) / divisor) / divisor
        slope = xp.where(xp.abs(x) < 0.5, series * x / -3.0, slope)
        return xp.multiply(slope, gy, out=out)

    def vjp(self, ggx, *, gy, x, need):
        gx = None
        if need[1]:
            # sinc'' is -sinc - 2 sinc' / x. The last term gives it the value -1/3 and the
            # derivative 0 at 0, where the divisor is 1.
            zero = equal_scalar(x, 0.0)
            p = mul2(ggx, gy)
            quotient = div2(sinc_backward(p, x), add2(x, zero))
            at_zero = mul2(mul2(p, zero), r_sub_scalar(x, 1.0))
            gx = sub2(mul_scalar(at_zero, 2.0 / 3.0), mul_scalar(quotient, 2.0))
            gx = sub2(gx, mul2(p, sinc(x)))
        return sinc_backward(ggx, x) if need[0] else None, gx

    def cost(self, gy, x):
        return Cost(flops=30 * gy.size, bytes=3 * gy.nbytes)

    def samples(rng):
        x = np.array([[-2.0, 0.0, 0.3], [3.0, -0.02, 1.0]])
        yield Sample(rng.normal(size=(2, 3)), x)
        yield Sample(np.array(1.0), np.array(1.5))
        yield Sample(np.zeros((0, 2)), np.zeros((0, 2)))
