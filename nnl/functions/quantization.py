# SPDX-License-Identifier: Apache-2.0
"""Values from a small set: signs, fixed-point numbers, powers of two; and pruning.

Their derivative is zero almost everywhere, so gradients are straight-through estimates: they pass
as if y were x, and stop, if ste_fine_grained is True, outside of the range that can be represented.

Source: Bengio, Leonard and Courville, Estimating or Propagating Gradients Through Stochastic
Neurons for Conditional Computation, arXiv:1308.3432.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nnl.core.arguments.annotations import checked
from nnl.core.ops.op import OPS, Sample, op
from nnl.functions.arithmetic import Unary, memory_for, mul2, mul_scalar
from nnl.functions.comparison import greater_equal_scalar, less_equal_scalar, less_scalar
from nnl.functions.elementary import abs as absolute
from nnl.functions.rounding import round as round_op

CATEGORY = "Quantization"

__all__ = [
    "binary_sigmoid",
    "binary_tanh",
    "fixed_point_quantize",
    "pow2_quantize",
    "prune",
]


def rounded(xp, x, out=None):
    """The nearest whole numbers, halves away from 0."""
    return round_op.default_attrs.forward(xp, x, out)


def inside(x, low, high):
    """1 where low <= x <= high, else 0."""
    return mul2(greater_equal_scalar(x, val=low), less_equal_scalar(x, val=high))


class Threshold(Unary):
    """Common to the two functions that have one of two values on each side of 0."""

    def samples(rng):
        edges = np.array([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0])
        for x in (edges, 2 * rng.normal(size=(3, 4)), np.array(0.3), np.zeros((0, 2))):
            yield Sample(x, order=0)


@op("binary_sigmoid", nnp="BinarySigmoid")
class binary_sigmoid(Threshold):
    r"""1 where x > 0, else 0: $y = [\,x > 0\,]$.

    Its gradient is that of (x + 1) / 2 clipped to [0, 1]: 1/2 where |x| < 1, else 0.

    Source: Courbariaux et al., Binarized Neural Networks, arXiv:1602.02830.
    """

    def forward(self, xp, x, out=None):
        return xp.greater(x, 0.0, out=memory_for(xp, x, out))

    def elementwise(self, w):
        w("greater", 0, w.number(0.0))

    def vjp(self, gy, *, x):
        return mul2(gy, mul_scalar(less_scalar(absolute(x), val=1.0), 0.5))


@op("binary_tanh", nnp="BinaryTanh")
class binary_tanh(Threshold):
    r"""1 where x > 0, else -1: $y = 2\,[\,x > 0\,] - 1$.

    Its gradient is that of x clipped to [-1, 1]: 1 where |x| < 1, else 0.

    Source: Courbariaux et al., Binarized Neural Networks, arXiv:1602.02830.
    """

    def forward(self, xp, x, out=None):
        y = xp.greater(x, 0.0, out=memory_for(xp, x, out))
        xp.multiply(y, 2.0, out=y)
        return xp.subtract(y, 1.0, out=y)

    def elementwise(self, w):
        w("where", w("greater", 0, w.number(0.0)), w.number(1.0), w.number(-1.0))

    def vjp(self, gy, *, x):
        return mul2(gy, less_scalar(absolute(x), val=1.0))


class Quantizer(Unary):
    """Common to quantization into a range that the attributes give."""

    def vjp(self, gy, *, x):
        return mul2(gy, inside(x, *self.range())) if self.ste_fine_grained else gy


@op("fixed_point_quantize", at_most={"n": 64}, nnp="FixedPointQuantize")
class fixed_point_quantize_op(Quantizer):
    """See fixed_point_quantize."""

    sign: bool = True
    n: int = 8
    delta: float = 0.0625
    ste_fine_grained: bool = True

    def range(self):
        highest = (2 ** (self.n - self.sign) - 1) * self.delta
        return (-highest if self.sign else 0.0), highest

    def infer(self, x):
        least = 1 + self.sign
        if self.n < least:
            raise ValueError(
                f"fixed_point_quantize: n is {self.n}, wanted at least {least} bits "
                f"with sign={self.sign}"
            )
        if not self.delta > 0:
            raise ValueError(f"fixed_point_quantize: delta is {self.delta}, wanted > 0")
        return x

    def forward(self, xp, x, out=None):
        y = memory_for(xp, x, out)
        rounded(xp, xp.divide(x, self.delta), y)
        xp.multiply(y, self.delta, out=y)
        return xp.clip(y, *self.range(), out=y)

    def elementwise(self, w):
        delta = w.number(self.delta)
        high = (2.0 ** (self.n - self.sign) - 1.0) * self.delta
        y = w("multiply", w("round", w("divide", 0, delta)), delta)
        w("clip", y, w.number(-high if self.sign else 0.0), w.number(high))

    def samples(rng):
        x = 2 * rng.normal(size=(3, 4))
        for sign in (True, False):
            yield Sample(x, sign=sign, n=4, delta=0.25, order=0)
            yield Sample(x, sign=sign, n=4, delta=0.25, ste_fine_grained=False, order=0)
        edges = np.array([-9, -7.9375, -0.03125, 0, 0.03125, 0.034, 7.9375, 7.97, 9])
        for x in (edges, np.array(0.3), np.zeros((0, 2))):
            yield Sample(x, order=0)


@checked
def fixed_point_quantize(
    x,
    sign: bool = True,
    n: int = 8,
    delta: float = 0.0625,
    quantize: bool = True,
    ste_fine_grained: bool = True,
    outputs: Any = None,
):
    r"""The nearest multiple of delta that n bits can hold, halves away from 0.

    $$y = \delta\,\mathrm{clip}(\mathrm{round}(x / \delta), -q, q), \quad q = 2^{n-1} - 1$$

    and with sign=False from 0 to $2^n - 1$ times delta.

    Args:
        x: Any shape.
        sign: Whether one of the bits is for the sign.
        n: Number of bits, at most 64.
        delta: Distance of two values, in units of x.
        quantize: False returns x itself.
        ste_fine_grained: Whether no gradient passes where x is outside of the range.
        outputs: Array whose memory the result takes.
    Raises:
        ValueError: No bit is left for the values, n is too large, or delta is not positive.
    Source: Gupta et al., Deep Learning with Limited Numerical Precision, arXiv:1502.02551 (there
        rounding is also random).
    Example:
        >>> F.fixed_point_quantize(array([0.3, -0.3, 9]), n=4, delta=0.25).d
        array([ 0.25, -0.25,  1.75], dtype=float32)
    """
    if not quantize:
        return x
    return fixed_point_quantize_op(
        x, sign=sign, n=n, delta=delta, ste_fine_grained=ste_fine_grained, outputs=outputs
    )


@op("pow2_quantize", at_most={"n": 64, "m": 127}, nnp="Pow2Quantize")
class pow2_quantize_op(Quantizer):
    """See pow2_quantize."""

    sign: bool = True
    with_zero: bool = True
    n: int = 8
    m: int = 1
    ste_fine_grained: bool = True

    def range(self):
        highest = 2.0 ** (self.m + 0.5)  # what is rounded to 2**m
        return (-highest if self.sign else 0.0), highest

    def infer(self, x):
        least = 1 + self.sign + self.with_zero
        if self.n < least:
            raise ValueError(
                f"pow2_quantize: n is {self.n}, wanted at least {least} bits "
                f"with sign={self.sign} and with_zero={self.with_zero}"
            )
        return x

    def forward(self, xp, x, out=None):
        y = memory_for(xp, x, out)
        # below 2 ** -1074 there are no floats, so no lower exponent is needed
        highest = max(self.m, -1080)
        lowest = max(self.m + 1 - 2 ** (self.n - self.sign - self.with_zero), -1080)
        size = xp.abs(x)
        fraction, exponent = xp.frexp(size)  # fraction in [1/2, 1)
        exponent = exponent - (fraction <= 0.5**0.5)
        exponent = xp.where(size == 0, lowest, xp.clip(exponent, lowest, highest))
        y[...] = xp.ldexp(x.dtype.type(1), exponent)
        if self.with_zero:
            xp.copyto(y, 0, where=size < 2.0 ** (lowest - 0.5))
        if self.sign:
            xp.copysign(y, xp.where(x < 0, -1, 1).astype(x.dtype), out=y)
        else:
            xp.copyto(y, 0 if self.with_zero else 2.0**lowest, where=x < 0)
        return y

    def samples(rng):
        x = 2 * rng.normal(size=(3, 4))
        for sign in (True, False):
            for with_zero in (True, False):
                yield Sample(x, sign=sign, with_zero=with_zero, n=4, m=0, order=0)
        yield Sample(x, n=3, m=-1, ste_fine_grained=False, order=0)
        edges = np.array([-3, -2, -1.5, -0.5, -0.09, 0, 1e-9, 0.17, 0.18, 1.41, 1.42, 2, 7])
        yield Sample(edges, n=4, order=0)
        yield Sample(edges, order=0)
        for x in (np.array(0.3), np.zeros((0, 2))):
            yield Sample(x, order=0)


@checked
def pow2_quantize(
    x,
    sign: bool = True,
    with_zero: bool = True,
    n: int = 8,
    m: int = 1,
    quantize: bool = True,
    ste_fine_grained: bool = True,
    outputs: Any = None,
):
    r"""The nearest power of two, in logarithm, among those that n bits can number.

    $$y = \mathrm{sign}(x)\,2^{\mathrm{round}(\log_2 |x|)}$$

    with exponents from $m - 2^k + 1$ to m, where k is n less a bit for the sign and one for zero.
    Smaller values become 0, with with_zero, or else the smallest power. Negative ones without sign
    do the same.

    Args:
        x: Any shape.
        sign: Whether one of the bits is for the sign.
        with_zero: Whether one of the bits is for 0.
        n: Number of bits, at most 64.
        m: The largest exponent, at most 127.
        quantize: False returns x itself.
        ste_fine_grained: Whether no gradient passes where x is outside of the range.
        outputs: Array whose memory the result takes.
    Raises:
        ValueError: No bit is left for the exponent, or n or m is too large.
    Source: Miyashita, Lee and Murmann, Convolutional Neural Networks using Logarithmic Data
        Representation, arXiv:1603.01025.
    Example:
        >>> F.pow2_quantize(array([0.3, -0.7, 9]), n=4, m=1).d
        array([ 0.25, -0.5 ,  2.  ], dtype=float32)
    """
    if not quantize:
        return x
    return pow2_quantize_op(
        x, sign=sign, with_zero=with_zero, n=n, m=m, ste_fine_grained=ste_fine_grained,
        outputs=outputs,
    )  # fmt: skip


@op("prune", nnp="Prune")
class prune(Unary):
    r"""Set the smallest values to 0.

    $$y_i = x_i \text{ if } |x_i| \ge t, \text{ else } 0$$

    where t is number (size - 1) rate, rounded down, of the absolute values in ascending order; at
    rate 1 all become 0. The gradient passes straight through.

    Args:
        x: Any shape.
        rate: Which part becomes 0, in [0, 1].
    Raises:
        ValueError: rate is outside [0, 1].
    Source: Han et al., Learning both Weights and Connections for Efficient Neural Networks,
        arXiv:1506.02626.
    """

    rate: float = 0.9

    def infer(self, x):
        if not 0 <= self.rate <= 1:
            raise ValueError(f"prune: rate is {self.rate}, wanted a value in [0, 1]")
        return x

    def forward(self, xp, x, out=None):
        y = memory_for(xp, x, out)
        if self.rate == 1 or not x.size:
            y[...] = 0
            return y
        size = xp.abs(x)
        # float32, as in NNabla, for the same number of zeros: 100 x 0.29 is below 29 in float64
        k = int(np.float32(x.size - 1) * np.float32(self.rate))
        y[...] = x
        xp.copyto(y, 0, where=size < xp.partition(size.reshape(-1), k)[k])
        return y

    def portable(self, x):
        if self.rate == 1 or not x.size:
            return OPS["constant"](val=0.0, shape=x.shape)
        size = OPS["abs"](x)
        k = int(np.float32(x.size - 1) * np.float32(self.rate))
        (order,) = OPS["sort"](OPS["reshape"](size, (x.size,)), axis=0)
        least = OPS["slice"](order, start=(k,), stop=(k + 1,), step=(1,))
        least = OPS["broadcast"](OPS["reshape"](least, (1,) * len(x.shape)), shape=x.shape)
        zero = OPS["constant"](val=0.0, shape=x.shape)
        return OPS["where"](OPS["less"](size, least), zero, x)

    def vjp(self, gy):
        return gy

    def samples(rng):
        x = rng.normal(size=(3, 7))
        for rate in (0.0, 0.3, 0.9, 1.0):
            yield Sample(x, rate=rate, order=0)
        yield Sample(np.array([1.0, -1, 2, 2, 0, 1, -2]), rate=0.6, order=0)
        yield Sample(rng.normal(size=101), rate=0.29, order=0)
        yield Sample(np.array(0.3), order=0)
        yield Sample(np.zeros((0, 2)), order=0)
