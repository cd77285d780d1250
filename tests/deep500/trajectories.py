# SPDX-License-Identifier: Apache-2.0
"""How far a back end's own optimizer goes from the readable one; also in a Python without pytest.

python -m tests.deep500.trajectories BACKEND...        raises where one goes too far
"""

from __future__ import annotations

import sys
from typing import Any

import nnl.deep500 as d5
from nnl.deep500 import optimizers as O
from tests.deep500 import models

STEPS = 12
SETTINGS: dict[str, dict[str, float]] = {
    "sgd": {"lr": 0.1},
    "momentum": {"lr": 0.05},
    "nesterov": {"lr": 0.05},
    "adagrad": {"lr": 0.05},
    "adam": {"lr": 0.01},
}
# Of the norm of a parameter's difference after all steps: sums of float32 in another order. Where a
# rule divides by a root, small gradients count as much as large ones; and nnl and Keras add epsilon
# before Adam's second moment is corrected, PyTorch after it.
LIMITS = {"adagrad": 1e-3, "adam": 2e-3}


def trained(backend: str, name: str, **settings: float) -> Any:
    net = d5.network(models.lenet(), backend)
    net.add_loss("scores")
    return O.optimizer(name, net, **settings)


def batches(n: int = STEPS) -> list[Any]:
    return [models.digits(8, seed) for seed in range(n)]


def check(rule: str, backend: str) -> float:
    """The largest difference of a parameter, which must be small, and that of the losses too."""
    settings = SETTINGS[rule]
    a = trained("reference", rule, **settings)
    b = trained(backend, f"native:{rule}", **settings)
    rows = O.compare(a, b, batches())
    limit = LIMITS.get(rule, 1e-4)
    worst = max(v for row in rows for k, v in row.items() if k in a.network.parameters())
    last = rows[-1]
    assert len(rows) == STEPS and last["first_loss"] != rows[0]["first_loss"]
    assert worst < limit and abs(last["first_loss"] - last["second_loss"]) < limit, (rule, worst)
    return float(worst)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(name, *[f"{rule} {check(rule, name):.1e}" for rule in SETTINGS])
