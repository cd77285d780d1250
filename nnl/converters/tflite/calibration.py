# SPDX-License-Identifier: Apache-2.0
"""Data sets for networks in 8 bits: the ranges that numbers take, and how far results are off."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnl.converters.networks.model import Network
from nnl.converters.networks.samples import Samples, batches
from nnl.converters.runtimes.others import Runtime
from nnl.converters.tflite.quantize import UNBOUNDED
from nnl.converters.tflite.reader import TfliteFile

Array = np.ndarray[Any, Any]


def ranges_of(data: bytes, samples: Samples) -> dict[int, tuple[float, float]]:
    """The smallest and largest numbers that tensors of a file take, by their numbers."""
    network = TfliteFile("the network", data).observed()
    found: dict[int, tuple[float, float]] = {}
    for values, _ in batches(samples, network):
        results = {**network.run(values), **_inputs(network, values)}
        for name, y in results.items():
            low, high = found.get(int(name), (0.0, 0.0))
            y = y[np.abs(y) < UNBOUNDED]
            if y.size:
                low, high = min(low, float(y.min())), max(high, float(y.max()))
            found[int(name)] = low, high
    return found


def _inputs(network: Network, values: Mapping[str, Array]) -> dict[str, Array]:
    """Inputs have the first numbers."""
    return {f"{i}": values[n] for i, n in enumerate(network.inputs)}


@dataclass(frozen=True)
class Accuracy:
    """What 8 bits cost, in the output where that is most.

    Attributes:
        runtime: What has run the file.
        samples: How many were compared.
        difference, value: The largest difference, the largest number of the source's output.
        same: The part of samples whose largest number has kept its place.
    """

    runtime: str
    samples: int
    difference: float
    value: float
    same: float

    def __str__(self) -> str:
        return (
            f"8 bits against float on {self.samples} samples, by {self.runtime}: largest "
            f"difference {self.difference:.3g}, of values up to {self.value:.3g}; same class for "
            f"{self.same:.1%}"
        )


def accuracy(network: Network, file: str, samples: Samples, runtime: Runtime | None) -> Accuracy:
    """Compare a file in 8 bits with the network that it was made from.

    Args:
        runtime: What runs the file; None for what reads .tflite files here.
    """
    run: Callable[[Any], Any]
    if runtime is None:
        stored = TfliteFile(file).network()
        name, run = "nnl", lambda values: list(stored.run(values).values())
    else:
        name, run = runtime.name, runtime.run
    worst: list[Accuracy] = []
    total, rows = 0, []
    for values, count in batches(samples, network):
        want, got = network.run(values).values(), run(values)
        pairs = [(a, b.reshape(a.shape)) for a, b in zip(want, got, strict=True)]
        rows.append([(a[:count], b[:count]) for a, b in pairs])
        total += count
    for pairs in zip(*rows, strict=True):
        a, b = (np.concatenate(part).astype(np.float64) for part in zip(*pairs, strict=True))
        flat = a.reshape(len(a), -1), b.reshape(len(b), -1)
        same = float((flat[0].argmax(1) == flat[1].argmax(1)).mean())
        worst.append(
            Accuracy(name, total, float(np.abs(a - b).max()), float(np.abs(a).max()), same)
        )
    return max(worst, key=lambda w: w.difference / max(w.value, 1e-30))
