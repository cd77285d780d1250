# SPDX-License-Identifier: Apache-2.0
"""Importers of RNN, LSTM and GRU.

ONNX orders gates i o f c and z r h and allows peepholes, clipping, lengths of samples and other
activations. The common case is one nnl function with reordered weights; the rest goes step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.onnx.file.errors import OnnxError
from nnl.converters.onnx.file.registry import onnx_import
from nnl.converters.onnx.importing.shape import part
from nnl.converters.onnx.values.values import array, reshape, transpose, var
from nnl.graph import scan

Function = Callable[[Any], Any]


def _affine(x: Any, a: float, b: float) -> Any:
    return F.add_scalar(F.mul_scalar(x, a), b)


# name: alpha and beta where they are not given, None where the function takes none; the function
_ACTIVATIONS: dict[str, tuple[float | None, float | None, Callable[..., Any]]] = {
    "relu": (None, None, lambda x, a, b: F.relu(x)),
    "tanh": (None, None, lambda x, a, b: F.tanh(x)),
    "sigmoid": (None, None, lambda x, a, b: F.sigmoid(x)),
    "affine": (1.0, 0.0, _affine),
    "leakyrelu": (0.01, None, lambda x, a, b: F.leaky_relu(x, alpha=a)),
    "thresholdedrelu": (1.0, None, lambda x, a, b: x * F.greater_scalar(x, a)),
    "scaledtanh": (1.0, 1.0, lambda x, a, b: F.mul_scalar(F.tanh(F.mul_scalar(x, b)), a)),
    "hardsigmoid": (
        0.2,
        0.5,
        lambda x, a, b: F.minimum_scalar(F.maximum_scalar(_affine(x, a, b), 0.0), 1.0),
    ),
    "elu": (1.0, None, lambda x, a, b: F.elu(x, alpha=a)),
    "softsign": (None, None, lambda x, a, b: F.softsign(x)),
    "softplus": (None, None, lambda x, a, b: F.softplus(x)),
}


class Cell:
    """What the three operators share.

    Attributes:
        x: (T, B, I). w, r: (D, gates H, I or H). b: (D, 2 gates H) or None.
        lengths: (B,) int64, or None if all are T.
    """

    gates = 1
    defaults: tuple[str, ...] = ("Tanh",)

    def __init__(self, node: Any, x: Any, w: Any, r: Any, b: Any, lengths: Any) -> None:
        self.node = node
        self.layout = getattr(node, "layout", 0)
        self.x = transpose(var(x), (1, 0, 2)) if self.layout else var(x)
        self.w, self.r, self.b = var(w), var(r), None if b is None else var(b)
        self.directions = self.w.shape[0]
        self.size = self.r.shape[2]
        wanted = 2 if node.direction == "bidirectional" else 1
        if self.directions != wanted:
            raise OnnxError(f"direction {node.direction!r} with weights for {self.directions}")
        self.steps, self.batch = self.x.shape[:2]
        self.lengths = None
        if lengths is not None:
            n = array(lengths, "sequence_lens").astype(np.int64)
            if n.shape != (self.batch,) or n.min(initial=0) < 0 or n.max(initial=0) > self.steps:
                raise OnnxError(f"sequence_lens is {n.tolist()} for {self.steps} steps")
            self.lengths = None if (n == self.steps).all() else n
        names = node.attributes.get("activations") or self.defaults * self.directions
        self.plain = tuple(a.lower() for a in names) == tuple(
            a.lower() for a in self.defaults * self.directions
        )
        self.functions = self._functions(names)
        self.plain = self.plain and node.clip is None and self.lengths is None

    def _functions(self, names: Sequence[str]) -> list[list[Function]]:
        n = len(self.defaults)
        if len(names) != n * self.directions:
            raise OnnxError(f"has {len(names)} activations, wanted {n * self.directions}")
        alphas, betas = (
            list(self.node.activation_alpha or ()),
            list(self.node.activation_beta or ()),
        )
        made = []
        for name in names:
            entry = _ACTIVATIONS.get(name.lower())
            if entry is None:
                raise OnnxError(f"activation {name!r} is unknown, known are {sorted(_ACTIVATIONS)}")
            a, b, f = entry
            # the lists hold values only for those activations that take one
            a = alphas.pop(0) if a is not None and alphas else a
            b = betas.pop(0) if b is not None and betas else b
            made.append(lambda x, f=f, a=a, b=b: f(x, a, b))
        return [made[i * n : (i + 1) * n] for i in range(self.directions)]

    def state(self, h: Any) -> Any:
        """An initial state as (D, B, H), zeros if left out."""
        if h is None:
            return var(np.zeros((self.directions, self.batch, self.size), np.float32))
        return transpose(var(h), (1, 0, 2)) if self.layout else var(h)

    def at(self, values: Any, d: int) -> Any:
        """The part of direction d."""
        return reshape(part(values, 0, d, d + 1), values.shape[1:])

    def clipped(self, x: Any) -> Any:
        limit = self.node.clip
        if limit is None:
            return x
        return F.minimum_scalar(F.maximum_scalar(x, -limit), limit)

    def backwards(self, d: int) -> bool:
        return self.node.direction == "reverse" or d == 1

    def flipped(self, x: Any) -> Any:
        """x (T, B, ...) with the steps of every sample in the other order."""
        if self.lengths is None:
            return F.flip(x, (0,))
        t = np.arange(self.steps)[:, None]
        at = np.where(t < self.lengths, self.lengths - 1 - t, t)
        where = np.stack(np.broadcast_arrays(at, np.arange(self.batch)))
        return F.gather_nd(x, var(where))

    def inputs(self, d: int) -> Any:
        """x W^T + bias beside x, of all steps: (T, B, gates H), in the order of direction d."""
        x = self.flipped(self.x) if self.backwards(d) else self.x
        y = F.affine(x, F.transpose(self.at(self.w, d), (1, 0)), base_axis=2)
        if self.b is None:
            return y
        bias = reshape(self.bias(d)[0], (1, 1, self.gates * self.size))
        return y + bias

    def bias(self, d: int) -> tuple[Any, Any]:
        """Bias beside x and beside h."""
        n = self.gates * self.size
        b = self.at(self.b, d)
        return part(b, 0, 0, n), part(b, 0, n, 2 * n)

    def recurrent(self, d: int) -> Callable[[Any], Any]:
        """h -> h R^T + bias beside h."""
        r = F.transpose(self.at(self.r, d), (1, 0))
        b = None if self.b is None else self.bias(d)[1]
        return lambda h: F.affine(h, r, b)

    def gate(self, x: Any, i: int) -> Any:
        """Columns of gate i."""
        return part(x, x.ndim - 1, i * self.size, (i + 1) * self.size)

    def run(self, ctx: Any, *initial: Any) -> list[Any]:
        """All directions: Y (T, D, B, H), and the last states (D, B, H)."""
        ys: list[Any] = []
        lasts: list[Any] = []
        alive = []
        if self.lengths is not None:
            mask = np.arange(self.steps)[:, None, None] < self.lengths[:, None]
            alive = [var(mask.astype(np.float32))]
        for d in range(self.directions):
            states = tuple([self.at(self.state(h), d) for h in initial])
            last, y = self.over_steps(ctx, self.cell(d), states, (self.inputs(d), *alive))
            ys.append(self.flipped(y) if self.backwards(d) else y)
            lasts.append(last)
        return self.laid_out(F.stack(*ys, axis=1), *(F.stack(*s) for s in zip(*lasts, strict=True)))

    def over_steps(self, ctx: Any, step: Any, states: Any, xs: Sequence[Any]) -> tuple[Any, Any]:
        """The last states, and what all steps give; recorded once if their number is open."""

        def once(states: Any, row: Any) -> tuple[Any, Any]:
            x, *alive = row
            new = step(x, *states)
            if not alive:
                return tuple(new), new[0]
            kept = [n * alive[0] + o * (1 - alive[0]) for n, o in zip(new, states, strict=True)]
            return tuple(kept), new[0] * alive[0]

        if ctx.open:
            return scan(once, states, tuple(xs))
        outs = []
        for t in range(self.steps):
            row = [reshape(part(x, 0, t, t + 1), x.shape[1:]) for x in xs]
            states, out = once(states, row)
            outs.append(out)
        return states, F.stack(*outs, axis=0)

    def laid_out(self, y: Any, *lasts: Any) -> list[Any]:
        """Outputs in the layout that the node asks for."""
        if not self.layout:
            return [y, *lasts]
        return [transpose(y, (2, 0, 1, 3)), *(transpose(v, (1, 0, 2)) for v in lasts)]

    def cell(self, d: int) -> Callable[..., Any]:
        raise NotImplementedError

    def at_once(self, function: Any, order: Sequence[int], bias: Any, *initial: Any) -> list[Any]:
        """The same by one nnl function, whose gates are in another order."""
        n, d, h = self.gates, self.directions, self.size
        w = F.concatenate(self.w, self.r, axis=2)
        w = F.reshape(w, (d, n, h, w.shape[2]))
        if n > 1:
            w = F.concatenate(*(part(w, 1, i, i + 1) for i in order), axis=1)
        else:
            w = F.reshape(w, (d, h, w.shape[3]))
        alone = self.node.direction == "reverse"
        x = F.flip(self.x, (0,)) if alone else self.x
        states = [F.reshape(s, (1, *s.shape)) for s in map(self.state, initial)]
        y, *lasts = function(x, *states, w, None, bias, num_layers=1, bidirectional=d == 2)
        y = F.flip(y, (0,)) if alone else y
        y = F.transpose(F.reshape(y, (*y.shape[:2], d, h)), (0, 2, 1, 3))
        return self.laid_out(y, *(reshape(s, s.shape[1:]) for s in lasts))

    def bias_rows(self, order: Sequence[int]) -> Any:
        """Sum of both biases: (1, D, gates, H)."""
        if self.b is None:
            return None
        d, n, h = self.directions, self.gates, self.size
        b = F.sum(F.reshape(self.b, (d, 2, n, h)), axis=1)
        if n > 1:
            b = F.concatenate(*(part(b, 1, i, i + 1) for i in order), axis=1)
        return F.reshape(b, (1, d, n, h) if n > 1 else (1, d, h))


@onnx_import("RNN")
def rnn(
    ctx: Any, node: Any, x: Any, w: Any, r: Any, b: Any = None, lengths: Any = None, h: Any = None
) -> Any:
    """Simple recurrent layer."""
    cell = SimpleCell(node, x, w, r, b, lengths)
    if cell.plain and cell.steps:
        return cell.at_once(F.rnn, (0,), cell.bias_rows((0,)), h)
    return cell.run(ctx, h)


class SimpleCell(Cell):
    """h' = f(x W + h R + b)."""

    def cell(self, d: int) -> Callable[..., Any]:
        (f,), recurrent = self.functions[d], self.recurrent(d)
        return lambda x, h: [f(self.clipped(x + recurrent(h)))]


