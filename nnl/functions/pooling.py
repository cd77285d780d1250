# SPDX-License-Identifier: Apache-2.0
"""Maximum, sum and mean over windows of an image, their gradients, and unpooling.

Windows slide over the last axes (before the channels if channel_last); all others are batch. The
maximum and the sum of a box are taken axis by axis, so a k x k window costs 2 k, not k^2.
"""

from __future__ import annotations

import math

import numpy as np

from nnl.core.arguments.convert import Spatial
from nnl.core.arrays.spec import ShapeError
from nnl.core.ops.op import Cost, Sample, op
from nnl.functions.arithmetic import mul_scalar
from nnl.functions.pooling_kernels import Windows, windows
from nnl.functions.reduction import reshape, sum_op

CATEGORY = "Layer"

__all__ = [
    "max_pooling",
    "max_pooling_backward",
    "average_pooling",
    "sum_pooling",
    "global_average_pooling",
    "unpooling",
]

POOLING_FIELDS = ("kernel", "stride", "ignore_border", "pad", "channel_last")


class Pooling:
    """Attributes and shape rule of functions with a sliding window."""

    kernel: Spatial
    stride: Spatial | None = None
    ignore_border: bool = True
    pad: Spatial | None = None
    channel_last: bool = False
    follows_order = True

    def resolve(self, x):
        return resolve_pooling(self)

    def infer(self, x):
        return x.with_shape(pooled_shape(self, x))

    def cost(self, x):
        y = self.infer(x)
        return Cost(y.size * math.prod(self.kernel), x.nbytes + y.nbytes)


def resolve_pooling(a):
    """Stride and pad where left out: the kernel, and nothing."""
    return {
        "stride": a.kernel if a.stride is None else a.stride,
        "pad": (0,) * len(a.kernel) if a.pad is None else a.pad,
    }


def pooled_shape(a, x, arg="x"):
    """Shape of the result for data of spec x, after checking every attribute."""
    name, n = a.op.name, len(a.kernel)
    if n < 1 or n + a.channel_last > len(x.shape):
        raise ShapeError(
            f"{name}: {arg} {x} has rank {len(x.shape)}, wanted >= {n + a.channel_last} "
            f"for kernel {a.kernel}"
        )
    for field, least in (("kernel", 1), ("stride", 1), ("pad", 0)):
        values = getattr(a, field)
        if len(values) != n:
            raise ShapeError(f"{name}: {field} {values} has {len(values)} entries, kernel has {n}")
        if min(values) < least:
            raise ValueError(f"{name}: {field} {values} must be >= {least}")
    if any(p >= k for p, k in zip(a.pad, a.kernel, strict=True)):
        raise ValueError(f"{name}: pad {a.pad} must be below kernel {a.kernel}")
    lead, size, tail = split(a, x.shape)
    if a.ignore_border:
        for i, (s, k, p) in enumerate(zip(size, a.kernel, a.pad, strict=True)):
            if s + 2 * p < k:
                raise ShapeError(
                    f"{name}: kernel {a.kernel} spans {k} pixels on spatial axis {i}, "
                    f"{arg} {x} with pad {a.pad} has {s + 2 * p}"
                )
    if 0 in size:
        raise ShapeError(f"{name}: {arg} {x} has no pixels")
    return (*lead, *layout(a, x.shape).out, *tail)


def split(a, shape):
    """(leading axes, spatial sizes, trailing axes) of a shape of data."""
    end = len(shape) - a.channel_last
    start = end - len(a.kernel)
    return shape[:start], shape[start:end], shape[end:]


def layout(a, shape) -> Windows:
    """Where the windows lie on data of this shape."""
    _, size, _ = split(a, shape)
    return windows(size, a.kernel, a.stride, a.pad, a.ignore_border, a.channel_last)


def fields(a):
    """Attributes that a gradient takes over."""
    return {f: getattr(a, f) for f in POOLING_FIELDS}


def check_pooled(a, x, y, x_name, y_name):
    """Raise unless pooling x gives the shape of y."""
    shape = pooled_shape(a, x, x_name)
    if shape != y.shape:
        raise ShapeError(
            f"{a.op.name}: {y_name} {y} must have the shape {shape} that pooling {x_name} {x} gives"
        )


