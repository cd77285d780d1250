# SPDX-License-Identifier: Apache-2.0
"""Convolution with separable kernels that are data, one for every pixel.

The result is linear in the images, in the vertical and in the horizontal kernels. Its three
gradients and itself are a closed family: the gradients of any one are the other three.
"""

from __future__ import annotations

from nnl.core.arrays.spec import ShapeError, Spec, check_rank
from nnl.core.ops.op import OPS, Cost, Sample, op

CATEGORY = "Layer"

__all__ = ["adaptive_separable_convolution"]


def cropped(kernel, height, width):
    """The kernels of the first height x width pixels."""
    if kernel.shape[2:] == (height, width):
        return kernel
    stop = (*kernel.shape[:2], height, width)
    return OPS["slice"](kernel, start=(0,) * 4, stop=stop, step=(1,) * 4)


@op("adaptive_separable_convolution", nnp="AdaptiveSeparableConvolution")
class adaptive_separable_convolution:
    r"""Filter every pixel with a kernel of its own, the product of a vertical and a horizontal one.

    $$y_{n,c,h,w} = \sum_{i,j} v_{n,i,h,w}\, u_{n,j,h,w}\, x_{n,c,h+i,w+j}$$

    Args:
        x: (N, C, H, W).
        vertical_kernel: (N, K_v, H_v, W_v), $v$, with H' <= H_v <= H and W' <= W_v <= W. Only the
            first H' x W' pixels are used.
        horizontal_kernel: (N, K_h, H_h, W_h), $u$, likewise.
    Returns:
        (N, C, H', W') with H' = H - K_v + 1 and W' = W - K_h + 1.
    Raises:
        ShapeError: A rank is not 4, batch sizes differ, or kernels do not have the sizes above.
    Source: Niklaus, Mai and Liu, Video Frame Interpolation via Adaptive Separable Convolution,
        arXiv:1708.01692.
    """

    def infer(self, x, vertical_kernel, horizontal_kernel):
        name = "adaptive_separable_convolution"
        kernels = {"vertical_kernel": vertical_kernel, "horizontal_kernel": horizontal_kernel}
        check_rank(name, "x", x, 4)
        n, c, h, w = x.shape
        for arg, kernel in kernels.items():
            check_rank(name, arg, kernel, 4)
            if kernel.shape[0] != n:
                raise ShapeError(f"{name}: {arg} {kernel} has another batch size than x {x}")
        rows, columns = h - vertical_kernel.shape[1] + 1, w - horizontal_kernel.shape[1] + 1
        if not 1 <= rows <= h or not 1 <= columns <= w:
            raise ShapeError(
                f"{name}: vertical_kernel {vertical_kernel} and horizontal_kernel "
                f"{horizontal_kernel} must have 1 to {h} and 1 to {w} taps for x {x}"
            )
        for arg, kernel in kernels.items():
            if not rows <= kernel.shape[2] <= h or not columns <= kernel.shape[3] <= w:
                raise ShapeError(
                    f"{name}: {arg} {kernel} must be for {rows} to {h} rows and {columns} to {w} "
                    f"columns of x {x}"
                )
        return x.with_shape((n, c, rows, columns))

    def decompose(self, x, vertical_kernel, horizontal_kernel):
        _, _, rows, columns = self.infer(x.spec, vertical_kernel.spec, horizontal_kernel.spec).shape
        return separable_sum(
            x, cropped(vertical_kernel, rows, columns), cropped(horizontal_kernel, rows, columns)
        )

    def cost(self, x, vertical_kernel, horizontal_kernel):
        y = self.infer(x, vertical_kernel, horizontal_kernel)
        return separable_cost(x, vertical_kernel, horizontal_kernel, y)

    def samples(rng):
        x, v, u = (rng.normal(size=(2, n, 5, 6)) for n in (3, 2, 4))
        yield Sample(x, v, u)
        yield Sample(x, v[:, :, :4, :3], u[:, :, :4, :3])
        yield Sample(x, rng.normal(size=(2, 5, 1, 6)), rng.normal(size=(2, 1, 1, 6)))


def separable_cost(x, v, u, y):
    taps = v.shape[1] * u.shape[1]
    return Cost(2 * y.size * taps, x.nbytes + v.nbytes + u.nbytes + y.nbytes)


def filtered_rows(xp, x, kernel, start, axis):
    """sum_k kernel[:, k] x, x shifted by `start` pixels along one spatial axis and k on the other.

    Args:
        x: (N, C, H, W).
        kernel: (N, K, H', W'), along `axis`: 2 rows, 3 columns.
    Returns:
        (N, C, H', W').
    """
    h, w = kernel.shape[2:]
    total = None
    for k in range(kernel.shape[1]):
        i, j = (start, k) if axis == 3 else (k, start)
        part = x[:, :, i : i + h, j : j + w] * kernel[:, k, None]
        if total is None:
            total = part
        else:
            total += part
    return total


