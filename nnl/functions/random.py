# SPDX-License-Identifier: Apache-2.0
"""Random arrays.

Every function draws from a counter-based generator of its own: the distributions are those of
NNabla, the numbers are not. seed=-1 draws from the stream that `nnl.seed` restarts; another seed
starts a stream of the call's own, which goes on from one forward of a static graph to the next.
"""

from __future__ import annotations

import numpy as np

from nnl.core.arrays.spec import ShapeError, Spec, check_same_shape
from nnl.core.ops import random as nnl_random
from nnl.core.ops.op import Cost, Sample, op
from nnl.core.settings.context import STATE
from nnl.functions.multinomial import drawn
from nnl.functions.on_device import add_at

CATEGORY = "Random"

__all__ = ["rand", "randint", "randn", "rand_binomial", "rand_beta", "rand_gamma", "random_choice"]


def require(name, argument, value, wanted, ok):
    """Raise a ValueError that names function and argument unless ok."""
    if not ok:
        raise ValueError(f"{name}: {argument} is {value}, wanted {wanted}")


class Drawn:
    """Common to functions without inputs: the shape rule and cost."""

    def check(self):
        """Raise unless the parameters of the distribution are valid."""

    def infer(self, rng):
        self.check()
        return Spec.of(self.shape, STATE.target.float_dtype)

    def cost(self, rng):
        n = int(np.prod(self.shape, dtype=np.int64))
        return Cost(flops=10 * n, bytes=4 * n)


def _numpy_generator(rng):
    """numpy's generator, started from one word of the counter-based stream.

    For the distributions that numpy samples by rejection: they take an unknown number of words.
    """
    word = nnl_random.raw(rng, 4)
    return np.random.Generator(np.random.Philox(key=word[:2], counter=int(word[2])))


@op("rand", nnp="Rand")
class rand(Drawn):
    r"""$y \sim U[low, high)$: uniform numbers.

    Args:
        low, high: Limits.
        shape: Sizes of the result.
        seed: -1 for the stream that `nnl.seed` restarts, else a stream of its own.
    Raises:
        ValueError: high is not above low.
    Example:
        >>> F.rand(low=5, high=6, shape=(2, 2)).shape
        (2, 2)
    """

    low: float = 0.0
    high: float = 1.0
    shape: tuple[int, ...] = ()
    seed: int = -1

    def check(self):
        require("rand", "high", self.high, f"more than low {self.low}", self.high > self.low)

    def forward(self, xp, rng, dtype=None):
        y = nnl_random.uniform(rng, self.shape, dtype, xp)
        y *= self.high - self.low
        y += self.low
        # rounding may reach high where low is far from 0
        highest = np.nextafter(y.dtype.type(self.high), y.dtype.type(self.low))
        return xp.minimum(y, highest, out=y)

    def samples(rng):
        yield Sample(low=-1.0, high=2.0, shape=(2, 3), seed=3)
        yield Sample(shape=(), seed=3)
        yield Sample(shape=(0, 2), seed=3)


@op("randint", nnp="Randint")
class randint(Drawn):
    r"""$y \sim U\{low, \ldots, high - 1\}$: uniform integers, int32.

    Args:
        low, high: Limits; high itself is not drawn.
        shape: Sizes of the result.
        seed: -1 for the stream that `nnl.seed` restarts, else a stream of its own.
    Raises:
        ValueError: high is not above low, or a limit does not fit int32.
    """

    low: int = 0
    high: int = 1
    shape: tuple[int, ...] = ()
    seed: int = -1

    def infer(self, rng):
        require("randint", "high", self.high, f"more than low {self.low}", self.high > self.low)
        require("randint", "low", self.low, "an int32", self.low >= -(2**31))
        require("randint", "high", self.high, "at most 2**31", self.high <= 2**31)
        return Spec.of(self.shape, np.int32)

    def forward(self, xp, rng):
        n = int(np.prod(self.shape, dtype=np.int64))
        # 53 random bits for a range of at most 32: the bias of scaling is below 2**-21
        u = nnl_random.uniform(rng, (n,), np.float64, xp)
        y = xp.floor(u * (self.high - self.low)).astype(np.int64) + self.low
        return y.astype(np.int32).reshape(self.shape)

    def samples(rng):
        yield Sample(low=-2, high=5, shape=(2, 3), seed=3)
        yield Sample(shape=(0, 2), seed=3)


