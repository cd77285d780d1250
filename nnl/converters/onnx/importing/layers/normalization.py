# SPDX-License-Identifier: Apache-2.0
"""Importers of normalisation, dropout, random numbers and activations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.onnx.file.errors import OnnxError
from nnl.converters.onnx.file.registry import onnx_import
from nnl.converters.onnx.file.tensors import dtype_of_code
from nnl.converters.onnx.importing.arithmetic import pair
from nnl.converters.onnx.importing.shape import padded, part
from nnl.converters.onnx.values.values import (
    array,
    axis_of,
    check_size,
    dtype_of,
    is_var,
    known,
    reshape,
    scalar,
    shape_of,
    var,
    with_rank,
)


@onnx_import("BatchNormalization")
def batch_normalization(
    ctx: Any, node: Any, x: Any, scale: Any, bias: Any, mean: Any, variance: Any
) -> Any:
    """Normalisation by running statistics, or by those of the batch in training mode."""
    x = var(x)
    if node.since < 9 and not getattr(node, "spatial", 1):
        raise OnnxError("spatial=0 is not supported: export with one scale per channel")
    training = getattr(node, "training_mode", 0)
    if node.since < 7:
        training = not getattr(node, "is_test", 0) and len(node.outputs) > 1
    shape = (1, -1) + (1,) * (x.ndim - 2) if x.ndim > 1 else (-1,)
    axis = 1 if x.ndim > 1 else 0
    parts = [reshape(v, _filled(shape, v)) for v in map(var, (scale, bias, mean, variance))]
    gamma, beta, old_mean, old_variance = parts
    if not training:
        return F.batch_normalization(
            x, beta, gamma, old_mean, old_variance, axes=(axis,), eps=node.epsilon, batch_stat=False
        )
    axes = tuple(i for i in range(x.ndim) if i != axis)
    new_mean = F.mean(x, axis=axes, keepdims=True)
    centred = x - new_mean
    new_variance = F.mean(centred * centred, axis=axes, keepdims=True)
    y = centred * F.pow_scalar(new_variance + node.epsilon, -0.5) * gamma + beta
    m = node.momentum
    running = [
        reshape(old * m + new * (1 - m), (-1,))
        for old, new in ((old_mean, new_mean), (old_variance, new_variance))
    ]
    return y, *running


def _filled(shape: tuple[int, ...], x: Any) -> tuple[int, ...]:
    return tuple(x.size if n == -1 else n for n in shape)


@onnx_import("InstanceNormalization")
def instance_normalization(ctx: Any, node: Any, x: Any, scale: Any, bias: Any) -> Any:
    """Every channel of every sample normalised on its own."""
    x = var(x)
    y = F.layer_normalization(x, None, None, batch_axis=(0, 1), eps=node.epsilon)
    return _scaled(y, scale, bias)


def _scaled(y: Any, scale: Any, bias: Any) -> Any:
    """y times a scale plus a bias per channel."""
    shape = (1, -1) + (1,) * (y.ndim - 2)
    scale, bias = var(scale), var(bias)
    y = y * reshape(scale, _filled(shape, scale))
    return y + reshape(bias, _filled(shape, bias))


@onnx_import("GroupNormalization")
def group_normalization(ctx: Any, node: Any, x: Any, scale: Any, bias: Any) -> Any:
    """Groups of channels normalised; before version 21 with one scale per group."""
    x, groups = var(x), node.num_groups
    sizes = x.shape
    y = F.reshape(x, (sizes[0], groups, math.prod(sizes[1:]) // groups))
    y = F.layer_normalization(y, None, None, batch_axis=(0, 1), eps=node.epsilon)
    if shape_of(scale) == (groups,) and groups != sizes[1]:
        return reshape(_scaled(y, scale, bias), sizes)
    return _scaled(reshape(y, sizes), scale, bias)


@onnx_import("LayerNormalization")
def layer_normalization(ctx: Any, node: Any, x: Any, scale: Any, bias: Any = None) -> Any:
    """Normalisation over the axes from `axis` on; mean and inverse deviation if asked for."""
    x = var(x)
    axis = axis_of(node.axis, x.ndim)
    axes = tuple(range(axis, x.ndim))
    lead = tuple(range(axis))
    wanted = (1,) * axis + x.shape[axis:]
    scale = with_rank(var(scale), x.ndim)
    bias = None if bias is None else with_rank(var(bias), x.ndim)
    direct = scale.shape == wanted and (bias is None or bias.shape == wanted)
    if lead and direct:
        y = F.layer_normalization(x, bias, scale, batch_axis=lead, eps=node.epsilon)
    else:
        one = F.reshape(x, (1, *x.shape))
        batch = (0, *(i + 1 for i in lead))
        y = F.layer_normalization(one, None, None, batch_axis=batch, eps=node.epsilon)
        y = F.reshape(y, x.shape) * scale
        y = y if bias is None else y + bias
    if not any(node.outputs[1:]):
        return y
    mean = F.mean(x, axis=axes, keepdims=True)
    centred = x - mean
    variance = F.mean(centred * centred, axis=axes, keepdims=True)
    return y, mean, F.pow_scalar(variance + node.epsilon, -0.5)


@onnx_import("LRN")
def local_response_normalization(ctx: Any, node: Any, x: Any) -> Any:
    """x divided by a power of the sum of squares in neighbouring channels."""
    x = var(x)
    if node.size < 1:
        raise OnnxError(f"size is {node.size}, wanted at least 1")
    channels, low = x.shape[1], (node.size - 1) // 2
    # what lies further away than the last channel is outside for every channel
    low, high = (min(n, max(channels - 1, 0)) for n in (low, node.size - 1 - low))
    rest = [0] * (x.ndim - 2)
    squares = padded(x * x, [0, low, *rest], [0, high, *rest])
    total = part(squares, 1, 0, channels)
    for i in range(1, low + high + 1):
        total = total + part(squares, 1, i, i + channels)
    scale = total * (node.alpha / node.size) + node.bias
    return x * F.pow_scalar(scale, -node.beta)


@onnx_import("Dropout")
def dropout(ctx: Any, node: Any, x: Any, ratio: Any = None, training: Any = None) -> Any:
    """x itself, unless the node says that it trains; the mask of what stays if asked for."""
    keep = np.ones(shape_of(x), bool)
    rate = float(scalar(ratio, 0.5, "the ratio"))
    if training is None or not bool(scalar(training, what="training_mode")) or rate == 0:
        return x, keep
    scale = 1.0 / (1.0 - rate) if rate < 1 else 0.0
    x = var(x)
    if getattr(node, "seed", None) is not None:
        numbers = np.random.RandomState(node.seed).uniform(0, 1, x.shape)
        keep = numbers >= rate
        return x * var(keep) * scale, keep
    mask = F.greater_equal_scalar(F.rand(shape=x.shape), rate)
    return x * mask * scale, mask


def _seed(node: Any) -> int:
    """nnl's seed for an ONNX seed, which is a float."""
    if node.seed is None:
        return -1
    return int(np.float32(node.seed).view(np.uint32)) & 0x7FFFFFFF