@onnx_import("LSTM")
def lstm(
    ctx: Any,
    node: Any,
    x: Any,
    w: Any,
    r: Any,
    b: Any = None,
    lengths: Any = None,
    h: Any = None,
    c: Any = None,
    p: Any = None,
) -> Any:
    """Long short-term memory, with or without peepholes."""
    cell = LstmCell(node, x, w, r, b, lengths)
    cell.peepholes = None if p is None else var(p)
    if cell.plain and cell.steps and p is None and not node.input_forget:
        order = (0, 2, 3, 1)  # nnl: i f g o
        return cell.at_once(F.lstm, order, cell.bias_rows(order), h, c)
    return cell.run(ctx, h, c)


class LstmCell(Cell):
    """Gates i, o, f, c."""

    gates, defaults = 4, ("Sigmoid", "Tanh", "Tanh")
    peepholes: Any = None

    def cell(self, d: int) -> Callable[..., Any]:
        f, g, out = self.functions[d]
        recurrent = self.recurrent(d)
        peep = None if self.peepholes is None else self.at(self.peepholes, d)

        def seen(gate: Any, c: Any, i: int) -> Any:
            if peep is None:
                return gate
            return gate + c * reshape(
                part(peep, 0, i * self.size, (i + 1) * self.size), (1, self.size)
            )

        def step(x: Any, h: Any, c: Any) -> Any:
            all_gates = x + recurrent(h)
            i = f(self.clipped(seen(self.gate(all_gates, 0), c, 0)))
            if self.node.input_forget:
                forget = 1 - i
            else:
                forget = f(self.clipped(seen(self.gate(all_gates, 2), c, 2)))
            new = forget * c + i * g(self.clipped(self.gate(all_gates, 3)))
            o = f(self.clipped(seen(self.gate(all_gates, 1), new, 1)))
            return [o * out(new), new]

        return step


