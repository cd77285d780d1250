# SPDX-License-Identifier: Apache-2.0
"""Export of functions without inputs: constants, ranges and random numbers.

Random numbers have the distribution of the nnl function, not its values. A seed is passed on.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from nnl.converters.onnx.exporting.nodes.context import Exporter
from nnl.converters.onnx.exporting.nodes.tensor import Call, Tensor
from nnl.converters.onnx.file.registry import onnx_export
from nnl.core.settings.context import using


@onnx_export("constant")
def constant(ctx: Exporter, call: Call) -> Tensor:
    value = ctx.constant(call.attrs.val, call.dtypes[0])
    if prod(call.shape) == 1:
        return ctx.constant(np.full(call.shape, call.attrs.val, call.dtypes[0]))
    return ctx.expand_to(value, call.shape)


@onnx_export("arange", "linspace")
def positions(ctx: Exporter, call: Call) -> Tensor:
    with using(target=call.target):
        values = call.attrs.forward(np, dtype=call.dtypes[0])
    return ctx.constant(values)


def drawn(ctx: Exporter, call: Call, op_type: str, shape: Any, **settings: float) -> Tensor:
    """Float numbers of a distribution."""
    seed = call.attrs.seed
    attributes = {**settings, "seed": float(seed) if seed >= 0 else None}
    y: Tensor = ctx.emit(op_type, dtype=np.float32, shape=tuple(shape), **attributes)
    return y


@onnx_export("rand")
def rand(ctx: Exporter, call: Call) -> Tensor:
    a = call.attrs
    y = drawn(ctx, call, "RandomUniform", call.shape, low=a.low, high=a.high)
    return ctx.cast(y, call.dtypes[0])


@onnx_export("randn")
def randn(ctx: Exporter, call: Call) -> Tensor:
    a = call.attrs
    y = drawn(ctx, call, "RandomNormal", call.shape, mean=a.mu, scale=abs(a.sigma))
    return ctx.cast(y, call.dtypes[0])


@onnx_export("randint")
def randint(ctx: Exporter, call: Call) -> Tensor:
    a = call.attrs
    y = drawn(ctx, call, "RandomUniform", call.shape, low=float(a.low), high=float(a.high))
    y = ctx.emit("Clip", ctx.emit("Floor", y), float(a.low), float(a.high - 1))
    return ctx.cast(y, call.dtypes[0])


@onnx_export("rand_binomial")
def rand_binomial(ctx: Exporter, call: Call) -> Tensor:
    """How many of n uniform numbers are below p."""
    a = call.attrs
    y = drawn(ctx, call, "RandomUniform", (a.n, *call.shape), low=0.0, high=1.0)
    hits = ctx.from_bool(ctx.emit("Less", y, a.p, dtype=np.bool_), call.dtypes[0])
    return ctx.reduce("ReduceSum", hits, [0])


def chosen(ctx: Exporter, call: Call, w: Tensor, count: int) -> Tensor:
    """Exponential times with rates w: with replacement one race for each draw, without it the
    first ones of a single race (Efraimidis and Spirakis, Weighted Random Sampling, 2006)."""
    replace, rank = call.attrs.replace, w.ndim
    wide = (*w.sizes[:-1], count if replace else 1, w.sizes[-1])
    u = drawn(ctx, call, "RandomUniform", wide, low=0.0, high=1.0)
    u = ctx.emit("Sub", 1.0, u)  # (0, 1]
    rates = ctx.unsqueeze(ctx.cast(w, np.float32), rank - 1)
    times = ctx.emit("Div", ctx.emit("Neg", ctx.emit("Log", u)), rates)
    if replace:
        return ctx.emit("ArgMin", times, axis=rank, keepdims=0, dtype=np.int64)
    k = ctx.ints(count)
    _, index = ctx.emit("TopK", times, k, outputs=2, axis=rank, largest=0, sorted=1)
    index.dtype = np.dtype(np.int64)
    return ctx.squeeze(index, rank - 1)


@onnx_export("random_choice")
def random_choice(ctx: Exporter, call: Call) -> Tensor:
    x, shape = call.input(0), call.attrs.shape or (1,)
    index = chosen(ctx, call, call.input(1), prod(shape))
    y = ctx.emit("GatherElements", x, index, axis=x.ndim - 1)
    return y if len(shape) == 1 else ctx.reshape(y, call.shape)


@onnx_export("multinomial")
def multinomial(ctx: Exporter, call: Call) -> Tensor:
    return chosen(ctx, call, call.x, call.attrs.count)
