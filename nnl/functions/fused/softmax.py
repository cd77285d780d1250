# SPDX-License-Identifier: Apache-2.0
"""Softmax along the last axis of what is scaled and masked."""

from __future__ import annotations

import numpy as np

from nnl.core.arrays.spec import ShapeError, check_same_shape
from nnl.core.ops.op import Cost, Sample, op
from nnl.functions.arithmetic import add2, mul_scalar
from nnl.functions.softmax import softmax, softmax_backward


@op("softmax_fused")
class softmax_fused:
    """softmax(scale x + mask) along the last axis.

    Args:
        x: Scores.
        mask: Added to them; of the rank of x, sizes of 1 stretch. Optional.
        scale: Factor of the scores.
    """

    scale: float = 1.0

    def infer(self, x, mask=None):
        if mask is not None and (
            mask.ndim != x.ndim or np.broadcast_shapes(mask.shape, x.shape) != x.shape
        ):
            raise ShapeError(f"softmax_fused: mask {mask} does not stretch to x {x}")
        return x

    def decompose(self, x, mask=None):
        y = mul_scalar(x, self.scale)
        return softmax(y if mask is None else add2(y, mask))

    def cost(self, x, mask=None):
        return Cost(flops=7 * x.size, bytes=2 * x.nbytes)

    def samples(rng):
        x = rng.normal(size=(2, 3, 4, 5))
        for shape in ((2, 3, 4, 5), (2, 1, 1, 5), (1, 1, 4, 5)):
            yield Sample(x, rng.normal(size=shape), scale=0.5)
        yield Sample(x, None, scale=2.0)


@op("softmax_fused_backward")
class softmax_fused_backward:
    r"""Gradient of `softmax_fused` by x: $s\, y_i (g_i - \sum_j g_j y_j)$ with its scale $s$."""

    scale: float = 1.0

    def infer(self, gy, y):
        check_same_shape("softmax_fused_backward", "gy", gy, "y", y)
        return y

    def decompose(self, gy, y):
        return mul_scalar(softmax_backward(gy, y, len(y.shape) - 1), self.scale)

    def cost(self, gy, y):
        return Cost(flops=5 * y.size, bytes=3 * y.nbytes)

    def samples(rng):
        yield Sample(rng.normal(size=(2, 3, 4)), rng.uniform(0.1, 0.9, (2, 3, 4)), scale=0.5)
