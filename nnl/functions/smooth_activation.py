# SPDX-License-Identifier: Apache-2.0
"""Activation functions without bends: sigmoid, softplus and what is made of them."""

from __future__ import annotations

import math

import numpy as np

from nnl.core.ops.op import OPS, Cost, Onnx, Sample, op
from nnl.functions.arithmetic import (
    Unary,
    add2,
    add_scalar,
    div2,
    memory_for,
    mul2,
    mul_scalar,
    pow_scalar,
    r_sub_scalar,
)
from nnl.functions.elementary import OnReals, abs, tanh, tanh_backward

CATEGORY = "Activation"

__all__ = [
    "gelu",
    "log_sigmoid",
    "mish",
    "sigmoid",
    "softplus",
    "softsign",
    "swish",
    "tanh_shrink",
]


class OnAllReals(Unary):
    """Common to functions that must hold far from 0 too."""

    def samples(rng):
        for shape in ((3, 4), (2, 3, 2), (), (0, 2)):
            yield Sample(2 * rng.normal(size=shape))
        yield Sample(np.array([-30.0, -10.0, 10.0, 30.0]))


def _sigmoid(xp, x, out=None):
    """1 / (1 + e^-x). x is bounded below so that nothing overflows; y is then 1e-38 or less."""
    y = memory_for(xp, x, out)
    xp.maximum(x, -87.0 if x.dtype.itemsize == 4 else -708.0, out=y)
    xp.negative(y, out=y)
    xp.exp(y, out=y)
    xp.add(y, 1.0, out=y)
    return xp.reciprocal(y, out=y)


@op("sigmoid", nnp="Sigmoid", onnx=Onnx("Sigmoid"))
class sigmoid(OnAllReals):
    r"""$y = 1 / (1 + e^{-x})$, between 0 and 1. Only y is kept for the gradient."""

    elementwise = "sigmoid"

    def forward(self, xp, x, out=None):
        return _sigmoid(xp, x, out)

    def vjp(self, gy, *, y):
        return sigmoid_backward(gy, y)


@op("sigmoid_backward")
class sigmoid_backward:
    """$g_y\\,y (1 - y)$."""

    elementwise = "sigmoid_backward"

    def infer(self, gy, y):
        return gy

    def forward(self, xp, gy, y, out=None):
        gx = memory_for(xp, y, out)
        xp.subtract(1.0, y, out=gx)
        xp.multiply(gx, y, out=gx)
        return xp.multiply(gx, gy, out=gx)

    def vjp(self, ggx, *, gy, y, need):
        return (
            sigmoid_backward(ggx, y) if need[0] else None,
            mul2(ggx, mul2(gy, add_scalar(mul_scalar(y, -2.0), 1.0))) if need[1] else None,
        )

    def cost(self, gy, y):
        return Cost(flops=3 * gy.size, bytes=3 * gy.nbytes)

    def samples(rng):
        for shape in ((3, 4), (), (0, 2)):
            yield Sample(rng.normal(size=shape), rng.uniform(0.1, 0.9, shape))


@op("log_sigmoid", nnp="LogSigmoid")
class log_sigmoid(OnAllReals):
    r"""$y = \ln(1 / (1 + e^{-x}))$, exact for large negative x too."""

    elementwise = "log_sigmoid"

    def forward(self, xp, x, out=None):
        y = memory_for(xp, x, out)
        xp.negative(xp.abs(x), out=y)
        xp.log1p(xp.exp(y, out=y), out=y)
        return xp.subtract(xp.minimum(x, 0.0), y, out=y)

    def vjp(self, gy, *, x):
        return mul2(gy, sigmoid(mul_scalar(x, -1.0)))


@op("softplus", nnp="SoftPlus")
class softplus(OnAllReals):
    r"""$y = \ln(1 + e^{\beta x}) / \beta$, a smooth $\max(x, 0)$; neither end overflows.

    Args:
        x: Any shape.
        beta: Sharpness of the bend, not 0.
    Raises:
        ValueError: beta is 0.
    Source: Dugas et al., Incorporating second-order functional knowledge for better option
    pricing, 2001.
    """

    beta: float = 1.0
    elementwise = "softplus", "beta"

    def infer(self, x):
        if self.beta == 0.0:
            raise ValueError("softplus: beta is 0.0, wanted a number other than 0")
        return x

    def forward(self, xp, x, out=None):
        scaled = x * self.beta
        y = memory_for(xp, x, out)
        xp.negative(xp.abs(scaled), out=y)
        xp.log1p(xp.exp(y, out=y), out=y)
        y += xp.maximum(scaled, 0.0)
        return xp.divide(y, self.beta, out=y)

    def vjp(self, gy, *, x):
        return mul2(gy, sigmoid(mul_scalar(x, self.beta)))

    def samples(rng):
        for beta in (1.0, 2.5, 0.5, -1.0):
            yield Sample(rng.normal(size=(2, 3)), beta=beta)
        yield Sample(np.array([-30.0, 0.0, 30.0]))
        yield Sample(np.array(0.5))
        yield Sample(np.zeros((0, 2)))


