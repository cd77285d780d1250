# SPDX-License-Identifier: Apache-2.0
"""Convolution and its two gradients as matrix products over columns of pixels.

A convolution is linear in x and in w. With `cols[c, k, p]` the pixel of channel c that kernel
position k sees for output pixel p, and everything flattened to matrices per group,

    forward   y    = w   @ cols
    data      cols = w^T @ gy      (each column then added back to the pixels it came from)
    weight    gw   = gy  @ cols^T

Columns are made for one tile at a time, so that they stay in the cache: a few images, or some rows
of one. They are made of long contiguous runs, in one of two ways:

    wide      (stride 1, large images) a row of cols runs through whole padded rows of the image,
              (m, pixels); the pixels that straddle two rows are computed and never read
    stacked   the m images of a tile are transposed to be the last axis, (*out, m)

Arrays are (N, C, *S) here; channel-last ones come as views with their axes moved.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

__all__: list[str] = []

_TILE_BYTES = 2 << 20  # columns of one tile, to stay in the second- or third-level cache
_KEPT_BYTES = 8 << 20  # the largest buffer that a thread keeps; there are three of each dtype
_FLOPS_PER_MOVE = 32  # what transposing one element back and forth costs, in terms of products
_POINTWISE_PIXELS = 64  # from here on one product per image beats one that needs copies

Shape = tuple[int, ...]


def output_size(size: int, kernel: int, stride: int, pad: int, dilation: int) -> int:
    """Number of positions of a kernel along one axis; below 1 if it does not fit."""
    return (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1


class Geometry:
    """Sizes and strides of one convolution, and how its work is cut into tiles.

    Args:
        x: Shape (N, C, *S) of the data.
        w: Shape (O, C/group, *K) of the weights.
        out: Spatial sizes of the result.
    """

    def __init__(
        self, x: Shape, w: Shape, out: Shape, stride: Shape, pad: Shape, dilation: Shape, group: int
    ) -> None:
        self.batch, self.channels, self.size = x[0], x[1], x[2:]
        self.maps, self.kernel, self.out = w[0], w[2:], out
        self.stride, self.pad, self.dilation, self.group = stride, pad, dilation, group
        self.padded = tuple(n + 2 * p for n, p in zip(self.size, pad, strict=True))
        self.row_strides = tuple(
            math.prod(self.padded[i + 1 :]) for i in range(len(self.padded))
        )  # in pixels, of the padded image
        self.positions = math.prod(self.kernel)
        self.depth = w[1] * self.positions  # rows of cols per group
        self.plain = not any(pad)
        pixels = math.prod(out)
        whole_rows = self._wide_pixels(out[0])
        wasted_flops = (whole_rows - pixels) * 2 * self.depth * self.maps
        moved = pixels * (self.channels + self.maps)
        self.wide = set(stride) == {1} and wasted_flops <= _FLOPS_PER_MOVE * moved
        self.pointwise = (
            self.plain
            and self.positions == 1
            and set(stride) == {1}
            and (pixels >= _POINTWISE_PIXELS or x[0] == 1)
        )
        # data() can gather the kernel's last axis before the product, so that less is to be added
        # after it, at the price of products with the zeros at the ends of each row.
        taps, reach = self.kernel[-1], (self.kernel[-1] - 1) * dilation[-1]
        zero_flops = reach * 2 * self.depth * self.maps // out[-1]
        saved = self.channels * self.positions * (taps - 1) // taps
        self.gather = (
            stride[-1] == 1
            and taps > 1
            and self.maps > group
            and self.maps * taps <= 2 * self.channels * self.positions
            and zero_flops <= _FLOPS_PER_MOVE * saved
        )
        self.reach = reach if self.gather else 0
        self.added = (*self.kernel[:-1], 1) if self.gather else self.kernel
        row_pixels = (whole_rows if self.wide else pixels) // out[0]
        per_row = max(1, self.channels * self.positions * row_pixels * 4)  # bytes in float32
        # many weights are better read for many pixels at once
        budget = max(_TILE_BYTES, min(4 * math.prod(w), _KEPT_BYTES))
        self.rows = max(1, min(out[0], budget // per_row))
        self.images = max(1, budget // (per_row * out[0])) if self.rows == out[0] else 1

    def _wide_pixels(self, rows: int) -> int:
        last = (rows, *self.out[1:])
        return 1 + sum((n - 1) * s for n, s in zip(last, self.row_strides, strict=True))

    def grid(self, rows: int, images: int) -> Shape:
        """Sizes of the axes of a row of cols: (m, pixels) if wide, else (*out, m)."""
        if self.wide:
            return images, self._wide_pixels(rows)
        return (rows, *self.out[1:], images)

    def tiles(self) -> Iterator[tuple[slice, list[tuple[int, int]]]]:
        """Images of a tile, and the first and last row of each of its parts."""
        n, last = self.images, self.out[0]
        parts = [(r, min(r + self.rows, last)) for r in range(0, last, self.rows)]
        for i in range(0, self.batch, n):
            yield slice(i, min(i + n, self.batch)), parts


@lru_cache(maxsize=512)
def geometry(
    x: Shape, w: Shape, out: Shape, stride: Shape, pad: Shape, dilation: Shape, group: int
) -> Geometry:
    """The Geometry of these sizes; made once."""
    return Geometry(x, w, out, stride, pad, dilation, group)


def forward(xp: Any, geo: Geometry, x: Any, w: Any, bias: Any, y: Any) -> None:
    """Write the convolution of x and w, plus bias, into y."""
    g, dtype = geo.group, _accumulator(xp, x)
    w = _matrices(w, geo, dtype)
    if geo.pointwise and x.flags.c_contiguous and y.flags.c_contiguous and x.dtype == dtype:
        shape = (geo.batch, g, -1, math.prod(geo.out))
        if x.size:
            xp.matmul(w, x.reshape(shape), out=y.reshape(shape))
        if bias is not None:
            y += bias.reshape(-1, *(1,) * len(geo.out))
        return
    if bias is not None:
        bias = bias.reshape(-1, *(1,) * len(geo.out))
    scratch = Scratch(xp, geo, dtype)
    for images, parts in geo.tiles():
        image = scratch.padded(x[images])
        m = images.stop - images.start
        for r0, r1 in parts:
            cols = scratch.columns(image, r0, r1)
            result = scratch.take("maps", (g, geo.maps // g, cols.shape[-1]))
            xp.matmul(w, cols, out=result)
            view = _as_pixels(xp, geo, result.reshape(geo.maps, *geo.grid(r1 - r0, m)), r1 - r0)
            target = y[images, :, r0:r1]
            if bias is None:
                target[...] = view
            else:
                xp.add(view, bias, out=target, casting="same_kind")


def data(xp: Any, geo: Geometry, gy: Any, w: Any, gx: Any) -> None:
    """Write into gx what convolving with w and then weighting with gy gives as gradient of x."""
    g, dtype = geo.group, _accumulator(xp, gy)
    wt = _gathering_matrices(xp, w, geo, dtype)
    if geo.pointwise and gx.flags.c_contiguous and gy.flags.c_contiguous and gy.dtype == dtype:
        shape = (geo.batch, g, -1, math.prod(geo.out))
        if gy.size:
            xp.matmul(wt, gy.reshape(shape), out=gx.reshape(shape))
        return
    direct = geo.wide and geo.plain and gx.flags.c_contiguous and gx.dtype == dtype
    if direct:
        gx[...] = 0
    crop = tuple(slice(p, p + n) for p, n in zip(geo.pad, geo.size, strict=True))
    scratch = Scratch(xp, geo, dtype)
    for images, parts in geo.tiles():
        m = images.stop - images.start
        image = gx[images] if direct else scratch.image(m)
        if not direct:
            image[...] = 0
        for r0, r1 in parts:
            spread = scratch.gathered(gy[images, :, r0:r1])
            cols = scratch.take("columns", (g, wt.shape[1], spread.shape[-1]))
            if geo.maps == g:  # depthwise: BLAS is slow at products of a column and a row
                xp.multiply(wt, spread, out=cols)
            else:
                xp.matmul(wt, spread, out=cols)
            add = _add_wide_columns if geo.wide else _add_stacked_columns
            add(geo, image, cols, r0, r1)
        if geo.wide and not direct:
            gx[images] = image[(slice(None), slice(None), *crop)]
        elif not geo.wide:
            gx[images] = xp.moveaxis(image[(slice(None), *crop)], -1, 0)


def weight(xp: Any, geo: Geometry, x: Any, gy: Any, gw: Any) -> None:
    """Write into gw what convolving x and then weighting with gy gives as gradient of w."""
    dtype = _accumulator(xp, x)
    total = xp.zeros((geo.group, geo.depth, geo.maps // geo.group), dtype)
    scratch = Scratch(xp, geo, dtype)
    for images, parts in geo.tiles():
        image = scratch.padded(x[images])
        for r0, r1 in parts:
            cols = scratch.columns(image, r0, r1)
            spread = scratch.spread(gy[images, :, r0:r1])
            # in this order BLAS is up to twice as fast as with cols as second factor
            total += xp.matmul(cols, spread.swapaxes(-1, -2))
    shape = (geo.group, geo.maps // geo.group, gw.shape[1], *geo.kernel)
    gw[...] = total.swapaxes(-1, -2).reshape(shape).reshape(gw.shape)


def _accumulator(xp: Any, x: Any) -> Any:
    """float16 is added up in float32, for accuracy and because BLAS has no float16."""
    return xp.promote_types(x.dtype, "float32")


def _matrices(w: Any, geo: Geometry, dtype: Any) -> Any:
    """Weights as (group, O/group, C/group * positions)."""
    return w.reshape(geo.group, geo.maps // geo.group, geo.depth).astype(dtype, copy=False)


class Kept(threading.local):
    """Buffers of a thread that outlive a call: fresh memory costs a page fault every 4 KiB."""

    def __init__(self) -> None:
        self.buffers: dict[Any, Any] = {}


_KEPT = Kept()


class Scratch:
    """Buffers of one call, reused by its tiles so that they stay in the cache."""

    def __init__(self, xp: Any, geo: Geometry, dtype: Any) -> None:
        self.xp, self.geo, self.dtype = xp, geo, dtype
        self.buffers: dict[Any, Any] = {}

    def take(self, name: str, shape: Shape) -> Any:
        """The buffer of this name in this shape, with whatever it held before."""
        n = math.prod(shape)
        small = self.xp is np and n * self.dtype.itemsize <= _KEPT_BYTES
        buffers = _KEPT.buffers if small else self.buffers
        key = (name, self.dtype)
        buffer = buffers.get(key)
        if buffer is None or buffer.size < n:
            buffer = buffers[key] = self.xp.empty(n, self.dtype)
        return buffer[:n].reshape(shape)

    def image(self, m: int) -> Any:
        """Room for m images with their border: (m, C, *padded) if wide, else (C, *padded, m)."""
        c, padded = self.geo.channels, self.geo.padded
        return self.take("image", (m, c, *padded) if self.geo.wide else (c, *padded, m))

    def padded(self, x: Any) -> Any:
        """Images with their zero border, as `image` lays them out."""
        geo = self.geo
        if geo.plain and x.flags.c_contiguous and x.dtype == self.dtype:
            if geo.wide:
                return x
            if len(x) == 1:
                return x.reshape(*x.shape[1:], 1)
        out = self.image(len(x))
        if not geo.plain:
            out[...] = 0
        inner = tuple(slice(p, p + n) for p, n in zip(geo.pad, geo.size, strict=True))
        if geo.wide:
            out[(slice(None), slice(None), *inner)] = x
        else:
            out[(slice(None), *inner)] = self.xp.moveaxis(x, 0, -1)
        return out

    def columns(self, image: Any, r0: int, r1: int) -> Any:
        """(group, C/group * positions, m * pixels) for the output rows r0 to r1."""
        geo = self.geo
        row = r0 * geo.stride[0]
        if geo.wide:
            image = image[:, :, row:]
            m, (sn, sc, *ss) = len(image), image.strides
            grid_strides = (sn, image.itemsize)
        else:
            image = image[:, row:]
            m, (sc, *ss, sn) = image.shape[-1], image.strides
            grid_strides = (*(t * s for t, s in zip(geo.stride, ss, strict=True)), sn)
        steps = (d * s for d, s in zip(geo.dilation, ss, strict=True))
        shape = (geo.channels, *geo.kernel, *geo.grid(r1 - r0, m))
        cols = self.take("columns", shape)
        cols[...] = self.xp.lib.stride_tricks.as_strided(image, shape, (sc, *steps, *grid_strides))
        return cols.reshape(geo.group, geo.depth, -1)

    def spread(self, gy: Any) -> Any:
        """gy as (group, O/group, m * pixels), zero at the pixels that straddle two rows."""
        geo = self.geo
        m, maps, rows = gy.shape[:3]
        out = self.take("maps", (maps, *geo.grid(rows, m)))
        if geo.wide:
            out[...] = 0
        _as_pixels(self.xp, geo, out, rows)[...] = gy
        return out.reshape(geo.group, maps // geo.group, -1)

    def gathered(self, gy: Any) -> Any:
        """gy as (group, O/group * positions, m * pixels) for the positions that data() gathers.

        Zeros before and after every row let a row of an image see gy at each position along it.
        """
        geo = self.geo
        if not geo.gather:
            return self.spread(gy)
        m, maps, rows = gy.shape[:3]
        reach, step = geo.reach, geo.dilation[-1]
        shape = list(geo.grid(rows, m))
        along = 1 if geo.wide else len(shape) - 2  # the axis of shape that has the row's pixels
        shape[along] += 2 * reach
        out = self.take("maps", (maps, *shape))
        out[...] = 0
        inner = [slice(None)] * out.ndim
        inner[1 + along] = slice(reach, reach + geo.grid(rows, m)[along])
        _as_pixels(self.xp, geo, out[tuple(inner)], rows)[...] = gy
        shape[along] -= reach
        cols = self.take("gathered", (maps, geo.kernel[-1], *shape))
        so, *rest = out.strides
        cols[...] = self.xp.lib.stride_tricks.as_strided(
            out, cols.shape, (so, step * rest[along], *rest)
        )
        return cols.reshape(geo.group, maps // geo.group * geo.kernel[-1], -1)


def _gathering_matrices(xp: Any, w: Any, geo: Geometry, dtype: Any) -> Any:
    """Weights as (group, C/group * positions added, O/group * positions gathered)."""
    if not geo.gather:
        return _matrices(w, geo, dtype).swapaxes(-1, -2)
    taps = geo.kernel[-1]
    w = w.reshape(geo.group, geo.maps // geo.group, -1, taps).astype(dtype, copy=False)
    w = w[..., ::-1].transpose(0, 2, 1, 3)
    return w.reshape(geo.group, geo.depth // taps, -1)


def _as_pixels(xp: Any, geo: Geometry, maps: Any, rows: int) -> Any:
    """View of (O, *grid) as (m, O, *out), without the pixels that straddle two rows."""
    if not geo.wide:
        return xp.moveaxis(maps, -1, 0)
    so, sm, _ = maps.strides
    shape = (maps.shape[1], maps.shape[0], rows, *geo.out[1:])
    strides = (sm, so, *(s * maps.itemsize for s in geo.row_strides))
    return xp.lib.stride_tricks.as_strided(maps, shape, strides)


def _add_wide_columns(geo: Geometry, image: Any, cols: Any, r0: int, r1: int) -> None:
    """Add every row of cols to the pixels of image (m, C, *padded) that it belongs to."""
    m = len(image)
    cols = cols.reshape(geo.channels, -1, m, cols.shape[-1] // m).swapaxes(
        0, 2
    )  # (m, K, C, pixels)
    flat = image.reshape(m, geo.channels, -1)
    start, n = r0 * geo.row_strides[0], cols.shape[-1]
    steps = [d * s for d, s in zip(geo.dilation, geo.row_strides, strict=True)]
    for k, offsets in enumerate(_positions(geo.added)):
        at = start + sum(o * s for o, s in zip(offsets, steps, strict=True))
        flat[:, :, at : at + n] += cols[:, k]


def _add_stacked_columns(geo: Geometry, image: Any, cols: Any, r0: int, r1: int) -> None:
    """Add every row of cols to the pixels of image (C, *padded, m) that it belongs to."""
    counts = [r1 - r0, *geo.out[1:]]
    counts[-1] += geo.reach
    cols = cols.reshape(geo.channels, -1, *counts, image.shape[-1])
    starts = (r0 * geo.stride[0],) + (0,) * (len(counts) - 1)
    for k, offsets in enumerate(_positions(geo.added)):
        window = tuple(
            slice(a + o * d, a + o * d + (n - 1) * s + 1, s)
            for a, o, d, n, s in zip(starts, offsets, geo.dilation, counts, geo.stride, strict=True)
        )
        image[(slice(None), *window)] += cols[:, k]


@lru_cache(maxsize=128)
def _positions(kernel: Shape) -> tuple[Shape, ...]:
    """Every position in a kernel, the last axis fastest."""
    done: tuple[Shape, ...] = ((),)
    for n in kernel:
        done = tuple((*head, i) for head in done for i in range(n))
    return done
