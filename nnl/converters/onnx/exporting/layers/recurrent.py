# SPDX-License-Identifier: Apache-2.0
"""Export of rnn, lstm and gru: one ONNX node for each layer, both directions in it."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnl.converters.onnx.exporting.nodes.context import Exporter
from nnl.converters.onnx.exporting.nodes.tensor import Call, Tensor
from nnl.converters.onnx.file.registry import onnx_export

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
