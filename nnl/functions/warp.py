# SPDX-License-Identifier: Apache-2.0
"""Warping of images and volumes: grids of an affine map, sampling at a grid, moving by a flow."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from nnl.core.arrays.spec import ShapeError, Spec, check_rank
from nnl.core.ops.op import OPS, Cost, Sample, op
from nnl.functions.arithmetic import mul2
from nnl.functions.deformable_convolution import add_window_positions
from nnl.functions.layout import held, transpose
from nnl.functions.pixel_sampling import sample_linear, sample_nearest
from nnl.functions.reduction import reshape

CATEGORY = "Geometry"

__all__ = ["affine_grid", "warp_by_grid", "warp_by_flow"]


@lru_cache(maxsize=64)
def base_grid(size, align_corners):
    """Normalized coordinates of all pixels and a 1: (pixels, d + 1), the last axis first."""
    axes = []
    for n in size:
        axis = np.linspace(-1, 1, n) if n > 1 else np.zeros(1)
        axes.append(axis if align_corners else axis * ((n - 1) / n))
    grids = np.meshgrid(*axes, indexing="ij")[::-1]
    return np.stack([*(g.reshape(-1) for g in grids), np.ones(grids[0].size)], axis=1)


class Affine:
    """Attributes of affine_grid and of its gradient."""

    size: tuple[int, ...]
    align_corners: bool = False

    def cost(self, x):
        y = self.infer(x)
        d = len(self.size)
        return Cost(2 * d * (d + 1) * max(x.size, y.size) // d, x.nbytes + y.nbytes)


@op("affine_grid", wide=True, nnp="AffineGrid")
class affine_grid(Affine):
    r"""Coordinates of all pixels after an affine map, for `warp_by_grid`.

    $$g_{b,p} = \theta_b\, (x_p, y_p, 1)^T$$, or $(x_p, y_p, z_p, 1)^T$ for volumes, with
    coordinates from -1 to 1 over an axis: between the centres of the first and last pixels if
    align_corners, else between their outer borders. An axis of one pixel has the coordinate 0.

    Args:
        theta: (B, 2, 3) for images, (B, 3, 4) for volumes.
        size: (H, W) or (D, H, W) of the grid, in pixels.
    Returns:
        (B, *size, d) with coordinates x, y(, z), x along the last axis of an image.
    Raises:
        ShapeError: theta has another shape.
        ValueError: size has neither 2 nor 3 entries, or one below 1.
    Source: Jaderberg et al., Spatial Transformer Networks, arXiv:1506.02025.
    """

    def infer(self, theta):
        d = len(self.size)
        if d not in (2, 3) or min(self.size) < 1:
            raise ValueError(f"affine_grid: size is {self.size}, wanted 2 or 3 sizes >= 1")
        if theta.ndim != 3 or theta.shape[1:] != (d, d + 1):
            raise ShapeError(
                f"affine_grid: theta {theta} must have the shape (B, {d}, {d + 1}) "
                f"for size {self.size}"
            )
        return theta.with_shape((theta.shape[0], *self.size, d))

    def forward(self, xp, theta):
        base = xp.asarray(base_grid(self.size, self.align_corners), theta.dtype)
        y = xp.matmul(base, theta.swapaxes(1, 2))
        return y.reshape(theta.shape[0], *self.size, len(self.size))

    def portable(self, theta):
        base = held(np.asarray(base_grid(self.size, self.align_corners), theta.spec.dtype)[None])
        y = OPS["batch_matmul"](base, theta, transpose_b=True)
        return reshape(y, (theta.shape[0], *self.size, len(self.size)))

    def vjp(self, gy):
        return affine_grid_backward(gy, size=self.size, align_corners=self.align_corners)

    def samples(rng):
        for align_corners in (False, True):
            yield Sample(rng.normal(size=(2, 2, 3)), size=(3, 4), align_corners=align_corners)
            yield Sample(rng.normal(size=(2, 3, 4)), size=(2, 3, 4), align_corners=align_corners)
        yield Sample(np.zeros((0, 2, 3)), size=(3, 4))


@op("affine_grid_backward", outputs=("gtheta",))
class affine_grid_backward(Affine):
    """Gradient of `affine_grid`: products with the coordinates, summed over the pixels."""

    def infer(self, gy):
        d = len(self.size)
        return gy.with_shape((gy.shape[0], d, d + 1))

    def forward(self, xp, gy):
        base = xp.asarray(base_grid(self.size, self.align_corners), gy.dtype)
        return xp.matmul(gy.reshape(len(gy), len(base), len(self.size)).swapaxes(1, 2), base)

    def vjp(self, ggtheta):
        return affine_grid(ggtheta, size=self.size, align_corners=self.align_corners)

    def samples(rng):
        yield Sample(rng.normal(size=(2, 3, 4, 2)), size=(3, 4))


@op("grid_positions", wide=True)
class grid_positions:
    """Normalized coordinates as positions in pixels, with the first axis of the image first.

    Args:
        grid: (B, P, d), coordinates in [-1, 1], those along the last axis of the image first.
        sizes: d sizes of the image.
        align_corners: See `warp_by_grid`.
        linear: Leave out the constant part, so that the map is linear.
    Returns:
        (B, d, P).
    """

    sizes: tuple[int, ...]
    align_corners: bool = False
    linear: bool = False

    def infer(self, grid):
        b, n, d = grid.shape
        return grid.with_shape((b, d, n))

    def scale(self, xp, dtype):
        """Pixels per unit of each coordinate: (d, 1)."""
        half = [(n - 1 if self.align_corners else n) / 2 for n in self.sizes]
        return xp.asarray(half, dtype)[:, None]

    def forward(self, xp, grid, out=None):
        positions = xp.ascontiguousarray(grid[:, :, ::-1].swapaxes(1, 2))
        y = xp.multiply(positions, self.scale(xp, grid.dtype), out=out)
        if not self.linear:
            # the middle of an axis is at 0
            y += xp.asarray([(n - 1) / 2 for n in self.sizes], grid.dtype)[:, None]
        return y

    def portable(self, grid):
        y = transpose(OPS["flip"](grid, axes=(2,)), axes=(0, 2, 1))
        y = mul2(y, held(self.scale(np, grid.spec.dtype)[None]))
        if self.linear:
            return y
        middle = np.asarray([(n - 1) / 2 for n in self.sizes], grid.spec.dtype)
        return OPS["add2"](y, held(middle[None, :, None]))

    def vjp(self, gy):
        return grid_positions_backward(gy, sizes=self.sizes, align_corners=self.align_corners)

    def cost(self, grid):
        return Cost(2 * grid.size, 2 * grid.nbytes)

    def samples(rng):
        for align_corners in (False, True):
            yield Sample(rng.normal(size=(2, 5, 2)), sizes=(3, 4), align_corners=align_corners)
        yield Sample(rng.normal(size=(2, 5, 3)), sizes=(3, 4, 2), linear=True)


@op("grid_positions_backward", outputs=("ggrid",))
class grid_positions_backward:
    """Gradient of `grid_positions`: (B, d, P) to (B, P, d)."""

    sizes: tuple[int, ...]
    align_corners: bool = False

    def infer(self, gy):
        b, d, n = gy.shape
        return gy.with_shape((b, n, d))

    def forward(self, xp, gy, out=None):
        scale = grid_positions.attrs(sizes=self.sizes, align_corners=self.align_corners)
        y = gy * scale.scale(xp, gy.dtype)
        y = y[:, ::-1].swapaxes(1, 2)
        if out is None:
            return xp.ascontiguousarray(y)
        out[...] = y
        return out

    def vjp(self, ggrid):
        return grid_positions(
            ggrid, sizes=self.sizes, align_corners=self.align_corners, linear=True
        )

    def cost(self, gy):
        return Cost(gy.size, 2 * gy.nbytes)

    def samples(rng):
        yield Sample(rng.normal(size=(2, 2, 5)), sizes=(3, 4))


@op("folded_positions", outputs=("y", "slope"), hidden=1, wide=True)
class folded_positions:
    """Positions brought into an image: clamped to it, or reflected at its ends.

    Args:
        p: (B, d, P), in pixels.
        sizes: d sizes of the image.
        padding_mode: "repeat" or "reflect".
        align_corners: Reflect at the centres of the first and last pixels, not at their borders.
    Returns:
        y: The shape of p; for backward its derivative, -1, 0 or 1.
    """

    sizes: tuple[int, ...]
    padding_mode: str = "repeat"
    align_corners: bool = False

    def infer(self, p):
        return p, p

    def forward(self, xp, p):
        slope = xp.ones_like(p)
        y = p.copy()
        for k, n in enumerate(self.sizes):
            axis, sign = y[:, k], slope[:, k]
            if self.padding_mode == "reflect":
                self.reflect(xp, axis, sign, n)
            xp.copyto(sign, 0, where=(axis < 0) | (axis > n - 1))
            xp.clip(axis, 0, n - 1, out=axis)
        return y, slope

    def reflect(self, xp, axis, sign, n):
        low, length = (0.0, n - 1.0) if self.align_corners else (-0.5, float(n))
        if length == 0:
            axis[...] = 0
            sign[...] = 0
            return
        distance = axis - low
        xp.copyto(sign, -1, where=distance < 0)
        xp.abs(distance, out=distance)
        turns = xp.floor(distance / length)
        distance -= turns * length
        odd = turns % 2 == 1
        xp.multiply(sign, xp.where(odd, -1, 1).astype(sign.dtype), out=sign)
        axis[...] = xp.where(odd, length - distance, distance) + low

    def portable(self, p):
        last = held(np.asarray(self.sizes, p.spec.dtype)[None, :, None] - 1)
        turned = OPS["constant"](val=1.0, shape=p.shape)
        if self.padding_mode == "reflect":
            low, n = (0.0, last) if self.align_corners else (-0.5, OPS["add_scalar"](last, 1.0))
            flat = OPS["equal_scalar"](n, 0.0)
            n, there = OPS["add2"](n, flat), OPS["logical_not"](flat)
            before = OPS["add_scalar"](p, -low)
            distance = OPS["abs"](before)
            turns = OPS["floor"](OPS["div2"](distance, n))
            distance = OPS["sub2"](distance, mul2(turns, n))
            half = OPS["floor"](OPS["mul_scalar"](turns, 0.5))
            odd = OPS["sub2"](turns, OPS["mul_scalar"](half, 2.0))
            back = OPS["sub2"](n, OPS["mul_scalar"](distance, 2.0))
            p = OPS["add_scalar"](OPS["add2"](distance, mul2(odd, back)), low)
            p = mul2(p, there)
            turned = OPS["r_sub_scalar"](OPS["mul_scalar"](odd, 2.0), 1.0)
            left = OPS["mul_scalar"](OPS["less_scalar"](before, 0.0), 2.0)
            turned = mul2(mul2(turned, OPS["r_sub_scalar"](left, 1.0)), there)
        inside = mul2(OPS["greater_equal_scalar"](p, 0.0), OPS["less_equal"](p, last))
        y = OPS["maximum_scalar"](OPS["minimum2"](p, last), 0.0)
        return y, mul2(turned, inside)

    def vjp(self, gy, gslope, *, slope):
        return mul2(gy, slope)

    def cost(self, p):
        return Cost(8 * p.size, 3 * p.nbytes)

    def samples(rng):
        p = rng.normal(size=(2, 2, 9)) * 6 + 0.013
        for align_corners in (False, True):
            for mode in ("repeat", "reflect"):
                yield Sample(p, sizes=(3, 4), padding_mode=mode, align_corners=align_corners)
        yield Sample(p, sizes=(1, 4), padding_mode="reflect", align_corners=True)


@op("warp_by_grid", nnp="WarpByGrid")
class warp_by_grid:
    r"""Read images or volumes at the coordinates of a grid.

    $$y_i = \sum_j x_j \prod_a h(p_{i a} - j_a)$$ over all pixels j, where $p_i$ is the position, in
    pixels, that the grid has at i, and $h(t) = \max(0, 1 - |t|)$, or for "nearest" 1
    at the nearest pixel.

    A coordinate of -1 is the first pixel of an axis and 1 the last: their centres if align_corners,
    else their outer borders. So c is at (c + 1) (S - 1) / 2, or ((c + 1) S - 1) / 2, pixels.

    Args:
        x: (B, C, H, W) or (B, C, D, H, W), channels last if channel_last.
        grid: (B, *S', d), coordinates x, y(, z), x along the last axis of an image.
        mode: "linear", or "nearest" for the pixel nearest to the position.
        padding_mode: What lies outside: "zero", "repeat" for the pixel at the border, "reflect".
        align_corners: See above; it also says where "reflect" mirrors.
        channel_last: Channels are the last axis.
    Returns:
        (B, C, *S'), or (B, *S', C).
    Raises:
        ShapeError: Ranks, batch sizes or the number of coordinates do not fit.
        ValueError: mode or padding_mode is unknown.
    Source: Jaderberg et al., Spatial Transformer Networks, arXiv:1506.02025.
    """

    mode: str = "linear"
    padding_mode: str = "zero"
    align_corners: bool = False
    channel_last: bool = False

    def infer(self, x, grid):
        name = "warp_by_grid"
        if self.mode not in ("linear", "nearest"):
            raise ValueError(f"{name}: mode is {self.mode!r}, wanted 'linear' or 'nearest'")
        if self.padding_mode not in ("zero", "repeat", "reflect"):
            raise ValueError(
                f"{name}: padding_mode is {self.padding_mode!r}, "
                "wanted 'zero', 'repeat' or 'reflect'"
            )
        check_rank(name, "x", x, 4, 5)
        d = x.ndim - 2
        if grid.ndim != d + 2 or grid.shape[0] != x.shape[0] or grid.shape[-1] != d:
            sizes = ", ".join(["H'", "W'"] if d == 2 else ["D'", "H'", "W'"])
            raise ShapeError(
                f"{name}: grid {grid} must have the shape ({x.shape[0]}, {sizes}, {d}) for x {x}"
            )
        out = grid.shape[1:-1]
        _, channels, sizes = self.parts(x.shape)
        if 0 in sizes:
            raise ShapeError(f"{name}: x {x} has no pixels")
        if self.channel_last:
            return Spec.of((x.shape[0], *out, channels), x.dtype)
        return Spec.of((x.shape[0], channels, *out), x.dtype)

    def parts(self, shape):
        """(batch size, channels, spatial sizes)."""
        if self.channel_last:
            return shape[0], shape[-1], shape[1:-1]
        return shape[0], shape[1], shape[2:]

    def decompose(self, x, grid):
        b, channels, sizes = self.parts(x.shape)
        out, d = grid.shape[1:-1], len(sizes)
        if self.channel_last:
            x = transpose(x, axes=(0, d + 1, *range(1, d + 1)))
        p = grid_positions(
            reshape(grid, (b, math.prod(out), d)), sizes=sizes, align_corners=self.align_corners
        )
        if self.padding_mode != "zero":
            p = folded_positions(
                p, sizes=sizes, padding_mode=self.padding_mode, align_corners=self.align_corners
            )
        y = (sample_linear if self.mode == "linear" else sample_nearest)(x, p, sizes)
        if self.channel_last:
            return reshape(transpose(y, axes=(0, 2, 1)), (b, *out, channels))
        return reshape(y, (b, channels, *out))

    def cost(self, x, grid):
        y = self.infer(x, grid)
        taps = 2 ** (x.ndim - 2) if self.mode == "linear" else 1
        return Cost(2 * taps * y.size, taps * y.nbytes + grid.nbytes + y.nbytes)

    def samples(rng):
        x, grid = rng.normal(size=(2, 3, 4, 5)), rng.uniform(-1.9, 1.9, (2, 3, 2, 2))
        for mode in ("linear", "nearest"):
            for padding_mode in ("zero", "repeat", "reflect"):
                for align_corners in (False, True):
                    yield Sample(
                        x, grid, mode=mode, padding_mode=padding_mode, align_corners=align_corners
                    )
        x, grid = rng.normal(size=(2, 2, 3, 4, 5)), rng.uniform(-1.9, 1.9, (2, 2, 3, 1, 3))
        for padding_mode in ("zero", "repeat", "reflect"):
            yield Sample(x, grid, padding_mode=padding_mode)
        yield Sample(x, grid, mode="nearest")
        yield Sample(x, grid, channel_last=True)
        yield Sample(x[:0], grid[:0])


@op("warp_by_flow", nnp="WarpByFlow")
class warp_by_flow:
    r"""Move the pixels of images: every result is read at its own place plus a flow.

    $$y_{n,c,h,w} = x_{n,\,c,\,h + f_{n,1,h,w},\,w + f_{n,0,h,w}}$$

    with linear interpolation between pixels, and the pixel at the border outside of the image.

    Args:
        data: (N, C, H, W), $x$.
        flow: (N, 2, H, W), $f$: along the width, then along the height, in pixels.
    Returns:
        (N, C, H, W).
    Raises:
        ShapeError: A rank is not 4, or the sizes differ.
    Source: Ilg et al., FlowNet 2.0, arXiv:1612.01925, section 3.
    """

    def infer(self, data, flow):
        check_rank("warp_by_flow", "data", data, 4)
        n, _, h, w = data.shape
        if flow.shape != (n, 2, h, w):
            raise ShapeError(
                f"warp_by_flow: flow {flow} must have the shape {(n, 2, h, w)} for data {data}"
            )
        if h * w == 0:
            raise ShapeError(f"warp_by_flow: data {data} has no pixels")
        return data

    def decompose(self, data, flow):
        n, _, *sizes = data.shape
        moves = reshape(OPS["flip"](flow, axes=(1,)), (n, 2, math.prod(sizes)))
        p = add_window_positions(
            moves, kernel=(1, 1), out=sizes, pad=(0, 0), stride=(1, 1), dilation=(1, 1)
        )
        return reshape(sample_linear(data, folded_positions(p, sizes=sizes), sizes), data.shape)

    def cost(self, data, flow):
        return Cost(8 * data.size, 6 * data.nbytes + flow.nbytes)

    def samples(rng):
        yield Sample(rng.normal(size=(2, 3, 4, 5)), rng.uniform(-4, 4, (2, 2, 4, 5)))
        yield Sample(rng.normal(size=(1, 1, 1, 3)), rng.uniform(-4, 4, (1, 2, 1, 3)))
        yield Sample(np.zeros((0, 3, 4, 5)), np.zeros((0, 2, 4, 5)))
