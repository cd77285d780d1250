# SPDX-License-Identifier: Apache-2.0
"""Arrays divided by a norm: of elements, of rows (with a gain), of the matrix."""

from __future__ import annotations

import math

from nnl.core.arguments.annotations import flag
from nnl.core.arrays.spec import ShapeError, check_axes, check_axis
from nnl.core.ops.op import OPS, Cost, Sample, op
from nnl.functions.arithmetic import add2, add_scalar, div2, mul2, pow_scalar, sub2
from nnl.functions.norm import check_order
from nnl.functions.reduction import reshape, sum_op

CATEGORY = "Normalization"

__all__ = ["norm_normalization", "weight_normalization", "spectral_norm"]


@op("norm_normalization", nnp="NormNormalization")
class norm_normalization_op:
    """See norm_normalization."""

    p: float = 2.0
    axes: tuple[int, ...] | None = None
    eps: float = 1e-12

    def resolve(self, x):
        axes = range(len(x.shape)) if self.axes is None else self.axes
        return {"axes": check_axes("norm_normalization", axes, x)}

    def infer(self, x):
        check_order("norm_normalization", self.p)
        return x

    def decompose(self, x):
        if self.p == 2:
            power = pow_scalar(x, 2.0)
        else:
            power = OPS["abs"](x)
            power = power if self.p == 1 else pow_scalar(power, self.p)
        total = add_scalar(sum_op(power, axes=self.axes, keep_dims=True), self.eps)
        return div2(x, total if self.p == 1 else pow_scalar(total, 1 / self.p))

    def cost(self, x):
        return Cost(flops=4 * x.size, bytes=2 * x.nbytes)

    def samples(rng):
        x = rng.uniform(0.5, 2, (2, 3, 4)) * rng.choice([-1, 1], (2, 3, 4))
        for axes in (None, (1,), (0, 2)):
            yield Sample(x, axes=axes)
        yield Sample(x, p=3.0, axes=(1,))
        yield Sample(x, p=1.0, axes=(1,))


def norm_normalization(x, p: float | None = None, axes=None, eps: float = 1e-12):
    r"""$y = x / (\sum |x|^p + \epsilon)^{1/p}$ with the sum over axes.

    NNabla ignores eps, so that zeros become NaN there; here they stay 0.

    Args:
        x: Any shape.
        p: Order, at least 1 and finite; 2 if left out.
        axes: An int or several; all axes if left out.
        eps: Added to the sum of powers.
    Raises:
        ValueError: p is less than 1, or infinite.
        ShapeError: An axis is out of range or given twice.
    Example:
        >>> F.norm_normalization(array([3, 4])).d
        array([0.6, 0.8], dtype=float32)
    """
    return norm_normalization_op(x, p=2.0 if p is None else p, axes=axes, eps=eps)


def along(dim, rank, n):
    """Shape that lies along axis dim."""
    return tuple(n if i == dim else 1 for i in range(rank))


@op("weight_normalization", nnp="WeightNormalization")
class weight_normalization:
    r"""$y_i = w_i g_i / \sqrt{\sum w_i^2 + \epsilon}$ for each index i along an axis.

    Args:
        w: Weights of an affine map or a convolution.
        g: (size of w along dim,), the norm that each part gets.
        dim: The axis.
        eps: Added to the sum of squares.
    Raises:
        ShapeError: g does not have that shape, or dim is out of range.
    Source: Salimans and Kingma, Weight Normalization, arXiv:1602.07868, eq. 2.
    """

    dim: int = 0
    eps: float = 1e-12

    def resolve(self, w, g):
        return {"dim": check_axis("weight_normalization", self.dim, w, "w")}

    def infer(self, w, g):
        if g.shape != (w.shape[self.dim],):
            raise ShapeError(
                f"weight_normalization: g {g} must have the shape {(w.shape[self.dim],)} for w {w} "
                f"and dim {self.dim}"
            )
        return w

    def decompose(self, w, g):
        axes = tuple(i for i in range(len(w.shape)) if i != self.dim)
        total = add_scalar(sum_op(pow_scalar(w, 2.0), axes=axes, keep_dims=True), self.eps)
        gain = reshape(g, along(self.dim, len(w.shape), w.shape[self.dim]))
        return mul2(w, mul2(gain, pow_scalar(total, -0.5)))

    def cost(self, w, g):
        return Cost(flops=3 * w.size, bytes=2 * w.nbytes)

    def samples(rng):
        for dim, n in ((0, 2), (1, 3), (-1, 4)):
            yield Sample(rng.normal(size=(2, 3, 4)), rng.normal(size=n), dim=dim)