@op("separable_sum")
class separable_sum:
    """`adaptive_separable_convolution` for kernels of exactly the pixels of the result.

    Args:
        x: (N, C, H, W).
        v, u: (N, K_v, H', W') and (N, K_h, H', W').
    """

    def infer(self, x, v, u):
        return x.with_shape((*x.shape[:2], *v.shape[2:]))

    def forward(self, xp, x, v, u, out=None):
        y = xp.empty((*x.shape[:2], *v.shape[2:]), x.dtype) if out is None else out
        for i in range(v.shape[1]):
            part = filtered_rows(xp, x, u, i, 3)
            if i:
                part *= v[:, i, None]
                y += part
            else:
                xp.multiply(part, v[:, i, None], out=y)
        return y

    def portable(self, x, v, u):
        if v.shape[1] * u.shape[1] > 400:
            raise NotImplementedError("separable_sum: too many steps")
        (n, c), (h, w) = x.shape[:2], v.shape[2:]

        def part(a, channels, at):
            stop = (n, at[1] + channels, at[2] + h, at[3] + w)
            return OPS["slice"](a, start=at, stop=stop, step=(1,) * 4)

        def total(parts):
            y, *rest = parts
            for other in rest:
                y = OPS["add2"](y, other)
            return y

        rows = (
            total(
                OPS["mul2"](part(x, c, (0, 0, i, j)), part(u, 1, (0, j, 0, 0)))
                for j in range(u.shape[1])
            )
            for i in range(v.shape[1])
        )
        return total(OPS["mul2"](row, part(v, 1, (0, i, 0, 0))) for i, row in enumerate(rows))

    def vjp(self, gy, *, x, v, u, need):
        return (
            separable_data(gy, v, u) if need[0] else None,
            separable_vertical(x, u, gy) if need[1] else None,
            separable_horizontal(x, v, gy) if need[2] else None,
        )

    def cost(self, x, v, u):
        return separable_cost(x, v, u, self.infer(x, v, u))

    def samples(rng):
        yield Sample(*(rng.normal(size=s) for s in ((2, 3, 5, 6), (2, 2, 4, 4), (2, 3, 4, 4))))


@op("separable_data", outputs=("gx",))
class separable_data:
    """Gradient of `separable_sum` by x."""

    def infer(self, gy, v, u):
        n, c, h, w = gy.shape
        return gy.with_shape((n, c, h + v.shape[1] - 1, w + u.shape[1] - 1))

    def forward(self, xp, gy, v, u, out=None):
        n, c, h, w = gy.shape
        if out is None:
            out = xp.empty((n, c, h + v.shape[1] - 1, w + u.shape[1] - 1), gy.dtype)
        out[...] = 0
        part = xp.empty_like(gy)
        for i in range(v.shape[1]):
            row = gy * v[:, i, None]
            for j in range(u.shape[1]):
                xp.multiply(row, u[:, j, None], out=part)
                out[:, :, i : i + h, j : j + w] += part
        return out

    def vjp(self, ggx, *, gy, v, u, need):
        return (
            separable_sum(ggx, v, u) if need[0] else None,
            separable_vertical(ggx, u, gy) if need[1] else None,
            separable_horizontal(ggx, v, gy) if need[2] else None,
        )

    def cost(self, gy, v, u):
        return separable_cost(self.infer(gy, v, u), v, u, gy)

    def samples(rng):
        yield Sample(*(rng.normal(size=s) for s in ((2, 3, 4, 4), (2, 2, 4, 4), (2, 3, 4, 4))))


class KernelGradient:
    """Common to the gradients by the two kernels; `other` is the kernel that is left."""

    def kernel_gradient(self, xp, x, other, gy, axis, out):
        shape = self.infer(x, other, gy).shape if out is None else out.shape
        if out is None:
            out = xp.empty(shape, gy.dtype)
        for k in range(shape[1]):
            part = filtered_rows(xp, x, other, k, axis)
            out[:, k] = xp.einsum("nchw,nchw->nhw", part, gy)
        return out

    def cost(self, x, other, gy):
        taps = self.taps(x, other, gy) * other.shape[1]
        return Cost(2 * gy.size * taps, x.nbytes + other.nbytes + 2 * gy.nbytes)


@op("separable_vertical", outputs=("gv",))
class separable_vertical(KernelGradient):
    """Gradient of `separable_sum` by the vertical kernels."""

    def taps(self, x, u, gy):
        return x.shape[2] - gy.shape[2] + 1

    def infer(self, x, u, gy):
        return Spec.of((gy.shape[0], self.taps(x, u, gy), *gy.shape[2:]), gy.dtype)

    def forward(self, xp, x, u, gy, out=None):
        return self.kernel_gradient(xp, x, u, gy, 3, out)

    def vjp(self, ggv, *, x, u, gy, need):
        return (
            separable_data(gy, ggv, u) if need[0] else None,
            separable_horizontal(x, ggv, gy) if need[1] else None,
            separable_sum(x, ggv, u) if need[2] else None,
        )

    def samples(rng):
        yield Sample(*(rng.normal(size=s) for s in ((2, 3, 5, 6), (2, 3, 4, 4), (2, 3, 4, 4))))


@op("separable_horizontal", outputs=("gu",))
class separable_horizontal(KernelGradient):
    """Gradient of `separable_sum` by the horizontal kernels."""

    def taps(self, x, v, gy):
        return x.shape[3] - gy.shape[3] + 1

    def infer(self, x, v, gy):
        return Spec.of((gy.shape[0], self.taps(x, v, gy), *gy.shape[2:]), gy.dtype)

    def forward(self, xp, x, v, gy, out=None):
        return self.kernel_gradient(xp, x, v, gy, 2, out)

    def vjp(self, ggu, *, x, v, gy, need):
        return (
            separable_data(gy, v, ggu) if need[0] else None,
            separable_vertical(x, ggu, gy) if need[1] else None,
            separable_sum(x, v, ggu) if need[2] else None,
        )

    def samples(rng):
        yield Sample(*(rng.normal(size=s) for s in ((2, 3, 5, 6), (2, 2, 4, 4), (2, 3, 4, 4))))
