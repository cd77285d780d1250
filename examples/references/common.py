# SPDX-License-Identifier: Apache-2.0
"""What the references share: a loop, small networks on digits, what they print."""

from __future__ import annotations

import argparse
import json
import sys
import time
from functools import cache
from typing import Any

import numpy as np
from tqdm import trange

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S


def given(array: Any) -> Any:
    """An array as what networks take."""
    return nn.Variable.from_numpy_array(np.ascontiguousarray(array))


def fit(loss_of: Any, batch: Any, steps: int, rate: float = 2e-3, scope: str = "") -> list[float]:
    """Train the parameters of a scope by Adam; the losses.

    Args:
        loss_of: A scalar Variable of the Variables of a batch.
        batch: Arrays, of a random generator.
    """
    loss_of(*map(given, batch(np.random.default_rng(0))))  # makes the parameters
    with nn.parameter_scope(scope):
        solver = S.Adam(rate)
        solver.set_parameters(nn.get_parameters())

    @nn.compile
    def step(*arrays: Any) -> Any:
        loss = loss_of(*arrays)
        solver.zero_grad()
        loss.backward(clear_buffer=True)
        solver.update()
        return loss

    rng, losses = np.random.default_rng(1), []
    for i in trange(steps, unit="step", disable=None, file=sys.stderr):
        # along a cosine to a tenth
        solver.set_learning_rate(rate * (0.55 + 0.45 * np.cos(np.pi * i / steps)))
        losses.append(float(step(*map(given, batch(rng))).d))
    return losses


def answers(network: Any, *arrays: Any) -> Any:
    """What a network gives for whole arrays: one array, or a tuple of them."""
    with nn.auto_forward(), nn.no_grad():
        found = network(*map(given, arrays))
        return tuple(y.d.copy() for y in found) if isinstance(found, tuple) else found.d.copy()


@cache
def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Digits of scikit-learn, (N, 1, 8, 8) in [0, 1], with classes: training, then every fifth."""
    from sklearn.datasets import load_digits

    found = load_digits()
    x, t = (found.images[:, None] / 16).astype(np.float32), found.target
    held_out = np.arange(len(x)) % 5 == 4
    return x[~held_out], t[~held_out], x[held_out], t[held_out]


def some(n: int, *arrays: np.ndarray) -> Any:
    """Batches of n random rows of arrays."""

    def batch(rng: Any) -> list[np.ndarray]:
        rows = rng.integers(len(arrays[0]), size=n)
        return [a[rows] for a in arrays]

    return batch


def moved(x: np.ndarray, rng: Any, most: int = 1, noise: float = 0.1) -> np.ndarray:
    """Images shifted by up to so many pixels, with noise."""
    padded = np.pad(x, ((0, 0), (0, 0), (most, most), (most, most)))
    n, _, h, w = x.shape
    down, right = rng.integers(0, 2 * most + 1, (2, n, 1, 1))
    row, column = down + np.arange(h)[:, None], right + np.arange(w)
    found = padded[np.arange(n)[:, None, None], :, row, column].transpose(0, 3, 1, 2)
    return (found + noise * rng.normal(size=found.shape)).astype(np.float32)


def convolutions(x: Any, width: int = 16, features: int = 64) -> Any:
    """Features (B, features) of images (B, C, H, W)."""
    h = F.relu(PF.convolution(x, width, (3, 3), pad=(1, 1), name="first"))
    h = F.relu(PF.convolution(h, 2 * width, (3, 3), pad=(1, 1), stride=(2, 2), name="second"))
    return F.relu(PF.affine(h, features, name="features"))


def cross_entropy(scores: Any, t: Any) -> Any:
    """The mean, with classes (B,)."""
    return F.mean(F.softmax_cross_entropy(scores, F.reshape(t, (t.shape[0], 1))))


def main(run: Any) -> None:
    """Run a reference from the command line and print what it reached."""
    parser = argparse.ArgumentParser(description=sys.modules[run.__module__].__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--steps", type=int, help="instead of those that the numbers are of")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.steps is not None and options.steps < 1:
        parser.error(f"--steps is {options.steps}, wanted at least 1")
    nn.seed(options.seed)
    begin = time.perf_counter()
    found = run(options.steps) if options.steps else run()
    found = {name: round(float(value), 4) for name, value in found.items()}
    print(json.dumps(found | {"seconds": round(time.perf_counter() - begin)}))
