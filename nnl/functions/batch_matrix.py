# SPDX-License-Identifier: Apache-2.0
"""Determinant, its logarithm, inverse and Cholesky factor of every matrix of a batch."""

from __future__ import annotations

import numpy as np

from nnl.core.arrays.spec import ShapeError
from nnl.core.ops.op import OPS, Cost, Sample, op
from nnl.functions.affine import batch_matmul
from nnl.functions.arithmetic import add2, mul2, mul_scalar
from nnl.functions.layout import transpose
from nnl.functions.reduction import reshape

CATEGORY = "Array manipulation"

__all__ = ["batch_det", "batch_inv", "batch_logdet", "batch_cholesky"]


class Matrices:
    """Common to functions of a batch of square matrices."""

    def check(self, x):
        if x.ndim != 3 or x.shape[1] != x.shape[2]:
            raise ShapeError(f"{self.op.name}: x {x} must have the shape (B, n, n)")

    def cost(self, x):
        return Cost(2 * x.size * x.shape[-1], 2 * x.nbytes)


def inverse_times(gy, x):
    """gy_b times the transposed inverse of x_b: the gradient of the logarithm of |det x_b|."""
    g = transpose(batch_inv(x), axes=(0, 2, 1))
    return mul2(reshape(gy, (x.shape[0], 1, 1)), g)


def matrices(rng, n=3):
    """Two matrices that are far from singular, with determinants of either sign."""
    x = rng.normal(size=(2, n, n)) + 2 * np.eye(n)
    x[1, 0] *= -1
    return x


@op("batch_det", nnp="BatchDet")
class batch_det(Matrices):
    r"""Determinants: $y_b = \det x_b$.

    Args:
        x: (B, n, n). Its gradient are the cofactors, at singular matrices too; the gradient of
            that takes the inverse.
    Returns:
        (B,).
    Raises:
        ShapeError: x is not a batch of square matrices.
    """

    def infer(self, x):
        self.check(x)
        return x.with_shape(x.shape[:1])

    def forward(self, xp, x):
        return xp.linalg.det(x)

    def vjp(self, gy, *, x):
        return mul2(reshape(gy, (x.shape[0], 1, 1)), batch_cofactor(x))

    def samples(rng):
        yield Sample(matrices(rng))
        yield Sample(matrices(rng, 1))
        yield Sample(np.zeros((0, 3, 3)))


@op("batch_cofactor")
class batch_cofactor(Matrices):
    r"""Cofactors: $y_b = \det x_b\, x_b^{-T}$ or its limit, where a matrix is singular."""

    def infer(self, x):
        self.check(x)
        return x

    def forward(self, xp, x):
        # of x = u s v: det(u v) u cof(s) v, and those of s are products of its other elements
        u, s, v = xp.linalg.svd(x.astype(np.float64))
        n = s.shape[1]
        others = xp.where(xp.eye(n, dtype=bool), 1.0, s[:, None, :]).prod(axis=2)
        sign = xp.linalg.det(u) * xp.linalg.det(v)
        return ((u * (others * sign[:, None])[:, None, :]) @ v).astype(x.dtype)

    def vjp(self, gy, *, x, y):
        inverse = batch_inv(x)
        along = OPS["sum"](
            mul2(gy, transpose(inverse, axes=(0, 2, 1))), axes=(1, 2), keep_dims=True
        )
        turned = batch_matmul(batch_matmul(y, gy, transpose_b=True), inverse, transpose_b=True)
        return OPS["sub2"](mul2(along, y), turned)

    def samples(rng):
        yield Sample(matrices(rng))
        yield Sample(matrices(rng, 1))
        yield Sample(np.zeros((0, 3, 3)))