@onnx_import("GRU")
def gru(
    ctx: Any, node: Any, x: Any, w: Any, r: Any, b: Any = None, lengths: Any = None, h: Any = None
) -> Any:
    """Gated recurrent units, the reset gate before or after the product."""
    cell = GruCell(node, x, w, r, b, lengths)
    if cell.plain and cell.steps and getattr(node, "linear_before_reset", 0):
        return cell.at_once(F.gru, (1, 0, 2), cell.bias_of_gru(), h)
    return cell.run(ctx, h)


class GruCell(Cell):
    """Gates z, r, h."""

    gates, defaults = 3, ("Sigmoid", "Tanh")

    def bias_of_gru(self) -> Any:
        """Rows r, z, h beside x, h beside h: (1, D, 4, H)."""
        if self.b is None:
            return None
        d, h = self.directions, self.size
        both = F.reshape(self.b, (d, 2, 3, h))
        beside_x = F.reshape(part(both, 1, 0, 1), (d, 3, h))
        beside_h = F.reshape(part(both, 1, 1, 2), (d, 3, h))
        total = beside_x + beside_h
        rows = [part(total, 1, 1, 2), part(total, 1, 0, 1)]
        rows += [part(beside_x, 1, 2, 3), part(beside_h, 1, 2, 3)]
        return F.reshape(F.concatenate(*rows, axis=1), (1, d, 4, h))

    def cell(self, d: int) -> Callable[..., Any]:
        f, g = self.functions[d]
        n = self.size
        weights = F.transpose(self.at(self.r, d), (1, 0))
        zeros = var(np.zeros(3 * n, np.float32))
        bias = zeros if self.b is None else self.bias(d)[1]
        for_gates, for_new = part(weights, 1, 0, 2 * n), part(weights, 1, 2 * n, 3 * n)
        bias_gates, bias_new = part(bias, 0, 0, 2 * n), part(bias, 0, 2 * n, 3 * n)

        def step(x: Any, h: Any) -> Any:
            gates = f(self.clipped(part(x, 1, 0, 2 * n) + F.affine(h, for_gates, bias_gates)))
            z, r = part(gates, 1, 0, n), part(gates, 1, n, 2 * n)
            if self.node.linear_before_reset:
                beside = r * F.affine(h, for_new, bias_new)
            else:
                beside = F.affine(r * h, for_new, bias_new)
            new = g(self.clipped(part(x, 1, 2 * n, 3 * n) + beside))
            return [(1 - z) * new + z * h]

        return step
