# SPDX-License-Identifier: Apache-2.0
"""The error function."""

from __future__ import annotations

import math

from nnl.core.ops.op import Cost, Onnx, Sample, op
from nnl.functions.arithmetic import Unary, memory_for, mul2, mul_scalar
from nnl.functions.elementary import exp

CATEGORY = "Math"

__all__ = ["erf"]

# Coefficients of W. J. Cody, Rational Chebyshev approximations for the error function, Mathematics
# of Computation 23 (1969), highest power first.
_ERF_P = (
    1.85777706184603153e-1,
    3.16112374387056560e0,
    1.13864154151050156e2,
    3.77485237685302021e2,
    3.20937758913846947e3,
)
_ERF_Q = (
    1.0,
    2.36012909523441209e1,
    2.44024637934444173e2,
    1.28261652607737228e3,
    2.84423683343917062e3,
)
_ERFC_P = (
    2.15311535474403846e-8,
    5.64188496988670089e-1,
    8.88314979438837594e0,
    6.61191906371416295e1,
    2.98635138197400131e2,
    8.81952221241769090e2,
    1.71204761263407058e3,
    2.05107837782607147e3,
    1.23033935479799725e3,
)
_ERFC_Q = (
    1.0,
    1.57449261107098347e1,
    1.17693950891312499e2,
    5.37181101862009858e2,
    1.62138957456669019e3,
    3.29079923573345963e3,
    4.36261909014324716e3,
    3.43936767414372164e3,
    1.23033935480374942e3,
)


def _polynomial(coefficients, t):
    """Horner's scheme, highest power first."""
    y = t * coefficients[0]
    for c in coefficients[1:-1]:
        y += c
        y *= t
    y += coefficients[-1]
    return y


_ERF_BLOCK = 1 << 14  # elements; the ten intermediate arrays of a block stay in the cache


def _erf(xp, x):
    # From 6 on erf is 1 in double precision; the bound also keeps the squares finite.
    t = xp.minimum(xp.abs(x), 6.0)
    square = t * t
    small = xp.minimum(square, 0.25)
    ratio = _polynomial(_ERF_P, small) / _polynomial(_ERF_Q, small)
    tail = xp.exp(-square) * (_polynomial(_ERFC_P, t) / _polynomial(_ERFC_Q, t))
    near = (t <= 0.46875).astype(x.dtype)  # a factor is cheaper than a selection, see gate
    y = t * ratio * near + (1.0 - tail) * (1.0 - near)
    return xp.copysign(y, x)


@op("erf", nnp="Erf", onnx=Onnx("Erf"))
class erf(Unary):
    r"""$y = \frac{2}{\sqrt\pi} \int_0^x e^{-t^2} dt$, the error function.

    Source: W. J. Cody, Rational Chebyshev approximations for the error function, Mathematics of
    Computation 23 (1969).
    """

    elementwise = "erf"

    def forward(self, xp, x, out=None):
        y = memory_for(xp, x, out)
        flat_x, flat_y = x.reshape(-1), y.reshape(-1)
        for i in range(0, x.size, _ERF_BLOCK):
            block = slice(i, i + _ERF_BLOCK)
            flat_y[block] = _erf(xp, flat_x[block])
        return y

    def vjp(self, gy, *, x):
        density = mul_scalar(exp(mul_scalar(mul2(x, x), -1.0)), 2.0 / math.sqrt(math.pi))
        return mul2(gy, density)

    def cost(self, x):
        return Cost(flops=50 * x.size, bytes=2 * x.nbytes)

    def samples(rng):
        for shape in ((3, 4), (), (0, 2)):
            yield Sample(2 * rng.normal(size=shape))
