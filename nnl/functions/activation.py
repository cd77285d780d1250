# SPDX-License-Identifier: Apache-2.0
"""Activation functions made of one bend or several: the family of ReLU, and those that clip."""

from __future__ import annotations

import numpy as np

from nnl.core.arrays.spec import ShapeError, check_axis
from nnl.core.ops.op import OPS, Cost, Onnx, Sample, op
from nnl.functions.arithmetic import Unary, add2, memory_for, mul2, mul_scalar, sub2
from nnl.functions.comparison import (
    greater_equal_scalar,
    greater_scalar,
    less_scalar,
    logical_not,
)
from nnl.functions.elementary import exp
from nnl.functions.reduction import reshape, sum_to
from nnl.functions.selection import gate, minimum_scalar, where

CATEGORY = "Activation"

__all__ = [
    "celu",
    "crelu",
    "elu",
    "hard_sigmoid",
    "hard_tanh",
    "leaky_relu",
    "prelu",
    "relu",
    "relu6",
    "selu",
]


_BENDS = np.array([-3.0, -2.5, -1.0, -0.0, 0.0, 1.0, 2.5, 3.0, 6.0, 7.0])


class Bent(Unary):
    """Common to functions with bends at whole and half numbers; only the last sample has some."""

    def samples(rng):
        for shape in ((3, 4), (2, 3, 2), (), (0, 2)):
            yield Sample(rng.integers(-8, 8, shape) + rng.uniform(0.1, 0.4, shape))
        yield Sample(_BENDS, order=0)


@op("relu", nnp="ReLU", onnx=Onnx("Relu"))
class relu(Bent):
    r"""$y = \max(x, 0)$; 0 for NaN. The gradient passes where $x > 0$. Only y is kept for it.

    Args:
        x: Any shape.
        inplace: Ignored, as in NNabla.
    Source: Nair and Hinton, Rectified linear units improve restricted Boltzmann machines, 2010.
    Example:
        >>> F.relu(array([-1, 0, 2])).d
        array([0., 0., 2.], dtype=float32)
    """

    inplace: bool = False
    elementwise = "relu"

    def forward(self, xp, x, out=None):
        return xp.fmax(x, 0.0, out=out)

    def vjp(self, gy, *, y):
        return gate(gy, y, low=0.0)


@op("leaky_relu", nnp="LeakyReLU", onnx=Onnx("LeakyRelu", since=6, alpha="alpha"))
class leaky_relu(Bent):
    r"""$y = x$ where $x > 0$, $y = \alpha x$ elsewhere.

    Args:
        x: Any shape.
        alpha: Slope on the negative side; of any size and sign.
        inplace: Ignored, as in NNabla.
    Source: Maas, Hannun and Ng, Rectifier nonlinearities improve neural network acoustic models,
    2013.
    """

    alpha: float = 0.1
    inplace: bool = False
    elementwise = "leaky_relu", "alpha"

    def forward(self, xp, x, out=None):
        y = memory_for(xp, x, out)
        xp.multiply(x, self.alpha, out=y)
        choose = xp.fmax if self.alpha <= 1.0 else xp.fmin
        return choose(x, y, out=y)

    def vjp(self, gy, *, x):
        return leaky_relu_backward(gy, x, alpha=self.alpha)

    def samples(rng):
        for alpha in (0.1, 0.0, 1.0, 1.5, -0.5):
            yield Sample(rng.integers(-4, 4, (2, 3)) + 0.3, alpha=alpha)
            yield Sample(_BENDS, alpha=alpha, order=0)
        yield Sample(np.array(-1.5))
        yield Sample(np.zeros((0, 2)))


