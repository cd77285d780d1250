# SPDX-License-Identifier: Apache-2.0
"""Meta-learning with MAML: weights from which one step on ten points learns any sine.

Each task is a sine of an amplitude and a phase of its own. The loss after the step trains the
weights before it, through the step's gradient. Beside: the same network trained on all tasks alike,
then given the same step of its best size. Source: Finn et al., arXiv:1703.03400. Expected (mean
squared error on held out sines):

    {"after one step": 0.4175, "without": 3.1217, "alike, after one step": 2.6819, "seconds": 9}
"""

import numpy as np
from common import fit, given, main

import nnl as nn
import nnl.functions as F
from nnl.parametric_functions import get_parameter_or_create
from nnl.parametric_functions.initializer import NormalInitializer

POINTS, RATE, WIDTH, TASKS = 10, 0.03, 40, 16
SIZES = ((1, WIDTH), (WIDTH, WIDTH), (WIDTH, 1))


def weights(name):
    """Weights and biases of three layers."""
    found = []
    with nn.parameter_scope(name):
        for i, (n, m) in enumerate(SIZES):
            first = NormalInitializer((2 / n) ** 0.5)
            found.append(get_parameter_or_create(f"w{i}", (n, m), first))
            found.append(get_parameter_or_create(f"b{i}", (1, m), NormalInitializer(0.3)))
    return found


def network(w, x):
    """(B, 1) -> (B, 1), or (TASKS, B, 1) with weights of each task."""
    x = x / 5
    for i in range(3):
        x = F.batch_matmul(x, w[2 * i]) + w[2 * i + 1]
        x = F.relu(x) if i < 2 else x
    return x


def adapted(w, x, t, rate=RATE):
    """Weights (TASKS, ...) after one step on the points of each task."""
    w = [F.tile(F.reshape(v, (1, *v.shape)), (x.shape[0], 1, 1)) for v in w]
    loss = F.sum(F.mean(F.squared_error(network(w, x), t), axis=1))
    return [v - rate * g for v, g in zip(w, nn.grad([loss], w), strict=True)]


def tasks(rng, n=TASKS):
    """Points to learn from and points to be right at, (n, POINTS, 1) each, x and y of both."""
    height, phase = rng.uniform(0.1, 5, (n, 1, 1)), rng.uniform(0, np.pi, (n, 1, 1))
    x = rng.uniform(-5, 5, (2, n, POINTS, 1))
    y = height * np.sin(x + phase)
    return [a.astype(np.float32) for a in (x[0], y[0], x[1], y[1])]


def loss_of(x, t, later, wanted, name="maml", rate=RATE):
    w = adapted(weights(name), x, t, rate)
    return F.mean(F.squared_error(network(w, later), wanted))


def plain(x, t, later, wanted):
    w = [F.tile(F.reshape(v, (1, *v.shape)), (x.shape[0], 1, 1)) for v in weights("alike")]
    return F.mean(F.squared_error(network(w, later), wanted))


def run(steps=4000):
    fit(loss_of, tasks, steps, rate=5e-3, scope="maml")
    fit(plain, tasks, steps, rate=5e-3, scope="alike")
    held_out = list(map(given, tasks(np.random.default_rng(2), 200)))

    def error(name, rate):
        with nn.auto_forward():
            return float(loss_of(*held_out, name, rate).d)

    return {
        "after one step": error("maml", RATE),
        "without": error("maml", 0.0),
        "alike, after one step": min(error("alike", r) for r in (0.0, 0.01, 0.03, 0.1)),
    }


if __name__ == "__main__":
    main(run)
