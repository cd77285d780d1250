# SPDX-License-Identifier: Apache-2.0
"""Importers of RNN, LSTM and GRU.

ONNX orders gates i o f c and z r h and allows peepholes, clipping, lengths of samples and other
activations. The common case, also with lengths, is one nnl function with reordered weights for each
direction; the rest goes step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.onnx.file.errors import OnnxError
from nnl.converters.onnx.file.registry import onnx_import
from nnl.converters.onnx.importing.shape import part
from nnl.converters.onnx.values.values import (
    array,
    known,
    reshape,
    shape_of,
    transpose,
    var,
)
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
        lengths: (B,) numbers, an array or what the run knows; None if all are T.
        alive: (T, B, 1), 1 for the steps that a sample has; None as well.
    """

    gates = 1
    defaults: tuple[str, ...] = ("Tanh",)
    # what one more input, 1 behind the end of a sample, adds to gates, so that a state stays
    holding: tuple[float, ...] = ()

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
        self.lengths = None if lengths is None else self._checked(lengths)
        if self.lengths is not None:
            t = var(np.arange(self.steps, dtype=np.float32).reshape(-1, 1, 1))
            self.alive = F.less(t, F.reshape(self.lengths, (1, self.batch, 1)))
        names = node.attributes.get("activations") or self.defaults * self.directions
        self.plain = tuple(a.lower() for a in names) == tuple(
            a.lower() for a in self.defaults * self.directions
        )
        self.functions = self._functions(names)
        self.plain = self.plain and node.clip is None

    def _checked(self, lengths: Any) -> Any:
        """Lengths in floats; None if all are T. A run fails where it finds longer ones."""
        if shape_of(lengths) != (self.batch,):
            raise OnnxError(f"sequence_lens is {shape_of(lengths)}, wanted ({self.batch},)")
        if not known(lengths):
            n = F.add_scalar(lengths, 0.0)  # negative ones, too, become longer than T
            return F.abs(n) + F.mul_scalar(F.less_scalar(n, 0.0), float(self.steps + 1))
        n = array(lengths, "sequence_lens").astype(np.int64)
        if n.min(initial=0) < 0 or n.max(initial=0) > self.steps:
            raise OnnxError(f"sequence_lens is {n.tolist()} for {self.steps} steps")
        return None if (n == self.steps).all() else var(n.astype(np.float32))

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
        t = var(np.arange(self.steps, dtype=np.float32).reshape(-1, 1))
        n = F.reshape(self.lengths, (1, self.batch))
        alive = F.reshape(self.alive, (self.steps, self.batch))
        at = t + alive * F.add_scalar(n - F.mul_scalar(t, 2.0), -1.0)
        return F.gather_nd(x, F.stack(at, F.broadcast(self.samples, at.shape)))

    @property
    def samples(self) -> Any:
        return var(np.arange(self.batch, dtype=np.float32))

    def kept(self, x: Any) -> Any:
        """x (T, B, n), and 0 behind the end of a sample, whatever is there."""
        zeros = F.constant(0.0, shape=x.shape)
        return F.where(F.broadcast(self.alive, x.shape), x, zeros)

    def reached(self, state: Any) -> Any:
        """Last states (B, H): those of samples without steps are 0, as ONNX Runtime gives them."""
        if self.lengths is None:
            return state
        some = F.greater_scalar(F.reshape(self.lengths, (self.batch, 1)), 0.0)
        return F.where(F.broadcast(some, state.shape), state, F.constant(0.0, shape=state.shape))

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
        alive = [] if self.lengths is None else [self.alive]
        for d in range(self.directions):
            states = tuple([self.at(self.state(h), d) for h in initial])
            last, y = self.over_steps(ctx, self.cell(d), states, (self.inputs(d), *alive))
            ys.append(self.flipped(y) if self.backwards(d) else y)
            lasts.append([self.reached(s) for s in last])
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
        x, beside = self.x, [self.w]
        if self.lengths is not None and self.holding:
            x = F.concatenate(self.kept(x), F.r_sub_scalar(self.alive, 1.0), axis=2)
            column = np.repeat(np.float32(self.holding), h)[None, :, None]
            beside.append(var(np.repeat(column, d, axis=0)))
        w = F.concatenate(*beside, self.r, axis=2)
        w = F.reshape(w, (d, n, h, w.shape[2]))
        if n > 1:
            w = F.concatenate(*(part(w, 1, i, i + 1) for i in order), axis=1)
        else:
            w = F.reshape(w, (d, h, w.shape[3]))
        states = [F.reshape(s, (1, *s.shape)) for s in map(self.state, initial)]
        if d == 2 and self.lengths is None:
            y, *lasts = function(x, *states, w, None, bias, num_layers=1, bidirectional=True)
            y = F.transpose(F.reshape(y, (*y.shape[:2], d, h)), (0, 2, 1, 3))
            return self.laid_out(y, *(reshape(s, s.shape[1:]) for s in lasts))
        ys, ends = [], []
        for i in range(d):
            first, *more = (part(s, 1, i, i + 1) for s in states)
            weights = part(w, 0, i, i + 1), None, None if bias is None else part(bias, 1, i, i + 1)
            row = self.flipped(x) if self.backwards(i) else x
            y, *lasts = function(row, first, *more, *weights, num_layers=1)
            if self.lengths is not None:
                every = F.concatenate(reshape(first, (1, self.batch, h)), y, axis=0)
                last = F.gather_nd(every, F.stack(self.lengths, self.samples))
                lasts[0], y = reshape(last, (1, 1, self.batch, h)), self.kept(y)
            ys.append(self.flipped(y) if self.backwards(i) else y)
            ends.append([self.reached(reshape(s, (self.batch, h))) for s in lasts])
        return self.laid_out(F.stack(*ys, axis=1), *(F.stack(*s) for s in zip(*ends, strict=True)))

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
    holding = -6e4, 0.0, 6e4, 0.0  # the sigmoids are 0 and 1; also a number of float16
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
