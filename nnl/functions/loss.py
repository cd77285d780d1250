# SPDX-License-Identifier: Apache-2.0
"""Losses element by element, and the divergence of distributions."""

from __future__ import annotations

import numpy as np

from nnl.core.arrays.spec import check_axis, check_same_shape
from nnl.core.ops.op import OPS, Cost, Sample, op
from nnl.functions.arithmetic import Binary, add_scalar, div2, mul2, mul_scalar, sub2
from nnl.functions.reduction import spread, sum_to

CATEGORY = "Loss"

__all__ = [
    "sigmoid_cross_entropy",
    "binary_cross_entropy",
    "squared_error",
    "absolute_error",
    "huber_loss",
    "epsilon_insensitive_loss",
    "kl_multinomial",
]

# The smallest probability whose logarithm is taken: NNabla's, the smallest normal float32.
TINY = 2.0**-126
# Added to probabilities by kl_multinomial before their logarithm.
KL_EPSILON = 1e-8


class OfPairs:
    """Common to functions of two arrays of one shape."""

    def infer(self, x, target):
        check_same_shape(self.op.name, "x", x, "target", target)
        return x

    def cost(self, x, target):
        return Cost(flops=6 * x.size, bytes=2 * x.nbytes + target.nbytes)


@op("sigmoid_cross_entropy", wide=True, integer=("target",), nnp="SigmoidCrossEntropy")
class sigmoid_cross_entropy(OfPairs):
    r"""$y = -t \log \sigma(x) - (1 - t) \log(1 - \sigma(x))$, without overflow.

    Args:
        x: Scores, any shape.
        target: Integers of that shape, 0 or 1; floats must be whole numbers.
    Returns:
        Losses, of the same shape.
    Raises:
        ShapeError: The shapes differ.
    Example:
        >>> F.sigmoid_cross_entropy(array([0, 9]), array([1, 1], int)).d
        array([0.6931, 0.0001], dtype=float32)
    """

    def forward(self, xp, x, target):
        y = xp.abs(x)
        xp.log1p(xp.exp(xp.negative(y, out=y), out=y), out=y)
        y += xp.maximum(x, 0)
        y -= x * target.astype(x.dtype)
        return y

    def elementwise(self, w):
        # ln(1 + e^-|x|) + max(x, 0) - x t
        w("subtract", w("softplus", 0, w.number(1.0)), w("multiply", 0, 1))

    def vjp(self, gy, *, x, target):
        return sigmoid_cross_entropy_backward(gy, x, target), None

    def samples(rng):
        yield Sample(rng.normal(size=(2, 3)), rng.integers(0, 2, (2, 3)))
        yield Sample(np.array([[90.0, -90.0, 0.5]]), np.array([[0, 1, 1]]))


@op("sigmoid_cross_entropy_backward", integer=("target",))
class sigmoid_cross_entropy_backward:
    r"""$g (\sigma(x) - t)$."""

    def infer(self, gy, x, target):
        return x

    def forward(self, xp, gy, x, target):
        e = xp.exp(-xp.abs(x))
        y = xp.where(x < 0, e, xp.asarray(1, x.dtype))
        y /= 1 + e
        y -= target.astype(x.dtype)
        y *= gy
        return y

    def elementwise(self, w):
        w("multiply", w("subtract", w("sigmoid", 1), 2), 0)

    def vjp(self, gg, *, gy, x, target):
        s = OPS["sigmoid"](x)
        slope = mul2(s, add_scalar(mul_scalar(s, -1.0), 1.0))
        return (
            sigmoid_cross_entropy_backward(gg, x, target),
            mul2(mul2(gg, gy), slope),
            None,
        )

    def cost(self, gy, x, target):
        return Cost(flops=6 * x.size, bytes=3 * x.nbytes + target.nbytes)

    def samples(rng):
        gy, x = rng.normal(size=(2, 2, 3))
        yield Sample(gy, x, rng.integers(0, 2, (2, 3)))


