# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers over (T, N, ...), with a second bottom that is 0 where a sequence begins."""

from __future__ import annotations

import math
from typing import Any

import nnl.functions as F
from nnl.dialects.caffe.layer import Blob, Layer, builds


def _time(x: Any, t: int) -> Any:
    return F.reshape(F.slice(x, (t, *(0,) * (x.ndim - 1)), (t + 1, *x.shape[1:])), x.shape[1:])


@builds("LSTM", "RNN", bottoms=(2, 3))
def recurrent(layer: Layer, x: Blob, cont: Blob, static: Blob | None = None) -> None:
    p = layer.message.recurrent_param
    if p.expose_hidden:
        raise layer.fail("expose_hidden is not supported")
    if len(x.sizes) < 2 or cont.sizes != x.sizes[:2]:
        raise layer.fail(f"bottoms are {x.shape} and {cont.shape}, wanted (T, N, ...), (T, N)")
    h, lstm = p.num_output, layer.type == "LSTM"
    rows = 4 * h if lstm else h
    w_f, b_f = layer.filler(p, "weight_filler"), layer.filler(p, "bias_filler")
    inner = math.prod(x.sizes[2:])
    more = [layer.weight((rows, inner), w_f, True), layer.weight((rows,), b_f)]
    if static is not None:
        more.append(layer.weight((rows, static.count // static.num), w_f, True))
    more.append(layer.weight((rows, h), w_f, True))
    if not lstm:
        more += [layer.weight((h, h), w_f, True), layer.weight((h,), b_f)]

    def compute(x: Any, cont: Any, *rest: Any) -> Any:
        still, rest = (rest[:1], rest[1:]) if static is not None else ((), rest)
        w_x, b, *rest = rest
        steps, n = x.shape[:2]
        given = F.affine(x, w_x, b, base_axis=2)
        if still:
            w_s, *rest = rest
            given = given + F.reshape(F.affine(still[0], w_s), (1, n, rows))
        w_h, *out = rest
        keep = F.reshape(cont, (steps, n, 1))
        state: Any = F.constant(0.0, (n, h))
        cell = state
        found = []
        for t in range(steps):
            k = _time(keep, t)
            a = _time(given, t) + F.affine(state * k, w_h)
            if lstm:
                i, f, o, g = (F.slice(a, (0, j * h), (n, (j + 1) * h)) for j in range(4))
                cell = k * F.sigmoid(f) * cell + F.sigmoid(i) * F.tanh(g)
                state = F.sigmoid(o) * F.tanh(cell)
                found.append(state)
            else:
                state = F.tanh(a)
                found.append(F.tanh(F.affine(state, *out)))
        return F.stack(*found, axis=0)

    layer.op(compute, x, cont, *([static] if static is not None else []), *more)
