# SPDX-License-Identifier: Apache-2.0
"""What batch, layer, instance, group and weight normalization share: kernels and the gradient.

All of them subtract a mean and divide by a standard deviation, taken over some axes, then scale by
gamma and shift by beta. They differ in the axes and in the shape of gamma and beta.
"""

from __future__ import annotations

import math
from string import ascii_lowercase
from typing import NamedTuple

import numpy as np

from nnl.core.arguments.annotations import flag
from nnl.core.arrays.spec import ShapeError, check_same_shape
from nnl.core.ops.op import Cost, Sample, op
from nnl.functions.arithmetic import add2, add_scalar, mul2, mul_scalar, pow_scalar, sub2
from nnl.functions.reduction import count, kept_shape, mean_op, reshape, sum_to

CATEGORY = "Normalization"

__all__: list[str] = []

# Elements in a block: 512 KiB of float32, which with two more arrays fits in 2 MiB of L2 cache.
BLOCK = 1 << 17


class Runs(NamedTuple):
    """Shapes with neighbouring axes of one kind merged, so that numpy's inner loops are long.

    Attributes:
        x: Of the array.
        axes: The reduced axes in it.
        parameter: Of gamma and beta.
    """

    x: tuple[int, ...]
    axes: tuple[int, ...]
    parameter: tuple[int, ...]


def merge_axes(shape, axes, parameter):
    """Merge neighbours that are alike in both: reduced or not, gamma varies along them or not."""
    kinds, sizes = [], []
    for i, n in enumerate(shape):
        if n == 1:
            continue
        kind = (i in axes, parameter is not None and parameter[i] != 1)
        if kinds and kinds[-1] == kind:
            sizes[-1] *= n
        else:
            kinds.append(kind)
            sizes.append(n)
    if not sizes:
        kinds, sizes = [(True, False)], [1]
    return Runs(
        tuple(sizes),
        tuple(i for i, (reduced, _) in enumerate(kinds) if reduced),
        tuple(n if varies else 1 for n, (_, varies) in zip(sizes, kinds, strict=True)),
    )


def sum_of_products(xp, a, b, axes):
    """Sum of a b over axes, without an array for the product; reduced axes keep size 1."""
    every = ascii_lowercase[: a.ndim]
    kept = "".join(c for i, c in enumerate(every) if i not in axes)
    y = xp.einsum(f"{every},{every}->{kept}", a, b)
    return y.reshape(kept_shape(a, axes))


def sum_to_shape(xp, a, shape):
    """Sum over the axes where shape has 1."""
    axes = tuple(i for i, n in enumerate(shape) if n == 1 and a.shape[i] != 1)
    return xp.sum(a, axis=axes, keepdims=True) if axes else a


def blocks(shape):
    """Slices of the first axis, each small enough to stay in a core's cache between passes."""
    step = shape[0] * BLOCK // (math.prod(shape) or 1)
    step = step if step > 1 else 1
    return [slice(i, i + step) for i in range(0, shape[0], step)]


def at(a, block):
    """The block of a, or all of it where its first axis stretches."""
    return a if a.shape[0] == 1 else a[block]


def standardize(xp, x, beta, gamma, axes, eps):
    """(y, mean, variance): two passes, the second over what is left after subtracting the mean."""
    p = gamma if gamma is not None else beta
    runs = merge_axes(x.shape, axes, None if p is None else p.shape)
    x_, axes_, n = x.reshape(runs.x), runs.axes, count(x.shape, axes) or 1
    beta, gamma = (q if q is None else q.reshape(runs.parameter) for q in (beta, gamma))
    y, stat = xp.empty(x.shape, x.dtype), kept_shape(x, axes)
    mean, variance = xp.zeros(stat, x.dtype), xp.zeros(stat, x.dtype)
    y_, stat_ = y.reshape(runs.x), kept_shape(x_, axes_)
    mean_, variance_ = mean.reshape(stat_), variance.reshape(stat_)
    rows = 0 not in axes_  # then each block has its own statistics

    def average(block):
        m = at(mean_, block)
        xp.sum(x_[block], axis=axes_, keepdims=True, out=m)
        m *= 1.0 / n

    def centre(block):
        d = xp.subtract(x_[block], at(mean_, block), out=y_[block])
        square = sum_of_products(xp, d, d, axes_)
        square *= 1.0 / n
        v = at(variance_, block)
        v += square

    def finish(block):
        scale = 1.0 / xp.sqrt(at(variance_, block) + eps)
        b, g = (q if q is None else at(q, block) for q in (beta, gamma))
        scale_and_shift(xp, y_[block], scale, b, g)

    parts = blocks(runs.x)
    if rows:
        for block in parts:
            average(block)
            centre(block)
            finish(block)
    else:
        average(slice(None))
        for block in parts:
            centre(block)
        for block in parts:
            finish(block)
    return y, mean, variance


