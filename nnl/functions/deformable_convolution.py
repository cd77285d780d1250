# SPDX-License-Identifier: Apache-2.0
"""Convolution whose kernel sees pixels at positions that are data."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from nnl.core.arguments.convert import Spatial
from nnl.core.arrays.spec import ShapeError
from nnl.core.ops.op import OPS, Cost, Sample, op
from nnl.functions.affine import batch_matmul
from nnl.functions.arithmetic import add2, mul2
from nnl.functions.convolution import (
    Sliding,
    check_bias,
    convolved,
    flops,
    kernel_of,
    resolve_window,
    split,
)
from nnl.functions.layout import held, transpose
from nnl.functions.pixel_sampling import linear_taps, sample_pixels
from nnl.functions.reduction import reshape

CATEGORY = "Layer"

__all__ = ["deformable_convolution"]


@op("deformable_convolution", narrow=True, nnp="DeformableConvolution")
class deformable_convolution(Sliding):
    r"""Convolution that sees, for every result, pixels moved by offsets and scaled by a mask.

    $$y_{n,o,p} = b_o + \sum_{c,k} m_{n,k,p}\;
      x_{n,\,c,\,s p + d k - \mathrm{pad} + \Delta_{n,k,p}}\; w_{o,c,k}$$

    with the values between pixels by linear interpolation and zeros outside of the image.

    Args:
        x: (*batch, C, *S), or (*batch, *S, C) if channel_last.
        weight: (O, C/group, *K), or (O, *K, C/group) if channel_last.
        offset: (*batch, G k d, *S'), or (*batch, *S', G k d) if channel_last, in pixels, with G
            deformable groups, the k = prod(K) taps of a kernel, row by row, and for each tap a move
            along each of the d spatial axes, the first axis first. Spatial sizes S of x are
            accepted too: the values at multiples of the stride are used then.
        mask: (*batch, G k, *S'), or (*batch, *S', G k) if channel_last; ones if left out. Sizes S
            are accepted too.
        bias: (O,), optional.
        base_axis, pad, stride, dilation, group, channel_last: As for `convolution`.
        deformable_group: The channels are split into this many groups, which have offsets and
            masks of their own.
    Returns:
        (*batch, O, *S'), the shape that `convolution` gives.
    Raises:
        ShapeError: Channels, ranks or sizes do not fit, or the kernel is larger than the padded
            image.
        ValueError: pad < 0, stride < 1, dilation < 1 or deformable_group < 1.
    Source: Dai et al., Deformable Convolutional Networks, arXiv:1703.06211; the mask: Zhu et al.,
        arXiv:1811.11168.
    """

    base_axis: int = 1
    pad: Spatial | None = None
    stride: Spatial | None = None
    dilation: Spatial | None = None
    group: int = 1
    deformable_group: int = 1
    channel_last: bool = False

    def resolve(self, x, weight, offset, mask=None, bias=None):
        return resolve_window(self, x)

    def infer(self, x, weight, offset, mask=None, bias=None):
        y = convolved(self, x, weight)
        check_bias("deformable_convolution", bias, weight.shape[0])
        groups, channels = self.deformable_group, split(self, x.shape)[1]
        if groups < 1:
            raise ValueError(f"deformable_convolution: deformable_group is {groups}, wanted >= 1")
        if channels % groups:
            raise ShapeError(
                f"deformable_convolution: x {x} has {channels} channels, not a multiple of "
                f"deformable_group {groups}"
            )
        kernel = kernel_of(self, weight.shape)
        taps = groups * math.prod(kernel)
        self.check_moves("offset", offset, x, y, taps * len(kernel))
        if mask is not None:
            self.check_moves("mask", mask, x, y, taps)
        return y

    def check_moves(self, arg, moves, x, y, channels):
        """Raise unless offset or mask has as many channels and the sizes of y, or of x."""
        lead, _, out = split(self, y.shape)
        size = split(self, x.shape)[2]
        sizes = [out]
        if all((o - 1) * t < n for o, t, n in zip(out, self.stride, size, strict=True)):
            sizes.append(size)
        shapes = [
            (*lead, *s, channels) if self.channel_last else (*lead, channels, *s) for s in sizes
        ]
        if moves.shape not in shapes:
            wanted = " or ".join(str(s) for s in dict.fromkeys(shapes))
            raise ShapeError(
                f"deformable_convolution: {arg} {moves} must have the shape {wanted} "
                f"for x {x} and result {y}"
            )

    def decompose(self, x, weight, offset, mask=None, bias=None):
        y_shape = self.infer(*(None if v is None else v.spec for v in (x, weight, offset)))
        lead, maps, out = split(self, y_shape.shape)
        _, channels, size = split(self, x.shape)
        kernel = kernel_of(self, weight.shape)
        n, d, k, pixels = math.prod(lead), len(size), math.prod(kernel), math.prod(out)
        group, groups = self.group, self.deformable_group
        moves = reshape(self.at_results(offset, out), (n * groups, k, d, pixels))
        moves = reshape(transpose(moves, axes=(0, 2, 1, 3)), (n * groups, d, k * pixels))
        positions = add_window_positions(
            moves, kernel=kernel, out=out, pad=self.pad, stride=self.stride, dilation=self.dilation
        )
        index, weights = linear_taps(positions, size)
        if mask is not None:
            weights = mul2(
                weights, reshape(self.at_results(mask, out), (n * groups, 1, k * pixels))
            )
        images = reshape(self.channels_first(x), (n * groups, channels // groups, math.prod(size)))
        columns = sample_pixels(images, index, weights)
        depth = channels // group * k
        columns = reshape(columns, (n, group, depth, pixels))
        if self.channel_last:
            weight = transpose(weight, axes=(0, d + 1, *range(1, d + 1)))
        y = batch_matmul(reshape(weight, (1, group, maps // group, depth)), columns)
        y = reshape(y, (n, maps, pixels))
        if bias is not None:
            y = add2(y, reshape(bias, (1, maps, 1)))
        if self.channel_last:
            y = transpose(y, axes=(0, 2, 1))
        return reshape(y, y_shape.shape)

    def channels_first(self, x):
        """x as (N, C, *S)."""
        lead, channels, size = split(self, x.shape)
        x = reshape(x, (math.prod(lead), *x.shape[self.base_axis :]))
        if self.channel_last:
            d = len(size)
            x = transpose(x, axes=(0, d + 1, *range(1, d + 1)))
        return x

    def at_results(self, moves, out):
        """Offset or mask as (N, channels, *S'), read at multiples of the stride if larger."""
        moves = self.channels_first(moves)
        if moves.shape[2:] == out:
            return moves
        stop = tuple((o - 1) * s + 1 for o, s in zip(out, self.stride, strict=True))
        d = len(out)
        return OPS["slice"](
            moves, start=(0,) * (d + 2), stop=(*moves.shape[:2], *stop), step=(1, 1, *self.stride)
        )

    def cost(self, x, weight, offset, mask=None, bias=None):
        y = self.infer(x, weight, offset, mask, bias)
        _, channels, size = split(self, x.shape)
        d, k = len(size), math.prod(kernel_of(self, weight.shape))
        columns = y.size // weight.shape[0] * channels * k
        return Cost(
            flops(self, y, weight) + 2 * 2**d * columns,
            x.nbytes + weight.nbytes + offset.nbytes + y.nbytes + 2 * columns * x.dtype.itemsize,
        )

    def samples(rng):
        x, w, b = rng.normal(size=(2, 4, 5, 4)), rng.normal(size=(6, 4, 3, 3)), rng.normal(size=6)
        offset, mask = rng.normal(size=(2, 18, 5, 4)), rng.normal(size=(2, 9, 5, 4))
        yield Sample(x, w, offset, mask, b, pad=(1, 1))
        yield Sample(x, w, offset, None, None, pad=(1, 1))
        yield Sample(x, w, offset, mask, None, pad=(2, 1), stride=(2, 1), dilation=(2, 1))
        w, offset = rng.normal(size=(2, 2, 2, 1)), rng.normal(size=(2, 8, 5, 4))
        mask = rng.normal(size=(2, 4, 5, 4))
        yield Sample(x, w, offset, mask, None, stride=(2, 2), group=2, deformable_group=2)
        yield Sample(x[None], w, offset[None], None, None, base_axis=2, group=2, deformable_group=2)
        yield Sample(
            rng.normal(size=(1, 5, 4, 4)),
            rng.normal(size=(2, 2, 1, 4)),
            rng.normal(size=(1, 4, 4, 4)),
            rng.normal(size=(1, 4, 4, 2)),
            rng.normal(size=2),
            channel_last=True,
        )
        yield Sample(x[:0], w, offset[:0], None, None, stride=(2, 2), group=2, deformable_group=2)


@lru_cache(maxsize=64)
def window_positions(kernel, out, pad, stride, dilation):
    """Where every tap of a kernel lies for every result: (d, taps, results), in pixels."""
    axes = [
        np.arange(k)[:, None] * t + np.arange(o) * s - p
        for k, o, p, s, t in zip(kernel, out, pad, stride, dilation, strict=True)
    ]
    d, shape = len(out), (*kernel, *out)
    grids = []
    for i, axis in enumerate(axes):
        view = [1] * (2 * d)
        view[i], view[d + i] = axis.shape
        grids.append(np.broadcast_to(axis.reshape(view), shape).reshape(-1))
    return np.stack(grids)


@op("add_window_positions", wide=True)
class add_window_positions:
    """Moves of the taps of a sliding kernel plus where the taps lie unmoved.

    Args:
        moves: (B, d, taps * results), in pixels.
        kernel, out, pad, stride, dilation: d sizes of the kernel and of the result, and how the
            kernel slides.
    """

    kernel: Spatial
    out: tuple[int, ...]
    pad: Spatial
    stride: Spatial
    dilation: Spatial

    def infer(self, moves):
        return moves

    def forward(self, xp, moves, out=None):
        grid = window_positions(self.kernel, self.out, self.pad, self.stride, self.dilation)
        return xp.add(moves, xp.asarray(grid, moves.dtype), out=out)

    def portable(self, moves):
        grid = window_positions(self.kernel, self.out, self.pad, self.stride, self.dilation)
        return add2(moves, held(np.asarray(grid, moves.spec.dtype)[None]))

    def vjp(self, gy):
        return gy

    def cost(self, moves):
        return Cost(moves.size, 2 * moves.nbytes)

    def samples(rng):
        yield Sample(
            rng.normal(size=(2, 2, 8)), kernel=(2, 1), out=(2, 2), pad=(1, 0), stride=(1, 2),
            dilation=(2, 1),
        )  # fmt: skip
