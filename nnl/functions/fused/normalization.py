# SPDX-License-Identifier: Apache-2.0
"""The gradient of batch normalization with an addition and relu behind it.

The forward step is `fused_batch_normalization`.
"""

from __future__ import annotations

import numpy as np

from nnl.core.arrays.spec import ShapeError, check_same_shape
from nnl.core.ops.op import OPS, Cost, Sample, op
from nnl.functions.arithmetic import add2, add_scalar, mul2, pow_scalar, sub2
from nnl.functions.batch_normalization import kept_shape_of
from nnl.functions.fused.activation import check_activation
from nnl.functions.reduction import sum_to
from nnl.functions.standardize import normalization_backward, others


@op(
    "batch_normalization_backward_fused",
    outputs=("gx", "gbeta", "ggamma", "gz"),
    hidden=1,
    wide=(1, 2),
)
class batch_normalization_backward_fused:
    """Gradients of activation(batch_normalization(x) + z).

    Args:
        gy: Gradient of the result y.
        gy2: Another one, where y has two readers; optional.
        x, gamma, beta, axes, eps, batch_stat: Of the normalization; gamma and beta are optional.
        y: The result, which tells where relu let something through. It may be left out where there
            was no z: then it is computed again.
        batch_mean, batch_variance: The statistics that the normalization has used.
        activation: "relu" or "identity".
    Returns:
        gx; the gradients by beta and gamma, whether it had them or not; and what passed relu, the
        gradient by z.
    """

    axes: tuple[int, ...]
    eps: float
    batch_stat: bool = True
    activation: str = "identity"
    follows_order = True
    optional = ("gy2", "y")

    def infer(self, gy, gy2, x, y, batch_mean, batch_variance, gamma=None, beta=None):
        check_activation(self.op, self.activation, ("identity", "relu"))
        name, stat = self.op.name, kept_shape_of(x.shape, self.axes)
        for arg, v in (("gy", gy), ("y", y), ("gy2", gy2)):
            if v is not None:
                check_same_shape(name, arg, v, "x", x)
        given = {"batch_mean": batch_mean, "batch_variance": batch_variance, "gamma": gamma}
        for arg, v in {**given, "beta": beta}.items():
            if v is not None and v.shape != stat:
                raise ShapeError(f"{name}: {arg} {v} must have the shape {stat} for x {x}")
        return x, x.with_shape(stat), x.with_shape(stat), x

    def decompose(self, gy, gy2, x, y, batch_mean, batch_variance, gamma=None, beta=None):
        inverse = pow_scalar(add_scalar(batch_variance, self.eps), -0.5)
        xhat = mul2(sub2(x, batch_mean), inverse)
        if y is None:
            y = xhat if gamma is None else mul2(xhat, gamma)
            y = y if beta is None else add2(y, beta)
        g = gy if gy2 is None else add2(gy, gy2)
        g = OPS["gate"](g, y, low=0.0) if self.activation == "relu" else OPS["identity"](g)
        stat = batch_mean.shape
        gbeta, ggamma = sum_to(g, stat), sum_to(mul2(g, xhat), stat)
        if self.batch_stat:
            zero = OPS["constant"](val=0.0, shape=stat)
            gx, *_ = normalization_backward(
                g, zero, zero, x, batch_mean, batch_variance, gamma,
                axes=others(x.shape, self.axes), eps=self.eps,
                parameter=None if gamma is None else gamma.shape,
            )  # fmt: skip
        else:
            gx = mul2(g, inverse if gamma is None else mul2(inverse, gamma))
        return gx, gbeta, ggamma, g

    def cost(self, gy, gy2, x, y, batch_mean, batch_variance, gamma=None, beta=None):
        arrays = 4 + (y is not None) + (gy2 is not None)
        return Cost(flops=12 * x.size, bytes=arrays * x.nbytes)

    def samples(rng):
        shape, stat = (3, 2, 2, 3), (1, 2, 1, 1)
        x, gy, gy2, y = rng.normal(size=(4, *shape))
        mean, variance = x.mean((0, 2, 3), keepdims=True), x.var((0, 2, 3), keepdims=True)
        gamma, beta = rng.uniform(0.5, 1.5, stat), rng.normal(size=stat)
        never = (False,) * 8  # it is made where nothing is differentiated any more
        for activation in ("relu", "identity"):
            at = {"axes": (1,), "eps": 1e-3, "activation": activation, "grad": never}
            for b in (True, False):
                at["batch_stat"] = b
                stats = mean, variance
                yield Sample(gy, gy2, x, None, *stats, gamma, beta, **at)
                yield Sample(gy, None, x, np.maximum(y, 0), *stats, gamma, beta, **at)
                yield Sample(gy, gy2, x, None, *stats, None, None, **at)
                yield Sample(gy, None, x, None, *stats, gamma, None, **at)
