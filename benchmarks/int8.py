# SPDX-License-Identifier: Apache-2.0
"""What 8 bits cost: a small MobileNetV3 is trained on handwritten digits, quantized in the ways of
`nn.quantize`, and written in 8 bits as .tflite and as C, with ranges from 200 images of the
training set; accuracies on the test set.

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
from nnl.converters.csrc import writer as csrc_writer
from nnl.converters.csrc.runtime import compiled
from nnl.converters.model import Network
from nnl.converters.runtimes import in_litert
from nnl.converters.tflite import writer as tflite_writer
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
    want = np.array([trained.run({"x": image[None]})["y"].argmax() for image in others])
    print(f"float, by nnl: {(want == truth[:, 0]).mean():.2%}")
    for method in ("min_max", "percentile", "entropy"):
        net = nn.quantize(trained, images[:200], method=method)
        got = np.array([net.run({"x": image[None]})["y"].argmax() for image in others])
        print(f"8 bits, {method}: {(got == truth[:, 0]).mean():.2%}")
    with tempfile.TemporaryDirectory() as folder:
        for save, run in ((tflite_writer.save, in_litert), (csrc_writer.save, compiled)):
            file = f"{folder}/digits{'.tflite' if run is in_litert else ''}"
            save(file, trained, samples={"x": images[:200]})
            runtime = run(file, file)
            if runtime is not None:
                got = [np.argmax(runtime.run({"x": image[None]})[0]) for image in others]
                print(f"8 bits, by {runtime.name}: {(got == truth[:, 0]).mean():.2%}")


if __name__ == "__main__":
    main()