@op("softsign", nnp="SoftSign", onnx=Onnx("Softsign"))
class softsign(Unary):
    """$y = x / (1 + |x|)$, between -1 and 1.

    Source: Glorot and Bengio, Understanding the difficulty of training deep feedforward neural
        networks, AISTATS 2010.
    """

    elementwise = "softsign"

    def forward(self, xp, x, out=None):
        return xp.divide(x, xp.abs(x) + 1.0, out=out)

    def vjp(self, gy, *, x):
        return div2(gy, pow_scalar(add_scalar(abs(x), 1.0), 2.0))

    def samples(rng):
        for shape in ((3, 4), (), (0, 2)):
            yield Sample(rng.integers(-3, 3, shape) + 0.3)


@op("swish", nnp="Swish")
class swish(OnAllReals):
    r"""$y = x / (1 + e^{-x})$, also known as SiLU.

    Source: Ramachandran, Zoph and Le, Searching for activation functions, arXiv:1710.05941.
    """

    elementwise = "swish"

    def forward(self, xp, x, out=None):
        y = _sigmoid(xp, x, out)
        return xp.multiply(y, x, out=y)

    def vjp(self, gy, *, x):
        s = sigmoid(x)
        slope = mul2(s, add_scalar(mul2(x, r_sub_scalar(s, 1.0)), 1.0))
        return mul2(gy, slope)


_GELU_LINEAR = math.sqrt(2.0 / math.pi)
_GELU_CUBIC = 0.044715 * _GELU_LINEAR


@op("gelu", nnp="GELU")
class gelu(OnAllReals):
    r"""$y = x (1 + \tanh(\sqrt{2/\pi}\,(x + 0.044715 x^3))) / 2$, near $x \Phi(x)$.

    Source: Hendrycks and Gimpel, Gaussian error linear units, arXiv:1606.08415.
    """

    elementwise = "gelu"

    def forward(self, xp, x, out=None):
        y = memory_for(xp, x, out)
        xp.multiply(x, x, out=y)
        xp.multiply(y, _GELU_CUBIC, out=y)
        xp.add(y, _GELU_LINEAR, out=y)
        xp.multiply(y, x, out=y)
        xp.tanh(y, out=y)
        xp.add(y, 1.0, out=y)
        xp.multiply(y, x, out=y)
        return xp.multiply(y, 0.5, out=y)

    def vjp(self, gy, *, x):
        # from 100 on t is 1, and its slope 0; x^2 must not be infinite there
        square = OPS["minimum_scalar"](mul2(x, x), 1e4)
        t = tanh(mul2(x, add_scalar(mul_scalar(square, _GELU_CUBIC), _GELU_LINEAR)))
        inner = add_scalar(mul_scalar(square, 3.0 * _GELU_CUBIC), _GELU_LINEAR)
        slope = add2(add_scalar(t, 1.0), mul2(tanh_backward(x, t), inner))
        return mul_scalar(mul2(gy, slope), 0.5)

    def cost(self, x):
        return Cost(flops=20 * x.size, bytes=2 * x.nbytes)


@op("mish", nnp="Mish", onnx=Onnx("Mish", since=18))
class mish(OnAllReals):
    r"""$y = x \tanh(\ln(1 + e^x))$.

    Source: Misra, Mish: a self regularized non-monotonic activation function, arXiv:1908.08681.
    """

    elementwise = "mish"

    def forward(self, xp, x, out=None):
        # With e = exp(x) and n = e (e + 2), tanh(ln(1 + e)) is n / (n + 2): 1 from x = 20 on.
        e = xp.exp(xp.minimum(x, 20.0))
        e *= e + 2.0
        y = memory_for(xp, x, out)
        xp.divide(e, e + 2.0, out=y)
        return xp.multiply(y, x, out=y)

    def vjp(self, gy, *, x):
        t = tanh(softplus(x))
        return mul2(gy, add2(t, tanh_backward(mul2(x, sigmoid(x)), t)))

    def cost(self, x):
        return Cost(flops=20 * x.size, bytes=2 * x.nbytes)


@op("tanh_shrink", nnp="TanhShrink")
class tanh_shrink(OnReals):
    r"""$y = x - \tanh x$."""

    elementwise = "tanh_shrink"

    def forward(self, xp, x, out=None):
        return xp.subtract(x, xp.tanh(x), out=out)

    def vjp(self, gy, *, x):
        t = tanh(x)
        return mul2(gy, mul2(t, t))
