# SPDX-License-Identifier: Apache-2.0
"""Export of functions that move, repeat and stack elements, and of functions without inputs.

Random numbers have the distribution of the nnl function, not its values. A seed is passed on.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from nnl.converters.onnx.exporting.elementwise import choose
from nnl.converters.onnx.exporting.nodes.context import Exporter
from nnl.converters.onnx.exporting.nodes.tensor import Call, Tensor
from nnl.converters.onnx.file.registry import Handler, onnx_export
from nnl.core.settings.context import using

LAST, BEFORE_FIRST = 2**63 - 1, -(2**63) + 1  # Slice cuts them off at the ends of the axis


@onnx_export("reshape")
def reshape(ctx: Exporter, call: Call) -> Tensor:
    y = ctx.reshape(call.x, call.shape)
    if y is not call.x:
        return y
    if any(ctx.moves(y, axis) for axis in range(y.ndim)):  # it may be another shape at others
        return ctx.emit("Reshape", y, ctx.ints(*call.shape))
    return ctx.emit("Identity", y)


def wrapped(ctx: Exporter, index: Tensor, size: int) -> Tensor:
    """Indices in [0, size), of some that count from the end."""
    negative = ctx.emit("Less", index, 0, dtype=np.bool_)
    return choose(ctx, negative, ctx.emit("Add", index, size), index)


@onnx_export("one_hot")
def one_hot(ctx: Exporter, call: Call) -> Tensor:
    x, sizes = ctx.cast(call.x, np.int64), call.attrs.shape
    index = None  # (..., 1)
    for i, n in enumerate(sizes):
        column = wrapped(ctx, ctx.slice(x, [i], [i + 1], [call.x.ndim - 1]), n)
        index = column if index is None else ctx.emit("Add", ctx.emit("Mul", index, n), column)
    values = ctx.constant(np.array([0, 1]), call.dtypes[0])
    y = ctx.emit(
        "OneHot", index, ctx.constant(prod(sizes), np.int64), values, axis=-1, dtype=call.dtypes[0]
    )
    return ctx.reshape(y, call.shape)


@onnx_export("matrix_diag")
def matrix_diag(ctx: Exporter, call: Call) -> Tensor:
    x = call.x
    eye = ctx.constant(np.eye(x.sizes[-1], dtype=bool))
    return choose(ctx, eye, ctx.unsqueeze(x, x.ndim), 0.0)


@onnx_export("matrix_diag_part")
def matrix_diag_part(ctx: Exporter, call: Call) -> Tensor:
    x = call.x
    eye = ctx.constant(np.eye(x.sizes[-1], dtype=bool))
    return ctx.reduce("ReduceSum", choose(ctx, eye, x, 0.0), [x.ndim - 1])


@onnx_export("trilu")
def trilu(ctx: Exporter, call: Call) -> Tensor:
    x, k, upper = call.x, call.attrs.k, call.attrs.upper
    if ctx.opset >= 14:
        return ctx.emit("Trilu", x, ctx.constant(k, np.int64), upper=int(upper))
    ones = np.ones(x.sizes[-2:], bool)
    return choose(ctx, ctx.constant(np.triu(ones, k) if upper else np.tril(ones, k)), x, 0.0)


@onnx_export("shape")
def shape(ctx: Exporter, call: Call) -> Tensor:
    y = ctx.emit("Shape", call.x, dtype=np.int64)
    start, end = call.attrs.start, call.attrs.end
    if start or end:
        y = ctx.slice(y, [start], [end or LAST], [0])
    return ctx.cast(y, call.dtypes[0])


@onnx_export("stack")
def stack(ctx: Exporter, call: Call) -> Tensor:
    axis = call.attrs.axis
    parts = [ctx.unsqueeze(call.input(i), axis) for i in range(len(call.inputs))]
    return ctx.emit("Concat", *parts, axis=axis)


@onnx_export("split")
def split(ctx: Exporter, call: Call) -> tuple[Tensor, ...]:
    axis, n = call.attrs.axis, len(call.shapes)
    if n == 1:
        return (ctx.squeeze(call.x, axis),)
    parts = ctx.emit("Split", call.x, ctx.ints(*(1,) * n), outputs=n, axis=axis)
    return tuple(ctx.squeeze(part, axis) for part in parts)


@onnx_export("slice")
def slice_(ctx: Exporter, call: Call) -> Tensor:
    x, a = call.x, call.attrs
    lead = x.ndim - len(a.stop)
    parts = []
    for i, (start, stop, step) in enumerate(zip(a.start, a.stop, a.step, strict=True)):
        whole = start == 0 and step == 1 and stop >= x.sizes[lead + i]
        if not whole or ctx.moves(x, lead + i):
            parts.append((start, stop, lead + i, step))
    if not parts:
        return ctx.emit("Identity", x)
    starts, stops, axes, steps = zip(*parts, strict=True)
    return ctx.slice(x, starts, stops, axes, steps if set(steps) != {1} else None)


@onnx_export("flip")
def flip(ctx: Exporter, call: Call) -> Tensor:
    axes = sorted(set(call.attrs.axes))
    n = len(axes)
    return ctx.slice(call.x, [-1] * n, [BEFORE_FIRST] * n, axes, [-1] * n)


@onnx_export("tile")
def tile(ctx: Exporter, call: Call) -> Tensor:
    x, reps = call.x, call.attrs.reps
    x = ctx.unsqueeze(x, *range(len(reps) - x.ndim))
    return ctx.emit("Tile", x, ctx.ints(*(1,) * (call.x.ndim - len(reps)), *reps))


@onnx_export("pad")
def pad(ctx: Exporter, call: Call) -> Tensor | None:
    """Its parts where elements are reflected more than once."""
    x, mode = call.x, call.attrs.mode
    pairs = call.attrs.widths(x.ndim)
    pads = ctx.ints(*(a for a, _ in pairs), *(b for _, b in pairs))
    if mode == "constant":
        return ctx.emit("Pad", x, pads, call.attrs.constant_value, mode="constant")
    if mode == "repeat":
        return ctx.emit("Pad", x, pads, mode="edge")
    if all(max(w) < n or w == (0, 0) for w, n in zip(pairs, x.sizes, strict=True)):
        return ctx.emit("Pad", x, pads, mode="reflect")
    return None


def gathered(ctx: Exporter, x: Tensor, positions: Any, axis: int) -> Tensor:
    return ctx.emit("Gather", x, ctx.constant(positions, np.int64), axis=axis)


@onnx_export("pad_backward")
def pad_backward(ctx: Exporter, call: Call) -> Tensor:
    """One product with zeros and ones per axis: where each padded element came from."""
    y, rank = call.x, call.x.ndim
    for axis, source in enumerate(call.attrs.sources(np, call.shapes[0])):
        if source is None:
            continue
        matrix = np.zeros((len(source), call.shapes[0][axis]))
        matrix[range(len(source)), source] = 1
        order = [*(d for d in range(rank) if d != axis), axis]
        y = ctx.emit("Transpose", y, perm=order)
        y = ctx.emit("MatMul", y, ctx.constant(matrix, call.x.dtype))
        y = ctx.emit("Transpose", y, perm=[order.index(d) for d in range(rank)])
    return ctx.emit("Identity", y) if y is call.x else y


# ---- constants, ranges and random numbers ----


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


# ---- functions that are one expression ----

_EXPRESSIONS: dict[str, Handler] = {
    "broadcast": lambda ctx, call: ctx.expand_to(call.x, call.shape),
    "eye_like": lambda ctx, call: ctx.emit("EyeLike", call.x, k=call.attrs.k),
    "multinomial": lambda ctx, call: chosen(ctx, call, call.x, call.attrs.count),
}

for _names, _expression in _EXPRESSIONS.items():
    onnx_export(*_names.split())(_expression)