@op("max_pooling", nnp="MaxPooling")
class max_pooling(Pooling):
    r"""Largest value of each window: $y_i = \max_k x_{i s + k - p}$, with stride s and padding p.

    Pixels of the padding do not count.

    Args:
        x: (*batch, *S), or (*batch, *S, C) if channel_last.
        kernel: Sizes of the window, in pixels, for 1, 2, 3 or more spatial axes.
        stride: Distance of windows, in pixels; the kernel unless given.
        ignore_border: Drop windows that reach beyond the padding; otherwise clip them.
        pad: Pixels added at both ends, below the kernel; 0 unless given.
        channel_last: Channels are the last axis.
    Returns:
        Sizes floor((S + 2 pad - kernel) / stride) + 1, or ceil((S + pad) / stride) if borders are
        not ignored.
    Raises:
        ShapeError: Ranks do not fit or the kernel is larger than the padded image.
        ValueError: A size, stride or pad is out of range.

    The gradient goes to the first maximum of a window, the last axis running fastest.

    Example:
        >>> F.max_pooling(array([[[[1, 2, 5, 6], [3, 4, 7, 8]]]]), (2, 2)).d
        array([[[[4., 8.]]]], dtype=float32)
    """

    def forward(self, xp, x, out=None):
        return layout(self, x.shape).maximum(xp, x, out)

    def vjp(self, gy, *, x):
        return max_pooling_backward(gy, x, **fields(self))

    def samples(rng):
        def distinct(*shape):
            return rng.permutation(math.prod(shape)).reshape(shape) * 0.1

        yield Sample(distinct(2, 3, 4, 6), kernel=(2, 2))
        yield Sample(distinct(2, 5, 7), kernel=(2, 3))
        yield Sample(distinct(2, 5, 7), kernel=(2, 3), ignore_border=False)
        yield Sample(distinct(2, 5, 7), kernel=(3, 3), stride=(2, 1), pad=(1, 1))
        yield Sample(
            distinct(2, 5, 6), kernel=(3, 3), stride=(2, 2), pad=(1, 1), ignore_border=False
        )
        yield Sample(distinct(5, 6), kernel=(2, 2), stride=(3, 4), ignore_border=False)
        yield Sample(distinct(2, 3, 4, 5), kernel=(2, 2, 3), stride=(1, 2, 2), pad=(0, 1, 1))
        yield Sample(np.zeros((0, 3, 4, 4)), kernel=(2, 2))


class MaxGradient(Pooling):
    """Shape rule and cost of the two linear maps that the maxima of x define."""

    def cost(self, gy, x):
        return Cost(2 * x.size, 2 * x.nbytes + gy.nbytes)


@op("max_pooling_backward", nnp="MaxPoolingBackward", outputs=("dx",))
class max_pooling_backward(MaxGradient):
    r"""Gradient of `max_pooling`: put every dy where its window has its first maximum.

    $$g_j = \sum_{i:\ m(i) = j} \mathit{dy}_i$$ where m(i) is the place of the first
    maximum of window i.

    Args:
        dy: Gradient of the result of max_pooling.
        x: Its input. There is no gradient by x: the place of the maximum is constant around it.
        kernel, stride, ignore_border, pad, channel_last: As in `max_pooling`.
    Raises:
        ShapeError: dy does not have the shape that pooling x gives.
    """

    def resolve(self, dy, x):
        return resolve_pooling(self)

    def infer(self, dy, x):
        check_pooled(self, x, dy, "x", "dy")
        return x

    def forward(self, xp, dy, x, out=None):
        return layout(self, x.shape).scatter_maximum(xp, dy, x, out)

    def vjp(self, gdx, *, x, need):
        return max_pooling_pick(gdx, x, **fields(self)) if need[0] else None, None

    def samples(rng):
        for size, out, at in (
            ((4, 6), (2, 3), {"kernel": (2, 2)}),
            ((5, 7), (3, 7), {"kernel": (3, 3), "stride": (2, 1), "pad": (1, 1)}),
            ((5, 6), (3, 2), {"kernel": (2, 3), "ignore_border": False}),
            ((3, 4, 5), (1, 2, 1), {"kernel": (2, 2, 3)}),
        ):
            x = rng.permutation(2 * math.prod(size)).reshape(2, *size) * 0.1
            yield Sample(rng.normal(size=(2, *out)), x, grad=(True, False), **at)


