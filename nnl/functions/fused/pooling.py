# SPDX-License-Identifier: Apache-2.0
"""Max pooling that remembers where its maxima are, and its gradient from these places.

A place is a position within the window, counted over the kernel with its last axis fastest.
"""

from __future__ import annotations

import math

import numpy as np

from nnl.core.arrays.spec import check_same_shape
from nnl.core.ops.op import Cost, Sample, op
from nnl.functions.pooling import (
    Pooling,
    check_pooled,
    max_pooling,
    pooled_shape,
    resolve_pooling,
    split,
)


class Places:
    """Where the windows lie on images (*S) with a border that holds the padding.

    Attributes:
        size: Sizes with the border.
        image: Slices of the image in it.
        seen: For each position in a window, slices of what the windows have there.
    """

    def __init__(self, a, size, out):
        axes = list(zip(size, out, a.kernel, a.stride, a.pad, strict=True))
        self.size = [max((o - 1) * s + k, p + n) for n, o, k, s, p in axes]
        self.image = (..., *[slice(p, p + n) for n, _, _, _, p in axes])
        self.seen = []
        for at in np.ndindex(*a.kernel):
            ends = zip(at, axes, strict=True)
            along = [slice(i, i + (o - 1) * s + 1, s) for i, (_, o, _, s, _) in ends]
            self.seen.append((..., *along))


def first(a, xp, x):
    """View of data with the channels before the pixels."""
    return xp.moveaxis(x, -1, -1 - len(a.kernel)) if a.channel_last else x


@op("max_pooling_arg", outputs=("y", "place"))
class max_pooling_arg(Pooling):
    """`max_pooling`, and the place of each maximum as int16: the first one, or the last NaN."""

    def infer(self, x):
        y = x.with_shape(pooled_shape(self, x))
        return y, y.with_dtype(np.int16)

    def forward(self, xp, x):
        shape = split(self, x.shape)[1], split(self, pooled_shape(self, x))[1]
        at, x = Places(self, *shape), first(self, xp, x)
        bordered = xp.full((*x.shape[: x.ndim - len(at.size)], *at.size), -np.inf, x.dtype)
        bordered[at.image] = x
        inside = xp.zeros(at.size, bool)
        inside[at.image] = True
        best = bordered[at.seen[0]].copy()
        place = xp.full(best.shape, -1, np.int16)
        for i, seen in enumerate(at.seen):
            v = bordered[seen]
            better = (v > best) | (v != v) | ((place < 0) & inside[seen])
            best = xp.where(better, v, best)
            place = xp.where(better, xp.asarray(i, np.int16), place)
        if self.channel_last:
            best, place = (xp.moveaxis(v, -1 - len(at.size), -1) for v in (best, place))
        return xp.ascontiguousarray(best), xp.ascontiguousarray(place)

    def cost(self, x):
        y, place = self.infer(x)
        return Cost(y.size * math.prod(self.kernel), x.nbytes + y.nbytes + place.nbytes)

    def samples(rng):
        for sample in max_pooling.attrs_class.samples(rng):
            yield Sample(*sample.inputs, grad=(False,), **sample.attrs)


@op("max_pooling_arg_backward", outputs=("gx",), keep=("place",))
class max_pooling_arg_backward(Pooling):
    """Gradient of `max_pooling_arg` for data of the given shape.

    Args:
        gy: Gradient of y.
        place: Its other result.
        kernel, stride, ignore_border, pad, channel_last: As in `max_pooling`.
        shape: Shape of x.
    """

    shape: tuple[int, ...] = ()

    def resolve(self, gy, place):
        return resolve_pooling(self)

    def infer(self, gy, place):
        check_pooled(self, gy.with_shape(self.shape), gy, "x", "gy")
        check_same_shape("max_pooling_arg_backward", "gy", gy, "place", place)
        return gy.with_shape(self.shape)

    def forward(self, xp, gy, place):
        at = Places(self, split(self, self.shape)[1], split(self, gy.shape)[1])
        gy, place = first(self, xp, gy), first(self, xp, place)
        gx = xp.zeros((*gy.shape[: gy.ndim - len(at.size)], *at.size), gy.dtype)
        for i, seen in enumerate(at.seen):
            gx[seen] += xp.where(place == i, gy, xp.zeros((), gy.dtype))
        gx = gx[at.image]
        if self.channel_last:
            gx = xp.moveaxis(gx, -1 - len(at.size), -1)
        return xp.ascontiguousarray(gx)

    def cost(self, gy, place):
        gx = gy.with_shape(self.shape)
        return Cost(gx.size, gy.nbytes + place.nbytes + gx.nbytes)

    def samples(rng):
        for sample in max_pooling.attrs_class.samples(rng):
            (x,), attrs = sample.inputs, sample.attrs
            full = max_pooling_arg.attrs(**attrs)
            full = max_pooling_arg.attrs(**{**full.as_dict(), **full.resolve(None)})
            y, place = full.forward(np, x)
            gy = rng.normal(size=y.shape)
            yield Sample(gy, place, shape=x.shape, grad=(False, False), **attrs)