@op("leaky_relu_backward")
class leaky_relu_backward:
    r"""gy where $x > 0$, $\alpha\,gy$ elsewhere."""

    alpha: float

    def infer(self, gy, x):
        return gy

    def forward(self, xp, gy, x, out=None):
        gx = memory_for(xp, x, out)
        positive = xp.greater(x, 0.0)
        if 0.0 <= self.alpha <= 1.0:
            xp.maximum(positive, self.alpha, dtype=x.dtype, out=gx)
        else:
            gx[...] = xp.where(positive, 1.0, self.alpha)
        return xp.multiply(gx, gy, out=gx)

    def elementwise(self, w):
        w("leaky_relu_backward", 0, 1, w.number(self.alpha))

    def vjp(self, gy, *, x):
        return leaky_relu_backward(gy, x, alpha=self.alpha), None

    def cost(self, gy, x):
        return Cost(flops=2 * gy.size, bytes=3 * gy.nbytes)

    def samples(rng):
        x = np.array([[-1.0, 0.0, 2.0], [-3.0, 1.0, -0.5]])
        for alpha in (0.1, 0.0, 1.5, -0.5):
            yield Sample(rng.normal(size=(2, 3)), x, alpha=alpha, grad=(True, False))
        yield Sample(np.array(1.0), np.array(-2.0), alpha=0.1, grad=(True, False))
        yield Sample(np.zeros((0, 2)), np.zeros((0, 2)), alpha=0.1, grad=(True, False))


@op("prelu", nnp="PReLU")
class prelu:
    r"""$y = x_0$ where $x_0 \ge 0$, $y = x_1 x_0$ elsewhere, with a slope x1 that is learnt.

    Args:
        x0: Any shape.
        x1: Slopes: one element, for all; or shape (C,), where C is the size of axis base_axis of
            x0, one for each channel.
        base_axis: The axis of channels.
    Raises:
        ShapeError: base_axis is out of range, or x1 has another shape.
    Source: He et al., Delving deep into rectifiers, arXiv:1502.01852.
    """

    base_axis: int = 1

    def resolve(self, x0, x1):
        return {"base_axis": check_axis("prelu", self.base_axis, x0, "x0")}

    def infer(self, x0, x1):
        channels = x0.shape[self.base_axis]
        if x1.size != 1 and x1.shape != (channels,):
            raise ShapeError(
                f"prelu: x1 {x1} has neither one element nor the shape ({channels},) of axis "
                f"{self.base_axis} of x0 {x0}"
            )
        return x0

    def forward(self, xp, x0, x1, out=None):
        y = xp.minimum(x0, 0.0, out=out)
        y *= x1.reshape(self._slope_shape(x0, x1))
        y += xp.fmax(x0, 0.0)
        return y

    def elementwise(self, w):
        x, own = w.shapes
        axis = self.base_axis
        slope = [1] * len(x)
        if own == (x[axis],):
            slope[axis] = x[axis]
        w.shapes[1] = tuple(slope)
        w("leaky_relu", 0, 1)

    def _slope_shape(self, x0, x1):
        shape = [1] * len(x0.shape)
        if x1.shape == (x0.shape[self.base_axis],):
            shape[self.base_axis] = x1.shape[0]
        return tuple(shape)

    def vjp(self, gy, *, x0, x1, need):
        shape = self._slope_shape(x0, x1)
        g0 = g1 = None
        if need[0]:
            slopes = reshape(x1, shape, inplace=False)
            g0 = where(less_scalar(x0, 0.0), mul2(gy, slopes), gy)
        if need[1]:
            g1 = sum_to(mul2(gy, minimum_scalar(x0, 0.0)), shape)
            g1 = reshape(g1, x1.shape, inplace=False)
        return g0, g1

    def cost(self, x0, x1):
        return Cost(flops=3 * x0.size, bytes=2 * x0.nbytes + x1.nbytes)

    def samples(rng):
        shapes = [((2, 3), (3,), 1), ((2, 3, 2), (3,), 1), ((2, 3), (1,), 1), ((2, 3), (), 1)]
        shapes += [((2, 3), (2,), 0), ((2, 3, 4), (4,), -1), ((0, 2), (2,), 1)]
        for s0, s1, axis in shapes:
            x0 = rng.integers(-4, 4, s0) + 0.3
            yield Sample(x0, rng.uniform(0.1, 0.5, s1), base_axis=axis)
        yield Sample(_BENDS, np.array([0.25]), base_axis=0, order=0)