@op("max_pooling_pick")
class max_pooling_pick(MaxGradient):
    """Transpose of `max_pooling_backward`: of each window of v, the value where x has its maximum.

    Args:
        v: Values to pick from, shape of x.
        x: Data that says where.
    """

    def resolve(self, v, x):
        return resolve_pooling(self)

    def infer(self, v, x):
        if v.shape != x.shape:
            raise ShapeError(f"max_pooling_pick: v {v} and x {x} must have the same shape")
        return x.with_shape(pooled_shape(self, x))

    def forward(self, xp, v, x, out=None):
        return layout(self, x.shape).pick_maximum(xp, v, x, out)

    def vjp(self, gy, *, x, need):
        return max_pooling_backward(gy, x, **fields(self)) if need[0] else None, None

    def samples(rng):
        x = rng.permutation(60).reshape(2, 5, 6) * 0.1
        v = rng.normal(size=x.shape)
        yield Sample(v, x, kernel=(2, 2), grad=(True, False))
        yield Sample(v, x, kernel=(3, 2), stride=(1, 2), pad=(1, 0), grad=(True, False))
        yield Sample(v, x, kernel=(2,), channel_last=True, grad=(True, False))


@op("sum_pooling", nnp="SumPooling")
class sum_pooling(Pooling):
    r"""Sum of each window: $y_i = \sum_k x_{i s + k - p}$.

    Arguments, sizes and errors are those of `max_pooling`."""

    def forward(self, xp, x, out=None):
        return layout(self, x.shape).sum(xp, x, out)

    def vjp(self, gy, *, x_spec):
        return sum_pooling_backward(gy, shape=x_spec.shape, **fields(self))

    def samples(rng):
        yield from pooling_samples(rng)


def pooling_samples(rng, **more):
    """Settings shared by sum and average."""
    x = rng.normal(size=(2, 5, 7))
    yield Sample(rng.normal(size=(2, 3, 4, 6)), kernel=(2, 2), **more)
    yield Sample(x, kernel=(2, 3), ignore_border=False, **more)
    yield Sample(x, kernel=(3, 3), stride=(2, 1), pad=(1, 1), **more)
    yield Sample(x, kernel=(3, 3), stride=(2, 2), pad=(1, 2), ignore_border=False, **more)
    yield Sample(x, kernel=(2, 2), stride=(3, 4), **more)
    yield Sample(rng.normal(size=(2, 3, 4, 5)), kernel=(2, 2, 3), stride=(1, 2, 2), **more)
    yield Sample(np.zeros((0, 3, 4, 4)), kernel=(2, 2), **more)


class Spread(Pooling):
    """Transpose of a pooling: every value of gy is added to all pixels of its window."""

    shape: tuple[int, ...] = ()

    def resolve(self, gy):
        return resolve_pooling(self)

    def infer(self, gy):
        check_pooled(self, gy.with_shape(self.shape), gy, "x", "gy")
        return gy.with_shape(self.shape)

    def cost(self, gy):
        return Cost(gy.size * math.prod(self.kernel), gy.nbytes + self.infer(gy).nbytes)

    def samples(rng):
        gy = rng.normal(size=(2, 2, 3))
        yield Sample(gy, kernel=(2, 2), shape=(2, 5, 6))
        yield Sample(gy, kernel=(3, 3), stride=(2, 2), pad=(1, 1), shape=(2, 4, 6))
        yield Sample(gy, kernel=(3,), ignore_border=False, channel_last=True, shape=(2, 5, 3))


@op("sum_pooling_backward", outputs=("gx",))
class sum_pooling_backward(Spread):
    """Gradient of `sum_pooling` for data of the given shape."""

    def forward(self, xp, gy, out=None):
        return layout(self, self.shape).spread(xp, gy, out)

    def vjp(self, ggx):
        return sum_pooling(ggx, **fields(self))


@op("average_pooling", nnp="AveragePooling")
class average_pooling(Pooling):
    r"""Mean of each window: $y_i = \frac{1}{K} \sum_{k=1}^{K} x_{i s + k - p}$.

    Arguments, sizes and errors are those of `max_pooling`, and:

    Args:
        including_pad: Whether pixels of the padding count, as zeros.
    Example:
        >>> F.average_pooling(array([[[[1, 2, 5, 6], [3, 4, 7, 8]]]]), (2, 2)).d
        array([[[[2.5, 6.5]]]], dtype=float32)
    """

    including_pad: bool = True

    def forward(self, xp, x, out=None):
        where = layout(self, x.shape)
        y = where.sum(xp, x, out)
        y *= where.weight(xp, self.including_pad, x.dtype)
        return y

    def vjp(self, gy, *, x_spec):
        at = {**fields(self), "including_pad": self.including_pad}
        return average_pooling_backward(gy, shape=x_spec.shape, **at)

    def samples(rng):
        yield from pooling_samples(rng)
        yield from pooling_samples(rng, including_pad=False)


