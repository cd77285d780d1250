# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers step by step, in functions that have operators."""

from __future__ import annotations

from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.spectra import taken


def _plain_cell(a: Any) -> Any:
    f = F.relu if a.nonlinearity == "relu" else F.tanh

    def step(pre: Any, h: Any, c: Any, wh: Any, b: Any) -> Any:
        return f(pre + F.affine(h, wh)), c

    return step


def _lstm_cell(a: Any) -> Any:
    def step(pre: Any, h: Any, c: Any, wh: Any, b: Any) -> Any:
        i, f, n, o = _gates(pre + F.affine(h, wh), 4)
        c = F.sigmoid(f) * c + F.sigmoid(i) * F.tanh(n)
        return F.sigmoid(o) * F.tanh(c), c

    return step


def _gru_cell(a: Any) -> Any:
    def step(pre: Any, h: Any, c: Any, wh: Any, b: Any) -> Any:
        r, z, n = _gates(pre, 3)
        sr, sz, sn = _gates(F.affine(h, wh), 3)
        sn = sn if b is None else sn + b
        n = F.tanh(n + F.sigmoid(r + sr) * sn)
        return n + F.sigmoid(z + sz) * (h - n), c

    return step


def _gates(x: Any, count: int) -> list[Any]:
    size = x.shape[1] // count
    return [taken(x, 1, np.arange(k * size, (k + 1) * size)) for k in range(count)]


def _recurrent(cell: Any, gates: int, has_cell: bool = False) -> Any:
    def rule(a: Any, x: Any, h: Any, *rest: Any) -> Any:
        c = rest[0] if has_cell else None
        first, further, bias = rest[has_cell : has_cell + 3]
        if a.dropout and a.training:
            return None
        steps, batch, _ = x.shape
        directions, hidden = h.shape[1], h.shape[3]
        last: tuple[list[Any], list[Any]] = [], []
        for layer in range(a.num_layers):
            outs = []
            for d in range(directions):
                w = _part(first, (d,)) if layer == 0 else _part(further, (layer - 1, d))
                w = F.reshape(w, (gates * hidden, w.shape[-1]))
                inner = x.shape[2]
                wx = F.transpose(taken(w, 1, np.arange(inner)), (1, 0))
                wh = F.transpose(taken(w, 1, np.arange(inner, inner + hidden)), (1, 0))
                b = extra = None
                if bias is not None:
                    b = F.reshape(
                        _part(bias, (layer, d)), (bias.size // (a.num_layers * directions),)
                    )
                    if b.shape[0] > gates * hidden:
                        extra = F.reshape(
                            taken(b, 0, np.arange(gates * hidden, b.shape[0])), (1, hidden)
                        )
                        b = taken(b, 0, np.arange(gates * hidden))
                pre = F.affine(x, wx, b, base_axis=2)
                state = _part(h, (layer, d))
                memory = _part(c, (layer, d)) if has_cell else None
                found: list[Any] = [None] * steps
                for t in reversed(range(steps)) if d else range(steps):
                    state, memory = cell(a)(_part(pre, (t,)), state, memory, wh, extra)
                    found[t] = F.reshape(state, (1, batch, hidden))
                outs.append(F.concatenate(*found, axis=0) if steps > 1 else found[0])
                last[0].append(F.reshape(state, (1, 1, batch, hidden)))
                last[1].append(memory and F.reshape(memory, (1, 1, batch, hidden)))
            x = F.concatenate(*outs, axis=2) if directions > 1 else outs[0]
        ends = [_piled(part, h.shape) for part in last[: 1 + has_cell]]
        return (x, *ends)

    return rule


def _piled(parts: list[Any], shape: Any) -> Any:
    return F.reshape(F.concatenate(*parts, axis=0) if len(parts) > 1 else parts[0], shape)


def _part(x: Any, at: tuple[int, ...]) -> Any:
    """Without its first axes, at some indices."""
    for i in at:
        x = F.reshape(taken(x, 0, [i]), x.shape[1:])
    return x


RULES = {
    "rnn": _recurrent(_plain_cell, 1),
    "lstm": _recurrent(_lstm_cell, 4, True),
    "gru": _recurrent(_gru_cell, 3),
}