def _exponential_slope(x, alpha, one_at_zero):
    r"""1 where x > 0 (or also at 0), $\alpha e^x$ elsewhere."""
    slope = exp(minimum_scalar(x, 0.0))
    if alpha == 1.0:
        return slope
    positive = greater_equal_scalar(x, 0.0) if one_at_zero else greater_scalar(x, 0.0)
    slope = mul2(mul_scalar(slope, alpha), logical_not(positive))
    return add2(slope, positive)


def _exponential(xp, x, alpha, out=None):
    """x where x > 0, alpha (e^x - 1) elsewhere; a sum of two parts, one of which is 0."""
    y = memory_for(xp, x, out)
    xp.minimum(x, 0.0, out=y)
    xp.expm1(y, out=y)
    xp.multiply(y, alpha, out=y)
    y += xp.fmax(x, 0.0)
    return y


@op("elu", nnp="ELU", onnx=Onnx("Elu", since=6, alpha="alpha"))
class elu(Bent):
    r"""$y = x$ where $x > 0$, $y = \alpha (e^x - 1)$ elsewhere. The gradient at 0 is 1.

    Source: Clevert, Unterthiner and Hochreiter, Fast and accurate deep network learning by
    exponential linear units, arXiv:1511.07289.
    """

    alpha: float = 1.0
    elementwise = "elu", "alpha"

    def forward(self, xp, x, out=None):
        return _exponential(xp, x, self.alpha, out)

    def vjp(self, gy, *, x):
        return mul2(gy, _exponential_slope(x, self.alpha, one_at_zero=True))

    def samples(rng):
        for alpha in (1.0, 0.5):
            yield Sample(rng.integers(-4, 4, (2, 3)) + 0.3, alpha=alpha)
            yield Sample(_BENDS, alpha=alpha, order=0)
        yield Sample(np.array(-0.3))
        yield Sample(np.zeros((0, 2)))


@op("selu", nnp="SELU", onnx=Onnx("Selu", since=6, alpha="alpha", scale="gamma"))
class selu(Bent):
    r"""$y = \lambda x$ where $x > 0$, else $\lambda \alpha (e^x - 1)$, $\lambda$ being `scale`.

    Source: Klambauer et al., Self-normalizing neural networks, arXiv:1706.02515.
    """

    scale: float = 1.05070098735548
    alpha: float = 1.673263242354377

    def forward(self, xp, x, out=None):
        y = _exponential(xp, x, self.alpha, out)
        y *= self.scale
        return y

    def elementwise(self, w):
        w("multiply", w("elu", 0, w.number(self.alpha)), w.number(self.scale))

    def vjp(self, gy, *, x):
        slope = _exponential_slope(x, self.alpha, one_at_zero=False)
        return mul_scalar(mul2(gy, slope), self.scale)


class Doubled:
    """Common to functions that give their result for x and for -x, joined along an axis."""

    def resolve(self, x):
        return {"axis": check_axis(self.op.name, self.axis, x)}

    def infer(self, x):
        shape = list(x.shape)
        shape[self.axis] *= 2
        return x.with_shape(shape)

    def halves(self, xp, x, out):
        """(memory of the output, its views for x and for -x)"""
        shape, n = list(x.shape), x.shape[self.axis]
        shape[self.axis] = 2 * n
        y = xp.empty(shape, x.dtype) if out is None else out
        before = (slice(None),) * self.axis
        return y, y[*before, :n], y[*before, n:]

    def cost(self, x):
        return Cost(flops=4 * x.size, bytes=3 * x.nbytes)

    def samples(rng):
        for shape, axis in (((2, 3), 1), ((2, 3, 2), 0), ((2, 3, 2), -1), ((4,), 0), ((0, 2), 1)):
            yield Sample(rng.integers(-4, 4, shape) + 0.3, axis=axis)
        yield Sample(_BENDS, axis=0, order=0)


