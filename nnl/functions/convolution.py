# SPDX-License-Identifier: Apache-2.0
"""Convolution, deconvolution and their gradients: three linear maps that are each other's gradient.

`convolution` is linear in x and in w. Its gradient by x (`deconvolution` without bias, or
`convolution_data`, which is told the shape of x) and its gradient by w (`convolution_weight`) are
linear in their inputs too, and the gradients of any one are the other two. So derivatives of every
order need no further rules.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from nnl.core.arguments.convert import Spatial
from nnl.core.arrays.spec import ShapeError, Spec, check_axis
from nnl.core.ops.op import Cost, Sample, op
from nnl.functions import convolution_kernels as kernels
from nnl.functions.convolution_kernels import output_size
from nnl.functions.reduction import sum_op

CATEGORY = "Layer"

__all__ = [
    "convolution",
    "deconvolution",
]

SLIDING_FIELDS = ("base_axis", "pad", "stride", "dilation", "group", "channel_last")


class Window:
    """How a kernel slides over an image; entries per spatial axis. Leading axes are the batch."""

    base_axis: int = 1
    pad: Spatial | None = None
    stride: Spatial | None = None
    dilation: Spatial | None = None

    def resolve(self, x, weight, bias=None):
        return resolve_window(self, x)


class Sliding(Window):
    """Window with the attributes that convolution and deconvolution share."""

    group: int = 1
    channel_last: bool = False


def resolve_window(a, x):
    """Attributes left to default, from the rank of x; base_axis counted from the front."""
    base = check_axis(a.op.name, a.base_axis, x)
    n = len(x.shape) - base - 1
    return {
        "base_axis": base,
        "pad": (0,) * n if a.pad is None else a.pad,
        "stride": (1,) * n if a.stride is None else a.stride,
        "dilation": (1,) * n if a.dilation is None else a.dilation,
    }


def check_window(a, arg, x):
    """Number of spatial axes of x, if the window has as many valid entries."""
    name, n = a.op.name, len(x.shape) - a.base_axis - 1
    if n < 1:
        raise ShapeError(
            f"{name}: {arg} {x} has no spatial axis after base_axis {a.base_axis} and the channels"
        )
    for field, least in (("pad", 0), ("stride", 1), ("dilation", 1)):
        values = getattr(a, field)
        if len(values) != n:
            raise ShapeError(
                f"{name}: {field} {values} has {len(values)} entries, "
                f"{arg} {x} has {n} spatial axes"
            )
        if min(values) < least:
            raise ValueError(f"{name}: {field} {values} must be >= {least}")
    return n


def check_weight(a, weight, n):
    """Raise unless weight has n spatial axes and its output channels divide into the groups."""
    name = a.op.name
    if len(weight.shape) != n + 2:
        raise ShapeError(
            f"{name}: weight {weight} has rank {len(weight.shape)}, wanted {n + 2} "
            f"for {n} spatial axes"
        )
    if 0 in weight.shape:
        raise ShapeError(f"{name}: weight {weight} is empty")
    if a.group < 1 or weight.shape[0] % a.group:
        raise ShapeError(
            f"{name}: weight {weight} has {weight.shape[0]} maps, not a multiple of group {a.group}"
        )


def check_bias(name, bias, maps):
    """Raise unless bias is left out or has one value for each output map."""
    if bias is not None and bias.shape != (maps,):
        raise ShapeError(f"{name}: bias {bias} must have the shape ({maps},)")


def split(a, shape):
    """(leading axes, channels, spatial sizes) of a shape of data or of a result."""
    lead, rest = shape[: a.base_axis], shape[a.base_axis :]
    return (lead, rest[-1], rest[:-1]) if a.channel_last else (lead, rest[0], rest[1:])


def join(a, lead, channels, size):
    """Inverse of `split`."""
    return (*lead, *size, channels) if a.channel_last else (*lead, channels, *size)


def kernel_of(a, weight):
    """Spatial sizes of a shape of weights."""
    return weight[1:-1] if a.channel_last else weight[2:]


def convolved(a, x, w, x_name="x", w_name="weight"):
    """Spec of the convolution of x with w."""
    name, n = a.op.name, check_window(a, x_name, x)
    check_weight(a, w, n)
    lead, channels, size = split(a, x.shape)
    takes = w.shape[-1] if a.channel_last else w.shape[1]
    if channels != takes * a.group:
        raise ShapeError(
            f"{name}: {x_name} {x} has {channels} channels, "
            f"{w_name} {w} takes {takes} x group {a.group}"
        )
    kernel = kernel_of(a, w.shape)
    out = tuple(map(output_size, size, kernel, a.stride, a.pad, a.dilation))
    for i, o in enumerate(out):
        if o < 1:
            reach = a.dilation[i] * (kernel[i] - 1) + 1
            raise ShapeError(
                f"{name}: the kernel of {w_name} {w} with dilation {a.dilation} spans {reach} "
                f"pixels on spatial axis {i}, {x_name} {x} with pad {a.pad} has "
                f"{size[i] + 2 * a.pad[i]}"
            )
    return x.with_shape(join(a, lead, w.shape[0], out))


def channels_first(a, xp, x):
    """View of data as (N, C, *S), the leading axes made one."""
    x = x.reshape(math.prod(x.shape[: a.base_axis]), *x.shape[a.base_axis :])
    return xp.moveaxis(x, -1, 1) if a.channel_last else x


def weight_first(a, xp, w):
    """View of weights as (O, C/group, *K)."""
    return xp.moveaxis(w, -1, 1) if a.channel_last else w


def geometry(a, x, w, y):
    """The Geometry for views as made by the two functions above."""
    return kernels.geometry(x.shape, w.shape, y.shape[2:], a.stride, a.pad, a.dilation, a.group)


@lru_cache(maxsize=512)
def result_shape(a, x_shape, w_shape):
    """Shape of the result for these shapes; inferred once."""
    return a.infer(Spec.of(x_shape), Spec.of(w_shape)).shape


def flops(a, y, w):
    """Multiplications and additions of one of the three maps; y is the smaller image's spec."""
    return 2 * y.size * (w.size // w.shape[0])


def gradient_attrs(a):
    """The attributes that a gradient takes over."""
    return {f: getattr(a, f) for f in SLIDING_FIELDS}


def bias_gradient(a, gy):
    """Sum over all axes but the channels."""
    n = len(gy.shape)
    channel = n - 1 if a.channel_last else a.base_axis
    return sum_op(gy, axes=tuple(i for i in range(n) if i != channel), keep_dims=False)


@op("convolution", narrow=True, nnp="Convolution")
class convolution(Sliding):
    r"""Slide kernels over images, adding products (a cross-correlation).

    $$y_{n,o,p} = b_o + \sum_{c,k} x_{n,\,c,\,s p + d k - \mathrm{pad}}\; w_{o,c,k}$$

    with zeros outside of the image, for any number of spatial axes.

    Args:
        x: (*batch, C, *S), or (*batch, *S, C) if channel_last.
        weight: (O, C/group, *K), or (O, *K, C/group) if channel_last.
        bias: (O,), optional.
        base_axis: Number of batch axes.
        pad: Zeros added at both ends of each spatial axis, in pixels; 0 unless given.
        stride: Step of the kernel, in pixels; 1 unless given.
        dilation: Distance of the pixels a kernel sees, in pixels; 1 unless given.
        group: Channels and maps are split into this many groups that do not see each other.
        channel_last: Channels are the last axis.
    Returns:
        (*batch, O, *S'), S' = floor((S + 2 pad - dilation (K - 1) - 1) / stride) + 1.
    Raises:
        ShapeError: Channels, ranks or numbers of entries do not fit, or the kernel is larger than
            the padded image.
        ValueError: pad < 0, stride < 1 or dilation < 1.
    Source: Dumoulin and Visin, A guide to convolution arithmetic for deep learning,
        arXiv:1603.07285.
    Example:
        >>> image = array([[[0, 0, 1, 1]]])  # one sample, one channel, four pixels
        >>> F.convolution(image, array([[[-1, 1]]])).d  # what changes from pixel to pixel
        array([[[0., 1., 0.]]], dtype=float32)
    """

    def infer(self, x, weight, bias=None):
        y = convolved(self, x, weight)
        check_bias("convolution", bias, weight.shape[0])
        return y

    def forward(self, xp, x, weight, bias=None, out=None):
        if out is None:
            out = xp.empty(result_shape(self, x.shape, weight.shape), x.dtype)
        x, w = channels_first(self, xp, x), weight_first(self, xp, weight)
        y = channels_first(self, xp, out)
        kernels.forward(xp, geometry(self, x, w, y), x, w, bias, y)
        return out

    def vjp(self, gy, *, x, weight, need):
        at = gradient_attrs(self)
        return (
            convolution_data(gy, weight, shape=x.shape, **at) if need[0] else None,
            convolution_weight(x, gy, shape=weight.shape, **at) if need[1] else None,
            bias_gradient(self, gy) if need[2] else None,
        )

    def cost(self, x, weight, bias=None):
        y = self.infer(x, weight)
        return Cost(flops(self, y, weight), x.nbytes + weight.nbytes + y.nbytes)

    def samples(rng):
        x, w, b = rng.normal(size=(2, 4, 7, 6)), rng.normal(size=(6, 4, 3, 3)), rng.normal(size=6)
        yield Sample(x, w, b)
        yield Sample(x, w, None, stride=(2, 1), pad=(1, 2), dilation=(2, 1))
        yield Sample(x, rng.normal(size=(6, 2, 3, 2)), b, pad=(1, 1), group=2)
        yield Sample(x, rng.normal(size=(6, 4, 1, 1)), b)
        yield Sample(x, rng.normal(size=(4, 1, 3, 2)), None, group=4)
        yield Sample(rng.normal(size=(2, 2, 3, 8)), rng.normal(size=(4, 3, 3)), None, base_axis=2)
        yield Sample(
            rng.normal(size=(2, 3, 4, 3, 4)), rng.normal(size=(2, 3, 2, 2, 3)), None, pad=(1, 0, 1)
        )
        yield Sample(np.zeros((0, 4, 7, 6)), w, b)


@op("convolution_data", narrow=True, outputs=("gx",))
class convolution_data(Sliding):
    """Gradient of `convolution` by x: spread every value of gy over the pixels its kernel saw.

    Args:
        gy: Gradient of the result of a convolution.
        w: Its weights.
        shape: Shape of its x, which gy does not determine if the stride is above 1.
    Raises:
        ShapeError: Convolving that shape with w does not give the shape of gy.
    """

    shape: tuple[int, ...] = ()

    def resolve(self, gy, w):
        return resolve_window(self, gy)

    def infer(self, gy, w):
        gx = gy.with_shape(self.shape)
        check_gradient(self, gx, w, gy)
        return gx

    def forward(self, xp, gy, w, out=None):
        if out is None:
            out = xp.empty(self.shape, gy.dtype)
        gx, w = channels_first(self, xp, out), weight_first(self, xp, w)
        gy = channels_first(self, xp, gy)
        kernels.data(xp, geometry(self, gx, w, gy), gy, w, gx)
        return out

    def vjp(self, ggx, *, gy, w, need):
        at = gradient_attrs(self)
        return (
            convolution(ggx, w, **at) if need[0] else None,
            convolution_weight(ggx, gy, shape=w.shape, **at) if need[1] else None,
        )

    def cost(self, gy, w):
        return Cost(flops(self, gy, w), gy.nbytes + w.nbytes + self.infer(gy, w).nbytes)

    def samples(rng):
        gy, w = rng.normal(size=(2, 6, 4, 8)), rng.normal(size=(6, 4, 3, 3))
        yield Sample(gy, w, shape=(2, 4, 7, 6), stride=(2, 1), pad=(1, 2))
        gy, w = rng.normal(size=(2, 2, 4, 6)), rng.normal(size=(6, 2, 2, 2))
        yield Sample(gy, w, shape=(2, 5, 5, 4), group=2, stride=(2, 1), channel_last=True)
        yield Sample(gy, rng.normal(size=(6, 1, 1, 4)), shape=(2, 2, 4, 4), channel_last=True)
        yield Sample(
            rng.normal(size=(2, 4, 3, 4)), rng.normal(size=(4, 2, 1, 1)), shape=(2, 2, 3, 4)
        )


@op("convolution_weight", wide=True, outputs=("gw",))
class convolution_weight(Sliding):
    """Gradient of `convolution` by the weights: correlate x with gy.

    Args:
        x: Data of a convolution.
        gy: Gradient of its result.
        shape: Shape of its weights.
    Raises:
        ShapeError: Convolving x with weights of that shape does not give the shape of gy.
    """

    shape: tuple[int, ...] = ()

    def resolve(self, x, gy):
        return resolve_window(self, x)

    def infer(self, x, gy):
        gw = gy.with_shape(self.shape)
        check_gradient(self, x, gw, gy)
        return gw

    def forward(self, xp, x, gy, out=None):
        if out is None:
            out = xp.empty(self.shape, gy.dtype)
        x, gw = channels_first(self, xp, x), weight_first(self, xp, out)
        gy = channels_first(self, xp, gy)
        kernels.weight(xp, geometry(self, x, gw, gy), x, gy, gw)
        return out

    def vjp(self, ggw, *, x, gy, need):
        at = gradient_attrs(self)
        return (
            convolution_data(gy, ggw, shape=x.shape, **at) if need[0] else None,
            convolution(x, ggw, **at) if need[1] else None,
        )

    def cost(self, x, gy):
        w = self.infer(x, gy)
        return Cost(flops(self, gy, w), x.nbytes + gy.nbytes + w.nbytes)

    def samples(rng):
        x, gy = rng.normal(size=(2, 4, 7, 6)), rng.normal(size=(2, 6, 4, 8))
        yield Sample(x, gy, shape=(6, 4, 3, 3), stride=(2, 1), pad=(1, 2))
        x, gy = rng.normal(size=(2, 5, 5, 4)), rng.normal(size=(2, 4, 4, 6))
        yield Sample(x, gy, shape=(6, 2, 2, 2), group=2, channel_last=True)
        yield Sample(
            x, rng.normal(size=(2, 5, 4, 4)), shape=(4, 1, 2, 1), group=4, channel_last=True
        )


def check_gradient(a, x, w, gy):
    """Raise unless convolving x with w gives the shape of gy."""
    y = convolved(a, x, w)
    if y.shape != gy.shape:
        raise ShapeError(f"{a.op.name}: gy {gy} is not the result {y} of x {x} and w {w}")


@op("deconvolution", narrow=True, nnp="Deconvolution")
class deconvolution(Sliding):
    r"""Transposed convolution: spread every pixel of x over the pixels a kernel would see.

    $$y_{n o j} = b_o + \sum_c \sum_{i, k:\ s i + d k - p = j} w_{c o k}\, x_{n c i}$$ with
    stride s, dilation d and padding p.

    It is the gradient of `convolution` by its data, plus a bias.

    Args:
        x: (*batch, C, *S), or (*batch, *S, C) if channel_last.
        weight: (C, O/group, *K), or (C, *K, O/group) if channel_last.
        bias: (O,), optional.
        base_axis, pad, stride, dilation, group, channel_last: Those of the convolution that this
            is the transpose of.
        output_padding: Pixels added to the far end of each spatial axis of the result, each below
            its stride; 0 unless given.
    Returns:
        (*batch, O, *S'), S' = (S - 1) stride + dilation (K - 1) + 1 - 2 pad + output_padding.
    Raises:
        ShapeError: Channels, ranks or numbers of entries do not fit, or S' < 1.
        ValueError: pad < 0, stride < 1, dilation < 1, or output_padding outside [0, stride).
    Source: Zeiler et al., Deconvolutional Networks, CVPR 2010; Dumoulin and Visin,
        arXiv:1603.07285, chapter 4.
    """

    output_padding: Spatial | None = None

    def resolve(self, x, weight, bias=None):
        values = resolve_window(self, x)
        if self.output_padding is None:
            values["output_padding"] = (0,) * (len(x.shape) - values["base_axis"] - 1)
        return values

    def infer(self, x, weight, bias=None):
        n = check_window(self, "x", x)
        check_weight(self, weight, n)
        lead, channels, size = split(self, x.shape)
        if channels != weight.shape[0]:
            raise ShapeError(
                f"deconvolution: x {x} has {channels} channels, weight {weight} takes "
                f"{weight.shape[0]}"
            )
        if 0 in size:
            raise ShapeError(f"deconvolution: x {x} has no pixels")
        extra = self.output_padding
        if len(extra) != n:
            raise ShapeError(
                f"deconvolution: output_padding {extra} has {len(extra)} entries, "
                f"x {x} has {n} spatial axes"
            )
        if any(not 0 <= e < s for e, s in zip(extra, self.stride, strict=True)):
            raise ValueError(
                f"deconvolution: output_padding {extra} must be >= 0 and below stride {self.stride}"
            )
        kernel = kernel_of(self, weight.shape)
        out = tuple(
            (i - 1) * s + d * (k - 1) + 1 - 2 * p + e
            for i, s, d, k, p, e in zip(
                size, self.stride, self.dilation, kernel, self.pad, extra, strict=True
            )
        )
        if min(out) < 1:
            raise ShapeError(
                f"deconvolution: x {x} and weight {weight} with pad {self.pad} give the size {out}"
            )
        maps = self.group * (weight.shape[-1] if self.channel_last else weight.shape[1])
        check_bias("deconvolution", bias, maps)
        return x.with_shape(join(self, lead, maps, out))

    def forward(self, xp, x, weight, bias=None, out=None):
        if out is None:
            out = xp.empty(result_shape(self, x.shape, weight.shape), x.dtype)
        y, w = channels_first(self, xp, out), weight_first(self, xp, weight)
        x = channels_first(self, xp, x)
        kernels.data(xp, geometry(self, y, w, x), x, w, y)
        if bias is not None:
            y += bias.reshape(-1, *(1,) * (y.ndim - 2))
        return out

    def vjp(self, gy, *, x, weight, need):
        at = gradient_attrs(self)
        return (
            convolution(gy, weight, **at) if need[0] else None,
            convolution_weight(gy, x, shape=weight.shape, **at) if need[1] else None,
            bias_gradient(self, gy) if need[2] else None,
        )

    def cost(self, x, weight, bias=None):
        y = self.infer(x, weight)
        return Cost(flops(self, x, weight), x.nbytes + weight.nbytes + y.nbytes)

    def samples(rng):
        x, w, b = rng.normal(size=(2, 4, 4, 3)), rng.normal(size=(4, 3, 3, 2)), rng.normal(size=3)
        yield Sample(x, w, b)
        yield Sample(x, w, None, stride=(2, 3), pad=(1, 1), dilation=(2, 1))
        yield Sample(x, w, b, stride=(2, 3), output_padding=(1, 2))
        yield Sample(x, w, rng.normal(size=6), group=2, stride=(2, 1))
        yield Sample(rng.normal(size=(2, 2, 3, 5)), rng.normal(size=(3, 4, 3)), None, base_axis=2)
        yield Sample(
            rng.normal(size=(1, 2, 2, 3, 2)),
            rng.normal(size=(2, 2, 2, 2, 3)),
            None,
            stride=(1, 2, 1),
        )
        yield Sample(np.zeros((0, 4, 4, 3)), w, b)
