# SPDX-License-Identifier: Apache-2.0
"""tf.distributions: normal, categorical and Bernoulli distributions."""

from __future__ import annotations

import math

import numpy as np

from nnl.dialects.tensorflow import nn
from nnl.dialects.tensorflow.initializers import multinomial, random_normal, random_uniform
from nnl.dialects.tensorflow.operation import as_dtype
from nnl.dialects.tensorflow.table import N, cast, pair, tensor, whole


class Distribution:
    """What numbers are drawn from."""

    def prob(self, value, name=None):
        """The density, or the probability, at a value."""
        return N.exp(self.log_prob(value), name=name)

    def _shape(self, sample_shape, x):
        given = (
            np.reshape(sample_shape, -1) if isinstance(sample_shape, (int, tuple, list)) else None
        )
        sizes = whole(sample_shape if given is None else given)
        return N.concat([sizes, N.shape(x)], 0) if given is None or len(given) else N.shape(x)


class Normal(Distribution):
    """$N(\\text{loc}, \\text{scale}^2)$, element by element."""

    def __init__(self, loc, scale, validate_args=False, allow_nan_stats=True, name="Normal"):
        self.loc, self.scale = map(tensor, pair(loc, scale))
        self._both = self.loc + 0.0 * self.scale

    def sample(self, sample_shape=(), seed=None, name="sample"):
        """Numbers: (*sample_shape, *shape)."""
        drawn = random_normal(self._shape(sample_shape, self._both), seed=seed)
        return N.add(drawn * self.scale, self.loc, name=name)

    def log_prob(self, value, name="log_prob"):
        """The logarithm of the density."""
        z = (tensor(value, self.loc.dtype) - self.loc) / self.scale
        return N.subtract(
            -0.5 * N.square(z), 0.5 * math.log(2 * math.pi) + N.log(self.scale), name=name
        )

    def cdf(self, value, name="cdf"):
        """The probability of what is smaller."""
        z = (tensor(value, self.loc.dtype) - self.loc) / self.scale
        return N.multiply(0.5, N.erfc(z * -math.sqrt(0.5)), name=name)

    def entropy(self, name="entropy"):
        """$\\ln(\\sigma \\sqrt{2 \\pi e})$."""
        wide = N.log(self.scale) + 0.0 * self.loc
        return N.add(wide, 0.5 + 0.5 * math.log(2 * math.pi), name=name)

    def mean(self, name="mean"):
        """loc."""
        return N.identity(self._both, name=name)

    mode = mean

    def stddev(self, name="stddev"):
        """scale."""
        return N.add(self.scale, 0.0 * self.loc, name=name)

    def variance(self, name="variance"):
        """scale squared."""
        return N.square(self.stddev(), name=name)

    def kl_divergence(self, other, name="kl_divergence"):
        """The Kullback-Leibler divergence from another one to this one."""
        ratio = N.square(self.scale / other.scale)
        moved = N.square(self.loc - other.loc) / (2.0 * N.square(other.scale))
        return N.add(moved, 0.5 * (ratio - 1.0 - N.log(ratio)), name=name)


class Categorical(Distribution):
    """Classes, with unnormalized log-probabilities along the last axis."""

    def __init__(self, logits=None, probs=None, dtype=np.int32, validate_args=False,
                 allow_nan_stats=True, name="Categorical"):  # fmt: skip
        self.logits = N.log(tensor(probs)) if logits is None else tensor(logits)
        self.probs, self.dtype = N.softmax(self.logits), as_dtype(dtype)

    def sample(self, sample_shape=(), seed=None, name="sample"):
        """Classes: (*sample_shape, *shape without the last axis)."""
        n = int(np.prod(sample_shape))
        rows = N.reshape(self.logits, [-1, self.logits.sizes[-1]])
        drawn = N.transpose(multinomial(rows, n, seed, output_dtype=self.dtype))
        sizes = N.shape(self.logits)[:-1]
        return N.reshape(
            drawn, N.concat([np.int32(np.reshape(sample_shape, -1)), sizes], 0), name=name
        )

    def log_prob(self, value, name="log_prob"):
        """The logarithm of the probability of classes."""
        t = cast(value, np.int32)
        loss = nn.sparse_softmax_cross_entropy_with_logits(labels=t, logits=self.logits)
        return N.negative(loss, name=name)

    def entropy(self, name="entropy"):
        """$-\\sum p \\ln p$."""
        every = self.probs * N.log_softmax(self.logits)
        return N.negative(N.reduce_sum(every, -1), name=name)

    def mode(self, name="mode"):
        """The most probable class."""
        return N.argmax(self.logits, -1, name=name, output_type=self.dtype)

    def kl_divergence(self, other, name="kl_divergence"):
        """The Kullback-Leibler divergence from another one to this one."""
        apart = N.log_softmax(self.logits) - N.log_softmax(other.logits)
        return N.reduce_sum(self.probs * apart, -1, name=name)


class Bernoulli(Distribution):
    """Zeros and ones."""

    def __init__(self, logits=None, probs=None, dtype=np.int32, validate_args=False,
                 allow_nan_stats=True, name="Bernoulli"):  # fmt: skip
        if logits is None:
            p = tensor(probs)
            self.logits, self.probs = N.log(p) - N.log1p(-p), p
        else:
            self.logits = tensor(logits)
            self.probs = N.sigmoid(self.logits)
        self.dtype = as_dtype(dtype)

    def sample(self, sample_shape=(), seed=None, name="sample"):
        """Numbers: (*sample_shape, *shape)."""
        drawn = random_uniform(self._shape(sample_shape, self.probs), seed=seed)
        return cast(N.less(drawn, self.probs), self.dtype, name=name)

    def log_prob(self, value, name="log_prob"):
        """The logarithm of the probability."""
        t = cast(value, np.float32)
        loss = nn.sigmoid_cross_entropy_with_logits(
            labels=t + 0.0 * self.logits, logits=self.logits + 0.0 * t
        )
        return N.negative(loss, name=name)

    def entropy(self, name="entropy"):
        """$-p \\ln p - (1 - p) \\ln(1 - p)$."""
        return N.subtract(N.softplus(self.logits), self.logits * self.probs, name=name)

    def mean(self, name="mean"):
        """The probability of one."""
        return N.identity(self.probs, name=name)

    def mode(self, name="mode"):
        """The more probable number."""
        return cast(N.greater(self.probs, 0.5), self.dtype, name=name)


def kl_divergence(distribution_a, distribution_b, allow_nan_stats=True, name=None):
    """The Kullback-Leibler divergence from the second to the first."""
    return distribution_a.kl_divergence(distribution_b)