@op("binary_cross_entropy", wide=True, nnp="BinaryCrossEntropy")
class binary_cross_entropy(OfPairs):
    r"""$y = -t \log x - (1 - t) \log(1 - x)$ with x and 1 - x at least $2^{-126}$.

    Args:
        x: Probabilities, any shape.
        target: Probabilities of that shape.
    Returns:
        Losses, of the same shape.
    Raises:
        ShapeError: The shapes differ.
    """

    def forward(self, xp, x, target):
        y = target * xp.log(xp.maximum(x, TINY))
        y += (1 - target) * xp.log(xp.maximum(1 - x, TINY))
        return xp.negative(y, out=y)

    def elementwise(self, w):
        one, tiny = w.number(1.0), w.number(TINY)
        near = w("log", w("maximum", 0, tiny))
        far = w("log", w("maximum", w("subtract", one, 0), tiny))
        rest = w("multiply", w("subtract", one, 1), far)
        w("negative", w("multiply_add", 1, near, rest))

    def vjp(self, gy, *, x, target, need):
        gx = gt = None
        other = add_scalar(mul_scalar(x, -1.0), 1.0)
        if need[0]:
            variance = OPS["maximum_scalar"](mul2(x, other), TINY)
            gx = mul2(gy, div2(sub2(x, target), variance))
        if need[1]:
            log, least = OPS["log"], OPS["maximum_scalar"]
            gt = mul2(gy, sub2(log(least(other, TINY)), log(least(x, TINY))))
        return gx, gt

    def samples(rng):
        yield Sample(rng.uniform(0.1, 0.9, (2, 3)), rng.uniform(0.1, 0.9, (2, 3)))


class Difference(Binary):
    """Common to losses of x0 - x1, which gives both gradients from one."""

    def vjp(self, gy, *, x0, x1, need):
        g = mul2(gy, self.slope(sub2(x0, x1)))
        return (
            sum_to(g, x0.shape) if need[0] else None,
            sum_to(mul_scalar(g, -1.0), x1.shape) if need[1] else None,
        )

    def cost(self, x0, x1):
        y = self.infer(x0, x1)
        return Cost(flops=2 * y.size, bytes=x0.nbytes + x1.nbytes + y.nbytes)


@op("squared_error", wide=True, nnp="SquaredError")
class squared_error(Difference):
    """$y = (x_0 - x_1)^2$, element by element; sizes of 1 stretch. There is no factor 1/2.

    Raises:
        ShapeError: The ranks differ, or two sizes differ and neither is 1.
    Example:
        >>> F.squared_error(array([1, 2]), array([1, 5])).d
        array([0., 9.], dtype=float32)
    """

    elementwise = "squared_difference"

    def forward(self, xp, x0, x1, out=None):
        y = xp.subtract(x0, x1, out=out)
        return xp.multiply(y, y, out=out)

    def slope(self, d):
        return mul_scalar(d, 2.0)


@op("absolute_error", wide=True, nnp="AbsoluteError")
class absolute_error(Difference):
    """$y = |x_0 - x_1|$, element by element; sizes of 1 stretch. Where it is 0, its slope is -1.

    Raises:
        ShapeError: The ranks differ, or two sizes differ and neither is 1.
    """

    def forward(self, xp, x0, x1, out=None):
        y = xp.subtract(x0, x1, out=out)
        return xp.abs(y, out=out)

    def elementwise(self, w):
        w("absolute", w("subtract", 0, 1))

    def slope(self, d):
        return add_scalar(mul_scalar(OPS["greater_scalar"](d, 0.0), 2.0), -1.0)


def check_not_negative(name, arg, value):
    if not value >= 0:
        raise ValueError(f"{name}: {arg} is {value}, wanted a number >= 0")


@op("huber_loss", wide=True, nnp="HuberLoss")
class huber_loss(Difference):
    r"""$y = d^2$ where $|d| < \delta$, else $\delta (2 |d| - \delta)$, with $d = x_0 - x_1$.

    This is twice the loss in Huber's paper, as in NNabla.

    Args:
        x0, x1: Arrays of one rank; sizes of 1 stretch.
        delta: Where the loss turns from quadratic to linear.
    Raises:
        ShapeError: The ranks differ, or two sizes differ and neither is 1.
        ValueError: delta is negative.
    Source: Huber, Robust Estimation of a Location Parameter, Annals of Statistics 53, 1964.
    Example:
        >>> F.huber_loss(array([0.5, 3]), array([0, 0]), delta=1.0).d  # a square, then a line
        array([0.25, 5.  ], dtype=float32)
    """

    delta: float = 1.0

    def infer(self, x0, x1):
        check_not_negative("huber_loss", "delta", self.delta)
        return Difference.infer(self, x0, x1)

    def forward(self, xp, x0, x1):
        d = xp.abs(x0 - x1)
        near = xp.minimum(d, self.delta)  # near (2 d - near) is both cases
        d *= 2
        d -= near
        d *= near
        return d

    def elementwise(self, w):
        d = w("absolute", w("subtract", 0, 1))
        near = w("minimum", d, w.number(self.delta))
        w("multiply", w("subtract", w("multiply", d, w.number(2.0)), near), near)

    def slope(self, d):
        bounded = OPS["minimum_scalar"](OPS["maximum_scalar"](d, -self.delta), self.delta)
        return mul_scalar(bounded, 2.0)

    def samples(rng):
        x0, x1 = np.array([[1.0, 2.0, 3.0, 0.0]]), np.array([[1.25, 2.5, -3.0, 4.0]])
        for delta in (1.0, 0.3, 5.0):
            yield Sample(x0, x1, delta=delta)
        yield Sample(x0.T, x1, delta=0.7)