@op("randn", nnp="Randn")
class randn(Drawn):
    r"""$y \sim N(\mu, \sigma^2)$: normal numbers.

    Args:
        mu: Mean.
        sigma: Standard deviation.
        shape: Sizes of the result.
        seed: -1 for the stream that `nnl.seed` restarts, else a stream of its own.
    Raises:
        ValueError: sigma is 0.
    """

    mu: float = 0.0
    sigma: float = 1.0
    shape: tuple[int, ...] = ()
    seed: int = -1

    def check(self):
        require("randn", "sigma", self.sigma, "a number other than 0", self.sigma != 0)

    def forward(self, xp, rng, dtype=None):
        y = nnl_random.normal(rng, self.shape, dtype, xp)
        y *= self.sigma
        y += self.mu
        return y

    def samples(rng):
        yield Sample(mu=1.0, sigma=2.0, shape=(2, 3), seed=3)
        yield Sample(shape=(), seed=3)
        yield Sample(shape=(0, 2), seed=3)


@op("rand_binomial", nnp="RandBinomial")
class rand_binomial(Drawn):
    r"""$y \sim B(n, p)$: numbers of successes in n independent trials.

    Args:
        n: Number of trials.
        p: Probability of success, in [0, 1).
        shape: Sizes of the result.
        seed: -1 for the stream that `nnl.seed` restarts, else a stream of its own.
    Raises:
        ValueError: n is below 1 or p outside [0, 1).
    """

    n: int = 1
    p: float = 0.5
    shape: tuple[int, ...] = ()
    seed: int = -1
    host = "numpy draws it by rejection"

    def check(self):
        require("rand_binomial", "n", self.n, "at least 1", self.n >= 1)
        require("rand_binomial", "p", self.p, "0 <= p < 1", 0.0 <= self.p < 1.0)

    def forward(self, xp, rng, dtype=None):
        y = _numpy_generator(rng).binomial(self.n, self.p, self.shape)
        return np.asarray(y, dtype)

    def samples(rng):
        yield Sample(n=5, p=0.25, shape=(2, 3), seed=3)
        yield Sample(shape=(0, 2), seed=3)


@op("rand_beta", nnp="RandBeta")
class rand_beta(Drawn):
    r"""Beta-distributed numbers: $p(y) \propto y^{\alpha-1}(1-y)^{\beta-1}$ on [0, 1].

    Args:
        alpha, beta: Positive parameters.
        shape: Sizes of the result.
        seed: -1 for the stream that `nnl.seed` restarts, else a stream of its own.
    Raises:
        ValueError: A parameter is not positive.
    """

    alpha: float = 0.5
    beta: float = 0.5
    shape: tuple[int, ...] = ()
    seed: int = -1
    host = "numpy draws it by rejection"

    def check(self):
        require("rand_beta", "alpha", self.alpha, "more than 0", self.alpha > 0)
        require("rand_beta", "beta", self.beta, "more than 0", self.beta > 0)

    def forward(self, xp, rng, dtype=None):
        y = _numpy_generator(rng).beta(self.alpha, self.beta, self.shape)
        return np.asarray(y, dtype)

    def samples(rng):
        yield Sample(alpha=0.5, beta=2.0, shape=(2, 3), seed=3)
        yield Sample(shape=(0, 2), seed=3)


@op("rand_gamma", nnp="RandGamma")
class rand_gamma(Drawn):
    r"""Gamma-distributed numbers: $p(y) \propto y^{k-1}e^{-y/\theta}$ for y > 0.

    Args:
        k: Shape of the distribution, positive.
        theta: Scale, positive.
        shape: Sizes of the result.
        seed: -1 for the stream that `nnl.seed` restarts, else a stream of its own.
    Raises:
        ValueError: A parameter is not positive.
    """

    k: float = 0.5
    theta: float = 1.0
    shape: tuple[int, ...] = ()
    seed: int = -1
    host = "numpy draws it by rejection"

    def check(self):
        require("rand_gamma", "k", self.k, "more than 0", self.k > 0)
        require("rand_gamma", "theta", self.theta, "more than 0", self.theta > 0)

    def forward(self, xp, rng, dtype=None):
        y = _numpy_generator(rng).gamma(self.k, self.theta, self.shape)
        return np.asarray(y, dtype)

    def samples(rng):
        yield Sample(k=2.0, theta=0.5, shape=(2, 3), seed=3)
        yield Sample(shape=(0, 2), seed=3)


