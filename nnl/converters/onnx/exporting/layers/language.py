# SPDX-License-Identifier: Apache-2.0
"""Export of attention, rotary embeddings and what else language models are made of."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnl.converters.onnx.exporting.nodes.context import Exporter
from nnl.converters.onnx.exporting.nodes.tensor import Call, Tensor
from nnl.converters.onnx.file.registry import onnx_export
from nnl.core.ops.op import OPS


@onnx_export("rms_normalization", since=23)
def rms_normalization(ctx: Exporter, call: Call) -> Any:
    a, x, gamma = call.attrs, call.x, call.optional(1)
    if a.axes != tuple(range(x.ndim - len(a.axes), x.ndim)) or not a.axes:
        return ctx.expand(call, lambda attrs, *xs: attrs.decompose(*xs))
    sizes = tuple(x.sizes[i] for i in a.axes)
    if gamma is None:
        gamma = ctx.constant(np.ones(sizes, x.dtype))
    else:
        gamma = ctx.reshape(gamma, sizes)
        if a.gamma_offset:
            gamma = ctx.emit("Add", gamma, a.gamma_offset)
    return ctx.emit("RMSNormalization", x, gamma, axis=a.axes[0], epsilon=a.eps)


def angles(ctx: Exporter, call: Call) -> tuple[Tensor, Tensor]:
    """Cosines and sines, of the shape of positions and one axis more."""
    a, x = call.attrs, call.x
    positions, frequencies = call.input(1), ctx.cast(call.input(2), x.dtype)
    column = ctx.unsqueeze(ctx.cast(positions, x.dtype), positions.ndim)
    angle = ctx.emit("Mul", column, frequencies)
    cos, sin = ctx.emit("Cos", angle), ctx.emit("Sin", angle)
    if a.factor != 1.0:
        cos, sin = (ctx.emit("Mul", v, a.factor) for v in (cos, sin))
    return cos, ctx.emit("Neg", sin) if a.inverse else sin


@onnx_export("rotary_embedding")
def rotary_embedding(ctx: Exporter, call: Call) -> Tensor:
    a, x, positions = call.attrs, call.x, call.input(1)
    r = call.input(2).sizes[0]
    cos, sin = angles(ctx, call)
    if ctx.opset >= 23 and x.ndim == 4 and a.axis == 2 and positions.ndim == 2 and r:
        part = 2 * r if 2 * r < x.sizes[3] else None
        settings = {"interleaved": int(a.interleaved), "rotary_embedding_dim": part}
        return ctx.emit("RotaryEmbedding", x, cos, sin, **settings)
    between = range(a.axis + 1, x.ndim - 1)  # axes that positions do not have
    first = 1 if positions.ndim == 2 else 0
    axes = [*range(first, a.axis), *between] if first else [*between]
    cos, sin = (ctx.unsqueeze(v, *axes) for v in (cos, sin))
    if a.interleaved:
        parts = [ctx.slice(x, [k], [2 * r], [-1], [2]) for k in range(2)]
    else:
        parts = [ctx.slice(x, [k * r], [(k + 1) * r], [-1]) for k in range(2)]
    p, q = parts  # of each pair
    turned = [
        ctx.emit("Sub", ctx.emit("Mul", p, cos), ctx.emit("Mul", q, sin)),
        ctx.emit("Add", ctx.emit("Mul", q, cos), ctx.emit("Mul", p, sin)),
    ]
    if a.interleaved:
        turned = [ctx.unsqueeze(t, x.ndim) for t in turned]
        pairs = ctx.emit("Concat", *turned, axis=-1)
        turned = [ctx.reshape(pairs, (*x.sizes[:-1], 2 * r))]
    rest = [ctx.slice(x, [2 * r], [x.sizes[-1]], [-1])] * (2 * r < x.sizes[-1])
    return ctx.emit("Concat", *turned, *rest, axis=-1)


@onnx_export("attention_seen")
def attention_seen(ctx: Exporter, call: Call) -> tuple[Tensor, Tensor]:
    a = call.attrs
    lengths, offsets, segments = (call.optional(i) for i in range(3))
    dtype = call.dtypes[0]
    if lengths is None and offsets is None and segments is None:
        hidden, some = a.forward(np, None, None, None, dtype=dtype)
        return ctx.constant(hidden), ctx.constant(some)
    _, queries, keys = a.shape

    def column(x: Tensor, *axes: int) -> Tensor:
        return ctx.unsqueeze(ctx.cast(x, np.int64), *axes)

    at: Any = ctx.constant(np.arange(queries)[:, None] + a.causal_offset)
    if offsets is not None:
        at = ctx.emit("Add", column(offsets, 1, 2), at)
    j = ctx.constant(np.arange(keys))
    holds = []
    if a.causal:
        holds.append(ctx.emit("LessOrEqual", j, at, dtype=bool))
    if a.window:
        distance = ctx.emit("Abs", ctx.emit("Sub", at, j))
        holds.append(ctx.emit("Less", distance, ctx.constant(np.array(a.window)), dtype=bool))
    if lengths is not None:
        holds.append(ctx.emit("Less", j, column(lengths, 1, 2), dtype=bool))
    if segments is not None:
        pair = column(segments, 2), column(segments, 1)
        holds.append(ctx.emit("Equal", *pair, dtype=bool))
    seen = holds[0]
    for more in holds[1:]:
        seen = ctx.emit("And", seen, more)
    seen = ctx.unsqueeze(ctx.expand_to(seen, a.shape), 1)
    zero, least = (ctx.constant(np.array(v, dtype)) for v in (0, -np.inf))
    hidden = ctx.emit("Where", seen, zero, least, dtype=dtype)
    return hidden, ctx.reduce("ReduceMax", ctx.from_bool(seen, dtype), [3], keepdims=True)


@onnx_export("attention", since=23)
def attention(ctx: Exporter, call: Call) -> Any:
    a, q, k = call.attrs, call.x, call.input(1)
    mask, *which = (call.optional(i) for i in range(3, 7))
    plain = not (a.window or a.causal_offset or any(x is not None for x in which))
    # the cap comes after the mask in opset 23, where -inf would become finite
    capped = a.soft_cap and not (plain and mask is None and not a.causal)
    if q.ndim != 4 or a.transpose_k or capped or 0 in (*q.sizes, *k.sizes):
        return ctx.expand(call, lambda attrs, *xs: attrs.decompose(*xs))
    some = None
    if not plain:
        seen = OPS["attention_seen"]
        settings = {n: getattr(a, n) for n in ("causal", "causal_offset", "window")}
        shape = (q.sizes[0], q.sizes[2], k.sizes[2])
        attrs = seen.attrs(shape=shape, **settings)
        shapes = [(shape[0], 1, *shape[1:]), (shape[0], 1, shape[1], 1)]
        asked = Call(seen, attrs, which, shapes, [q.dtype] * 2, call.target)
        hidden, some = attention_seen(ctx, asked)
        mask = hidden if mask is None else ctx.emit("Add", mask, hidden)
        if hidden.value is not None and np.all(some.value):
            some = None
    if mask is not None:
        full = (q.sizes[0], q.sizes[1], q.sizes[2], k.sizes[2])
        mask = ctx.expand_to(mask, full)
    causal = int(a.causal) if plain and a.causal else None
    y = ctx.emit(
        "Attention", q, k, call.input(2), mask, scale=a.scale, is_causal=causal,
        softcap=a.soft_cap or None,
    )  # fmt: skip
    if some is not None:
        zero = ctx.constant(np.array(0, q.dtype))
        y = ctx.emit("Where", ctx.emit("Cast", some, dtype=bool, to=9), y, zero, dtype=q.dtype)
    return y, Tensor(dtype=np.dtype(np.float32))


@onnx_export("expert_product")
def expert_product(ctx: Exporter, call: Call) -> Tensor:
    x, w, index = call.x, call.input(1), call.input(2)
    chosen = ctx.emit("Gather", w, ctx.cast(index, np.int64), axis=0)  # (N, K, D, F)
    if call.attrs.transposed:
        chosen = ctx.transpose(chosen, (0, 1, 3, 2))
    rows = ctx.unsqueeze(x, 1, 2) if x.ndim == 2 else ctx.unsqueeze(x, 2)
    return ctx.squeeze(ctx.emit("MatMul", rows, chosen), 2)