class SpectralNorm:
    """See spectral_norm."""

    dim: int = 0
    itr: int = 1
    eps: float = 1e-12
    test: bool = False
    output_u: bool = False

    def resolve(self, w, u):
        return {"dim": check_axis("spectral_norm", self.dim, w, "w")}

    def infer(self, w, u):
        if self.itr < 1:
            raise ValueError(f"spectral_norm: itr is {self.itr}, wanted at least 1")
        if u.size != w.shape[self.dim]:
            raise ShapeError(
                f"spectral_norm: u {u} must have {w.shape[self.dim]} elements for w {w} and dim "
                f"{self.dim}"
            )
        return w, u, w, w.with_shape((1,) * len(w.shape))

    def forward(self, xp, w, u):
        original = u.copy()
        rows = xp.moveaxis(w, self.dim, 0)
        matrix = rows.reshape(len(rows), math.prod(rows.shape[1:]))
        left = original.reshape(1, original.size)
        for _ in range(self.itr):
            right = xp.matmul(left, matrix)
            right = right / xp.sqrt((right * right).sum() + self.eps)
            left = xp.matmul(right, matrix.T)
            left = left / xp.sqrt((left * left).sum() + self.eps)
        sigma = (xp.matmul(left, matrix) * right).sum()
        direction = (left.T * right).reshape(rows.shape)
        direction = xp.ascontiguousarray(xp.moveaxis(direction, 0, self.dim))
        if not self.test:
            u[...] = left.reshape(u.shape)
        norm = xp.full((1,) * w.ndim, sigma, w.dtype)
        return w / norm, original, direction, norm

    def portable(self, w, u):
        if self.itr > 100:
            raise NotImplementedError("spectral_norm: too many steps")
        original = OPS["identity"](u)
        axes = (self.dim, *(i for i in range(len(w.shape)) if i != self.dim))
        rows = OPS["transpose"](w, axes=axes)
        matrix = reshape(rows, (rows.shape[0], math.prod(rows.shape[1:])))
        left = reshape(original, (1, original.size))
        matmul = OPS["batch_matmul"]

        def unit(x):
            total = sum_op(mul2(x, x), axes=(0, 1), keep_dims=True)
            return mul2(x, pow_scalar(add_scalar(total, self.eps), -0.5))

        for _ in range(self.itr):
            right = unit(matmul(left, matrix))
            left = unit(matmul(right, matrix, transpose_b=True))
        if not self.test:  # what follows reads it there, so that it is stored
            left = reshape(OPS["store"](u, reshape(left, u.shape)), left.shape)
        sigma = sum_op(mul2(matmul(left, matrix), right), axes=(0, 1), keep_dims=True)
        direction = reshape(matmul(left, right, transpose_a=True), rows.shape)
        direction = OPS["transpose"](direction, axes=tuple(axes.index(i) for i in range(len(axes))))
        sigma = reshape(sigma, (1,) * len(w.shape))
        return div2(w, sigma), original, direction, sigma

    def vjp(self, gy, gu, gdirection, gsigma, *, y, direction, sigma):
        # u and v count as constants: sigma = <w, u v^T>, with u v^T = direction
        every = tuple(range(len(y.shape)))
        product = div2(sum_op(mul2(gy, y), axes=every, keep_dims=True), sigma)
        return add2(div2(gy, sigma), mul2(direction, sub2(gsigma, product))), None

    def cost(self, w, u):
        return Cost(flops=(4 * self.itr + 2) * w.size, bytes=4 * w.nbytes)

    def samples(rng):
        w = rng.normal(size=(3, 2, 4))
        for dim in (0, 1, 2):
            yield Sample(w, rng.normal(size=w.shape[dim]), dim=dim, grad=(True, False))
        # once u and v have converged, that they count as constants is exact
        converged = {"test": True, "itr": 60, "grad": (True, False), "order": 1}
        yield Sample(w, rng.normal(size=3), **converged)
        yield Sample(w, rng.normal(size=4), dim=2, **converged)


def register_spectral_norm():
    def written(attributes):
        return () if attributes.test else ("u",)

    outputs = ("y", "original", "direction", "sigma")
    kw = {"outputs": outputs, "writes": written, "at_most": {"itr": 10_000}}
    plain = op("spectral_norm", hidden=3, nnp="SpectralNorm", **kw)(SpectralNorm)
    return plain, op("spectral_norm_with_u", hidden=2, type_name="SpectralNorm", **kw)(SpectralNorm)


spectral_norm_op, spectral_norm_with_u = register_spectral_norm()


def spectral_norm(
    w,
    u,
    dim: int = 0,
    itr: int = 1,
    eps: float = 1e-12,
    test: bool = False,
    output_u: bool = False,
):
    r"""Divide by the largest singular value, found by power iteration from u.

    w is seen as a matrix with the rows along `dim`. Each iteration is
    $v = w^T u / |w^T u|$, $u = w v / |w v|$; then $\sigma = u^T w v$. The gradient takes u and v as
    constants.

    Args:
        w: Weights of an affine map or a convolution.
        u: (size of w along dim,), overwritten with the new u unless `test`.
        dim: The axis of output channels.
        itr: Number of iterations, at most 10000.
        eps: Added to the sums of squares of which the norms are taken.
        test: Leave u as it is.
        output_u: Also return u as it was before.
    Raises:
        ValueError: itr is less than 1 or too large.
        ShapeError: u has another size, or dim is out of range.
    Source: Miyato et al., Spectral Normalization for GANs, arXiv:1802.05957, algorithm 1.
    Example:
        >>> F.spectral_norm(array([[2, 0], [0, 1]]), array([1, 0.1]), itr=9).d
        array([[1. , 0. ],
               [0. , 0.5]], dtype=float32)
    """
    output_u = flag("spectral_norm", "output_u", output_u)
    function = spectral_norm_with_u if output_u else spectral_norm_op
    return function(w, u, dim=dim, itr=itr, eps=eps, test=test, output_u=output_u)
