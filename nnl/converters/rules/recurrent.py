# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers step by step, for targets that have none.

All products with x are one of all steps; a step has one product with the state. Sizes: T steps, B
samples, G gates, H states.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.rules.building import part
from nnl.core.graph.variable import Variable


def _lstm(a: Any, x: Any, h: Any, c: Any, first: Any, more: Any, bias: Any, rng: Any = None) -> Any:
    """All layers of an lstm, without dropout."""
    return _layers("lstm", a, x, h, c, first, more, bias)


def _gru(a: Any, x: Any, h: Any, first: Any, more: Any, bias: Any, rng: Any = None) -> Any:
    """All layers of a gru, without dropout."""
    return _layers("gru", a, x, h, None, first, more, bias)[:2]


def _rnn(a: Any, x: Any, h: Any, first: Any, more: Any, bias: Any, rng: Any = None) -> Any:
    """All layers of an rnn, without dropout."""
    return _layers(a.nonlinearity, a, x, h, None, first, more, bias)[:2]


def _layers(kind: str, a: Any, x: Any, h: Any, c: Any, first: Any, more: Any, bias: Any) -> Any:
    states, cells = [], []
    for layer in range(a.num_layers):
        outs = []
        for d in range(h.shape[1]):
            w = _item(first, d) if layer == 0 else _item(more, layer - 1, d)
            b = None if bias is None else _item(bias, layer, d)
            cell = None if c is None else _item(c, layer, d)
            y, state, cell = _direction(kind, x, _item(h, layer, d), cell, w, b, bool(d))
            outs.append(y)
            states.append(state)
            cells.append(cell)
        x = outs[0] if len(outs) == 1 else F.concatenate(*outs, axis=2)
    last = F.reshape(F.stack(*states, axis=0), h.shape)
    return x, last, None if c is None else F.reshape(F.stack(*cells, axis=0), h.shape)


def _direction(kind: str, x: Any, h: Any, c: Any, w: Any, b: Any, backward: bool) -> Any:
    """y (T, B, H) of one direction of one layer, and its last states."""
    (steps, _, inputs), size = x.shape, h.shape[1]
    rows = w.size // (inputs + size)  # G H
    weight = F.transpose(F.reshape(w, (rows, inputs + size)), (1, 0))
    wx, wh = part(weight, 0, 0, inputs), part(weight, 0, inputs, inputs + size)
    b = None if b is None else F.reshape(b, (b.size,))
    of_state = None
    if kind == "gru" and b is not None:  # the state's part of n has a bias of its own
        zeros = Variable.from_numpy_array(np.zeros(2 * size, np.float32))
        of_state = F.concatenate(zeros, part(b, 0, rows, rows + size), axis=0)
        b = part(b, 0, 0, rows)
    pre = F.affine(x, wx, b, base_axis=2)
    ys: list[Any] = [None] * steps
    for t in reversed(range(steps)) if backward else range(steps):
        at, state = _item(pre, t), F.affine(h, wh, of_state)
        if kind == "lstm":
            i, f, n, o = _gates(at + state, size)
            c = F.sigmoid(f) * c + F.sigmoid(i) * F.tanh(n)
            h = F.sigmoid(o) * F.tanh(c)
        elif kind == "gru":
            (r, z, n), (hr, hz, hn) = _gates(at, size), _gates(state, size)
            n = F.tanh(n + F.sigmoid(r + hr) * hn)
            h = n + F.sigmoid(z + hz) * (h - n)
        else:
            h = F.relu(at + state) if kind == "relu" else F.tanh(at + state)
        ys[t] = h
    return F.stack(*ys, axis=0), h, c


def _item(x: Any, *index: int) -> Any:
    """x[index], with its remaining axes."""
    rest = x.shape[len(index) :]
    stop = (*(i + 1 for i in index), *rest)
    return F.reshape(F.slice(x, (*index, *(0 for _ in rest)), stop, (1,) * x.ndim), rest)


def _gates(x: Any, size: int) -> list[Any]:
    """The parts (B, H) of (B, G H)."""
    return [part(x, 1, k, k + size) for k in range(0, x.shape[1], size)]


RULES = {"lstm": _lstm, "gru": _gru, "rnn": _rnn}