def scale_and_shift(xp, y, scale, beta, gamma):
    """y becomes y scale gamma + beta."""
    if gamma is not None and math.prod(np.broadcast_shapes(scale.shape, gamma.shape)) < y.size:
        scale, gamma = scale * gamma, None
    y *= scale
    if gamma is not None:
        y *= gamma
    if beta is not None:
        y += beta


@op("normalization_backward", outputs=("*g",), wide=(1, 2))
class normalization_backward:
    """Gradients of a normalization by x, beta and gamma; by x alone if there is no `parameter`.

    Args:
        gy, gmean, gvariance: Gradients of its three outputs; the latter two are zero if left out.
        x, gamma: Its inputs.
        mean, variance: Its outputs.
        axes: What mean and variance are taken over.
        parameter: The shape of beta and gamma, None if there is neither.
        groups: If not 0, `channel_axis` has so many means, each taken over neighbours too.
    """

    axes: tuple[int, ...]
    eps: float
    parameter: tuple[int, ...] | None = None
    groups: int = 0
    channel_axis: int = 1
    optional = zeros = ("gmean", "gvariance")
    follows_order = True

    def infer(self, gy, gmean, gvariance, x, mean, variance, gamma=None):
        if self.parameter is None:
            return (x,)
        p = x.with_shape(self.parameter)
        return x, p, p

    def folded(self, shape):
        """A shape with its channels split in groups and the rest."""
        c, g = self.channel_axis, self.groups
        if not g:
            return shape
        split = (g, shape[c] // g) if shape[c] != 1 else (1, 1)
        return (*shape[:c], *split, *shape[c + 1 :])

    def folded_axes(self):
        """The reduced axes of a folded shape."""
        c = self.channel_axis
        return (*(a + (a > c) for a in self.axes), c + 1) if self.groups else self.axes

    def forward(self, xp, gy, gmean, gvariance, x, mean, variance, gamma):
        shape, reduced = self.folded(x.shape), self.folded_axes()
        runs = merge_axes(shape, reduced, self.parameter and self.folded(self.parameter))
        axes, n = runs.axes, count(shape, reduced) or 1
        gx = xp.empty(x.shape, x.dtype)
        d, g, x_ = (a.reshape(runs.x) for a in (gx, gy, x))
        stat = kept_shape(d, axes)
        mean = mean.reshape(stat)
        gmean, gvariance = (
            xp.zeros(stat, x.dtype) if a is None else a.reshape(stat) for a in (gmean, gvariance)
        )
        inverse = 1.0 / xp.sqrt(variance.reshape(stat) + self.eps)
        gamma = None if gamma is None else gamma.reshape(runs.parameter)
        first, second = xp.zeros(stat, x.dtype), xp.zeros(stat, x.dtype)
        gbeta, ggamma = (xp.zeros(runs.parameter, x.dtype) for _ in range(2))
        # Does gamma vary within what is reduced (layer) or not (batch)?
        inner = any(runs.parameter[i] != 1 for i in axes)
        rows = 0 not in axes  # then each block has its own statistics

        def sums(block):
            """Sum what comes in, and its product with x - mean; returns what comes in."""
            gb = g[block]
            db = xp.subtract(x_[block], at(mean, block), out=d[block])
            if inner:
                product = db * at(inverse, block)
                product *= gb
                for into, what in ((gbeta, gb), (ggamma, product)):
                    into = at(into, block)
                    into += sum_to_shape(xp, what, into.shape)
                if gamma is not None:
                    gb = xp.multiply(gb, at(gamma, block), out=product)
            for into, what in (
                (first, xp.sum(gb, axis=axes, keepdims=True)),
                (second, sum_of_products(xp, gb, db, axes)),
            ):
                into = at(into, block)
                into += what
            return gb

        def finish(block, gb):
            """gx = a g - b (x - mean) - c, each of the shape of the mean."""
            a = i = at(inverse, block)
            if gamma is not None and not inner:
                a = i * at(gamma, block)
            b = a * i * i * at(second, block) - 2.0 * at(gvariance, block)
            b *= -1.0 / n
            c = a * at(first, block) - at(gmean, block)
            c *= 1.0 / n
            db = d[block]
            db *= b
            db -= c
            db += gb * a

        if rows:
            for block in blocks(runs.x):
                finish(block, sums(block))
        elif inner:
            finish(slice(None), sums(slice(None)))
        else:
            for block in blocks(runs.x):
                sums(block)
            for block in blocks(runs.x):
                finish(block, g[block])
        if self.parameter is None:
            return (gx,)
        if not inner:
            gbeta += sum_to_shape(xp, first, runs.parameter)
            ggamma += sum_to_shape(xp, second * inverse, runs.parameter)
        return gx, gbeta.reshape(self.parameter), ggamma.reshape(self.parameter)

    def decompose(self, gy, gmean, gvariance, x, mean, variance, gamma=None):
        whole, axes = x.shape, self.folded_axes()
        gy, gmean, gvariance, x, mean, variance, gamma = (
            a if a is None else as_shape(a, self.folded(a.shape))
            for a in (gy, gmean, gvariance, x, mean, variance, gamma)
        )
        n = count(x.shape, axes) or 1
        inverse = pow_scalar(add_scalar(variance, self.eps), -0.5)
        d = sub2(x, mean)
        xhat = mul2(d, inverse)
        g = gy if gamma is None else mul2(gy, gamma)

        def average(a):
            return mean_op(a, axes=axes, keep_dims=True)

        gx = sub2(sub2(g, average(g)), mul2(xhat, average(mul2(g, xhat))))
        gx = mul2(gx, inverse)
        if gmean is not None:
            gx = add2(gx, mul_scalar(gmean, 1.0 / n))
        if gvariance is not None:
            gx = add2(gx, mul_scalar(mul2(gvariance, d), 2.0 / n))
        gx = as_shape(gx, whole)
        if self.parameter is None:
            return (gx,)
        p = self.folded(self.parameter)
        return gx, *(as_shape(sum_to(a, p), self.parameter) for a in (gy, mul2(gy, xhat)))

    def cost(self, gy, gmean, gvariance, x, mean, variance, gamma=None):
        return Cost(flops=11 * x.size, bytes=4 * x.nbytes)

    def samples(rng):
        x = rng.normal(size=(2, 3, 4))
        for axes, parameter in (((0, 2), (1, 3, 1)), ((1, 2), (1, 3, 4)), ((1, 2), None)):
            m, v = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
            gy, (gm, gv) = rng.normal(size=x.shape), rng.normal(size=(2, *m.shape))
            gamma = None if parameter is None else rng.normal(size=parameter)
            yield Sample(gy, gm, gv, x, m, v, gamma, axes=axes, eps=1e-3, parameter=parameter)
            yield Sample(gy, None, None, x, m, v, gamma, axes=axes, eps=1e-3, parameter=parameter)
        x, gy = rng.normal(size=(2, 2, 6, 4))
        m, v = (
            f(x.reshape(2, 3, 2, 4), axis=(2, 3), keepdims=True)[..., 0] for f in (np.mean, np.var)
        )
        more = {"axes": (2,), "eps": 1e-3, "groups": 3}
        yield Sample(gy, m, v, x, m, v, x[:1, :, :1], **more, parameter=(1, 6, 1))
        yield Sample(gy, None, None, x, m, v, None, **more)


class Normalization:
    """Common to the normalizations with optional beta and gamma.

    A subclass has the method `layout`: the shape in which it sees x and the axes that are reduced
    there, and `parameter_shape`: that of beta and gamma.
    """

    def check_parameter(self, x, name, p):
        """Raise unless p, called `name`, is left out or fits x."""
        if p is not None and p.shape != (wanted := self.parameter_shape(x.shape)):
            raise ShapeError(f"{self.op.name}: {name} {p} must have the shape {wanted} for x {x}")

    def resolve(self, x, beta=None, gamma=None):
        return {"no_scale": gamma is None, "no_bias": beta is None}

    def infer(self, x, beta=None, gamma=None):
        shape, axes = self.layout(x)
        self.check_parameter(x, "beta", beta)
        self.check_parameter(x, "gamma", gamma)
        if beta is not None and gamma is not None:
            check_same_shape(self.op.name, "beta", beta, "gamma", gamma)
        stat = x.with_shape(kept_shape(x.with_shape(shape), axes))
        return x, stat, stat

    def forward(self, xp, x, beta, gamma):
        shape, axes = self.layout(x)
        beta, gamma = (p if p is None else p.reshape(self.fold(p.shape)) for p in (beta, gamma))
        y, mean, variance = standardize(xp, x.reshape(shape), beta, gamma, axes, self.eps)
        return y.reshape(x.shape), mean, variance

    def fold(self, shape):
        """The shape of beta and gamma where x is seen in the shape of `layout`."""
        return shape

    def vjp(self, gy, gmean, gvariance, *, x, beta_spec, gamma, mean, variance):
        p = gamma if gamma is not None else beta_spec
        gmean, gvariance, mean, variance = (
            a if a is None else self.by_channel(a) for a in (gmean, gvariance, mean, variance)
        )
        gx, *gp = normalization_backward(
            gy, gmean, gvariance, x, mean, variance, gamma,
            **self.reduced(x), eps=self.eps, parameter=None if p is None else p.shape,
        )  # fmt: skip
        gbeta, ggamma = gp or (None, None)
        return gx, None if beta_spec is None else gbeta, None if gamma is None else ggamma

    def reduced(self, x):
        """What mean and variance are taken over, as normalization_backward is told."""
        return {"axes": self.layout(x)[1]}

    def by_channel(self, statistic):
        """Mean, variance or a gradient of them with as many axes as x."""
        return statistic

    def cost(self, x, beta=None, gamma=None):
        return Cost(flops=8 * x.size, bytes=2 * x.nbytes)


def as_shape(x, shape):
    return x if x.shape == tuple(shape) else reshape(x, shape)


def normalization(name, nnp=None, inputs_written=()):
    """Register a class twice: as `name`, which returns y, and as `name`_with_statistics, which
    returns y, mean and variance. NNabla has one type for both: the number of outputs tells."""

    def register(cls):
        outputs = cls.outputs
        stat = op(
            f"{name}_with_statistics", outputs=outputs, writes=inputs_written, wide=(1, 2),
            type_name=nnp,
        )(cls)  # fmt: skip
        plain = op(name, outputs=outputs, hidden=2, writes=inputs_written, wide=(1, 2), nnp=nnp)(
            cls
        )
        return Pair(plain, stat)

    return register


class Pair:
    """A function and the one that also returns statistics."""

    def __init__(self, plain, with_statistics):
        self.plain, self.with_statistics = plain, with_statistics

    def __call__(self, *inputs, output_stat=False, **attributes):
        if type(output_stat) is not bool:
            output_stat = flag(self.plain.name, "output_stat", output_stat)
        return (self.with_statistics if output_stat else self.plain)(*inputs, **attributes)


def others(shape, axes):
    """All axes but these."""
    return tuple(i for i in range(len(shape)) if i not in axes)


def parameters(rng, shape):
    """(beta, gamma) for samples."""
    sign = rng.choice([-1, 1], shape)
    return rng.normal(size=shape), sign * rng.uniform(0.5, 1.5, shape)
