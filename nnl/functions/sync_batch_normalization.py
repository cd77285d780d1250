# SPDX-License-Identifier: Apache-2.0
"""Functions that work over all processes of a communicator: sums, and batch normalization.

A communicator comes as an attribute. What is asked of it: `size`, `find_group(name)`, and
`sum(arrays, group)`, which sums contiguous arrays over the processes in place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from nnl.core.arguments.annotations import shown
from nnl.core.arrays.spec import check_axes
from nnl.core.ops.describe import Alone
from nnl.core.ops.op import Cost, Sample, op
from nnl.functions.arithmetic import add2, add_scalar, mul2, mul_scalar, pow_scalar, sub2
from nnl.functions.batch_normalization import (
    BatchNormalization,
    batch_normalization,
    check_statistics,
    kept_shape_of,
    running_statistics,
)
from nnl.functions.reduction import count, sum_to
from nnl.functions.standardize import others, parameters, sum_of_products

CATEGORY = "Normalization"

__all__ = ["sync_batch_normalization"]


@op("all_reduce", outputs=("*y",))
class all_reduce:
    """Sum each input over the processes of a group; internal, see Communicator.all_reduce.

    Attributes:
        comm, group: The communicator, and the name of a group of it.
        division: Divide by the number of processes.
        scale: What the inputs are multiplied by before.
        replicated: What is made of the result is the same on all ranks, and so is the loss; else
            the gradient is that of the sum of their losses.
        of: Which ones of a list the inputs are, where ranks may have others.
    """

    comm: object
    group: str = "world"
    division: bool = False
    scale: float = 1.0
    replicated: bool = False
    of: str = ""

    def infer(self, *x):
        return x

    def forward(self, xp, *x):
        ys = tuple(xp.array(a, order="C") for a in x)
        if self.scale != 1.0:
            for y in ys:
                y *= self.scale
        self.comm.sum(ys, self.group, self.of)
        if self.division:
            for y in ys:
                y /= len(self.comm.find_group(self.group))
        return ys

    def vjp(self, *gys):
        if not self.replicated:
            return all_reduce(*gys, **self.as_dict())
        factor = self.scale / (len(self.comm.find_group(self.group)) if self.division else 1)
        return gys if factor == 1.0 else tuple([mul_scalar(gy, factor) for gy in gys])

    def cost(self, *x):
        return Cost(flops=sum(s.size for s in x), bytes=2 * sum(s.nbytes for s in x))

    def samples(rng):
        for replicated in (False, True):
            some = rng.normal(size=(2, 3)), rng.normal(size=(4,))
            yield Sample(*some, comm=Alone(), scale=0.5, replicated=replicated)


@op("batch_moments", outputs=("mean", "variance"), wide=(0, 1))
class batch_moments:
    """Mean and variance over all axes but some; internal, see sync_batch_normalization."""

    axes: tuple[int, ...] = (1,)
    follows_order = True

    def infer(self, x):
        stat = x.with_shape(kept_shape_of(x.shape, self.axes))
        return stat, stat

    def forward(self, xp, x):
        axes = others(x.shape, self.axes)
        n = count(x.shape, axes) or 1
        mean = xp.sum(x, axis=axes, keepdims=True) / x.dtype.type(n)
        d = xp.subtract(x, mean)
        return mean, sum_of_products(xp, d, d, axes) / x.dtype.type(n)

    def cost(self, x):
        return Cost(flops=4 * x.size, bytes=x.nbytes)

    def samples(rng):
        yield Sample(rng.normal(size=(3, 2, 2, 2)), grad=(False,))
        yield Sample(rng.normal(size=(3, 2, 4)), axes=(2,), grad=(False,))


def running(attributes):
    return ("mean", "variance")


@op(
    "combine_moments",
    outputs=("batch_mean", "batch_variance", "total"),
    writes=running,
    wide=(0, 1, 2),
)
class combine_moments:
    """Mean and variance over all processes from those of each, and running ones; internal.

    Attributes:
        comm, group: The communicator, and the name of a group of it.
        count: Elements behind each mean and variance here. All of them are the output `total`.
        decay_rate: As for batch_normalization.
    """

    comm: object
    group: str = "world"
    count: int = 1
    decay_rate: float = 0.9

    def infer(self, own_mean, own_variance, mean=None, variance=None):
        return own_mean, own_mean, own_mean.with_shape((1,) * len(own_mean.shape))

    def forward(self, xp, own_mean, own_variance, mean, variance):
        dtype, shape, n = own_mean.dtype, own_mean.shape, self.count
        # float64: a number of elements must be exact, in one message with sums of squares
        sums = xp.zeros(2 * math.prod(shape) + 1, xp.float64)
        first, second = sums[:-1].reshape(2, *shape)
        sums[-1] = n
        if n:
            first[...] = own_mean
            second[...] = own_variance
            second += first * first
            sums[:-1] *= n
        self.comm.sum([sums], self.group)
        total = sums[-1:]  # an array: on a device, a number would have to be waited for
        sums[:-1] /= xp.maximum(total, 1)
        batch_mean = first.astype(dtype)
        batch_variance = xp.maximum(second - first * first, 0).astype(dtype)
        rest = 1.0 - self.decay_rate
        unbiased = xp.where(total > 1, total / xp.maximum(total - 1, 1), math.nan)
        for before, now in ((mean, batch_mean), (variance, batch_variance * unbiased)):
            if before is not None:
                new = self.decay_rate * before + now * rest
                before[...] = xp.where(total > 0, new, before)
        return batch_mean, batch_variance, total.astype(dtype).reshape((1,) * len(shape))

    def cost(self, own_mean, own_variance, mean=None, variance=None):
        return Cost(flops=12 * own_mean.size, bytes=8 * own_mean.nbytes)

    def samples(rng):
        moments, before = rng.normal(size=(2, 1, 3)), rng.uniform(0.5, 2, (2, 1, 3))
        moments[1] **= 2
        yield Sample(*moments, *before, comm=Alone(), count=4, grad=(False,) * 4)


@op("normalization_sums", outputs=("gbeta", "ggamma"), wide=(0, 1))
class normalization_sums:
    """The sums of gy and of gy (x - mean) / sqrt(variance + eps), which are the gradients of beta
    and gamma; internal, see sync_batch_normalization."""

    eps: float = 1e-5
    follows_order = True

    def infer(self, gy, x, mean, variance):
        return mean, mean

    def decompose(self, gy, x, mean, variance):
        xhat = mul2(sub2(x, mean), pow_scalar(add_scalar(variance, self.eps), -0.5))
        return sum_to(gy, mean.shape), sum_to(mul2(gy, xhat), mean.shape)

    def cost(self, gy, x, mean, variance):
        return Cost(flops=4 * x.size, bytes=2 * x.nbytes)

    def samples(rng):
        for shape, stat in (((3, 2, 2, 2), (1, 2, 1, 1)), ((3, 2, 4), (1, 1, 4))):
            gy, x = rng.normal(size=(2, *shape))
            yield Sample(gy, x, rng.normal(size=stat), rng.uniform(0.5, 2, stat), eps=1e-3)


class SyncBatchNormalization(BatchNormalization):
    """See sync_batch_normalization. `total` is the number of elements behind each statistic."""

    comm: object
    group: str = "world"
    outputs = ("y", "batch_mean", "batch_variance", "total")
    in_parts = True

    def resolve(self, x, beta=None, gamma=None, mean=None, variance=None):
        return {"axes": check_axes("sync_batch_normalization", self.axes, x)}

    def infer(self, x, beta=None, gamma=None, mean=None, variance=None):
        stat = self.check(x, beta, gamma, mean, variance)
        return x, stat, stat, x.with_shape((1,) * len(x.shape))

    def decompose(self, x, beta, gamma, mean, variance):
        batch_mean, batch_variance, total = combine_moments(
            *batch_moments(x, axes=self.axes), mean, variance, comm=self.comm, group=self.group,
            count=count(x.shape, others(x.shape, self.axes)), decay_rate=self.decay_rate,
        )  # fmt: skip
        y = batch_normalization(
            x, beta, gamma, batch_mean, batch_variance, self.axes, eps=self.eps, batch_stat=False
        )
        return y, batch_mean, batch_variance, total

    def vjp(
        self,
        gy,
        gmean,
        gvariance,
        gtotal,
        *,
        x,
        beta_spec,
        gamma,
        batch_mean,
        batch_variance,
        total,
    ):
        gbeta, ggamma = normalization_sums(gy, x, batch_mean, batch_variance, eps=self.eps)
        # every process's statistics depend on every x
        first, second, gmean, gvariance = all_reduce(
            gbeta, ggamma, gmean, gvariance, comm=self.comm, group=self.group
        )
        # gx = gy a + (x - mean) b + c, of the shape of the mean
        a = inverse = pow_scalar(add_scalar(batch_variance, self.eps), -0.5)
        if gamma is not None:
            a = mul2(gamma, inverse)
        share = pow_scalar(total, -1.0)
        by_variance = sub2(mul_scalar(gvariance, 2.0), mul2(mul2(a, inverse), second))
        b, c = mul2(by_variance, share), mul2(sub2(gmean, mul2(a, first)), share)
        gx = add2(add2(mul2(gy, a), mul2(sub2(x, batch_mean), b)), c)
        return (
            gx,
            None if beta_spec is None else gbeta,
            None if gamma is None else ggamma,
            None,
            None,
        )

    def cost(self, x, beta=None, gamma=None, mean=None, variance=None):
        return Cost(flops=8 * x.size, bytes=2 * x.nbytes)

    def samples(rng):
        x = rng.normal(size=(3, 2, 2, 2))
        beta, gamma = parameters(rng, (1, 2, 1, 1))
        running = [rng.normal(size=(1, 2, 1, 1)), rng.uniform(0.5, 2, (1, 2, 1, 1))]
        grad = (True, True, True, False, False)
        yield Sample(x, beta, gamma, *running, comm=Alone(), eps=1e-3, grad=grad)
        yield Sample(x, None, gamma, *running, comm=Alone(), grad=(True, False, True, False, False))


class WithStatistics(SyncBatchNormalization):
    """See sync_batch_normalization; returns the statistics too."""


_WIDE = {
    "outputs": SyncBatchNormalization.outputs,
    "wide": (1, 2, 3),
    "type_name": "SyncBatchNormalization",
}
_synchronised = op("sync_batch_normalization", hidden=3, writes=running_statistics, **_WIDE)(
    SyncBatchNormalization
)
_with_statistics = op(
    "sync_batch_normalization_statistics", hidden=1, writes=running_statistics, **_WIDE
)(WithStatistics)


def sync_batch_normalization(
    x,
    beta,
    gamma,
    mean,
    variance,
    comm=None,
    group: str = "world",
    axes: Sequence[int] = (1,),
    decay_rate: float = 0.9,
    eps: float = 1e-5,
    batch_stat: bool = True,
    output_stat: bool = False,
    n_outputs: int | None = None,
):
    r"""Batch normalization over the batches of all processes of a communicator.

    $$y = \gamma\,(x - \mu) / \sqrt{\sigma^2 + \epsilon} + \beta$$ with mean and variance over all
    of them.

    The processes together give what one process gives for the whole batch, forward and backward;
    their batches may differ in size. Gradients are those of the sum of the processes' losses; those
    of beta and gamma are this process's part, as of any parameter.

    Args:
        comm: Communicator; with none, of one process or with batch_stat=False, this is
            batch_normalization.
        group: Name of a group of the communicator.
        x, beta, gamma, mean, variance, axes, decay_rate, eps, batch_stat, output_stat, n_outputs:
            As for batch_normalization.
    Raises:
        ShapeError, ValueError: As batch_normalization.
    Source: Peng et al., MegDet, arXiv:1711.07240 (there between GPUs).
    Example:
        >>> x, zero, one = array([[1, 10], [3, 30]]), array([[0, 0]]), array([[1, 1]])
        >>> comm = C.MultiProcessDataParallelCommunicator(nn.get_current_context())
        >>> comm.init()
        >>> F.sync_batch_normalization(x, zero, one, None, None, comm).d
        array([[-1., -1.],
               [ 1.,  1.]], dtype=float32)
    """
    check_statistics("sync_batch_normalization", batch_stat, output_stat)
    if comm is not None and not hasattr(comm, "size"):
        raise TypeError(
            f"sync_batch_normalization: comm is {shown(comm)}, wanted a communicator or None"
        )
    if comm is None or comm.size == 1 or not batch_stat:
        return batch_normalization(
            x, beta, gamma, mean, variance, axes, decay_rate, eps, batch_stat, output_stat
        )
    function = _with_statistics if output_stat else _synchronised
    return function(
        x, beta, gamma, mean, variance, comm=comm, group=group, axes=axes, decay_rate=decay_rate,
        eps=eps,
    )  # fmt: skip
