# SPDX-License-Identifier: Apache-2.0
"""Data sets that tell how large the numbers in a network become."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from nnl.converters.networks.model import Network

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


def batches(samples: Samples, network: Network) -> Iterator[tuple[dict[str, Array], int]]:
    """Samples in batches of a network's size, and how many are new: the last is filled up."""
    count, size = len(next(iter(samples.values()))), batch_size(network)
    for start in range(0, count, size):
        at = np.arange(start, start + size) % count
        yield {n: a[at] for n, a in samples.items()}, min(size, count - start)
