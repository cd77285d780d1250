# SPDX-License-Identifier: Apache-2.0
"""rnn, lstm and gru step by step in other functions: what their second gradient is derived from."""

from __future__ import annotations

import numpy as np

from nnl.core.graph.autodiff import backprop
from nnl.core.graph.node import Value
from nnl.core.graph.variable import Variable
from nnl.core.settings.context import STATE
from nnl.functions.recurrent_cells import CELLS

__all__: list[str] = []


def by_steps(cell_name, scale, x, h, c, weight_l0, weight, bias, mask):
    """y, h_n and c_n (None but for lstm) of all layers and directions."""
    from nnl import functions as F

    layers, directions = h.shape[:2]
    h_n, c_n = [], []
    for layer in range(layers):
        outs = []
        for d in range(directions):
            w = _at(F, weight_l0, d) if layer == 0 else _at(F, weight, layer - 1, d)
            b = None if bias is None else _at(F, bias, layer, d)
            state = _at(F, h, layer, d), None if c is None else _at(F, c, layer, d)
            ys, last = _direction(F, cell_name, x, *state, w, b, bool(d))
            outs.append(ys)
            h_n.append(last[0])
            c_n.append(last[1])
        x = outs[0] if directions == 1 else F.concatenate(*outs, axis=2)
        if layer < layers - 1 and mask.size:
            x = x * (_at(F, mask, layer) * scale)
    shape = h.shape
    last_c = F.reshape(F.stack(*c_n, axis=0), shape) if c is not None else None
    return x, F.reshape(F.stack(*h_n, axis=0), shape), last_c


def _at(F, x, *index):
    """x[index] as a view of the remaining axes."""
    n = x.ndim
    start = index + (0,) * (n - len(index))
    stop = tuple(i + 1 for i in index) + x.shape[len(index) :]
    return F.reshape(F.slice(x, start, stop, (1,) * n), x.shape[len(index) :])


def _direction(F, cell_name, x, h, c, w, b, backward):
    cell = CELLS[cell_name]
    hidden, steps = h.shape[1], x.shape[0]
    w = F.reshape(w, (cell.gates, hidden, -1))
    b = None if b is None else F.reshape(b, (cell.bias_rows, hidden))
    wx = F.slice(w, (0, 0, 0), (cell.gates, hidden, x.shape[2]), (1, 1, 1))
    wh = F.slice(w, (0, 0, x.shape[2]), w.shape, (1, 1, 1))
    ys = [None] * steps
    for t in reversed(range(steps)) if backward else range(steps):
        h, c = _step(F, cell_name, _at(F, x, t), h, c, wx, wh, b)
        ys[t] = h
    return F.stack(*ys, axis=0), (h, c)


def _step(F, cell_name, x, h, c, wx, wh, b):
    def bias(row, like):
        return F.broadcast(F.reshape(_at(F, b, row), (1, like.shape[1])), like.shape)

    def product(k, row):
        return from_x(k, row) + F.batch_matmul(h, _at(F, wh, k), transpose_b=True)

    def from_x(k, row):
        y = F.batch_matmul(x, _at(F, wx, k), transpose_b=True)
        return y if b is None else y + bias(row, y)

    if cell_name == "lstm":
        i, f, n, o = (product(k, k) for k in range(4))
        c = F.sigmoid(f) * c + F.sigmoid(i) * F.tanh(n)
        return F.sigmoid(o) * F.tanh(c), c
    if cell_name == "gru":
        r, z = F.sigmoid(product(0, 0)), F.sigmoid(product(1, 1))
        state = F.batch_matmul(h, _at(F, wh, 2), transpose_b=True)
        state = state if b is None else state + bias(3, state)
        n = F.tanh(from_x(2, 2) + r * state)
        return n + z * (h - n), None
    y = product(0, 0)
    return (F.relu(y) if cell_name == "relu" else F.tanh(y)), None


def gradient_by_steps(cell_name, scale, grads, inputs, mask, need_x):
    """The gradients of the inputs, as functions of grads and inputs that can be differentiated.

    Args:
        grads: Gradients of y, h_n and c_n.
        inputs: x, h, c, weight_l0, weight, bias; None where left out.
        need_x: Whether the gradient of x is wanted; shape (0,) takes its place.
    """
    # each input gets an edge of its own that needs a gradient
    xs = [None if x is None else _needing(x) for x in inputs]
    ys = by_steps(cell_name, scale, *xs, mask)
    pairs = [(y.edge, _variable(g)) for y, g in zip(ys, grads, strict=True) if y is not None]
    stop = {x.edge.key: x.edge for x in xs if x is not None}
    found = backprop([y for y, _ in pairs], [g for _, g in pairs], stop=stop).leaves
    wanted = (xs[0] if need_x else None, *xs[1:])
    return tuple(_nothing() if x is None else found[x.edge.key][1] for x in wanted)


def _variable(x):
    return x if isinstance(x, Variable) else Variable.of_edge(Value.leaf(x), x)


def _needing(x):
    v = _variable(x)
    e = v.edge
    return Variable.of_edge(Value.of(e.node, e.index, e.spec, True, e.data), v._data)


def _nothing():
    return Variable.from_numpy_array(np.zeros((0,), STATE.target.float_dtype))
