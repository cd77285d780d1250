# SPDX-License-Identifier: Apache-2.0
"""dropout, and the linear map that its gradient is made of."""

from __future__ import annotations

import numpy as np

from nnl.core.arrays.spec import Spec, check_same_shape
from nnl.core.ops import random as nnl_random
from nnl.core.ops.op import Cost, Sample, op

CATEGORY = "Random"

__all__ = ["dropout"]


def keep_mask(xp, rng, shape, p):
    """Booleans that are True with probability 1 - p, to 32 bits."""
    n = int(np.prod(shape, dtype=np.int64))
    halves = nnl_random.raw(rng, (n + 1) // 2, xp).view(np.uint32)[:n]
    return (halves >= np.uint32(min(p * 2.0**32, 2.0**32 - 1))).reshape(shape)


@op("dropout", nnp="Dropout", outputs=("y", "mask"), hidden=1)
class dropout:
    r"""Set each element to 0 with probability p, and scale the others by 1 / (1 - p).

    $$y_i = m_i x_i / (1 - p)$$ with $m_i$ 1 with probability $1 - p$, else 0. There is no switch
    between training and inference: leave the call out to keep every element.

    Args:
        x: Any shape.
        p: Probability of 0, in [0, 1).
        seed: -1 draws from the stream that `nnl.seed` restarts; another number starts a stream of
            this function's own, which goes on from one forward to the next.
    Raises:
        ValueError: p is outside [0, 1).
    Source: Srivastava et al., Dropout: A Simple Way to Prevent Neural Networks from Overfitting,
        JMLR 2014.
    Example:
        >>> y = F.dropout(array(np.ones(1000)), p=0.2)
        >>> sorted({float(v) for v in y.d})  # 0, and what makes up for it
        [0.0, 1.25]
    """

    p: float = 0.5
    seed: int = -1
    follows_order = True

    def infer(self, x, rng):
        if not 0.0 <= self.p < 1.0:
            raise ValueError(f"dropout: p is {self.p}, wanted 0 <= p < 1")
        return x, x.with_dtype(np.bool_)

    def forward(self, xp, x, rng):
        mask = keep_mask(xp, rng, x.shape, self.p)
        return _scaled(xp, x, mask, 1.0 / (1.0 - self.p)), mask

    def vjp(self, gy, _, *, mask):
        return masked_scale(gy, mask, scale=1.0 / (1.0 - self.p))

    def cost(self, x, rng):
        return Cost(flops=2 * x.size, bytes=2 * x.nbytes + x.size)

    def samples(rng):
        for shape, p in (((2, 3), 0.5), ((4, 3, 2), 0.1), ((), 0.5), ((0, 2), 0.5), ((3,), 0.0)):
            yield Sample(rng.normal(size=shape), p=p, seed=7)


def _scaled(xp, x, mask, scale):
    y = xp.multiply(x, mask)
    if scale != 1.0:
        y *= scale
    return y


@op("masked_scale", keep=("mask",))
class masked_scale:
    """$y = scale \\cdot x$ where mask is True, else 0.

    Args:
        x: Any shape.
        mask: bool, the shape of x.
        scale: Factor.
    Raises:
        ShapeError: The shapes differ.
        TypeError: mask is not of bool.
    """

    scale: float = 1.0

    def infer(self, x, mask):
        check_same_shape("masked_scale", "x", x, "mask", mask)
        if mask.dtype != np.bool_:
            raise TypeError(f"masked_scale: mask is {mask}, wanted bool")
        return Spec.of(x.shape, x.dtype)

    def forward(self, xp, x, mask):
        return _scaled(xp, x, mask, self.scale)

    def elementwise(self, w):
        w("multiply", w("multiply", 0, 1), w.number(self.scale))

    def vjp(self, gy, *, mask):
        return masked_scale(gy, mask, scale=self.scale), None

    def cost(self, x, mask):
        return Cost(flops=2 * x.size, bytes=2 * x.nbytes + x.size)

    def samples(rng):
        for shape in ((2, 3), (), (0, 2)):
            yield Sample(
                rng.normal(size=shape), rng.random(shape) < 0.5, grad=(True, False), scale=2.0
            )
