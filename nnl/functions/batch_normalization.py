# SPDX-License-Identifier: Apache-2.0
"""Batch normalization with running statistics, and fused with an addition and relu."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nnl.core.arguments.annotations import flag
from nnl.core.arrays.spec import ShapeError, check_axes
from nnl.core.ops.op import OPS, Cost, Sample
from nnl.functions.arithmetic import add_scalar, mul2, pow_scalar, sub2
from nnl.functions.reduction import count, sum_to
from nnl.functions.standardize import (
    Normalization,
    merge_axes,
    normalization,
    normalization_backward,
    others,
    parameters,
    standardize,
)

CATEGORY = "Normalization"

__all__ = ["batch_normalization", "fused_batch_normalization"]


def running_statistics(attributes):
    return ("mean", "variance") if attributes.batch_stat else ()


class BatchNormalization(Normalization):
    """Common to batch_normalization and fused_batch_normalization."""

    axes: tuple[int, ...] = (1,)
    decay_rate: float = 0.9
    eps: float = 1e-5
    batch_stat: bool = True
    follows_order = True
    outputs = ("y", "batch_mean", "batch_variance")

    def layout(self, x):
        return x.shape, others(x.shape, self.axes)

    def parameter_shape(self, shape):
        return kept_shape_of(shape, self.axes)

    def check(self, x, beta, gamma, mean, variance):
        for name, p in (("beta", beta), ("gamma", gamma), ("mean", mean), ("variance", variance)):
            self.check_parameter(x, name, p)
        if not self.batch_stat and (mean is None or variance is None):
            raise ValueError(
                f"{self.op.name}: mean or variance is None, wanted both when batch_stat is False"
            )
        return x.with_shape(self.parameter_shape(x.shape))

    def normalize(self, xp, x, beta, gamma, mean, variance):
        """(y, mean, variance) that were used; updates the running ones."""
        axes = others(x.shape, self.axes)
        if not self.batch_stat:
            y = apply_running(xp, x, beta, gamma, mean, variance, axes, self.eps)
            return y, mean.copy(), variance.copy()
        y, batch_mean, batch_variance = standardize(xp, x, beta, gamma, axes, self.eps)
        n = count(x.shape, axes)
        if n:
            rest = 1.0 - self.decay_rate
            # the sample variance of one element does not exist
            unbiased = n / (n - 1) if n > 1 else math.nan
            if mean is not None:
                mean *= self.decay_rate
                mean += batch_mean * rest
            if variance is not None:
                variance *= self.decay_rate
                variance += batch_variance * (rest * unbiased)
        return y, batch_mean, batch_variance

    def gradients(self, gy, gmean, gvariance, x, beta, gamma, batch_mean, batch_variance):
        """(gx, gbeta, ggamma); beta is its spec or None."""
        p = gamma if gamma is not None else beta
        if self.batch_stat:
            gx, *gp = normalization_backward(
                gy, gmean, gvariance, x, batch_mean, batch_variance, gamma,
                axes=others(x.shape, self.axes), eps=self.eps,
                parameter=None if p is None else p.shape,
            )  # fmt: skip
            gbeta, ggamma = gp if gp else (None, None)
        else:
            inverse = pow_scalar(add_scalar(batch_variance, self.eps), -0.5)
            gx = mul2(gy, inverse if gamma is None else mul2(gamma, inverse))
            gbeta = ggamma = None
            if beta is not None:
                gbeta = sum_to(gy, beta.shape)
            if gamma is not None:
                product = sum_to(mul2(gy, sub2(x, batch_mean)), gamma.shape)
                ggamma = mul2(product, inverse)
        return (
            gx,
            None if beta is None else gbeta,
            None if gamma is None else ggamma,
            None,
            None,
        )


def kept_shape_of(shape, axes):
    """The shape with all but these axes set to 1."""
    return tuple(n if i in axes else 1 for i, n in enumerate(shape))


def apply_running(xp, x, beta, gamma, mean, variance, axes, eps):
    """y for given statistics: x scale + shift, two passes."""
    runs = merge_axes(x.shape, axes, mean.shape)
    scale = 1.0 / xp.sqrt(variance + eps)
    if gamma is not None:
        scale *= gamma
    shift = mean * scale
    shift = -shift if beta is None else beta - shift
    y = xp.empty(x.shape, x.dtype)
    y_ = y.reshape(runs.x)
    xp.multiply(x.reshape(runs.x), scale.reshape(runs.parameter), out=y_)
    y_ += shift.reshape(runs.parameter)
    return y


@normalization("batch_normalization", nnp="BatchNormalization", inputs_written=running_statistics)
class batch_normalization_op(BatchNormalization):
    """See batch_normalization."""

    no_scale: bool = False
    no_bias: bool = False

    def resolve(self, x, beta=None, gamma=None, mean=None, variance=None):
        return {
            "axes": check_axes("batch_normalization", self.axes, x),
            "no_scale": gamma is None,
            "no_bias": beta is None,
        }

    def infer(self, x, beta=None, gamma=None, mean=None, variance=None):
        stat = self.check(x, beta, gamma, mean, variance)
        return x, stat, stat

    def forward(self, xp, x, beta, gamma, mean, variance):
        return self.normalize(xp, x, beta, gamma, mean, variance)

    def vjp(self, gy, gmean, gvariance, *, x, beta_spec, gamma, batch_mean, batch_variance):
        return self.gradients(gy, gmean, gvariance, x, beta_spec, gamma, batch_mean, batch_variance)

    def cost(self, x, beta=None, gamma=None, mean=None, variance=None):
        return Cost(flops=8 * x.size, bytes=2 * x.nbytes)

    def samples(rng):
        for shape, axes in (((4, 3), (1,)), ((3, 2, 2, 2), (1,)), ((3, 2, 4), (-1,))):
            x = rng.normal(size=shape)
            kept = kept_shape_of(shape, [a % len(shape) for a in axes])
            beta, gamma = parameters(rng, kept)
            running = [rng.normal(size=kept), rng.uniform(0.5, 2, kept)]
            grad = (True, True, True, False, False)
            for batch_stat in (True, False):
                yield Sample(
                    x, beta, gamma, *running, axes=axes, batch_stat=batch_stat, eps=1e-3, grad=grad
                )
        yield Sample(x, None, gamma, *running, axes=axes, grad=(True, False, True, False, False))
        yield Sample(
            x, beta, None, *running, axes=axes, batch_stat=False,
            grad=(True, True, False, False, False),
        )  # fmt: skip


@normalization(
    "fused_batch_normalization", nnp="FusedBatchNormalization", inputs_written=running_statistics
)
class fused_batch_normalization_op(BatchNormalization):
    """See fused_batch_normalization."""

    nonlinearity: str = "relu"
    extends = "batch_normalization"

    def resolve(self, x, beta=None, gamma=None, mean=None, variance=None, z=None):
        return {"axes": check_axes("fused_batch_normalization", self.axes, x)}

    def infer(self, x, beta=None, gamma=None, mean=None, variance=None, z=None):
        if self.nonlinearity != "relu":
            raise ValueError(
                f'fused_batch_normalization: nonlinearity is {self.nonlinearity!r}, wanted "relu"'
            )
        if z is not None and z.shape != x.shape:
            raise ShapeError(f"fused_batch_normalization: z {z} must have the shape of x {x}")
        stat = self.check(x, beta, gamma, mean, variance)
        return x, stat, stat

    def forward(self, xp, x, beta, gamma, mean, variance, z):
        y, batch_mean, batch_variance = self.normalize(xp, x, beta, gamma, mean, variance)
        if z is not None:
            y += z
        return xp.maximum(y, 0, out=y), batch_mean, batch_variance

    def vjp(
        self, gy, gmean, gvariance, *, x, beta_spec, gamma, y, batch_mean, batch_variance, need
    ):
        g = mul2(gy, OPS["greater_scalar"](y, 0.0))
        gxs = self.gradients(g, gmean, gvariance, x, beta_spec, gamma, batch_mean, batch_variance)
        return *gxs, g if need[5] else None

    def cost(self, x, beta=None, gamma=None, mean=None, variance=None, z=None):
        return Cost(flops=10 * x.size, bytes=(2 if z is None else 3) * x.nbytes)

    def samples(rng):
        x, z = rng.normal(size=(2, 3, 2, 2, 2))
        beta, gamma = parameters(rng, (1, 2, 1, 1))
        running = [rng.normal(size=(1, 2, 1, 1)), rng.uniform(0.5, 2, (1, 2, 1, 1))]
        for batch_stat in (True, False):
            grad = (True, True, True, False, False, True)
            yield Sample(x, beta, gamma, *running, z, batch_stat=batch_stat, grad=grad)
            yield Sample(
                x, beta, gamma, *running, None, batch_stat=batch_stat, grad=(*grad[:5], False)
            )


def check_statistics(name, batch_stat, output_stat):
    if flag(name, "output_stat", output_stat) and not flag(name, "batch_stat", batch_stat):
        raise ValueError(
            f"{name}: output_stat is True and batch_stat False, but there are no batch statistics"
        )


def batch_normalization(
    x,
    beta,
    gamma,
    mean,
    variance,
    axes: Sequence[int] = (1,),
    decay_rate: float = 0.9,
    eps: float = 1e-5,
    batch_stat: bool = True,
    output_stat: bool = False,
    n_outputs: int | None = None,
):
    r"""Normalize over the batch: over all axes except `axes`.

    $$y = \gamma (x - \mu) / \sqrt{\sigma^2 + \epsilon} + \beta$$

    With batch_stat, $\mu$ and $\sigma^2$ are those of the batch (the variance divided by n), and
    the running ones become `decay_rate` times themselves plus the rest times the batch's, the
    variance here divided by n - 1 (so one element gives NaN). This happens at every forward, under
    no_grad too. Without batch_stat, the running ones are used.

    Args:
        x: Any shape.
        beta, gamma: The shape of x with 1 in all axes except `axes`; None leaves them out.
        mean, variance: Running statistics of that shape; they may be None if batch_stat is True.
            No gradient reaches them.
        axes: The axes of channels.
        decay_rate: How much of the running statistics stays.
        eps: Added to the variance, so in squared units of x.
        batch_stat: Whether to use the batch's statistics and update the running ones.
        output_stat: Also return the batch's mean and variance, which carry gradients.
        n_outputs: Ignored.
    Returns:
        y, or (y, mean, variance).
    Raises:
        ShapeError: A parameter has another shape, or an axis is out of range or given twice.
        ValueError: batch_stat is False with output_stat, or without running statistics.
    Source: Ioffe and Szegedy, Batch Normalization, arXiv:1502.03167, algorithm 1.
    Example:
        >>> x = array([[1, 10], [3, 30]])
        >>> zero, one = array([[0, 0]]), array([[1, 1]])
        >>> F.batch_normalization(x, zero, one, None, None).d
        array([[-1., -1.],
               [ 1.,  1.]], dtype=float32)
    """
    check_statistics("batch_normalization", batch_stat, output_stat)
    return batch_normalization_op(
        x, beta, gamma, mean, variance, axes=axes, decay_rate=decay_rate, eps=eps,
        batch_stat=batch_stat, output_stat=output_stat,
    )  # fmt: skip


def fused_batch_normalization(
    x,
    beta,
    gamma,
    mean,
    variance,
    z=None,
    axes: Sequence[int] = (1,),
    decay_rate: float = 0.9,
    eps: float = 1e-5,
    batch_stat: bool = True,
    nonlinearity: str = "relu",
    output_stat: bool = False,
    n_outputs: int | None = None,
):
    r"""$y = \mathrm{relu}(\mathrm{bn}(x) + z)$, a batch_normalization and more as one function.

    Args:
        z: What is added before the nonlinearity, of the shape of x; None for nothing.
        nonlinearity: "relu".
        x, beta, gamma, mean, variance, axes, decay_rate, eps, batch_stat, output_stat, n_outputs:
            As for batch_normalization.
    Raises:
        ShapeError: z or a parameter has a wrong shape, or an axis is out of range.
        ValueError: As for batch_normalization; or another nonlinearity.
    Source: Ioffe and Szegedy, Batch Normalization, arXiv:1502.03167 (the normalisation).
    Example:
        >>> x, zero, one = array([[1, 10], [3, 30]]), array([[0, 0]]), array([[1, 1]])
        >>> F.fused_batch_normalization(x, zero, one, None, None, z=x).d
        array([[ 0.,  9.],
               [ 4., 31.]], dtype=float32)
    """
    check_statistics("fused_batch_normalization", batch_stat, output_stat)
    return fused_batch_normalization_op(
        x, beta, gamma, mean, variance, z, axes=axes, decay_rate=decay_rate, eps=eps,
        batch_stat=batch_stat, nonlinearity=nonlinearity, output_stat=output_stat,
    )  # fmt: skip
