# SPDX-License-Identifier: Apache-2.0
"""Data sets for networks in 8 bits: the ranges that numbers take, and how far results are off."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnl.converters.model import Network
from nnl.converters.runtimes import in_litert
from nnl.converters.tflite.quantize import UNBOUNDED
from nnl.converters.tflite.reader import TfliteFile

Array = np.ndarray[Any, Any]
Samples = Mapping[str, Array]


def read_samples(path: str, network: Network) -> dict[str, Array]:
    """Samples for the inputs of a network: of an .npz file by their names, or of an .npy file.

    Raises:
        ValueError: They do not fit the inputs, or are none.
    """
    with open(path, "rb") as file:
        try:
            found = np.load(file, allow_pickle=False)
            arrays = dict(found) if isinstance(found, np.lib.npyio.NpzFile) else {"": found}
        except (ValueError, EOFError, OSError) as error:
            raise ValueError(f"{path}: is no .npy or .npz file of numbers: {error}") from None
    names = list(network.inputs)
    batch_size(network)
    if list(arrays) == [""] and len(names) == 1:
        arrays = {names[0]: arrays[""]}
    if set(arrays) != set(names):
        raise ValueError(f"{path}: has the arrays {sorted(arrays)}, wanted the inputs {names}")
    for name, v in network.inputs.items():
        a = arrays[name]
        if (
            a.ndim != v.ndim
            or a.shape[1:] != v.shape[1:]
            or not len(a)
            or a.dtype.kind not in "fiub"
        ):
            raise ValueError(
                f"{path}: {name!r} is {a.dtype}{list(a.shape)}, wanted samples of the shape "
                f"{list(v.shape[1:])}, one after the other"
            )
    if len({len(a) for a in arrays.values()}) != 1:
        raise ValueError(f"{path}: has {[len(a) for a in arrays.values()]} samples of the inputs")
    return arrays


def batch_size(network: Network) -> int:
    """The size of the first axis of the inputs.

    Raises:
        ValueError: They have several, or none.
    """
    sizes = {v.shape[:1] for v in network.inputs.values()}
    if len(sizes) != 1 or sizes == {()}:
        shapes = [list(v.shape) for v in network.inputs.values()]
        raise ValueError(f"samples need inputs of one batch size, these have the shapes {shapes}")
    ((size,),) = sizes
    return size


def _batches(samples: Samples, network: Network) -> Iterator[tuple[dict[str, Array], int]]:
    """Samples in batches of a network's size, and how many are new: the last is filled up."""
    count, size = len(next(iter(samples.values()))), batch_size(network)
    for start in range(0, count, size):
        at = np.arange(start, start + size) % count
        yield {n: a[at] for n, a in samples.items()}, min(size, count - start)


def ranges_of(data: bytes, samples: Samples) -> dict[int, tuple[float, float]]:
    """The smallest and largest numbers that tensors of a file take, by their numbers."""
    network = TfliteFile("the network", data).observed()
    found: dict[int, tuple[float, float]] = {}
    for values, _ in _batches(samples, network):
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


def accuracy(network: Network, file: str, samples: Samples) -> Accuracy:
    """Compare a file in 8 bits with the network that it was made from."""
    runtime = in_litert(file, os.path.basename(file))
    run: Callable[[Any], Any]
    if runtime is None:
        stored = TfliteFile(file).stored()
        name, run = "nnl", lambda values: list(stored.run(values).values())
    else:
        name, run = runtime.name, runtime.run
    worst: list[Accuracy] = []
    total, rows = 0, []
    for values, count in _batches(samples, network):
        want, got = network.run(values).values(), run(values)
        rows.append([(a[:count], b[:count]) for a, b in zip(want, got, strict=True)])
        total += count
    for pairs in zip(*rows, strict=True):
        a, b = (np.concatenate(part).astype(np.float64) for part in zip(*pairs, strict=True))
        flat = a.reshape(len(a), -1), b.reshape(len(b), -1)
        same = float((flat[0].argmax(1) == flat[1].argmax(1)).mean())
        worst.append(
            Accuracy(name, total, float(np.abs(a - b).max()), float(np.abs(a).max()), same)
        )
    return max(worst, key=lambda w: w.difference / max(w.value, 1e-30))
