# SPDX-License-Identifier: Apache-2.0
"""Layers that treat elements one by one, or channels by learned factors and statistics."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.core.graph.variable import Variable
from nnl.core.ops.op import OPS
from nnl.dialects.caffe.layer import Blob, Layer, Parameter, builds


def _relu(p: Any) -> Callable[[Any], Any]:
    slope = p.negative_slope
    return (lambda x: F.leaky_relu(x, slope)) if slope else F.relu


def _linear(p: Any) -> Callable[[Any], Any]:
    scale, shift = p.scale, p.shift

    def compute(x: Any) -> Any:
        x = x if scale == 1 else x * scale
        return x if shift == 0 else x + shift

    return compute


def _power(p: Any) -> Callable[[Any], Any]:
    linear, power = _linear(p), p.power
    if power == 1:
        return lambda x: F.identity(linear(x))
    return lambda x: linear(x) ** power if power else linear(x) * 0 + 1


def _exp(p: Any) -> Callable[[Any], Any]:
    linear, factor = _linear(p), 1.0 if p.base == -1 else math.log(p.base)
    return lambda x: F.exp(linear(x) * factor if factor != 1 else linear(x))


def _log(p: Any) -> Callable[[Any], Any]:
    linear, factor = _linear(p), 1.0 if p.base == -1 else 1 / math.log(p.base)
    return lambda x: F.log(linear(x)) * factor if factor != 1 else F.log(linear(x))


# type -> (field of its message, that message -> function)
ELEMENTWISE: dict[str, tuple[str, Callable[[Any], Callable[[Any], Any]]]] = {
    "ReLU": ("relu_param", _relu),
    "ReLU6": ("relu6_param", lambda p: lambda x: F.clip_by_value(x, 0.0, p.threshold)),
    "ELU": ("elu_param", lambda p: lambda x: F.elu(x, p.alpha)),
    "Sigmoid": ("sigmoid_param", lambda p: F.sigmoid),
    "TanH": ("tanh_param", lambda p: F.tanh),
    "AbsVal": ("name", lambda p: F.abs),
    "BNLL": ("name", lambda p: F.softplus),
    "Swish": ("swish_param", lambda p: lambda x: x * F.sigmoid(x if p.beta == 1 else x * p.beta)),
    "Clip": ("clip_param", lambda p: lambda x: F.clip_by_value(x, p.min, p.max)),
    "Power": ("power_param", _power),
    "Exp": ("exp_param", _exp),
    "Log": ("log_param", _log),
    "Threshold": ("threshold_param", lambda p: lambda x: F.greater_scalar(x, p.threshold)),
}


@builds(*ELEMENTWISE)
def elementwise(layer: Layer, x: Blob) -> None:
    field, function = ELEMENTWISE[layer.type]
    layer.op(function(getattr(layer.message, field)), x)


@builds("Dropout")
def dropout(layer: Layer, x: Blob) -> None:
    ratio = layer.message.dropout_param.dropout_ratio
    if not 0 <= ratio < 1:
        raise layer.fail(f"dropout_ratio is {ratio:g}, wanted 0 <= dropout_ratio < 1")
    layer.op(F.identity if layer.test or not ratio else lambda x: F.dropout(x, ratio), x)


@builds("PReLU")
def prelu(layer: Layer, x: Blob) -> None:
    p = layer.message.prelu_param
    given = p.filler if p.HasField("filler") else 0.25
    w = layer.weight(() if p.channel_shared else (x.channels,), given)
    layer.op(F.prelu, x, w)


def along(w: Any, ndim: int, axis: int) -> Any:
    """Factors of consecutive axes from `axis` on, of rank `ndim`."""
    return F.reshape(w, (1,) * axis + tuple(w.shape) + (1,) * (ndim - axis - len(w.shape)))


def _factors(layer: Layer, x: Blob, p: Any, axis: int) -> tuple[int, ...]:
    shape = x.sizes
    end = len(shape) if p.num_axes == -1 else axis + p.num_axes
    if end > len(shape):
        raise layer.fail(f"num_axes is {p.num_axes} from axis {axis} of {shape}")
    return shape[axis:end]


@builds("Scale", bottoms=(1, 2))
def scale(layer: Layer, x: Blob, factor: Blob | None = None) -> None:
    p = layer.message.scale_param
    axis = layer.axis(p.axis, len(x.sizes))
    shape = _factors(layer, x, p, axis) if factor is None else factor.sizes
    w: Any = factor
    if factor is None:
        w = layer.weight(shape, p.filler if p.HasField("filler") else 1.0)
    b = [layer.weight(shape, layer.filler(p, "bias_filler"))] if p.bias_term else []
    before = (
        layer.net.normalized.get(x) if factor is None and axis == 1 and len(shape) == 1 else None
    )
    if before is not None:
        before(layer, w, *b)
        return

    def compute(x: Any, w: Any, b: Any = None) -> Any:
        y = x * along(w, x.ndim, axis)
        return y if b is None else y + along(b, x.ndim, axis)

    layer.op(compute, x, w, *b)


@builds("Bias", bottoms=(1, 2))
def bias(layer: Layer, x: Blob, term: Blob | None = None) -> None:
    p = layer.message.bias_param
    axis = layer.axis(p.axis, len(x.sizes))
    b: Any = term
    if term is None:
        b = layer.weight(_factors(layer, x, p, axis), layer.filler(p, "filler"))
    layer.op(lambda x, b: x + along(b, x.ndim, axis), x, b)


@builds("BatchNorm")
def batch_norm(layer: Layer, x: Blob) -> None:
    p = layer.message.batch_norm_param
    c = x.channels if len(x.sizes) > 1 else 1
    stored = p.use_global_stats if p.HasField("use_global_stats") else layer.test
    for shape in ((c,), (c,), (1,)):
        layer.weight(shape, None)
    stats = list(layer.blobs)
    if layer.net.deploy and stored:
        mean, variance, count = (s.data for s in stats)
        for sums in (mean, variance):
            sums *= 1 / count if count else 0
        count[...] = 1
    normalize(layer, x, stats, stored, p)
    y = layer.tops[-1]

    def with_factors(scale: Layer, *factors: Any) -> None:
        """Scale what this layer has normalized, in one function."""
        layer.updates.clear()
        normalize(scale, x, stats, stored, p, *factors)
        layer.updates, scale.updates = scale.updates, []

    layer.net.normalized[y] = with_factors


def normalize(
    layer: Layer, x: Blob, stats: list[Parameter], stored: bool, p: Any, *factors: Any
) -> None:
    """The next top of a layer: x normalized, by what is stored or by the batch."""
    eps, keep = p.eps, p.moving_average_fraction
    kept = [s.tensor for s in stats]

    def row(v: Any, x: Any) -> Any:
        return along(v, x.ndim, 1 if x.ndim > 1 else 0)

    def affine(x: Any, factors: Any) -> list[Any]:
        gamma, beta = (*factors, None, None)[:2]
        return [None if v is None else row(v, x) for v in (beta, gamma)]

    def by_stored(x: Any, mean: Any, variance: Any, count: Any, *factors: Any) -> Any:
        if not layer.net.deploy:
            zero = F.equal_scalar(count, 0.0)
            factor = (1 - zero) / (count + zero)
            mean, variance = mean * factor, variance * factor
        return F.batch_normalization(
            x, *affine(x, factors), row(mean, x), row(variance, x),
            axes=(1 if x.ndim > 1 else 0,), eps=eps, batch_stat=False,
        )  # fmt: skip

    def by_batch(x: Any, mean: Any, variance: Any, count: Any, *factors: Any) -> Any:
        y, m, v = F.batch_normalization(
            x, *affine(x, factors), None, None, axes=(1 if x.ndim > 1 else 0,), eps=eps,
            output_stat=True,
        )  # fmt: skip
        n = x.size // m.size
        unbiased = n / (n - 1) if n > 1 else 1.0
        m, v = F.reshape(m, mean.shape), F.reshape(v, mean.shape)
        return y, mean * keep + m, variance * keep + v * unbiased, count * keep + 1

    if stored:
        layer.op(by_stored, x, *kept, *factors)
        return
    _, *new = layer.op(by_batch, x, *kept, *factors, count=4)
    layer.updates = list(zip(stats, new, strict=True))


@builds("MVN")
def mvn(layer: Layer, x: Blob) -> None:
    p = layer.message.mvn_param
    first, with_variance, eps = 1 if p.across_channels else 2, p.normalize_variance, p.eps

    def compute(x: Any) -> Any:
        axes = tuple(range(first, x.ndim))
        y = x - F.mean(x, axes, keepdims=True)
        if with_variance:
            y = y / (F.mean(y * y, axes, keepdims=True) ** 0.5 + eps)
        return y

    layer.op(compute, x)


@builds("Normalize")
def normalize_boxes(layer: Layer, x: Blob) -> None:
    p = layer.message.norm_param
    filler = p.scale_filler if p.HasField("scale_filler") else 1.0
    w = layer.weight((1,) if p.channel_shared else (x.channels,), filler)
    eps, across = p.eps, p.across_spatial

    def compute(x: Any, w: Any) -> Any:
        axes = tuple(range(1, x.ndim)) if across else (1,)
        return F.norm_normalization(x, axes=axes, eps=eps) * along(w, x.ndim, 1)

    layer.op(compute, x, w)


@builds("InnerProduct")
def inner_product(layer: Layer, x: Blob) -> None:
    p = layer.message.inner_product_param
    axis = layer.axis(p.axis, len(x.sizes))
    n, k = p.num_output, math.prod(x.sizes[axis:])
    w = layer.weight(
        (k, n) if p.transpose else (n, k), layer.filler(p, "weight_filler"), not p.transpose
    )
    b = [layer.weight((n,), layer.filler(p, "bias_filler"))] if p.bias_term else []

    def compute(x: Any, w: Any, *b: Any) -> Any:
        if axis == 0:
            return F.reshape(F.affine(F.reshape(x, (1, *x.shape)), w, *b), (n,))
        return F.affine(x, w, *b, base_axis=axis)

    layer.op(compute, x, w, *b)


@builds("Embed")
def embed(layer: Layer, x: Blob) -> None:
    p = layer.message.embed_param
    w = layer.weight((p.input_dim, p.num_output), layer.filler(p, "weight_filler"))
    b = [layer.weight((p.num_output,), layer.filler(p, "bias_filler"))] if p.bias_term else []

    def compute(x: Any, w: Any, *b: Any) -> Any:
        y = F.embed(OPS["cast"](x, dtype="int64"), w)
        return y + along(b[0], y.ndim, y.ndim - 1) if b else y

    layer.op(compute, x, w, *b)


@builds("Parameter", bottoms=0)
def parameter(layer: Layer) -> None:
    w = layer.weight(layer.message.parameter_param.shape.dim, 0.0)
    layer.op(F.identity, w)


def constant(array: Any) -> Variable:
    """A leaf that holds numbers."""
    return Variable.from_numpy_array(np.asarray(array, np.float32))
