# SPDX-License-Identifier: Apache-2.0
"""Subtract the mean of everything seen so far."""

from __future__ import annotations

import numpy as np

from nnl.core.arrays.spec import ShapeError, check_axis
from nnl.core.ops.op import OPS, Cost, Sample, op
from nnl.functions.arithmetic import add2, add_scalar, mul2, sub2
from nnl.functions.assign import store
from nnl.functions.reduction import mean_op, reshape

CATEGORY = "Normalization"

__all__ = ["mean_subtraction"]


@op(
    "mean_subtraction",
    outputs=("y", "weight"),
    hidden=1,
    writes=lambda a: ("rmean", "t") if a.update_running_mean else (),
    nnp="MeanSubtraction",
)
class mean_subtraction_op:
    """See mean_subtraction."""

    base_axis: int = 1
    update_running_mean: bool = True

    def resolve(self, x, rmean, t):
        return {"base_axis": check_axis("mean_subtraction", self.base_axis, x)}

    def infer(self, x, rmean, t):
        if rmean.shape != x.shape[self.base_axis :]:
            raise ShapeError(
                f"mean_subtraction: mean {rmean} must have the shape {x.shape[self.base_axis :]} "
                f"for x {x} and base_axis {self.base_axis}"
            )
        if t.size != 1:
            raise ShapeError(f"mean_subtraction: t {t} must have one element")
        return x, x.with_shape((1,) * len(x.shape))

    def forward(self, xp, x, rmean, t):
        weight = xp.zeros((1,) * x.ndim, x.dtype)
        if self.update_running_mean and x.size:
            t += 1
            weight[...] = 1.0 / t.reshape(weight.shape)
            batch = xp.mean(x, axis=tuple(range(self.base_axis)))
            rmean += (batch - rmean) * weight.ravel()
        return x - rmean, weight

    def portable(self, x, rmean, t):
        one = (1,) * len(x.shape)
        if self.update_running_mean and x.size:
            t = store(t, add_scalar(t, 1.0))
            weight = OPS["r_div_scalar"](reshape(t, one), 1.0)
            batch = mean_op(x, axes=tuple(range(self.base_axis)), keep_dims=False)
            step = reshape(weight, one[: len(rmean.shape)])
            rmean = store(rmean, add2(rmean, mul2(sub2(batch, rmean), step)))
        else:
            weight = OPS["constant"](val=0.0, shape=one)
        return sub2(x, reshape(rmean, one[: self.base_axis] + rmean.shape)), weight

    def vjp(self, gy, gweight, *, weight):
        if not self.update_running_mean:
            return gy, None, None
        average = mean_op(gy, axes=tuple(range(self.base_axis)), keep_dims=True)
        return sub2(gy, mul2(average, weight)), None, None

    def cost(self, x, rmean, t):
        return Cost(flops=2 * x.size, bytes=3 * x.nbytes)

    def samples(rng):
        x, t = rng.normal(size=(2, 3, 4)), np.ones(1)
        for axis, shape in ((1, (3, 4)), (2, (4,))):
            for update in (True, False):
                yield Sample(
                    x, rng.normal(size=shape), t, base_axis=axis, update_running_mean=update,
                    grad=(True, False, False),
                )  # fmt: skip


def mean_subtraction(x, mean, t, base_axis: int = 1, update_running_mean: bool = True):
    r"""$y = x - \mu$ with the running mean of all batches seen so far.

    With update_running_mean, t becomes t + 1 and the mean moves towards that of the batch by
    1 / t of their difference, before it is subtracted. The gradient takes into account that the
    mean depends on x; NNabla's leaves out that it depends on the other samples.

    Args:
        x: (batch axes, sample axes).
        mean: The sample axes, written in place. No gradient reaches it.
        t: (1,), how many batches were seen; written in place.
        base_axis: First of the sample axes.
        update_running_mean: Whether to update mean and t.
    Raises:
        ShapeError: mean or t has another shape, or base_axis is out of range.
    Example:
        >>> mean, t = array([0, 0]), array([0], int)
        >>> F.mean_subtraction(array([[1, 2], [3, 4]]), mean, t).d
        array([[-1., -1.],
               [ 1.,  1.]], dtype=float32)
    """
    return mean_subtraction_op(
        x, mean, t, base_axis=base_axis, update_running_mean=update_running_mean
    )
