# SPDX-License-Identifier: Apache-2.0
"""Export of functions without inputs: constants, ranges and random numbers.

Random numbers have the distribution of the nnl function, not its values. A seed is passed on.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from nnl.converters.onnx.export_batch import moving_axes
from nnl.converters.onnx.export_context import Exporter, Refused
from nnl.converters.onnx.export_tensor import Call, Tensor
from nnl.converters.onnx.registry import onnx_export
from nnl.core.context import using


def moves(call: Call) -> bool:
    return call.shapes[0] != call.moved_shapes[0]


@onnx_export("constant")
def constant(ctx: Exporter, call: Call) -> Tensor:
    value = ctx.constant(call.attrs.val, call.dtypes[0])
    if prod(call.shapes[0]) == 1 and not moves(call):
        return ctx.constant(np.full(call.shapes[0], call.attrs.val, call.dtypes[0]))
    return ctx.emit("Expand", value, ctx.shape_tensor(call.shapes[0], call.moved_shapes[0]))


@onnx_export("arange", "linspace")
def positions(ctx: Exporter, call: Call) -> Tensor:
    with using(target=call.target):
        values = call.attrs.forward(np, dtype=call.dtypes[0])
    return ctx.constant(values)


@onnx_export("sink")
def sink(ctx: Exporter, call: Call) -> Tensor:
    return ctx.constant(np.zeros((), call.dtypes[0]))


def drawn(
    ctx: Exporter, call: Call, op_type: str, shape: Any, moved: Any, **settings: float
) -> Tensor:
    """Float numbers of a distribution."""
    seed = call.attrs.seed
    attributes = {**settings, "seed": float(seed) if seed >= 0 else None}
    dtype = np.dtype(np.float32)
    if tuple(shape) == tuple(moved):
        return ctx.emit(op_type, dtype=dtype, shape=tuple(shape), **attributes)
    zero = ctx.constant(np.zeros((), dtype))
    like = ctx.emit("Expand", zero, ctx.shape_tensor(tuple(shape), tuple(moved)))
    return ctx.emit(f"{op_type}Like", like, **attributes)


@onnx_export("rand")
def rand(ctx: Exporter, call: Call) -> Tensor:
    a = call.attrs
    shapes = (call.shapes[0], call.moved_shapes[0])
    y = drawn(ctx, call, "RandomUniform", *shapes, low=a.low, high=a.high)
    return ctx.cast(y, call.dtypes[0])


@onnx_export("randn")
def randn(ctx: Exporter, call: Call) -> Tensor:
    a = call.attrs
    shapes = (call.shapes[0], call.moved_shapes[0])
    y = drawn(ctx, call, "RandomNormal", *shapes, mean=a.mu, scale=abs(a.sigma))
    return ctx.cast(y, call.dtypes[0])


@onnx_export("randint")
def randint(ctx: Exporter, call: Call) -> Tensor:
    a = call.attrs
    shapes = (call.shapes[0], call.moved_shapes[0])
    y = drawn(ctx, call, "RandomUniform", *shapes, low=float(a.low), high=float(a.high))
    y = ctx.emit("Clip", ctx.emit("Floor", y), float(a.low), float(a.high - 1))
    return ctx.cast(y, call.dtypes[0])


@onnx_export("rand_binomial")
def rand_binomial(ctx: Exporter, call: Call) -> Tensor:
    """How many of n uniform numbers are below p."""
    a = call.attrs
    shapes = ((a.n, *call.shapes[0]), (a.n, *call.moved_shapes[0]))
    y = drawn(ctx, call, "RandomUniform", *shapes, low=0.0, high=1.0)
    hits = ctx.from_bool(ctx.emit("Less", y, a.p, dtype=np.bool_), call.dtypes[0])
    return ctx.reduce("ReduceSum", hits, [0])


@onnx_export("random_choice")
def random_choice(ctx: Exporter, call: Call) -> Tensor:
    """Exponential times with rates w: with replacement one race for each draw, without it the
    first ones of a single race (Efraimidis and Spirakis, Weighted Random Sampling, 2006)."""
    a, x, w = call.attrs, call.input(0), call.input(1)
    shape = a.shape or (1,)
    count, n, rank = prod(shape), x.sizes[-1], x.ndim
    if x.ndim - 1 in moving_axes(x):
        raise Refused("a choice among the samples of a batch")
    races = count if a.replace else 1
    wide = (*x.sizes[:-1], races, n)
    wide_moved = (*(x.moved or ())[:-1], races, n)
    u = drawn(ctx, call, "RandomUniform", wide, wide_moved, low=0.0, high=1.0)
    u = ctx.emit("Sub", 1.0, u)  # (0, 1]
    rates = ctx.unsqueeze(ctx.cast(w, np.float32), rank - 1)
    times = ctx.emit("Div", ctx.emit("Neg", ctx.emit("Log", u)), rates)
    if a.replace:
        index = ctx.emit("ArgMin", times, axis=rank, keepdims=0, dtype=np.int64)
    else:
        k = ctx.ints(count)
        _, index = ctx.emit("TopK", times, k, outputs=2, axis=rank, largest=0, sorted=1)
        index.dtype = np.dtype(np.int64)
        index = ctx.squeeze(index, rank - 1)
    y = ctx.emit("GatherElements", x, index, axis=rank - 1)
    return y if len(shape) == 1 else ctx.reshape(y, call.shapes[0], call.moved_shapes[0])