@op("epsilon_insensitive_loss", wide=True, nnp="EpsilonInsensitiveLoss")
class epsilon_insensitive_loss(Difference):
    r"""$y = \max(|x_0 - x_1| - \epsilon, 0)$, element by element; sizes of 1 stretch.

    Args:
        x0, x1: Arrays of one rank.
        epsilon: The largest difference that costs nothing.
    Raises:
        ShapeError: The ranks differ, or two sizes differ and neither is 1.
        ValueError: epsilon is negative.
    Source: Vapnik, The Nature of Statistical Learning Theory, 1995.
    """

    epsilon: float

    def infer(self, x0, x1):
        check_not_negative("epsilon_insensitive_loss", "epsilon", self.epsilon)
        return Difference.infer(self, x0, x1)

    def forward(self, xp, x0, x1, out=None):
        y = xp.subtract(x0, x1, out=out)
        y = xp.subtract(xp.abs(y, out=out), self.epsilon, out=out)
        return xp.maximum(y, 0, out=out)

    def elementwise(self, w):
        d = w("absolute", w("subtract", 0, 1))
        w("maximum", w("subtract", d, w.number(self.epsilon)), w.number(0.0))

    def slope(self, d):
        above = OPS["greater_scalar"](d, self.epsilon)
        return sub2(above, OPS["less_scalar"](d, -self.epsilon))

    def samples(rng):
        x0, x1 = np.array([[1.0, 2.0, 3.0, 0.0]]), np.array([[1.25, 2.5, -3.0, 4.0]])
        for epsilon in (0.0, 0.4, 5.0):
            yield Sample(x0, x1, epsilon=epsilon)
        yield Sample(x0.T, x1, epsilon=0.1)


@op("kl_multinomial", wide=True, nnp="KLMultinomial")
class kl_multinomial:
    r"""Kullback-Leibler divergence $y = \sum_i p_i \log \frac{p_i + \epsilon}{q_i + \epsilon}$.

    Args:
        p, q: Probabilities of one shape.
        base_axis: Axes from this one on are summed over; negative ones count from the end.
    Returns:
        The shape of p up to base_axis, then 1.
    Raises:
        ShapeError: The shapes differ, or base_axis is out of range.
    Source: Kullback and Leibler, On Information and Sufficiency, Annals of Mathematical
        Statistics 22, 1951 (there without epsilon).
    """

    base_axis: int = 1

    def resolve(self, p, q):
        return {"base_axis": check_axis("kl_multinomial", self.base_axis, p, "p")}

    def infer(self, p, q):
        check_same_shape("kl_multinomial", "p", p, "q", q)
        return p.with_shape((*p.shape[: self.base_axis], 1))

    def forward(self, xp, p, q):
        y = xp.log(p + KL_EPSILON)
        y -= xp.log(q + KL_EPSILON)
        y *= p
        axes = tuple(range(self.base_axis, p.ndim))
        return xp.sum(y, axis=axes)[..., None]

    def vjp(self, gy, *, p, q, need):
        g = spread(gy, p, range(self.base_axis, len(p.shape)))
        p_, q_ = add_scalar(p, KL_EPSILON), add_scalar(q, KL_EPSILON)
        gp = gq = None
        if need[0]:
            log = OPS["log"]
            gp = mul2(g, add_scalar(sub2(log(p_), log(q_)), 1.0))
        if need[1]:
            gq = mul_scalar(mul2(g, div2(p, q_)), -1.0)
        return gp, gq

    def cost(self, p, q):
        return Cost(flops=4 * p.size, bytes=p.nbytes + q.nbytes)

    def samples(rng):
        p, q = rng.uniform(0.1, 1, (2, 2, 3, 2))
        for base_axis in (1, 2, -1):
            yield Sample(p, q, base_axis=base_axis)
