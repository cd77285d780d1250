# SPDX-License-Identifier: Apache-2.0
"""What 8 bits cost: a small MobileNetV3 is trained on handwritten digits and written as .tflite in
8 bits, with ranges from 200 images of the training set; accuracy of both on the test set.

    python benchmarks/int8.py [--epochs 30]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl.converters.model import Network
from nnl.converters.runtimes import in_litert
from nnl.converters.tflite.reader import TfliteFile
from nnl.converters.tflite.writer import save
from nnl.models import mobilenet_v3

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "digits"))
from data import load_digits_28x28  # noqa: E402

BATCH = 32


def colours(images: Any) -> Any:
    """Images of 32 x 32 pixels, three times."""
    return np.repeat(np.pad(images, ((0, 0), (0, 0), (2, 2), (2, 2))), 3, 1)


def network(x: nn.Variable, test: bool = False) -> Any:
    return mobilenet_v3(x, "small", 10, test)


def train(images: Any, labels: Any, epochs: int) -> None:
    x, t = nn.Variable((BATCH, *images.shape[1:])), nn.Variable((BATCH, 1))
    loss = F.mean(F.softmax_cross_entropy(network(x), t))
    solver = S.Adam(1e-3)
    solver.set_parameters(nn.get_parameters())
    rng, steps = np.random.default_rng(0), len(images) // BATCH
    for epoch in range(epochs):
        solver.set_learning_rate(1e-3 * 0.5 * (1 + np.cos(np.pi * epoch / epochs)))
        for at in np.split(rng.permutation(len(images))[: steps * BATCH], steps):
            x.d, t.d = images[at], labels[at]
            solver.zero_grad()
            loss.forward()
            loss.backward()
            solver.update()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=30)
    args = parser.parse_args()
    nn.logger.setLevel("ERROR")
    nn.seed(0)
    images, labels, others, truth = load_digits_28x28()
    images, others = colours(images), colours(others)
    train(images, labels, args.epochs)
    x = nn.Variable((1, *images.shape[1:]))
    trained = Network("digits", {"x": x}, {"y": network(x, test=True)})
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/digits.tflite"
        save(file, trained, {"x": images[:200]})
        runtime = in_litert(file, file)
        stored = TfliteFile(file).stored()
        by = "nnl" if runtime is None else runtime.name
        right = np.zeros(2, int)
        for image, label in zip(others, truth, strict=True):
            given = {"x": image[None]}
            exact = trained.run(given)["y"]
            (rounded,) = stored.run(given).values() if runtime is None else runtime.run(given)
            right += [exact.argmax() == label[0], rounded.argmax() == label[0]]
    float32, int8 = right / len(others)
    print(f"MobileNetV3 on {len(others)} digits: float {float32:.2%}, 8 bits {int8:.2%} (by {by})")


if __name__ == "__main__":
    main()
