# SPDX-License-Identifier: Apache-2.0
"""Drawing positions of rows with given weights."""

from __future__ import annotations

import numpy as np

from nnl.core.arrays.spec import ShapeError
from nnl.core.ops import random as nnl_random
from nnl.core.ops.op import Cost, Sample, op

CATEGORY = "Random"

__all__ = ["multinomial"]


def drawn(name, argument, weights, rng, count, replace):
    """(rows, count) positions in the rows of weights, float64.

    Raises:
        ValueError: A weight is negative, or a row has too few positive ones.
    """
    rows, n = weights.shape
    positive = weights > 0
    if not np.all(weights >= 0):
        bad = weights[~(weights >= 0)][0]
        raise ValueError(f"{name}: {argument} has the weight {bad:g}, wanted weights >= 0")
    enough = positive.sum(axis=1)
    if np.any(enough == 0):
        raise ValueError(f"{name}: {argument} has no positive weight in a slice, wanted one")
    if not replace and np.any(enough < count):
        raise ValueError(
            f"{name}: {argument} has {enough.min()} positive weights in a slice, wanted {count} "
            "to draw without replacement"
        )
    if not replace:
        u = nnl_random.uniform(rng, (rows, n), np.float64)
        with np.errstate(divide="ignore"):
            keys = np.where(positive, -np.log1p(-u) / weights, np.inf)  # exponential arrivals
        return np.argsort(keys, axis=1, kind="stable")[:, :count]
    total = np.cumsum(weights, axis=1)
    u = nnl_random.uniform(rng, (rows, count), np.float64) * total[:, -1:]
    last = n - 1 - np.argmax(positive[:, ::-1], axis=1)  # rounding can reach the end
    index = np.empty((rows, count), np.int64)
    for i in range(rows):
        index[i] = np.minimum(np.searchsorted(total[i], u[i], "right"), last[i])
    return index


@op("multinomial")
class multinomial:
    r"""Draw positions along the last axis with probabilities proportional to weights.

    $$P(y = i) = w_i / \sum_j w_j$$

    Args:
        weights: (..., N), at least 0, with a positive sum in every row; of a softmax, for example.
        count: How many positions are drawn from each row.
        replace: Whether a position can be drawn twice.
        seed: -1 for the stream that `nnl.seed` restarts, else a stream of its own.
    Returns:
        (..., count), int64. There is no gradient.
    Raises:
        ShapeError: weights has rank 0, or rows with fewer elements than are drawn.
        ValueError: count is below 1, a weight is negative, or a row has too few positive ones.
    Source: Efraimidis and Spirakis, Weighted random sampling with a reservoir, 2006 (keys of the
        draw without replacement).
    Example:
        >>> F.multinomial(array([[0, 1, 0], [0, 0, 2]]), 2).d
        array([[1, 1],
               [2, 2]])
    """

    count: int = 1
    replace: bool = True
    seed: int = -1
    host = "the weights are checked"

    def infer(self, weights, rng):
        if self.count < 1:
            raise ValueError(f"multinomial: count is {self.count}, wanted at least 1")
        if not weights.shape or not weights.shape[-1]:
            raise ShapeError(f"multinomial: weights {weights} has no element to draw")
        if not self.replace and self.count > weights.shape[-1]:
            raise ShapeError(
                f"multinomial: count {self.count} without replacement is more than a row of "
                f"weights {weights} has"
            )
        return weights.with_shape((*weights.shape[:-1], self.count)).with_dtype(np.int64)

    def forward(self, xp, weights, rng):
        rows = weights.reshape(-1, weights.shape[-1]).astype(np.float64)
        index = drawn("multinomial", "weights", rows, rng, self.count, self.replace)
        return index.astype(np.int64).reshape(*weights.shape[:-1], self.count)

    def vjp(self, gy):
        return None

    def cost(self, weights, rng):
        return Cost(flops=2 * weights.size, bytes=weights.nbytes)

    def samples(rng):
        w = rng.uniform(0.1, 1, (2, 4))
        yield Sample(w, grad=(False,), count=3, seed=5)
        yield Sample(w, grad=(False,), count=2, replace=False, seed=5)
