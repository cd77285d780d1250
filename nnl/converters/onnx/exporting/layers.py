# SPDX-License-Identifier: Apache-2.0
"""Export of normalisations, with running statistics where a function has them, of recurrent layers,
one node each with both directions in it, and of what language models are made of."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from nnl.converters.onnx.exporting.nodes.context import Exporter
from nnl.converters.onnx.exporting.nodes.tensor import Call, Tensor
from nnl.converters.onnx.file.registry import onnx_export
from nnl.core.arrays.spec import Spec
from nnl.core.ops.op import OPS


def standardized(
    ctx: Exporter, x: Tensor, axes: Sequence[int], eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """x less its mean over its standard deviation; the mean; the variance."""
    mean = ctx.reduce("ReduceMean", x, axes, keepdims=True)
    centred = ctx.emit("Sub", x, mean)
    variance = ctx.reduce("ReduceMean", ctx.emit("Mul", centred, centred), axes, keepdims=True)
    deviation = ctx.emit("Sqrt", ctx.emit("Add", variance, eps))
    return ctx.emit("Div", centred, deviation), mean, variance


def scale_and_shift(ctx: Exporter, y: Tensor, beta: Tensor | None, gamma: Tensor | None) -> Tensor:
    y = y if gamma is None else ctx.emit("Mul", y, gamma)
    return y if beta is None else ctx.emit("Add", y, beta)


def _ones(ctx: Exporter, x: Tensor, n: int, value: float) -> Tensor:
    return ctx.constant(np.full(n, value), x.dtype)


@onnx_export("batch_normalization", "batch_normalization_with_statistics")
def batch_normalization(ctx: Exporter, call: Call) -> tuple[Tensor, ...]:
    x, beta, gamma, mean, variance = (call.optional(i) for i in range(5))
    a = call.attrs
    if x is None:
        raise ValueError("export: batch_normalization has no input")
    if mean is None or variance is None:
        axes = [d for d in range(x.ndim) if d not in a.axes]
        y, mean, variance = standardized(ctx, x, axes, a.eps)
        return (scale_and_shift(ctx, y, beta, gamma), mean, variance)[: len(call.shapes)]
    if a.axes == (1,) and x.ndim >= 2:
        n = x.sizes[1]
        row = [None if p is None else ctx.reshape(p, (n,)) for p in (gamma, beta, mean, variance)]
        row[0] = _ones(ctx, x, n, 1.0) if row[0] is None else row[0]
        row[1] = _ones(ctx, x, n, 0.0) if row[1] is None else row[1]
        y = ctx.emit("BatchNormalization", x, *row, epsilon=a.eps)
    else:
        deviation = ctx.emit("Sqrt", ctx.emit("Add", variance, a.eps))
        y = ctx.emit("Div", ctx.emit("Sub", x, mean), deviation)
        y = scale_and_shift(ctx, y, beta, gamma)
    return (y, mean, variance)


@onnx_export("fused_batch_normalization", "fused_batch_normalization_with_statistics")
def fused_batch_normalization(ctx: Exporter, call: Call) -> tuple[Tensor, ...]:
    y, mean, variance = batch_normalization(ctx, call)
    z = call.optional(5)
    y = y if z is None else ctx.emit("Add", y, z)
    return ctx.emit("Relu", y), mean, variance


@onnx_export("layer_normalization")
def layer_normalization(ctx: Exporter, call: Call) -> tuple[Tensor, ...]:
    x, beta, gamma = call.x, call.optional(1), call.optional(2)
    first = len(call.attrs.batch_axis)
    at_the_end = sorted(call.attrs.batch_axis) == list(range(first)) and first < x.ndim
    if ctx.opset < 17 or not at_the_end:
        return normalization(ctx, call)
    rest = x.sizes[first:]
    scale = ctx.constant(np.ones(rest, x.dtype)) if gamma is None else ctx.reshape(gamma, rest)
    shift = None if beta is None else ctx.reshape(beta, rest)
    y = ctx.emit("LayerNormalization", x, scale, shift, axis=first, epsilon=call.attrs.eps)
    return (y,)


@onnx_export("instance_normalization")
def instance_normalization(ctx: Exporter, call: Call) -> tuple[Tensor, ...]:
    a, x, beta, gamma = call.attrs, call.x, call.optional(1), call.optional(2)
    channels = x.sizes[1] if x.ndim > 1 else 0
    usual = x.ndim >= 3 and a.channel_axis == 1 and a.batch_axis == (0,)
    shared = all(p is None or prod(p.sizes) == channels for p in (beta, gamma))
    if not (usual and shared):
        return normalization(ctx, call)
    scale = _ones(ctx, x, channels, 1.0) if gamma is None else ctx.reshape(gamma, (channels,))
    shift = _ones(ctx, x, channels, 0.0) if beta is None else ctx.reshape(beta, (channels,))
    return (ctx.emit("InstanceNormalization", x, scale, shift, epsilon=a.eps),)


@onnx_export("group_normalization")
def group_normalization(ctx: Exporter, call: Call) -> tuple[Tensor, ...]:
    a, x, beta, gamma = call.attrs, call.x, call.optional(1), call.optional(2)
    usual = x.ndim >= 3 and a.channel_axis == 1 and a.batch_axis == (0,)
    if not usual:
        return normalization(ctx, call)
    n, groups = x.sizes[1], a.num_groups
    if ctx.opset >= 21:
        scale = _ones(ctx, x, n, 1.0) if gamma is None else ctx.reshape(gamma, (n,))
        shift = _ones(ctx, x, n, 0.0) if beta is None else ctx.reshape(beta, (n,))
        settings = {"num_groups": groups, "epsilon": a.eps}
        return (ctx.emit("GroupNormalization", x, scale, shift, **settings),)
    # groups as the channels of an instance normalisation
    inner = prod(x.sizes[1:]) // groups
    rows = ctx.reshape(x, (x.sizes[0], groups, inner))
    one, zero = _ones(ctx, x, groups, 1.0), _ones(ctx, x, groups, 0.0)
    y = ctx.emit("InstanceNormalization", rows, one, zero, epsilon=a.eps)
    y = ctx.reshape(y, call.shape)
    return (scale_and_shift(ctx, y, beta, gamma),)


@onnx_export(
    "tensor_normalization",
    "weight_standardization",
    "layer_normalization_with_statistics",
    "instance_normalization_with_statistics",
    "group_normalization_with_statistics",
    "tensor_normalization_with_statistics",
    "weight_standardization_with_statistics",
)
def normalization(ctx: Exporter, call: Call) -> tuple[Tensor, ...]:
    """Any of them, from its layout: the shape to look at x in, and the axes to average."""
    a, x = call.attrs, call.x
    beta, gamma = call.optional(1), call.optional(2)
    shape, axes = a.layout(Spec.of(x.sizes))
    y, mean, variance = standardized(ctx, ctx.reshape(x, shape), axes, a.eps)
    beta, gamma = (None if p is None else ctx.reshape(p, a.fold(p.sizes)) for p in (beta, gamma))
    y = scale_and_shift(ctx, y, beta, gamma)
    if shape != x.sizes:
        y = ctx.reshape(y, call.shape)
    return y, mean, variance


@onnx_export("mean_subtraction")
def mean_subtraction(ctx: Exporter, call: Call) -> Tensor:
    return ctx.emit("Sub", call.x, call.input(1))


# ---- rnn, lstm and gru ----


# Our gates in the order of ONNX: lstm i f g o -> i o f g, gru r z n -> z r n.
_GATES = {"rnn": (0,), "lstm": (0, 3, 1, 2), "gru": (1, 0, 2)}


class _Layers:
    """Weights, biases and states of single layers, in the forms that ONNX wants."""

    def __init__(self, ctx: Exporter, call: Call) -> None:
        self.ctx, self.name = ctx, call.name
        cell = call.name == "lstm"
        self.h, self.c = call.input(1), call.input(2) if cell else None
        self.first, self.later, self.bias = (call.optional(i + cell) for i in (2, 3, 4))
        self.layers, self.directions, _, self.hidden = self.h.sizes
        self.gates = len(_GATES[call.name])

    def at(self, x: Tensor, layer: int) -> Tensor:
        """Entry `layer` of the first axis."""
        y = self.ctx.fold(x, f"layer_{layer}", lambda v: v[layer])
        if y is None:
            y = self.ctx.emit("Gather", x, self.ctx.constant(layer, np.int64), axis=0)
            y.shape = x.sizes[1:]
        return y

    def in_order(self, x: Tensor, order: tuple[int, ...]) -> Tensor:
        """x (directions, gates, ...) with the gates in another order, merged with the next axis."""
        if self.gates > 1:
            named = "_".join(map(str, order))
            y = self.ctx.fold(x, f"gates_{named}", lambda v: v[:, list(order)])
            if y is None:
                y = self.ctx.emit("Gather", x, self.ctx.ints(*order), axis=1)
                y.shape = (x.sizes[0], len(order), *x.sizes[2:])
            x = y
        width = x.sizes[3:] if self.gates > 1 else x.sizes[2:]
        return self.ctx.reshape(x, (self.directions, len(order) * self.hidden, *width))

    def weights(self, layer: int) -> tuple[Tensor, Tensor]:
        """Of the inputs and of the state."""
        if layer == 0 or self.later is None:
            x = self.first
        else:
            x = self.at(self.later, layer - 1)
        if x is None:
            raise ValueError(f"export: {self.name} has no weights for layer {layer}")
        w = self.in_order(x, _GATES[self.name])
        n, axis = w.sizes[2] - self.hidden, 2
        parts = [
            self.ctx.fold(w, k, f)
            for k, f in (("inputs", lambda v: v[..., :n]), ("states", lambda v: v[..., n:]))
        ]
        if parts[0] is not None and parts[1] is not None:
            return parts[0], parts[1]
        return (
            self.ctx.slice(w, [0], [n], [axis]),
            self.ctx.slice(w, [n], [n + self.hidden], [axis]),
        )

    def biases(self, layer: int) -> Tensor | None:
        """(directions, 2 gates hidden): added to the inputs, then to the state."""
        if self.bias is None:
            return None
        x = self.at(self.bias, layer)
        if self.name == "gru":  # the row 3 is the part of n that the reset gate multiplies
            both = self.in_order(x, (1, 0, 2, 3))
            n = 3 * self.hidden
            inputs, last = (
                self.part(both, 0, n, "inputs"),
                self.part(both, n, n + self.hidden, "states"),
            )
            zero = self.zeros(2 * self.hidden)
            return self.ctx.emit("Concat", inputs, zero, last, axis=1)
        inputs = self.in_order(x, _GATES[self.name])
        return self.ctx.emit("Concat", inputs, self.zeros(self.gates * self.hidden), axis=1)

    def part(self, x: Tensor, start: int, stop: int, key: str) -> Tensor:
        y = self.ctx.fold(x, key, lambda v: v[:, start:stop])
        return self.ctx.slice(x, [start], [stop], [1]) if y is None else y

    def zeros(self, n: int) -> Tensor:
        return self.ctx.constant(np.zeros((self.directions, n), self.h.dtype))


@onnx_export("rnn", "lstm", "gru")
def recurrent(ctx: Exporter, call: Call) -> tuple[Tensor, ...]:
    layers = _Layers(ctx, call)
    steps, batch, _ = call.x.sizes
    width = layers.directions * layers.hidden
    settings: dict[str, Any] = {
        "hidden_size": layers.hidden,
        "direction": "bidirectional" if layers.directions == 2 else "forward",
    }
    if call.name == "rnn":
        word = {"tanh": "Tanh", "relu": "Relu"}[call.attrs.nonlinearity]
        settings["activations"] = [word] * layers.directions
    if call.name == "gru":
        settings["linear_before_reset"] = 1
    x, states, cells = call.x, [], []
    for layer in range(layers.layers):
        inputs = [x, *layers.weights(layer), layers.biases(layer), None, layers.at(layers.h, layer)]
        if layers.c is not None:
            inputs.append(layers.at(layers.c, layer))
        made = ctx.emit(
            {"rnn": "RNN", "lstm": "LSTM", "gru": "GRU"}[call.name],
            *inputs,
            outputs=2 + (layers.c is not None),
            **settings,
        )
        # (steps, directions, batch, hidden) -> (steps, batch, directions * hidden)
        y = ctx.transpose(made[0], (0, 2, 1, 3))
        x = ctx.reshape(y, (steps, batch, width))
        states.append(ctx.unsqueeze(made[1], 0))
        cells += [ctx.unsqueeze(c, 0) for c in made[2:]]
    out = [x, ctx.emit("Concat", *states, axis=0)]
    return (*out, ctx.emit("Concat", *cells, axis=0)) if cells else tuple(out)


# ---- attention, rotary embeddings, experts ----


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