@op("batch_logdet", nnp="BatchLogdet")
class batch_logdet(Matrices):
    r"""Logarithms of absolute determinants: $y_b = \log |\det x_b|$.

    Args:
        x: (B, n, n). A singular matrix gives minus infinity, and has no gradient.
    Returns:
        (B,).
    Raises:
        ShapeError: x is not a batch of square matrices.
    """

    def infer(self, x):
        self.check(x)
        return x.with_shape(x.shape[:1])

    def forward(self, xp, x):
        return xp.linalg.slogdet(x)[1]

    def vjp(self, gy, *, x):
        return inverse_times(gy, x)

    def samples(rng):
        yield Sample(matrices(rng))
        yield Sample(matrices(rng, 1))
        yield Sample(np.zeros((0, 3, 3)))


@op("batch_inv", nnp="BatchInv")
class batch_inv(Matrices):
    r"""Inverses: $y_b = x_b^{-1}$.

    Args:
        x: (B, n, n).
    Returns:
        (B, n, n).
    Raises:
        ShapeError: x is not a batch of square matrices.
        ValueError: A matrix is singular.
    Example:
        >>> F.batch_inv(array([[[2, 0], [0, 4]]])).d
        array([[[0.5 , 0.  ],
                [0.  , 0.25]]], dtype=float32)
    """

    def infer(self, x):
        self.check(x)
        return x

    def forward(self, xp, x):
        try:
            return xp.linalg.inv(x)
        except np.linalg.LinAlgError as e:
            raise ValueError("batch_inv: x has a singular matrix, which has no inverse") from e

    def vjp(self, gy, *, y):
        g = batch_matmul(batch_matmul(y, gy, transpose_a=True), y, transpose_b=True)
        return mul_scalar(g, -1.0)

    def samples(rng):
        yield Sample(matrices(rng))
        yield Sample(matrices(rng, 1))
        yield Sample(np.zeros((0, 3, 3)))


def lower(x):
    """The lower triangles."""
    return OPS["trilu"](x, upper=False)


@op("batch_cholesky", nnp="BatchCholesky")
class batch_cholesky(Matrices):
    r"""Cholesky factors: the lower triangular y with positive diagonal and $y_b y_b^T = x_b$.

    Args:
        x: (B, n, n), symmetric and positive definite. Only the lower triangles are read, but the
            gradient is that of a symmetric argument: half of it on either side of the diagonal.
        upper: Return $y_b^T$ instead.
    Returns:
        (B, n, n).
    Raises:
        ShapeError: x is not a batch of square matrices.
        ValueError: A matrix is not positive definite.
    Source of the gradient: Murray, Differentiation of the Cholesky decomposition, arXiv:1602.07527.
    Example:
        >>> F.batch_cholesky(array([[[4, 2], [2, 5]]])).d
        array([[[2., 0.],
                [1., 2.]]], dtype=float32)
    """

    upper: bool = False

    def infer(self, x):
        self.check(x)
        return x

    def forward(self, xp, x):
        try:
            y = xp.linalg.cholesky(x)
        except np.linalg.LinAlgError as e:
            raise ValueError("batch_cholesky: x has a matrix that is not positive definite") from e
        return xp.ascontiguousarray(y.swapaxes(1, 2)) if self.upper else y

    def vjp(self, gy, *, y):
        if self.upper:
            y, gy = transpose(y, axes=(0, 2, 1)), transpose(gy, axes=(0, 2, 1))
        inverse = batch_inv(y)
        product = batch_matmul(y, lower(gy), transpose_a=True)
        half = mul_scalar(OPS["matrix_diag"](OPS["matrix_diag_part"](product)), -0.5)
        inner = add2(lower(product), half)
        g = batch_matmul(batch_matmul(inverse, inner, transpose_a=True), inverse)
        return mul_scalar(add2(g, transpose(g, axes=(0, 2, 1))), 0.5)

    def samples(rng):
        x = matrices(rng)
        x = x @ x.swapaxes(1, 2) + np.eye(3)
        # order 0: the numeric gradient would see only one triangle
        yield Sample(x, order=0)
        yield Sample(x, order=0, upper=True)
        yield Sample(x[:0], order=0)
