# SPDX-License-Identifier: Apache-2.0
"""Importers of recurrent layers, whose states are tensors that a run leaves for the next one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.tflite.building import ACTIVATION, Builder, Value, computed, reads
from nnl.converters.tflite.flatbuffer import Damaged
from nnl.converters.tflite.schema import ACTIVATIONS
from nnl.core.graph.variable import Variable


def _state(b: Builder, i: int, h: Value) -> Callable[[Any], None]:
    """What writes the state that is input i, whose present value is h."""
    t = b.ins[i]
    if t is None or not t.state:
        raise Damaged(f"its input {i} is no state")
    return lambda y: b.assign(t.name or f"state_{b.op.ins[i]}", computed(F.reshape(y, h.shape)))


def _activation(b: Builder) -> Callable[[Any], Any]:
    kind = b.op.options["activation"]
    if not 0 <= kind < len(ACTIVATIONS):
        raise Damaged(f"there is no activation {kind}")
    return ACTIVATION[ACTIVATIONS[kind]] if kind else lambda x: x


def _by_time(b: Builder, v: Value) -> Variable:
    """(T, B, I); operators without an axis of time have one step."""
    if b.op.name in ("RNN", "LSTM"):
        return b.held(b.reshaped(v, (1, *v.shape)))
    if v.rank != 3:
        raise Damaged(f"its input has {v.rank} axes, wanted 3")
    return b.held(v, (0, 1, 2) if b.op.options["time_major"] else (1, 0, 2))


def _outputs(b: Builder, ys: Variable) -> Value:
    """Results of all steps, (T, B, H), as the operator gives them."""
    if b.op.name in ("RNN", "LSTM"):
        return computed(F.reshape(ys, ys.shape[1:]))
    return Value(ys, (0, 1, 2) if b.op.options["time_major"] else (1, 0, 2))


@reads("RNN", "UNIDIRECTIONAL_SEQUENCE_RNN")
def _rnn(b: Builder, v: Value, w: Value, r: Value, bias: Value, h: Value) -> Value:
    """h = f(w x + r h + b) at every step."""
    write, f, x = _state(b, 4, h), _activation(b), _by_time(b, v)
    pre = F.affine(x, b.held(w, (1, 0)), b.held(bias), base_axis=2)
    now, recurrent = b.held(h), b.held(r, (1, 0))
    ys = []
    for p in _steps(pre):
        now = f(p + F.affine(now, recurrent))
        ys.append(now)
    write(now)
    return _outputs(b, F.stack(*ys, axis=0))


def _steps(x: Variable) -> list[Variable]:
    found = F.split(x, axis=0)
    return list(found) if isinstance(found, (list, tuple)) else [found]


@reads("LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM")
def _lstm(b: Builder, v: Value, *rest: Value | None) -> Value:
    """Gates in the order i, f, g, o. Without an own input gate that is 1 - f.

    Inputs after x: weights of x, weights of h, peepholes of i, f and o, biases, a projection and
    its bias, the states h and c, and scales of normalized gates.
    """
    if len(rest) not in (19, 23) or b.op.options.get("kernel"):
        raise Damaged(f"it has {1 + len(rest)} inputs, wanted 20 or 24 of the full kernel")
    wx, wh, peep, bias = rest[:4], rest[4:8], rest[8:11], rest[11:15]
    weights, flat, h, c = rest[15:19]
    scales = [*rest[19:], *[None] * 4][:4]
    if any(w is None for w in (*wx[1:], *wh[1:], *bias[1:], h, c)):
        raise Damaged("it lacks weights, biases or states")
    assert h is not None and c is not None
    x, write_h, write_c = _by_time(b, v), _state(b, 18, h), _state(b, 19, c)
    clips, f = [b.op.options[k] for k in ("cell_clip", "proj_clip")], _activation(b)
    ordinary = [*peep, *scales, weights, flat, wx[0]] == [None] * 9 + [wx[0]]
    ordinary = ordinary and None not in (wx[0], wh[0]) and not any(clips)
    if ordinary and b.op.options["activation"] == ACTIVATIONS.index("TANH"):
        rows = [
            np.concatenate([b.array(p, "w"), b.array(q, "w")], 1)
            for p, q in zip(wx, wh, strict=True)
        ]
        biases = np.stack([b.array(p, "the bias") for p in bias])
        starts = [F.reshape(b.held(s), (1, 1, *s.shape)) for s in (h, c)]
        w0 = b.held(Value(np.stack(rows)[None], (0, 1, 2, 3), "lstm/weight_l0"))
        b0 = b.held(Value(biases[None, None], (0, 1, 2, 3), "lstm/bias"))
        y, h_n, c_n = F.lstm(x, *starts, w0, None, b0)
        write_h(h_n)
        write_c(c_n)
        return _outputs(b, y)
    pre: list[Any] = []
    for w, plus, scale in zip(wx, bias, scales, strict=True):
        flat_bias = None if plus is None or scale is not None else b.held(plus)
        pre.append(None if w is None else _steps(F.affine(x, b.held(w, (1, 0)), flat_bias, 2)))

    def gate(k: int, t: int, now: Variable, cell: Variable | None, p: Value | None) -> Any:
        y = pre[k][t] + F.affine(now, b.held(_given(wh[k]), (1, 0)))
        if p is not None and cell is not None:
            y = y + F.reshape(b.held(p), (1, -1)) * cell
        if scales[k] is not None:
            y = F.layer_normalization(y, None, None, batch_axis=0, eps=1e-8)
            y = y * F.reshape(b.held(_given(scales[k])), (1, -1))
            y = y + F.reshape(b.held(_given(bias[k])), (1, -1))
        return y

    now, cell, ys = b.held(h), b.held(c), []
    for t in range(x.shape[0]):
        forget = F.sigmoid(gate(1, t, now, cell, peep[1]))
        enter = 1.0 - forget if pre[0] is None else F.sigmoid(gate(0, t, now, cell, peep[0]))
        cell = forget * cell + enter * f(gate(2, t, now, None, None))
        cell = _clipped(cell, clips[0])
        now = F.sigmoid(gate(3, t, now, cell, peep[2])) * f(cell)
        if weights is not None:
            now = F.affine(now, b.held(weights, (1, 0)), None if flat is None else b.held(flat))
            now = _clipped(now, clips[1])
        ys.append(now)
    write_h(now)
    write_c(cell)
    return _outputs(b, F.stack(*ys, axis=0))


def _given(v: Value | None) -> Value:
    if v is None:
        raise Damaged("it lacks weights, biases or states")
    return v


def _clipped(x: Any, limit: float) -> Any:
    return F.minimum_scalar(F.maximum_scalar(x, -limit), limit) if limit else x


@reads("SVDF")
def _svdf(b: Builder, v: Value, w: Value, times: Value, bias: Value | None, h: Value) -> Value:
    """Filters of rank 1: each of `rank` makes one number of a row, and weighs the latest ones."""
    write, f, rank = _state(b, 4, h), _activation(b), int(b.op.options["rank"])
    filters, memory = times.shape
    if rank < 1 or filters % rank or v.rank != 2 or h.shape != (v.shape[0], filters * memory):
        raise Damaged(f"its rank is {rank}, its state {list(h.shape)}, of {list(times.shape)}")
    n = v.shape[0]
    new = F.reshape(F.affine(b.held(v), b.held(w, (1, 0))), (n, filters, 1))
    old = F.reshape(b.held(h), (n, filters, memory))
    kept = F.slice(old, (0, 0, 1), (n, filters, memory), (1, 1, 1))
    now = F.concatenate(kept, new, axis=2) if memory > 1 else new
    write(now)
    parts = F.sum(now * F.reshape(b.held(times), (1, filters, memory)), axis=2)
    y = F.sum(F.reshape(parts, (n, filters // rank, rank)), axis=2)
    return computed(f(y if bias is None else y + F.reshape(b.held(bias), (1, -1))))
