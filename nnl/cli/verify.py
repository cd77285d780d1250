# SPDX-License-Identifier: Apache-2.0
"""--verify: run a source and what it was converted to on the same random input."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnl.converters.formats import Format, Model, Network
from nnl.core.graph import capture
from nnl.core.random import seed

FURTHER = 2  # what an open batch size is tried with, besides the source's: that many more


def differences(model: Model, path: str, target: Format, size: int | None) -> dict[str, float]:
    """How far the outputs of the file at `path` are from those of the source.

    Args:
        size: Batch size that was asked for; -1 is tried with two of them.
    Returns:
        largest_difference, and largest_value: the largest finite number in the source's outputs.
    Raises:
        ValueError: The result has other inputs or outputs, or does not take the batch size.
    """
    if target.read is None:
        raise ValueError(f"--verify cannot read the format {target.name}")
    result = target.read([path])
    source = model.network(None if size == -1 else size, inference=True)
    found = [_difference(source, result, path)]
    batch = _batch(source)
    if size == -1 and batch is not None:
        found.append(_difference(model.network(batch + FURTHER, inference=True), result, path))
    gap, value = np.max(found, axis=0)
    return {"largest_difference": float(gap), "largest_value": float(value)}


def _batch(network: Network) -> int | None:
    return next((v.shape[0] for v in network.inputs.values() if v.shape), None)


def _difference(source: Network, result: Model, path: str) -> tuple[float, float]:
    seed(0)  # of functions that draw random numbers
    values = random_inputs(source)
    want = source.run(values)
    seed(0)
    built = result.network(_batch(source), inference=True)
    got = built.run(_renamed(values, source, built, path))
    if len(want) != len(got):
        raise ValueError(f"--verify: {path} has {len(got)} outputs, the source {len(want)}")
    worst = largest = 0.0
    for (name, a), b in zip(want.items(), got.values(), strict=True):
        if a.shape != b.shape:
            raise ValueError(
                f"--verify: {path}: the output {name!r} is {b.shape}, in the source {a.shape}"
            )
        if a.size:
            wide = a.astype(np.float64)
            with np.errstate(invalid="ignore"):
                gap = np.abs(wide - b)
            gap = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, gap)
            worst = max(worst, float(np.nan_to_num(gap.max(), nan=np.inf)))
            largest = max(largest, float(np.abs(wide).max(initial=0.0, where=np.isfinite(wide))))
    return worst, largest


def random_inputs(network: Network) -> dict[str, np.ndarray[Any, Any]]:
    """Normal numbers for every input; 0 and 1 where integers are read."""
    rng = np.random.default_rng(0)
    found = {}
    integers = _integer_leaves(network)
    for name, v in network.inputs.items():
        if v.spec.dtype.kind in "iub" or v.edge.key in integers:
            found[name] = rng.integers(0, 2, v.shape).astype(v.spec.dtype)
        else:
            found[name] = rng.standard_normal(v.shape).astype(v.spec.dtype)
    return found


def _integer_leaves(network: Network) -> set[Any]:
    """What reaches, perhaps reshaped or cut, an input that functions read as integers."""
    nodes = capture([v.edge for v in network.outputs.values()])
    found: set[Any] = set()
    for node in reversed(nodes):
        whole = any((id(node), i) in found for i in range(len(node.out_specs)))
        for i, v in enumerate(node.inputs):
            name = node.op.inputs[min(i, len(node.op.inputs) - 1)]
            if v is not None and (whole or name in node.op.integer):
                found.add(v.key)
    return found


def _renamed(values: dict[str, Any], a: Network, b: Network, path: str) -> dict[str, Any]:
    """The values under the names of b, whose inputs are those of a by name or else by order."""
    if len(a.inputs) != len(b.inputs):
        raise ValueError(f"--verify: {path} has the inputs {list(b.inputs)}, not {list(a.inputs)}")
    if set(a.inputs) == set(b.inputs):
        return values
    return dict(zip(b.inputs, values.values(), strict=True))