def _random(name: str, like: bool) -> None:
    normal = "Normal" in name

    @onnx_import(name)
    def handler(ctx: Any, node: Any, x: Any = None) -> Any:
        sizes = check_size(shape_of(x) if like else node.shape)
        if normal:
            y = F.randn(node.mean, node.scale, shape=sizes, seed=_seed(node))
        else:
            y = F.rand(node.low, node.high, shape=sizes, seed=_seed(node))
        if node.dtype is not None:
            dtype = dtype_of_code(node.dtype, "dtype")
        else:
            dtype = dtype_of(x) if like else np.dtype(np.float32)
        from nnl.converters.onnx.importing.shape import cast_to

        return cast_to(y, dtype)

    handler.__doc__ = f"{name}: new numbers in every run."


_random("RandomNormal", False)
_random("RandomNormalLike", True)
_random("RandomUniform", False)
_random("RandomUniformLike", True)


@onnx_import("Bernoulli")
def bernoulli(ctx: Any, node: Any, x: Any) -> Any:
    """1 with the probability x, else 0."""
    from nnl.converters.onnx.importing.shape import cast_to

    y = F.less(F.rand(shape=shape_of(x), seed=_seed(node)), var(x))
    dtype = dtype_of(x) if node.dtype is None else dtype_of_code(node.dtype, "dtype")
    return cast_to(y, dtype) if known(y) else y


@onnx_import("Multinomial")
def multinomial(ctx: Any, node: Any, x: Any) -> Any:
    """Classes drawn with the probabilities that unnormalised logarithms x give."""
    x = var(x)
    check_size([x.shape[0], node.sample_size, x.shape[1]])
    noise = F.rand(shape=(x.shape[0], node.sample_size, x.shape[1]), seed=_seed(node))
    gumbel = F.mul_scalar(F.log(F.mul_scalar(F.log(noise), -1.0)), -1.0)
    scores = gumbel + F.reshape(x, (x.shape[0], 1, x.shape[1]))
    y = F.max(scores, axis=2, only_index=True)
    return y if not known(y) else y.d.astype(dtype_of_code(node.dtype, "dtype"))


@onnx_import("PRelu")
def prelu(ctx: Any, node: Any, x: Any, slope: Any) -> Any:
    """x, times a slope where it is negative."""
    x, slope = var(x), var(slope)
    if node.since < 9 and slope.ndim == 1 and x.ndim > 2:
        slope = F.reshape(slope, (slope.size,) + (1,) * (x.ndim - 2))
    return F.relu(x) - pair(F.mul2, F.relu(F.mul_scalar(x, -1.0)), slope)


@onnx_import("HardSigmoid")
def hard_sigmoid(ctx: Any, node: Any, x: Any) -> Any:
    """max(0, min(1, alpha x + beta))."""
    return _between(F.add_scalar(F.mul_scalar(var(x), node.alpha), node.beta))


def _between(x: Any, low: float = 0.0, high: float = 1.0) -> Any:
    return F.minimum_scalar(F.maximum_scalar(x, low), high)


@onnx_import("Softplus")
def softplus(ctx: Any, node: Any, x: Any) -> Any:
    """log(1 + exp(x))."""
    return F.softplus(var(x))


@onnx_import("Shrink")
def shrink(ctx: Any, node: Any, x: Any) -> Any:
    """0 within lambd of 0, outside of it x moved towards 0 by bias."""
    given, x = x, var(x)
    limit = node.lambd
    low, high = F.less_scalar(x, -limit), F.greater_scalar(x, limit)
    y = (x + node.bias) * low + (x - node.bias) * high
    return y if is_var(given) else array(y).astype(given.dtype)


@onnx_import("Gelu")
def gelu(ctx: Any, node: Any, x: Any) -> Any:
    """x times the normal distribution function of x, exactly or by tanh."""
    x = var(x)
    if node.approximate == "tanh":
        inner = F.mul_scalar(
            x + F.mul_scalar(F.pow_scalar(x, 3.0), 0.044715), math.sqrt(2 / math.pi)
        )
        return F.mul_scalar(x, 0.5) * F.add_scalar(F.tanh(inner), 1.0)
    return F.mul_scalar(x, 0.5) * F.add_scalar(F.erf(F.mul_scalar(x, math.sqrt(0.5))), 1.0)
