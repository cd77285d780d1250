# SPDX-License-Identifier: Apache-2.0
"""RNN, GRU and LSTM with everything that ONNX allows, on two back ends; also without pytest.

python -m tests.deep500.recurrent BACKEND OTHER        raises where they differ
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import nnl.deep500 as d5
from nnl.deep500.contract import GRADIENT
from tests.deep500 import models

STEPS, BATCH, WIDE, SIZE = 5, 3, 4, 2
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
SOFT = {"activation_alpha": [0.3, 0.4], "activation_beta": [0.6, 0.7]}
LINE = {"activation_alpha": [0.5], "activation_beta": [0.1]}
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "RNN": [{"activations": ["LeakyRelu"], "activation_alpha": [0.2]}, {"clip": 0.2}],
    "GRU": [{"linear_before_reset": 1}, {"activations": ["HardSigmoid", "ScaledTanh"], **SOFT}],
    "LSTM": [
        {"input_forget": 1},
        {"activations": ["Sigmoid", "Softsign", "Affine"], "clip": 0.3, **LINE},
    ],
}


def model(kind: str, direction: str, short: bool, options: dict[str, Any]) -> Any:
    """A layer of random weights; `short`: the samples have other lengths."""
    rng = np.random.default_rng(0)
    d, g = 2 if direction == "bidirectional" else 1, GATES[kind]

    def draw(*shape: int) -> Any:
        return rng.normal(size=shape).astype(np.float32)

    weights = {"w": draw(d, g * SIZE, WIDE), "r": draw(d, g * SIZE, SIZE)}
    weights |= {"b": draw(d, 2 * g * SIZE), "h": draw(d, BATCH, SIZE)}
    names = ["x", "w", "r", "b", "lengths" if short else "", "h"]
    if short:
        weights["lengths"] = np.array([2, 5, 3], np.int32)
    outputs = {"y": (STEPS, d, BATCH, SIZE), "last": (d, BATCH, SIZE)}
    if kind == "LSTM":
        weights |= {"c": draw(d, BATCH, SIZE), "p": draw(d, 3 * SIZE)}
        names += ["c", "p"]
        outputs["cell"] = (d, BATCH, SIZE)
    options = {k: v * d if isinstance(v, list) else v for k, v in options.items()}
    node = models.op(kind)(
        *names, outputs=tuple(outputs), hidden_size=SIZE, direction=direction, **options
    )
    shapes = [models.value(n, *s) for n, s in outputs.items()]
    return models.model([node], [models.value("x", STEPS, BATCH, WIDE)], shapes, weights)


def check(backend: str, other: str) -> int:
    """Compare all; gives how many there were."""
    x = {"x": np.random.default_rng(1).normal(size=(STEPS, BATCH, WIDE)).astype(np.float32)}
    count = 0
    for kind, more in OPTIONS.items():
        for direction in ("forward", "reverse", "bidirectional"):
            for short in (False, True):
                for options in ({}, *more):
                    made = model(kind, direction, short, options)
                    a, b = (d5.network(made, n).inference(x) for n in (backend, other))
                    for name in b:
                        said = f"{kind} {direction} {short} {options} {name}"
                        np.testing.assert_allclose(a[name], b[name], 1e-4, 1e-5, err_msg=said)
                    count += 1
    return count


def check_gradients(backend: str, other: str) -> None:
    """Of the weights, through all steps and both directions."""
    x = np.random.default_rng(1).normal(size=(STEPS, BATCH, WIDE)).astype(np.float32)
    for kind in GATES:
        found = []
        for name in (backend, other):
            net = d5.network(model(kind, "bidirectional", True, {}), name, ["w", "r", "b"])
            net.add_loss("y", "t", "squared_error")
            net.inference_and_backprop({"x": x, "t": np.ones((STEPS, 2, BATCH, SIZE))})
            found.append(net.fetch([n + GRADIENT for n in ("w", "r", "b")]))
        for a, b in zip(*found, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5, err_msg=kind)


if __name__ == "__main__":
    print(check(*sys.argv[1:3]))
    check_gradients(*sys.argv[1:3])
