# SPDX-License-Identifier: Apache-2.0
"""Values of images between their pixels: what deformable convolution and warping are made of.

Every result is a weighted sum of some pixels, its taps. That sum is linear in the images and in the
weights, and its gradients by either are linear too; the gradients of any one of these three maps
are the other two, so derivatives of every order need no further rules. Images are (B, C, S) here,
all pixels on one axis, taps (B, T, P): T pixels for each of P results.

Positions are float32 wherever results have 16 bits: bfloat16 has no number between 256 and 258.
"""

from __future__ import annotations

import math

import numpy as np

from nnl.core.arrays.spec import ShapeError
from nnl.core.ops.op import OPS, Cost, Sample, op
from nnl.functions.arithmetic import mul2, r_sub_scalar, sub2
from nnl.functions.on_device import add_at, take
from nnl.functions.reduction import reshape

CATEGORY = "Signal processing"

__all__: list[str] = []

_BLOCK = 1 << 16  # elements of one temporary, to stay in the second-level cache


def take_pixels(xp, x, index, weight, y):
    """y[c, p] = sum_t weight[t, p] x[c, index[t, p]] for one image.

    Args:
        x, y: (C, S) and (C, P).
        index, weight: (T, P), the indices valid.
    """
    step = max(1, _BLOCK // max(1, index.shape[1]))
    for c in range(0, len(x), step):
        image, out = x[c : c + step], y[c : c + step]
        for t, (i, w) in enumerate(zip(index, weight, strict=True)):
            part = take(xp, image, i, 1)
            if t:
                part *= w
                out += part
            else:
                xp.multiply(part, w, out=out)


def spread_pixels(xp, gy, index, weight, gx):
    """The transpose of `take_pixels`: gx[c, s] = sum of weight[t, p] gy[c, p], index[t, p] = s."""
    size = gx.shape[1]
    step = max(1, _BLOCK // max(1, index.size))
    for c in range(0, len(gy), step):
        part = gy[c : c + step]
        n = len(part)
        at = (index + (xp.arange(n) * size)[:, None, None]).reshape(-1)
        values = (weight * part[:, None, :]).reshape(-1)
        gx[c : c + step] = add_at(xp, at, values, n * size).reshape(n, size)


def check_taps(name, x, index, weight=None):
    """Raise unless images x and taps belong together."""
    if index.ndim != 3 or x.ndim != 3 or x.shape[0] != index.shape[0]:
        raise ShapeError(f"{name}: x {x} and index {index} must be (B, C, S) and (B, T, P)")
    if weight is not None and weight.shape != index.shape:
        raise ShapeError(f"{name}: weight {weight} must have the shape of index {index}")


def sampling_cost(x, index, *others):
    """Cost of one of the three maps: a product and a sum for every tap and channel."""
    channels = x.shape[1]
    return Cost(
        2 * index.size * channels,
        x.nbytes + index.nbytes + sum(s.nbytes for s in others) + index.size * channels * 4,
    )


@op("sample_pixels", integer=("index",))
class sample_pixels:
    r"""Weighted sums of pixels: $y_{b,c,p} = \sum_t w_{b,t,p}\, x_{b,c,index_{b,t,p}}$.

    Args:
        x: (B, C, S).
        index: (B, T, P), integers in [0, S).
        weight: (B, T, P).
    Returns:
        (B, C, P).
    Raises:
        ShapeError: Ranks or sizes do not fit.
    """

    def infer(self, x, index, weight):
        check_taps("sample_pixels", x, index, weight)
        return x.with_shape((*x.shape[:2], index.shape[2]))

    def forward(self, xp, x, index, weight, out=None):
        if out is None:
            out = xp.empty((*x.shape[:2], index.shape[2]), x.dtype)
        if not x.size or not index.size:  # without pixels all weights are 0
            out[...] = 0
            return out
        for b in range(len(x)):
            take_pixels(xp, x[b], index[b], weight[b], out[b])
        return out

    def vjp(self, gy, *, x, index, weight, need):
        return (
            spread_to_pixels(gy, index, weight, size=x.shape[2]) if need[0] else None,
            None,
            pixel_products(x, gy, index) if need[2] else None,
        )

    def cost(self, x, index, weight):
        return sampling_cost(x, index, weight)

    def samples(rng):
        index = rng.integers(0, 5, (2, 3, 4))
        yield Sample(rng.normal(size=(2, 6, 5)), index, rng.normal(size=(2, 3, 4)))
        yield Sample(np.zeros((0, 6, 5)), index[:0], np.zeros((0, 3, 4)))


@op("spread_to_pixels", outputs=("gx",), integer=("index",))
class spread_to_pixels:
    """Gradient of `sample_pixels` by x: every result spread over its taps.

    Args:
        gy: (B, C, P).
        index, weight: (B, T, P).
        size: Number S of pixels.
    Returns:
        (B, C, S).
    """

    size: int

    def infer(self, gy, index, weight):
        check_taps("spread_to_pixels", gy, index, weight)
        return gy.with_shape((*gy.shape[:2], self.size))

    def forward(self, xp, gy, index, weight, out=None):
        if out is None:
            out = xp.empty((*gy.shape[:2], self.size), gy.dtype)
        if not self.size or not index.size:
            out[...] = 0
            return out
        for b in range(len(gy)):
            spread_pixels(xp, gy[b], index[b], weight[b], out[b])
        return out

    def vjp(self, ggx, *, gy, index, weight, need):
        return (
            sample_pixels(ggx, index, weight) if need[0] else None,
            None,
            pixel_products(ggx, gy, index) if need[2] else None,
        )

    def cost(self, gy, index, weight):
        return sampling_cost(gy, index, weight)

    def samples(rng):
        index = rng.integers(0, 5, (2, 3, 4))
        yield Sample(rng.normal(size=(2, 6, 4)), index, rng.normal(size=(2, 3, 4)), size=5)


@op("pixel_products", outputs=("gw",), integer=("index",))
class pixel_products:
    r"""Gradient of `sample_pixels` by the weights: $\sum_c gy_{b,c,p}\, x_{b,c,index_{b,t,p}}$.

    Args:
        x: (B, C, S).
        gy: (B, C, P).
        index: (B, T, P).
    Returns:
        (B, T, P).
    """

    def infer(self, x, gy, index):
        check_taps("pixel_products", x, index)
        return gy.with_shape(index.shape)

    def forward(self, xp, x, gy, index, out=None):
        if out is None:
            out = xp.empty(index.shape, gy.dtype)
        out[...] = 0
        if not x.size:
            return out
        step = max(1, _BLOCK // max(1, index.shape[2]))
        for b in range(len(x)):
            for c in range(0, x.shape[1], step):
                image, part = x[b, c : c + step], gy[b, c : c + step]
                for t, i in enumerate(index[b]):
                    pixels = take(xp, image, i, 1)
                    out[b, t] += xp.einsum("cp,cp->p", pixels, part)
        return out

    def vjp(self, ggw, *, x, gy, index, need):
        return (
            spread_to_pixels(gy, index, ggw, size=x.shape[2]) if need[0] else None,
            sample_pixels(x, index, ggw) if need[1] else None,
            None,
        )

    def cost(self, x, gy, index):
        return sampling_cost(x, index, gy)

    def samples(rng):
        index = rng.integers(0, 5, (2, 3, 4))
        yield Sample(rng.normal(size=(2, 6, 5)), rng.normal(size=(2, 6, 4)), index)


@op("corner_pixels", outputs=("index", "inside", "low"))
class corner_pixels:
    """The pixels around positions in an image, and which of them exist.

    Args:
        p: (B, d, P), the position on each of d spatial axes, in pixels.
        sizes: d sizes of the image.
        nearest: Give the one pixel nearest to each position instead; halves are rounded away
            from 0.
    Returns:
        index: (B, T, P), pixels counted row by row; T = 2^d, the first axis varies slowest. 0 for
            a pixel outside.
        inside: (B, T, P), 1 for a pixel of the image, 0 outside.
        low: (B, d, P), positions rounded down.
    """

    sizes: tuple[int, ...]
    nearest: bool = False

    def infer(self, p):
        if p.ndim != 3 or p.shape[1] != len(self.sizes):
            raise ShapeError(f"corner_pixels: p {p} must be (B, {len(self.sizes)}, P)")
        taps = 1 if self.nearest else 2 ** len(self.sizes)
        y = p.with_shape((p.shape[0], taps, p.shape[2]))
        return y.with_dtype(np.int64), y, p

    def forward(self, xp, p):
        low = xp.trunc(p + xp.copysign(0.5, p)) if self.nearest else xp.floor(p)
        b, _, n = p.shape
        index = xp.zeros((b, 1, n), np.int64)
        inside = xp.ones((b, 1, n), bool)
        for k, size in enumerate(self.sizes):
            row = low[:, k : k + 1]
            # not a number is outside too: comparisons with it are false
            corners = row if self.nearest else xp.concatenate((row, row + 1), axis=1)
            valid = (corners >= 0) & (corners < size)
            corners = xp.where(valid, corners, 0).astype(np.int64)
            taps = index.shape[1] * corners.shape[1]
            index = (index[:, :, None] * size + corners[:, None]).reshape(b, taps, n)
            inside = (inside[:, :, None] & valid[:, None]).reshape(b, taps, n)
        index *= inside
        return index, inside.astype(p.dtype), low

    def cost(self, p):
        return Cost(4 * 2 ** len(self.sizes) * p.size, p.nbytes * 2 ** len(self.sizes))

    def samples(rng):
        yield Sample(rng.normal(size=(2, 2, 5)) * 3 + 0.01, sizes=(3, 4))
        yield Sample(rng.normal(size=(2, 3, 5)) * 3 + 0.01, sizes=(3, 4, 2), nearest=True)


def linear_taps(p, sizes):
    """(index, weight) of multilinear interpolation at positions p, pixels outside being 0.

    Args:
        p: (B, d, P), Variable or NdArray; the weights are differentiable by it.
        sizes: d sizes of the image.
    """
    index, inside, low = corner_pixels(p, sizes=sizes)
    part = sub2(p, low)
    b, d, n = p.shape
    weight = inside
    for k in range(d):
        high = OPS["slice"](part, start=(0, k, 0), stop=(b, k + 1, n), step=(1, 1, 1))
        pair = OPS["concatenate"](r_sub_scalar(high, 1.0), high, axis=1)
        # the corners of axis k alternate in runs of 2^(d - k - 1)
        before, after = 2**k, 2 ** (d - k - 1)
        weight = mul2(reshape(weight, (b, before, 2, after, n)), reshape(pair, (b, 1, 2, 1, n)))
    return index, reshape(weight, (b, 2**d, n))


def sample_linear(x, p, sizes):
    """Images x (B, C, *sizes) at positions p (B, d, P), pixels outside being 0: (B, C, P)."""
    x = reshape(x, (*x.shape[:2], math.prod(sizes)))
    return sample_pixels(x, *linear_taps(p, sizes))


def sample_nearest(x, p, sizes):
    """The same with the pixel nearest to each position."""
    x = reshape(x, (*x.shape[:2], math.prod(sizes)))
    index, inside, _ = corner_pixels(p, sizes=sizes, nearest=True)
    return sample_pixels(x, index, inside)
