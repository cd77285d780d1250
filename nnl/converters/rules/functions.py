# SPDX-License-Identifier: Apache-2.0
"""Activations, arithmetic, reductions, normalizations, and functions of the shapes and places of
arrays in terms of simpler ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.rules.building import constant, filled, like, part, taken
from nnl.core.graph.variable import Variable
from nnl.functions.binary import binarize, binarize_scaled


def _clip(x: Any, low: float, high: float) -> Any:
    return F.minimum_scalar(F.maximum_scalar(x, low), high)


def _softplus(a: Any, x: Any) -> Any:
    """ln(1 + e^(beta x)) / beta, without overflow."""
    z = x * a.beta
    return (F.relu(z) + F.log(F.exp(F.abs(z) * -1.0) + 1.0)) * (1.0 / a.beta)


def _log_softmax(a: Any, x: Any) -> Any:
    s = x - F.max(x, a.axis, keepdims=True)
    return s - F.log(F.sum(F.exp(s), a.axis, keepdims=True))


def _square(x: Any) -> Any:
    return x * x


def _standardized(x: Any, axes: Any, eps: float) -> Any:
    """With mean 0 and variance 1 over some axes."""
    centred = x - F.mean(x, axes, keepdims=True)
    return centred * (F.mean(_square(centred), axes, keepdims=True) + eps) ** -0.5


def _scaled(y: Any, beta: Any, gamma: Any, a: Any) -> Any:
    """With scale and shift, which are of the rank of y or leave leading axes out."""
    y = y if gamma is None or a.no_scale else y * _aligned(gamma, y)
    return y if beta is None or a.no_bias else y + _aligned(beta, y)


def _aligned(v: Any, y: Any) -> Any:
    shape = (1,) * (y.ndim - v.ndim) + v.shape
    return v if shape == v.shape else F.reshape(v, shape)


def _others(x: Any, axes: Any) -> tuple[int, ...]:
    kept = {a % x.ndim for a in axes}
    return tuple(i for i in range(x.ndim) if i not in kept)


def _layer(a: Any, x: Any, beta: Any, gamma: Any) -> Any:
    return _scaled(_standardized(x, _others(x, a.batch_axis), a.eps), beta, gamma, a)


def _instance(a: Any, x: Any, beta: Any, gamma: Any) -> Any:
    axes = _others(x, (*a.batch_axis, a.channel_axis))
    return _scaled(_standardized(x, axes, a.eps), beta, gamma, a)


def _group(a: Any, x: Any, beta: Any, gamma: Any) -> Any:
    c = a.channel_axis % x.ndim
    shape = (*x.shape[:c], a.num_groups, x.shape[c] // a.num_groups, *x.shape[c + 1 :])
    axes = tuple(i for i in range(len(shape)) if i != c and i not in a.batch_axis)
    y = F.reshape(_standardized(F.reshape(x, shape), axes, a.eps), x.shape)
    return _scaled(y, beta, gamma, a)


def _tensor(a: Any, x: Any, beta: Any, gamma: Any) -> Any:
    return _scaled(_standardized(x, _others(x, a.axes), a.eps), beta, gamma, a)


def _batch(a: Any, x: Any, beta: Any, gamma: Any, mean: Any, variance: Any) -> Any:
    """By the statistics of the batch, or by those that are known."""
    if a.batch_stat:
        y = _standardized(x, _others(x, a.axes), a.eps)
    else:
        y = (x - _aligned(mean, x)) * (_aligned(variance, x) + a.eps) ** -0.5
    return _scaled(y, beta, gamma, a)


def _batch_fused(a: Any, x: Any, beta: Any, gamma: Any, mean: Any, variance: Any, z: Any) -> Any:
    y = F.batch_normalization(
        x, beta, gamma, mean, variance, a.axes, a.decay_rate, a.eps, a.batch_stat
    )
    y = y if z is None else y + z
    return F.relu(y) if a.nonlinearity == "relu" else y


def _broadcast(a: Any, x: Any) -> Any:
    ones = Variable.from_numpy_array(np.ones(a.shape, np.float32))
    return _aligned(x, ones) * ones


def _tile(a: Any, x: Any) -> Any:
    reps = (1,) * (x.ndim - len(a.reps)) + tuple(a.reps)
    y = F.reshape(x, (1,) * (len(reps) - x.ndim) + x.shape)
    for axis, n in enumerate(reps):
        if n > 1:
            y = F.concatenate(*[y] * n, axis=axis)
    return y


def _pooled_whole(a: Any, x: Any) -> Any:
    kernel = x.shape[2:]
    return F.average_pooling(x, kernel, stride=kernel) if len(kernel) == 2 else None


def _norm(a: Any, x: Any) -> Any:
    axes = tuple(range(x.ndim)) if a.axes is None else a.axes
    powers = F.abs(x) if a.p == 1 else _square(x) if a.p == 2 else F.abs(x) ** a.p
    total = F.sum(powers, axes, keepdims=a.keep_dims)
    return total if a.p == 1 else total ** (1.0 / a.p)


def _chain(combine: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def rule(a: Any, *xs: Any) -> Any:
        y = xs[0]
        for x in xs[1:]:
            y = combine(y, x)
        return y

    return rule


def _reduced(combine: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def rule(a: Any, x: Any) -> Any:
        """Of halves, down to one element along each axis."""
        if getattr(a, "with_index", False) or getattr(a, "only_index", False):
            return None
        y, axes = x, a.axes or range(x.ndim)
        for axis in axes:
            while (n := y.shape[axis]) > 1:
                half = n // 2
                pair = combine(part(y, axis, 0, half), part(y, axis, half, 2 * half))
                rest = [part(y, axis, n - 1, n)] if n % 2 else []
                y = F.concatenate(pair, *rest, axis=axis) if rest else pair
        return y if a.keep_dims else F.reshape(y, _without(x.shape, axes))

    return rule


def _without(shape: Any, axes: Any) -> tuple[int, ...]:
    gone = {a % len(shape) for a in axes}
    return tuple(n for i, n in enumerate(shape) if i not in gone)


def _gelu(a: Any, x: Any) -> Any:
    inner = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
    return x * 0.5 * (F.tanh(inner) + 1.0)


def _binary_connect(inner: Any) -> Any:
    def rule(a: Any, x: Any, weight: Any, signs: Any, bias: Any) -> Any:
        w = binarize(weight, quantize_zero_to=a.quantize_zero_to)
        return inner(a, x, w, bias)

    return rule


def _binary_weight(inner: Any, outputs_last: bool) -> Any:
    def rule(a: Any, x: Any, weight: Any, signs: Any, alpha: Any, bias: Any) -> Any:
        w = binarize_scaled(weight, quantize_zero_to=a.quantize_zero_to, outputs_last=outputs_last)
        return inner(a, x, w, bias)

    return rule


def _affine(a: Any, x: Any, w: Any, b: Any) -> Any:
    return F.affine(x, w, b, a.base_axis)


def _convolution(a: Any, x: Any, w: Any, b: Any) -> Any:
    return F.convolution(x, w, b, a.base_axis, a.pad, a.stride, a.dilation, a.group)


def _erf(a: Any, x: Any) -> Any:
    """Abramowitz and Stegun, formula 7.1.26; off by at most 1.5e-7."""
    size = F.abs(x)
    t, y = F.r_div_scalar(size * 0.3275911 + 1.0, 1.0), None
    for c in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        y = t * c if y is None else (y + c) * t
    return F.sign(x, alpha=0.0) * (1.0 - y * F.exp(-size * size))  # type: ignore[operator]


def _fixed_point(a: Any, x: Any) -> Any:
    top = (2 ** (a.n - 1) - 1 if a.sign else 2**a.n - 1) * a.delta
    y = F.round(F.abs(x) * (1 / a.delta)) * F.sign(x, alpha=0.0) * a.delta
    return _clip(y, -top if a.sign else 0.0, top)


def _power_of_two(a: Any, x: Any) -> Any:
    """The power of two that is nearest by ratio, with its exponent inside bounds."""
    highest = max(a.m, -120)
    lowest = max(a.m + 1 - 2 ** (a.n - a.sign - a.with_zero), -120)
    size = F.abs(x)
    safe = F.maximum_scalar(size, 2.0 ** (lowest - 1))
    exponent = F.ceil(F.log(safe) * (1 / math.log(2)) - 0.5)
    y = F.r_pow_scalar(_clip(exponent, float(lowest), float(highest)), 2.0)
    if a.with_zero:
        y = y * F.greater_equal_scalar(size, 2.0 ** (lowest - 0.5))
    negative = F.less_scalar(x, 0.0)
    if a.sign:
        return y * (1.0 - negative * 2.0)
    return y * (1.0 - negative) + negative * (0.0 if a.with_zero else 2.0**lowest)


# ---- shapes and places ----


def _triangle(a: Any, x: Any) -> Any:
    kept = (np.triu if a.upper else np.tril)(np.ones(x.shape[-2:]), a.k)
    return F.where(constant(np.broadcast_to(kept, x.shape)), x, filled(x, 0.0))


def _grid(a: Any, *xs: Any) -> Any:
    """Axes of results are the inputs in order, or with the first two exchanged."""
    places = list(range(len(xs)))
    if not a.ij_indexing and len(xs) > 1:
        places[:2] = 1, 0
    sizes = [0] * len(xs)
    for x, place in zip(xs, places, strict=True):
        sizes[place] = x.size
    found = []
    for x, place in zip(xs, places, strict=True):
        shape = [1] * len(xs)
        shape[place] = x.size
        found.append(F.broadcast(F.reshape(x, tuple(shape)), tuple(sizes)))
    return tuple(found)


def _from_sources(a: Any, x: Any) -> Any:
    """Elements of axes again: those at the border, or mirrored ones."""
    if getattr(a, "mode", "") == "constant":
        return None
    for axis, source in enumerate(a.sources(np, x.shape)):
        if source is not None:
            x = taken(x, axis, source)
    return F.identity(x)


def _broadcast_to(a: Any, x: Any, y: Any) -> Any:
    axis = x.ndim - y.ndim if a.axis is None or a.axis < 0 else a.axis
    shape = (1,) * axis + y.shape + (1,) * (x.ndim - axis - y.ndim)
    return F.broadcast(F.reshape(y, shape), x.shape)


def _cumprod(a: Any, x: Any) -> Any:
    axis = (a.axis or 0) % x.ndim
    shape = tuple(1 if i == axis else n for i, n in enumerate(x.shape))
    parts = [F.reshape(p, shape) for p in F.split(x, axis=axis)] if x.shape[axis] > 1 else [x]
    if a.reverse:
        parts.reverse()
    done = [parts[0]]
    for p in parts[1:]:
        done.append(done[-1] * p)
    if a.exclusive:
        done = [F.broadcast(like(x, 1.0), shape), *done[:-1]]
    if a.reverse:
        done.reverse()
    return F.concatenate(*done, axis=axis) if len(done) > 1 else done[0]


def _unpooled(a: Any, x: Any) -> Any:
    """Every pixel with axes of its own, which are stretched."""
    at = x.ndim - len(a.kernel) - a.channel_last
    narrow, wide = list(x.shape[:at]), list(x.shape[:at])
    for n, k in zip(x.shape[at:], (*a.kernel, *[1] * a.channel_last), strict=True):
        narrow += [n, 1]
        wide += [n, k]
    y = F.broadcast(F.reshape(x, narrow), wide)
    return F.reshape(y, a.infer(x.spec).shape)


RULES: dict[str, Callable[..., Any]] = {
    # activations
    "erf": _erf,
    "relu6": lambda a, x: F.minimum_scalar(F.relu(x), 6.0),
    "hard_sigmoid": lambda a, x: _clip(x * 0.2 + 0.5, 0.0, 1.0),
    "hard_tanh": lambda a, x: _clip(x, -1.0, 1.0),
    "softplus": _softplus,
    "log_sigmoid": lambda a, x: F.softplus(x * -1.0) * -1.0,
    "softsign": lambda a, x: x / (F.abs(x) + 1.0),
    "tanh_shrink": lambda a, x: x - F.tanh(x),
    "mish": lambda a, x: x * F.tanh(F.softplus(x)),
    "gelu": _gelu,
    "swish": lambda a, x: x * F.sigmoid(x),
    "log_softmax": _log_softmax,
    # arithmetic
    "bc_add2": lambda a, x, y: x + y,
    "add_n": _chain(lambda x, y: x + y),
    "mul_n": _chain(lambda x, y: x * y),
    "sinh": lambda a, x: (F.exp(x) - F.exp(x * -1.0)) * 0.5,
    "cosh": lambda a, x: (F.exp(x) + F.exp(x * -1.0)) * 0.5,
    "atanh": lambda a, x: F.log((x + 1.0) / (1.0 - x)) * 0.5,
    "squared_error": lambda a, x, y: _square(x - y),
    "absolute_error": lambda a, x, y: F.abs(x - y),
    "clip_grad_by_value": lambda a, x, low, high: x,
    "clip_grad_by_norm": lambda a, x: x,
    "unlink": lambda a, x: x,
    # reductions
    "mean": lambda a, x: (
        F.sum(x, a.axes, a.keep_dims) * (1.0 / max(math.prod(x.shape[i] for i in a.axes), 1))
    ),
    "reduce_sum": lambda a, x: F.sum(x),
    "reduce_mean": lambda a, x: F.mean(x),
    "prod": _reduced(F.mul2),
    "max": _reduced(F.maximum2),
    "min": _reduced(F.minimum2),
    "norm": _norm,
    # normalization
    "batch_normalization": _batch,
    "fused_batch_normalization": _batch_fused,
    "layer_normalization": _layer,
    "instance_normalization": _instance,
    "group_normalization": _group,
    "tensor_normalization": _tensor,
    "weight_standardization": lambda a, x: _standardized(
        x, tuple(i for i in range(x.ndim) if i != a.channel_axis % x.ndim), a.eps
    ),
    "mean_subtraction": lambda a, x, mean, t: (
        None if a.update_running_mean else x - _aligned(mean, x)
    ),
    # fewer values
    "fixed_point_quantize": _fixed_point,
    "pow2_quantize": _power_of_two,
    "binary_tanh": lambda a, x: F.sign(x, alpha=-1.0),
    "binary_sigmoid": lambda a, x: F.sign(x, alpha=-1.0) * 0.5 + 0.5,
    # binary networks, whose binary weights follow from the others
    "binary_connect_affine": _binary_connect(_affine),
    "binary_connect_convolution": _binary_connect(_convolution),
    "binary_weight_affine": _binary_weight(_affine, True),
    "binary_weight_convolution": _binary_weight(_convolution, False),
    # shapes and places
    "trilu": _triangle,
    "meshgrid": _grid,
    "broadcast_to": _broadcast_to,
    "pad": _from_sources,
    "shift": _from_sources,
    "unpooling": _unpooled,
    "cumprod": _cumprod,
    "eye_like": lambda a, x: constant(np.eye(x.shape[-2], x.shape[-1], a.k)),
    "broadcast": _broadcast,
    "tile": _tile,
    "global_average_pooling": _pooled_whole,
}
