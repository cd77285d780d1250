# SPDX-License-Identifier: Apache-2.0
"""Normalization by the root of the mean square."""

from __future__ import annotations

from nnl.core.arrays.spec import ShapeError, check_axes
from nnl.core.ops.op import Cost, Sample, op
from nnl.functions.arithmetic import add_scalar, mul2, pow_scalar, sub2
from nnl.functions.reduction import mean_op, reshape, sum_to

CATEGORY = "Normalization"

__all__ = ["rms_normalization"]


class ByRootMeanSquare:
    axes: tuple[int, ...] = (-1,)
    eps: float = 1e-6
    gamma_offset: float = 0.0

    def resolve(self, *specs):
        x = specs[self.op.inputs.index("x")]
        return {"axes": check_axes("rms_normalization", self.axes, x)}

    def check(self, x, gamma):
        wanted = tuple(x.shape[a] for a in self.axes)
        if gamma is not None and gamma.shape not in (wanted, self.parameter(x)):
            raise ShapeError(
                f"rms_normalization: gamma {gamma} has another shape than {wanted}, the sizes of "
                f"x {x} along the axes {self.axes}"
            )

    def parameter(self, x):
        """The shape of gamma that stretches to that of x."""
        return tuple(n if i in self.axes else 1 for i, n in enumerate(x.shape))

    def factors(self, x, gamma):
        """(1 / root of the mean square, gamma as it is multiplied with), of the rank of x."""
        mean = mean_op(mul2(x, x), axes=self.axes, keep_dims=True)
        inverse = pow_scalar(add_scalar(mean, self.eps), -0.5)
        if gamma is None:
            return inverse, None
        gamma = reshape(gamma, self.parameter(x), inplace=False)
        return inverse, add_scalar(gamma, self.gamma_offset) if self.gamma_offset else gamma


@op("rms_normalization")
class rms_normalization(ByRootMeanSquare):
    r"""Divide by the root of the mean square over axes, then multiply with gamma.

    $$y = (o + \gamma)\, x / \sqrt{\mathrm{mean}(x^2) + \epsilon}$$

    Args:
        x: Any shape.
        gamma: The sizes of x along the axes, or also 1 for each other axis; None leaves it out.
        axes: What the mean is taken over; the last axis if left out.
        eps: Added to the mean square, so in squared units of x.
        gamma_offset: o, what is added to gamma: 1 in Gemma, whose weights start at 0.
    Raises:
        ShapeError: gamma has another shape, an axis is out of range or given twice.
    Source: Zhang and Sennrich, Root Mean Square Layer Normalization, arXiv:1910.07467.
    Example:
        >>> F.rms_normalization(array([[3, 4]]), array([1, 2]), eps=0).d
        array([[0.8485, 2.2627]], dtype=float32)
    """

    def infer(self, x, gamma=None):
        self.check(x, gamma)
        return x

    def decompose(self, x, gamma=None):
        inverse, gamma = self.factors(x, gamma)
        y = mul2(x, inverse)
        return y if gamma is None else mul2(y, gamma)

    def vjp(self, gy, *, x, gamma, need):
        gx, *ggamma = rms_normalization_backward(
            gy, x, gamma, axes=self.axes, eps=self.eps, gamma_offset=self.gamma_offset
        )
        return gx, ggamma[0] if ggamma else None

    def cost(self, x, gamma=None):
        return Cost(flops=4 * x.size, bytes=2 * x.nbytes)

    def samples(rng):
        x = rng.normal(size=(2, 3, 4))
        yield Sample(x, rng.normal(size=4), gamma_offset=1.0)
        yield Sample(x, rng.normal(size=(3, 4)), axes=(-2, -1), eps=1e-3)
        yield Sample(x, rng.normal(size=(1, 3, 1)), axes=(1,))
        yield Sample(x, None, axes=(0, 2))


@op("rms_normalization_backward", outputs=("*g",), wide=(1,))
class rms_normalization_backward(ByRootMeanSquare):
    """Gradients of `rms_normalization` by x, and by gamma where there is one.

    Args:
        gy: Gradient of y. x, gamma: Its inputs.
    """

    def infer(self, gy, x, gamma=None):
        self.check(x, gamma)
        if gy.shape != x.shape:
            raise ShapeError(f"{self.op.name}: gy {gy} and x {x} must have the same shape")
        return (x,) if gamma is None else (x, gamma)

    def decompose(self, gy, x, gamma=None):
        inverse, factor = self.factors(x, gamma)
        normal = mul2(x, inverse)
        g = gy if factor is None else mul2(gy, factor)
        mean = mean_op(mul2(g, normal), axes=self.axes, keep_dims=True)
        gx = mul2(sub2(g, mul2(normal, mean)), inverse)
        if gamma is None:
            return (gx,)
        total = sum_to(mul2(gy, normal), self.parameter(x))
        return gx, reshape(total, gamma.shape)

    def cost(self, gy, x, gamma=None):
        return Cost(flops=9 * x.size, bytes=3 * x.nbytes)

    def samples(rng):
        gy = rng.normal(size=(2, 3, 4))
        for s in rms_normalization.attrs_class.samples(rng):
            yield Sample(gy, *s.inputs, **s.attrs)