@op("random_choice", nnp="RandomChoice", outputs=("y", "index"), hidden=1)
class random_choice:
    r"""Draw elements of the last axis of x with probabilities proportional to w.

    $$P(y = x_i) = w_i / \sum_j w_j$$

    Each slice along the last axis is sampled independently. The gradient of a result goes to the
    element of x that was drawn, and also to its weight, as in NNabla.

    Args:
        x: (..., N), what is drawn from.
        w: (..., N), weights >= 0 with a positive sum in every slice.
        shape: How many are drawn from each slice; () draws one, and gives an axis of size 1.
        replace: Whether an element can be drawn twice.
        seed: -1 for the stream that `nnl.seed` restarts, else a stream of its own.
    Returns:
        (..., *shape).
    Raises:
        ShapeError: x and w differ in shape, are of rank 0, or have fewer elements than are drawn
            without replacement.
        ValueError: A weight is negative, a slice has no positive weight, or too few for drawing
            without replacement.
    Source: Efraimidis and Spirakis, Weighted random sampling with a reservoir, 2006 (keys of the
        draw without replacement).
    """

    shape: tuple[int, ...] = ()
    replace: bool = True
    seed: int = -1
    host = "the weights are checked"

    def infer(self, x, w, rng):
        check_same_shape("random_choice", "x", x, "w", w)
        if not x.shape:
            raise ShapeError(f"random_choice: x {x} has rank 0, wanted an axis to draw from")
        shape = self.shape or (1,)
        count = int(np.prod(shape, dtype=np.int64))
        if count and not x.shape[-1]:
            raise ShapeError(f"random_choice: x {x} has no element to draw")
        if not self.replace and count > x.shape[-1]:
            raise ShapeError(
                f"random_choice: shape {shape} draws {count} elements without replacement, "
                f"x {x} has {x.shape[-1]}"
            )
        y = x.with_shape(x.shape[:-1] + shape)
        return y, y.with_dtype(np.int64)

    def forward(self, xp, x, w, rng):
        shape = self.shape or (1,)
        n, count = x.shape[-1], int(np.prod(shape, dtype=np.int64))
        rows = int(np.prod(x.shape[:-1], dtype=np.int64))
        weights = w.reshape(rows, n).astype(np.float64)
        index = drawn("random_choice", "w", weights, rng, count, self.replace)
        index = index + np.arange(rows)[:, None] * n  # into x as one axis
        index = index.astype(np.int64).reshape(x.shape[:-1] + shape)
        return x.reshape(-1)[index], index

    def vjp(self, gy, _, *, index, x_spec, need):
        g = index_scatter(gy, index, shape=x_spec.shape)
        return g if need[0] else None, g if need[1] else None

    def cost(self, x, w, rng):
        return Cost(flops=2 * x.size, bytes=x.nbytes + w.nbytes)

    def samples(rng):
        w = rng.uniform(0.1, 1, (2, 4))
        yield Sample(rng.normal(size=(2, 4)), w, grad=(True, False), shape=(3,), seed=5)
        yield Sample(
            rng.normal(size=(2, 4)), w, grad=(True, False), shape=(2, 2), replace=False, seed=5
        )


@op("index_gather", keep=("index",))
class index_gather:
    """y[i] = x[index[i]] with x as one axis; 0 where an index is negative.

    Args:
        x: Any shape.
        index: Integers below x.size, of the shape of the result.
    """

    def infer(self, x, index):
        return x.with_shape(index.shape)

    def forward(self, xp, x, index):
        y = x.reshape(-1)[index] if x.size else xp.zeros(index.shape, x.dtype)
        return xp.where(index < 0, 0, y).astype(x.dtype, copy=False)

    def vjp(self, gy, *, x_spec, index):
        return index_scatter(gy, index, shape=x_spec.shape), None

    def cost(self, x, index):
        return Cost(flops=0, bytes=index.nbytes + 2 * index.size * x.dtype.itemsize)

    def samples(rng):
        index = rng.integers(-1, 6, (4, 2))
        yield Sample(rng.normal(size=(2, 3)), index, grad=(True, False))


@op("index_scatter", keep=("index",))
class index_scatter:
    """The transpose of index_gather: y[index[i]] += x[i] with y as one axis.

    Args:
        x: Any shape.
        index: Integers of the shape of x; negative ones drop the element.
        shape: Sizes of the result.
    Raises:
        ShapeError: x and index differ in shape.
    """

    shape: tuple[int, ...]

    def infer(self, x, index):
        check_same_shape("index_scatter", "x", x, "index", index)
        return x.with_shape(self.shape)

    def forward(self, xp, x, index):
        size = int(np.prod(self.shape, dtype=np.int64))
        at, values = index.reshape(-1), x.reshape(-1)
        values = xp.where(at < 0, 0, values).astype(x.dtype, copy=False)
        y = add_at(xp, xp.maximum(at, 0), values, size)
        return y.astype(x.dtype, copy=False).reshape(self.shape)

    def vjp(self, gy, *, index):
        return index_gather(gy, index), None

    def cost(self, x, index):
        return Cost(flops=x.size, bytes=2 * x.nbytes + index.nbytes)

    def samples(rng):
        index = rng.integers(-1, 6, (4, 2))
        yield Sample(rng.normal(size=(4, 2)), index, grad=(True, False), shape=(2, 3))