@op("crelu", nnp="CReLU")
class crelu(Doubled):
    r"""$y = (\max(x, 0), \max(-x, 0))$, joined along an axis, which doubles its size.

    Args:
        x: Rank 1 or more.
        axis: Where the two results are joined.
    Raises:
        ShapeError: axis is out of range.
    Source: Shang et al., Understanding and improving convolutional neural networks via
    concatenated rectified linear units, arXiv:1603.05201.
    """

    axis: int = 1

    def forward(self, xp, x, out=None):
        y, first, second = self.halves(xp, x, out)
        xp.fmax(x, 0.0, out=first)
        xp.fmax(xp.negative(x, out=second), 0.0, out=second)
        return y

    def decompose(self, x):
        y = relu(x)  # its gradient at 0 is 0, so that the second result has gradient -1 there
        return OPS["concatenate"](y, sub2(y, x), axis=self.axis)


@op("celu", nnp="CELU")
class celu(Doubled):
    r"""$y = (\mathrm{elu}(x), \mathrm{elu}(-x))$, joined along an axis, which doubles its size.

    Args:
        x: Rank 1 or more.
        alpha: That of `elu`.
        axis: Where the two results are joined.
    Raises:
        ShapeError: axis is out of range.
    Source: Shang et al., Understanding and Improving Convolutional Neural Networks via
        Concatenated Rectified Linear Units, arXiv:1603.05201 (CReLU, here with elu).
    """

    alpha: float = 1.0
    axis: int = 1

    def forward(self, xp, x, out=None):
        y, first, second = self.halves(xp, x, out)
        _exponential(xp, x, self.alpha, first)
        _exponential(xp, -x, self.alpha, second)
        return y

    def decompose(self, x):
        halves = elu(x, alpha=self.alpha), elu(mul_scalar(x, -1.0), alpha=self.alpha)
        return OPS["concatenate"](*halves, axis=self.axis)


@op("relu6", nnp="ReLU6")
class relu6(Bent):
    r"""$y = \min(\max(x, 0), 6)$. The gradient passes where $0 < x < 6$.

    Source: Krizhevsky, Convolutional deep belief networks on CIFAR-10, 2010.
    """

    def forward(self, xp, x, out=None):
        return xp.clip(x, 0.0, 6.0, out=out)

    def elementwise(self, w):
        w("clip", 0, w.number(0.0), w.number(6.0))

    def vjp(self, gy, *, y):
        return gate(gy, y, low=0.0, high=6.0)


@op("hard_sigmoid", nnp="HardSigmoid")
class hard_sigmoid(Bent):
    r"""$y = \min(\max(0.2 x + 0.5, 0), 1)$. The gradient is 0.2 where $-2.5 \le x \le 2.5$.

    Source: Courbariaux, Bengio and David, BinaryConnect, arXiv:1511.00363 (there with slope 0.5).
    """

    def forward(self, xp, x, out=None):
        y = memory_for(xp, x, out)
        xp.multiply(x, 0.2, out=y)
        xp.add(y, 0.5, out=y)
        return xp.clip(y, 0.0, 1.0, out=y)

    def elementwise(self, w):
        y = w("multiply_add", 0, w.number(0.2), w.number(0.5))
        w("clip", y, w.number(0.0), w.number(1.0))

    def vjp(self, gy, *, x):
        return mul_scalar(gate(gy, x, low=-2.5, high=2.5, closed=True), 0.2)


@op("hard_tanh", nnp="HardTanh")
class hard_tanh(Bent):
    r"""$y = \min(\max(x, -1), 1)$. The gradient passes where $-1 \le x \le 1$.

    Source: Collobert, Large Scale Machine Learning, PhD thesis, 2004.
    """

    def forward(self, xp, x, out=None):
        return xp.clip(x, -1.0, 1.0, out=out)

    def elementwise(self, w):
        w("clip", 0, w.number(-1.0), w.number(1.0))

    def vjp(self, gy, *, x):
        return gate(gy, x, low=-1.0, high=1.0, closed=True)
