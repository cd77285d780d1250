# SPDX-License-Identifier: Apache-2.0
"""rnn, lstm and gru against PyTorch: outputs, gradients, second gradients."""

import numpy as np
import pytest

from nnl import functions as F
from tests.functions.against_torch import compare

torch = pytest.importorskip("torch")

T, B, INPUTS, H = 4, 3, 5, 2
GATES = {"tanh": 1, "relu": 1, "lstm": 4, "gru": 3}


def arrays(kind, layers, directions):
    rng = np.random.default_rng(0)
    g = () if GATES[kind] == 1 else (GATES[kind],)
    rows = () if GATES[kind] == 1 else (4,)
    state = (layers, directions, B, H)
    shapes = [(T, B, INPUTS), state] + ([state] if kind == "lstm" else [])
    shapes += [(directions, *g, H, INPUTS + H)]
    shapes += [(layers - 1, directions, *g, H, (directions + 1) * H)] if layers > 1 else []
    shapes += [(layers, directions, *rows, H)]
    return [rng.normal(size=s) * 0.7 for s in shapes]


def reference(kind, layers, directions):
    """The same layers by torch's own functions, on weights cut out of ours."""

    def call(x, h, *rest):
        c = rest[:1] if kind == "lstm" else ()
        w0, *weight, bias = rest[len(c) :]
        flat = []
        for layer in range(layers):
            for d in range(directions):
                w = (w0[d] if layer == 0 else weight[0][layer - 1, d]).reshape(GATES[kind] * H, -1)
                b = bias[layer, d].reshape(-1)
                zeros = torch.zeros_like(b)
                if kind == "gru":  # the last two rows are the two biases of the new state
                    zeros = torch.cat([torch.zeros_like(b[: 2 * H]), b[3 * H :]])
                    b = b[: 3 * H]
                flat += [w[:, :-H], w[:, -H:], b, zeros]
        states = [s.reshape(layers * directions, B, H) for s in (h, *c)]
        options = (True, layers, 0.0, False, directions == 2, False)
        name = {"tanh": "rnn_tanh", "relu": "rnn_relu"}.get(kind, kind)
        start = states if kind == "lstm" else states[0]
        y, *last = getattr(torch, name)(x, start, flat, *options)
        return (y, *[s.reshape(layers, directions, B, H) for s in last])

    return call


def ours(kind, layers, directions):
    options = dict(num_layers=layers, bidirectional=directions == 2)

    def call(*xs):
        xs = list(xs)
        if layers == 1:
            xs.insert(-1, None)
        if kind in ("tanh", "relu"):
            return F.rnn(*xs, nonlinearity=kind, **options)
        return getattr(F, kind)(*xs, **options)

    return call


@pytest.mark.parametrize("layers,directions", [(1, 1), (1, 2), (3, 2)])
@pytest.mark.parametrize("kind", list(GATES))
def test_recurrent_layers_equal_torch(kind, layers, directions):
    compare(
        ours(kind, layers, directions),
        reference(kind, layers, directions),
        *arrays(kind, layers, directions),
    )