@op("average_pooling_backward", outputs=("gx",))
class average_pooling_backward(Spread):
    """Gradient of `average_pooling` for data of the given shape."""

    including_pad: bool = True

    def forward(self, xp, gy, out=None):
        where = layout(self, self.shape)
        gy = gy * where.weight(xp, self.including_pad, gy.dtype)
        return where.spread(xp, gy, out)

    def vjp(self, ggx):
        return average_pooling(ggx, including_pad=self.including_pad, **fields(self))


@op("global_average_pooling", nnp="GlobalAveragePooling")
class global_average_pooling:
    r"""Mean over all axes from the third on: $y_{nc} = \frac{1}{|S|} \sum_s x_{ncs}$.

    Args:
        x: (N, C, *S).
    Returns:
        (N, C, 1, 1).

    Raises:
        ShapeError: x has less than 2 axes, or no pixels.
    Source: Lin, Chen and Yan, Network In Network, arXiv:1312.4400, section 3.2.
    """

    follows_order = True

    def infer(self, x):
        if len(x.shape) < 2:
            raise ShapeError(f"global_average_pooling: x {x} has rank {len(x.shape)}, wanted >= 2")
        if 0 in x.shape[2:]:
            raise ShapeError(f"global_average_pooling: x {x} has no pixels")
        return x.with_shape((*x.shape[:2], 1, 1))

    def decompose(self, x):
        n, c, *size = x.shape
        pixels = math.prod(size)
        y = sum_op(reshape(x, (n, c, 1, pixels)), axes=(3,), keep_dims=True)
        return mul_scalar(y, 1.0 / pixels)

    def cost(self, x):
        return Cost(x.size, x.nbytes)

    def samples(rng):
        yield Sample(rng.normal(size=(2, 3, 4, 5)))
        yield Sample(rng.normal(size=(2, 3, 4)))
        yield Sample(np.zeros((0, 3, 4, 4)))


@op("unpooling", nnp="Unpooling")
class unpooling:
    r"""Repeat every pixel over a window: $y_i = x_{\lfloor i / k \rfloor}$; sizes S become S k.

    Args:
        x: (*batch, *S), or (*batch, *S, C) if channel_last.
        kernel: Sizes of the windows, in pixels.
        channel_last: Channels are the last axis.
    Raises:
        ShapeError: x has fewer axes than kernel, or no pixels.
        ValueError: A size is below 1.
    """

    kernel: Spatial
    channel_last: bool = False
    follows_order = True

    def infer(self, x):
        n = len(self.kernel) + self.channel_last
        if n > len(x.shape) or not self.kernel:
            raise ShapeError(
                f"unpooling: x {x} has rank {len(x.shape)}, wanted >= {n} for kernel {self.kernel}"
            )
        if min(self.kernel) < 1:
            raise ValueError(f"unpooling: kernel {self.kernel} must be >= 1")
        lead, size, tail = split(self, x.shape)
        if 0 in size:
            raise ShapeError(f"unpooling: x {x} has no pixels")
        return x.with_shape(
            (*lead, *(s * k for s, k in zip(size, self.kernel, strict=True)), *tail)
        )

    def forward(self, xp, x, out=None):
        lead, size, tail = split(self, x.shape)
        big = tuple(s * k for s, k in zip(size, self.kernel, strict=True))
        if out is None:
            out = xp.empty((*lead, *big, *tail), x.dtype)
        pairs = [n for pair in zip(size, self.kernel, strict=True) for n in pair]
        ones = [n for s in size for n in (s, 1)]
        out.reshape(*lead, *pairs, *tail)[...] = x.reshape(*lead, *ones, *tail)
        return out

    def vjp(self, gy):
        return sum_pooling(gy, kernel=self.kernel, channel_last=self.channel_last)

    def cost(self, x):
        return Cost(0, x.nbytes + self.infer(x).nbytes)

    def samples(rng):
        yield Sample(rng.normal(size=(2, 3, 2, 3)), kernel=(2, 3))
        yield Sample(rng.normal(size=(2, 3)), kernel=(2,))
        yield Sample(rng.normal(size=(2, 2, 1, 3)), kernel=(3, 1, 2))
