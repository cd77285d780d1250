# SPDX-License-Identifier: Apache-2.0
"""The noise of virtual adversarial training."""

from __future__ import annotations

import numpy as np

from nnl.core.arrays.spec import check_axis, check_same_shape
from nnl.core.ops.op import OPS, Cost, Sample, op

CATEGORY = "Special"

__all__ = ["vat_noise"]

SQUARED_FLOOR = 1e-8  # added to the squared norm, as NNabla does, so that zeros give zeros


@op("vat_noise", nnp="VATNoise")
class vat_noise:
    r"""Noise of length eps in the direction of x; backward stores the direction for the next time.

    $$y = \epsilon\, x / \sqrt{10^{-8} + \sum x^2}$$ with the sum over the axes from base_axis on.

    Backward **writes** $\epsilon\, g_y$ into w and gives neither x nor w a gradient. So with w as x
    of the next step the noise follows the direction in which the loss rises fastest, by one step
    of power iteration per backward.

    Args:
        x: Any shape, with base_axis axes of samples.
        w: Same shape; its values are not used, only overwritten.
        base_axis: First axis that belongs to a sample; counted from the end if negative.
        eps: Length of the noise, in units of x.
    Returns:
        The shape of x. The gradient of the gradient is not defined; w is written again each time.
    Raises:
        ShapeError: x and w differ in shape, or x has no axis base_axis.
    Source: Miyato, Maeda, Koyama and Ishii, Virtual adversarial training, arXiv:1704.03976,
        section 3.3.
    """

    base_axis: int = 1
    eps: float = 1.0

    def resolve(self, x, w):
        return {"base_axis": check_axis("vat_noise", self.base_axis, x)}

    def infer(self, x, w):
        check_same_shape("vat_noise", "x", x, "w", w)
        return x

    def forward(self, xp, x, w, out=None):
        axes = tuple(range(self.base_axis, x.ndim))
        norm = xp.sqrt((x * x).sum(axis=axes, keepdims=True) + SQUARED_FLOOR)
        return xp.multiply(x, self.eps / norm, out=out)

    def portable(self, x, w):
        axes = tuple(range(self.base_axis, len(x.shape)))
        total = OPS["sum"](OPS["mul2"](x, x), axes=axes, keep_dims=True)
        norm = OPS["pow_scalar"](OPS["add_scalar"](total, SQUARED_FLOOR), 0.5)
        return OPS["mul2"](x, OPS["r_div_scalar"](norm, self.eps))

    def vjp(self, gy, *, w, need):
        g = vat_noise_backward(w, gy, eps=self.eps)
        # A call whose result no one takes is not executed, so one of the inputs gets the zeros.
        return (g, None) if need[0] else (None, g)

    def cost(self, x, w):
        return Cost(3 * x.size, 2 * x.nbytes)

    def samples(rng):
        # order 0: backward is no derivative
        x, w = rng.normal(size=(2, 2, 3, 4))
        for at in ({}, {"base_axis": 2, "eps": 0.5}, {"base_axis": -2, "eps": 3.0}):
            yield Sample(x, w, order=0, **at)
        yield Sample(np.zeros((2, 3)), rng.normal(size=(2, 3)), order=0)
        yield Sample(1e-5 * x[0], w[0], base_axis=-1, order=0)
        yield Sample(x[:0], w[:0], order=0)


@op("vat_noise_backward", outputs=("gx",), writes=("w",))
class vat_noise_backward:
    """Write eps gy into w, and return the gradient of vat_noise: zeros."""

    eps: float = 1.0

    def infer(self, w, gy):
        return gy

    def forward(self, xp, w, gy):
        xp.multiply(gy, self.eps, out=w)
        return xp.zeros_like(gy)

    def cost(self, w, gy):
        return Cost(gy.size, 3 * gy.nbytes)

    def samples(rng):
        yield Sample(rng.normal(size=(2, 3)), rng.normal(size=(2, 3)), eps=0.5)
        yield Sample(rng.normal(size=()), rng.normal(size=()))
