# SPDX-License-Identifier: Apache-2.0
"""Settings of every solver, the gradients they get, and the trajectory that the formulas give."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from tests.solvers import formulas

NAMES = (
    "Sgd Momentum Nesterov SgdW Lars Adadelta Adagrad RMSprop RMSpropGraves Adam AdamW Adamax "
    "AMSGRAD AdaBound AMSBound AdaBelief Lamb Lion Muon"
).split()

CASES: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in NAMES] + [
    ("Momentum", {"momentum": 0.5}),
    ("SgdW", {"wd": 0.1}),
    ("Lars", {"coefficient": 0.5}),
    ("RMSpropGraves", {"lr": 0.1, "eps": 0.5}),
    ("Adam", {"alpha": 0.1, "beta1": 0.5, "beta2": 0.6, "eps": 0.1}),
    ("AdamW", {"wd": 0.1}),
    ("AMSGRAD", {"bias_correction": True}),
    ("AMSBound", {"bias_correction": True}),
    ("AdaBound", {"final_lr": 1e-3, "gamma": 0.5}),
    ("AdaBelief", {"amsgrad": True}),
    ("AdaBelief", {"eps": 0.01}),
    ("AdaBelief", {"wd": 0.1}),
    ("AdaBelief", {"wd": 0.1, "weight_decouple": True}),
    ("AdaBelief", {"wd": 0.1, "weight_decouple": True, "fixed_decay": True}),
    ("AdaBelief", {"rectify": True, "eps": 0.1}),
    ("AdaBelief", {"rectify": True, "amsgrad": True}),
    ("Lamb", {"bias_correction": True}),
    ("Lamb", {"gamma_u": 0.5}),
    ("Lamb", {"gamma_l": 5.0}),
    ("Muon", {"nesterov": False, "momentum": 0.5, "steps": 3}),
    ("Muon", {"match": False, "wd": 0.0, "lr": 0.1}),
]
IDS = [f"{name}-{'-'.join(kw)}" if kw else name for name, kw in CASES]

OURS = ("Muon",)  # NNabla has none
FUSED = ("SgdW", "AdamW", "Lars", "Lamb", "Lion", "Muon")
RATE = {"Lamb": "eta"} | dict.fromkeys(
    "Adam AdamW Adamax AMSGRAD AdaBound AMSBound AdaBelief".split(), "alpha"
)
# Where the rule uses the rate relative to the first one.
FIRST = dict.fromkeys(("AdamW", "AdaBound", "AMSBound"), "alpha0") | {"SgdW": "lr0"}


def gradients(steps: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(steps, *shape))


def trajectory(
    name: str,
    kw: dict[str, Any],
    w: np.ndarray,
    grads: np.ndarray,
    rates: list[float] | None = None,
    decay: dict[int, float] | None = None,
) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """The weights after every step, in float64, and the states after the last."""
    states: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(w.shape))
    rule = getattr(formulas, name.lower())
    weights = []
    for i, g in enumerate(grads):
        settings = dict(kw)
        if rates is not None:
            settings[RATE.get(name, "lr")] = rates[i]
            if name in FIRST:
                settings[FIRST[name]] = rates[0]
        if decay is not None and i in decay:
            settings["wd"] = decay[i]
        w = rule(w, g, i + 1, states, **settings)
        weights.append(w)
    return weights, dict(states)
