# SPDX-License-Identifier: Apache-2.0
"""Canonical polyadic decomposition: a tensor as a sum of outer products of vectors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class ALS:
    r"""Alternating least squares: $X \approx \sum_r \lambda_r\, a_r \circ b_r \circ c_r$.

    Source: Kolda and Bader, Tensor Decompositions and Applications, SIAM Review 51, 2009, figure
    3.3.
    """

    def solve(
        self,
        X: Array,
        rank: int,
        max_iter: int = 500,
        stopping_criterion: float = 1e-5,
        lambda_reg: float = 0.0,
        dtype: Any = np.float32,
        rng: np.random.RandomState | None = None,
    ) -> tuple[list[Array], Array]:
        """The factors of a tensor and their weights.

        All factors but the first start as uniform random numbers. In every iteration each factor
        becomes the least-squares solution for the others, and its columns are divided by their
        norms in the first iteration, then by their largest values if those are above 1.

        Args:
            X: Tensor with two or more axes.
            rank: Number of outer products.
            max_iter: Number of iterations at most.
            stopping_criterion: Stop when the squared error, divided by the squared norm of X,
                changes by less.
            lambda_reg: Added to the diagonal of the least-squares matrix.
            dtype: X is converted to it.
            rng: Generator of the first factors; None is a new one of seed 313.
        Returns:
            One array (size of the axis, rank) for each axis of X, and the weights (rank,).
        Raises:
            ValueError: rank or max_iter is below 1, or X has fewer than two axes.
        """
        for name, value in (("rank", rank), ("max_iter", max_iter)):
            if value < 1:
                raise ValueError(f"ALS.solve: {name} is {value}, wanted at least 1")
        X = np.asarray(X, dtype)
        if X.ndim < 2:
            raise ValueError(f"ALS.solve: X has the shape {X.shape}, wanted at least 2 axes")
        rng = np.random.RandomState(313) if rng is None else rng
        A = [np.zeros((X.shape[0], rank))] + [rng.rand(n, rank) for n in X.shape[1:]]
        unfolded = [np.moveaxis(X, n, 0).reshape(X.shape[n], -1) for n in range(X.ndim)]
        norm, error = float(np.square(X, dtype=np.float64).sum()), np.inf
        weights = np.ones(rank)
        for i in range(max_iter):
            for n, matrix in enumerate(unfolded):
                others = self.khatrirao_products(A, n, reverse=False).reshape(-1, rank)
                gramians = self.hadamard_products_of_gramians(A, n) + lambda_reg * np.eye(rank)
                factor = matrix @ others @ np.linalg.pinv(gramians)
                if i == 0:
                    weights = np.sqrt(np.square(factor).sum(0))
                else:
                    weights = np.maximum(factor.max(0), 1.0)
                # a column of zeros has no direction
                A[n] = factor / np.where(weights == 0, 1.0, weights)
            last = error
            error = float(np.square(X - self.approximate_tensor(A, weights)).sum())
            if abs(last - error) < stopping_criterion * norm:
                break
        return A, weights

    def approximate_tensor(self, A: Sequence[Array], lmbda: Array) -> Array:
        """The sum of the outer products of the columns of the factors A, weighted by lmbda."""
        rows = self.khatrirao_products(A, 0, reverse=False)
        return np.tensordot(A[0] * lmbda, rows, (1, rows.ndim - 1))

    def khatrirao_product(self, X: Array, Y: Array) -> Array:
        """Products of every row of X with every row of Y: (..., n, rank) and (m, rank) give
        (..., n, m, rank)."""
        product: Array = X[..., :, None, :] * Y
        return product

    def khatrirao_products(self, A: Sequence[Array], n: int, reverse: bool = True) -> Array:
        """khatrirao_product of all factors but A[n], the last one first if reverse."""
        others = [a for k, a in enumerate(A) if k != n]
        return reduce(self.khatrirao_product, others[::-1] if reverse else others)

    def hadamard_products_of_gramians(self, A: Sequence[Array], n: int) -> Array:
        """Element-wise product of the matrices of inner products of the columns of all but A[n]."""
        return reduce(np.multiply, [a.T @ a for k, a in enumerate(A) if k != n])
