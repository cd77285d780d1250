# SPDX-License-Identifier: Apache-2.0
"""RNN, GRU and LSTM: step by step, in both directions, for samples of different lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnl.deep500.arrays.shapes import ShapeOperators

Function = Callable[[Any], Any]
# alpha and beta where they are not given; None: the function does not take it
_CONSTANTS: dict[str, tuple[float | None, float | None]] = {
    "affine": (1.0, 0.0),
    "leakyrelu": (0.01, None),
    "thresholdedrelu": (1.0, None),
    "scaledtanh": (1.0, 1.0),
    "hardsigmoid": (0.2, 0.5),
}


class RecurrentOperators(ShapeOperators):
    """A cell maps what a step's input contributes, the states and the recurrent weights to new
    states, the first of which is the output."""

    def visit_RNN(self, node: Any, x: Any, w: Any, r: Any, *given: Any) -> Any:
        b, lengths, h = (*given, None, None, None)[:3]

        def cell(f: Sequence[Function], wx: Any, states: Any, r: Any, b: Any, d: int) -> Any:
            return [f[0](wx + self.matmul(states[0], r) + b)]

        return self.recurrent(node, cell, ("Tanh",), x, w, r, b, lengths, [h])

    def visit_GRU(self, node: Any, x: Any, w: Any, r: Any, *given: Any) -> Any:
        b, lengths, h = (*given, None, None, None)[:3]
        n = node.hidden_size or self.shape(r)[2]

        def cell(f: Sequence[Function], wx: Any, states: Any, r: Any, b: Any, d: int) -> Any:
            h = states[0]
            first, last = self.span(r, 1, 0, 2 * n), self.span(r, 1, 2 * n, 3 * n)
            gates = self.span(wx, 1, 0, 2 * n) + self.matmul(h, first) + b[: 2 * n]
            z, reset = f[0](self.span(gates, 1, 0, n)), f[0](self.span(gates, 1, n, 2 * n))
            if node.linear_before_reset:
                inner = reset * (self.matmul(h, last) + b[2 * n :])
            else:
                inner = self.matmul(reset * h, last) + b[2 * n :]
            new = f[1](self.span(wx, 1, 2 * n, 3 * n) + inner)
            return [(1 - z) * new + z * h]

        return self.recurrent(node, cell, ("Sigmoid", "Tanh"), x, w, r, b, lengths, [h])

    def visit_LSTM(self, node: Any, x: Any, w: Any, r: Any, *given: Any) -> Any:
        b, lengths, h, c, p = (*given, None, None, None, None, None)[:5]
        n = node.hidden_size or self.shape(r)[2]

        def cell(f: Sequence[Function], wx: Any, states: Any, r: Any, b: Any, d: int) -> Any:
            h, c = states
            gates = wx + self.matmul(h, r) + b
            i, o, forget, new = (self.span(gates, 1, k * n, (k + 1) * n) for k in range(4))
            peep = [0, 0, 0] if p is None else [p[d][k * n : (k + 1) * n] for k in range(3)]
            i = f[0](i + peep[0] * c)
            forget = 1 - i if node.input_forget else f[0](forget + peep[2] * c)
            c = forget * c + i * f[1](new)
            return [f[0](o + peep[1] * c) * f[2](c), c]

        names = ("Sigmoid", "Tanh", "Tanh")
        return self.recurrent(node, cell, names, x, w, r, b, lengths, [h, c])

    def recurrent(
        self, node: Any, cell: Any, names: Any, x: Any, w: Any, r: Any, b: Any, lengths: Any,
        given: Sequence[Any],
    ) -> Any:  # fmt: skip
        """Y (steps, directions, batch, size), then every state's last value."""
        batchwise = node.attributes.get("layout", 0)
        if batchwise:
            x = self.transpose(x, (1, 0, 2))
            given = [None if s is None else self.transpose(s, (1, 0, 2)) for s in given]
        directions, wide, size = self.shape(r)
        steps, batch = self.shape(x)[:2]
        names = node.attributes.get("activations") or names * directions
        functions = self.activations(node, names)
        count = len(functions) // directions
        rows, lasts = [], []
        for d in range(directions):
            bias = self.like(x, np.zeros(2 * wide)) if b is None else b[d]
            wx = self.matmul(x, self.transpose(w[d], (1, 0))) + bias[:wide]
            recurrent = self.transpose(r[d], (1, 0))
            zero = self.like(x, np.zeros((batch, size)))
            states = [zero if s is None else s[d] for s in given]
            order = list(range(steps))
            if node.direction == "reverse" or d:
                order.reverse()
            ys: list[Any] = [None] * steps
            for t in order:
                own = functions[d * count : (d + 1) * count]
                new = cell(own, wx[t], states, recurrent, bias[wide:], d)
                ys[t] = new[0]
                if lengths is not None:  # behind its end a sample's states stay, and it gives 0
                    alive = self.constant(np.asarray(self.ints(lengths))[:, None] > t)
                    ys[t] = self.where(alive, new[0], zero)
                    new = [self.where(alive, a, s) for a, s in zip(new, states, strict=True)]
                states = new
            rows.append(self.stacked(ys, 0))
            lasts.append(states)
        outs = [self.stacked(rows, 1), *[self.stacked(s, 0) for s in zip(*lasts, strict=True)]]
        if batchwise:
            outs = [self.transpose(outs[0], (2, 0, 1, 3)), *outs[1:]]
            outs[1:] = [self.transpose(s, (1, 0, 2)) for s in outs[1:]]
        return tuple(outs[: len(node.outputs)])

    def activations(self, node: Any, names: Sequence[str]) -> list[Function]:
        """The functions of these names, which take their constants one after the other."""
        given = [list(node.attributes.get(f"activation_{k}") or ()) for k in ("alpha", "beta")]
        found = []
        for name in names:
            constants = _CONSTANTS.get(name.lower(), (None, None))
            a, b = (
                values.pop(0) if values and own is not None else own
                for own, values in zip(constants, given, strict=True)
            )
            f = self.activation(node, name.lower(), a, b)
            # what enters a gate is bounded, and not an LSTM's cell where it leaves: as ONNX Runtime
            leaves = node.op_type == "LSTM" and len(found) % 3 == 2
            found.append(f if leaves else self.clipped(node.clip, f))
        return found

    def clipped(self, limit: float | None, f: Function) -> Function:
        if limit is None:
            return f
        low, high = -limit, limit

        def call(x: Any) -> Any:
            x = self.where(x < low, self.like(x, low), x)
            return f(self.where(x > high, self.like(x, high), x))

        return call

    def activation(self, node: Any, name: str, a: Any, b: Any) -> Function:
        plain = {n.lower(): self.simple[n] for n in ("Relu", "Tanh", "Sigmoid")}
        tanh = plain["tanh"]
        known: dict[str, Function] = {
            **plain,
            "affine": lambda x: a * x + b,
            "leakyrelu": lambda x: self.where(x < 0, a * x, x),
            "thresholdedrelu": lambda x: self.where(x > a, x, self.like(x, 0)),
            "scaledtanh": lambda x: a * tanh(b * x),
            "hardsigmoid": lambda x: self.where(
                a * x + b < 0,
                self.like(x, 0),
                self.where(a * x + b > 1, self.like(x, 1), a * x + b),
            ),
            "softsign": lambda x: x / (1 + self.where(x < 0, -x, x)),
        }
        if name not in known:
            raise node.error(f"{node.op_type}: there is no activation {name!r} here")
        return known[name]
