# SPDX-License-Identifier: Apache-2.0
"""--verify: run a source and what it was converted to on the same random input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from nnl.converters.formats import Format, WriteOptions
from nnl.converters.networks.model import Model, Network
from nnl.converters.programs import entries
from nnl.converters.runtimes.others import Runtime, Values, renamed
from nnl.core.graph.node import capture
from nnl.core.ops.random import seed
from nnl.graph import load_program
from nnl.graph.program.sizes import witnesses

MULTIPLE = 32  # of the open sizes that are tried, which suits what halves pictures
SMALLEST = 1e-6  # outputs that are all below are compared as if their largest number were this

Run = Callable[[int | None, Values], Sequence[Any]]  # batch size, inputs -> outputs


class Gap(NamedTuple):
    """How far the outputs of two networks are from each other, in the output where it is furthest.

    Attributes:
        relative: The largest difference over the largest finite number of the source's output.
        difference, value: These two.
        by: What has run the file.
    """

    relative: float
    difference: float
    value: float
    by: str


def largest_gap(model: Model, file: str, name: str, target: Format, options: WriteOptions) -> Gap:
    """Compare a file with its source; its format's own runtime runs it where that is installed.

    Args:
        file, name: Where it is now, and what messages call it.
        options: What it was written with; open sizes are tried with two.
    Raises:
        ValueError: The result has other inputs or outputs, does not take the batch size, or its
            runtime does not run it.
    """
    size = options.batch_size
    if target.name == "NNLP":
        pairs = entries(model, options, load_program(file))
        return max(_gap_of_program(network, file, key) for key, network in pairs)
    if size == -1:
        sources = [model.sized(sizes) for sizes in _tried(model)]
    else:
        sources = [model.network(size, inference=True)]
    source = sources[0]
    known = None if target.runtime is None or _draws(source) else target.runtime(file, name)
    if known is not None:
        by, run = known.name, _of_any_batch(known)
    elif target.read is not None:
        by, run = "nnl", _in_nnl(target.read([file]), name)
    else:
        raise ValueError(f"--verify: nothing here runs the format {target.name}")
    return max([_gap(n, run, name, by) for n in sources])


def _tried(model: Model) -> list[dict[str, int]]:
    """Two sets of sizes for what a model leaves open; of what they must be multiples, the file does
    not say."""
    opened = model.open_sizes()
    dims = opened.dims
    for name, dim in dims.items():
        if name not in opened.ranges and dim.example > 1:
            dims[name] = dim._replace(multiple=MULTIPLE)
    return witnesses(dims, span=4, count=2)


def _of_any_batch(runtime: Runtime) -> Run:
    return lambda batch, values: runtime.run(values)


def _in_nnl(model: Model, name: str) -> Run:
    def run(batch: int | None, values: Values) -> Sequence[Any]:
        seed(0)  # of functions that draw random numbers
        opened = model.open_sizes()
        if opened.open:
            given = renamed(values, list(opened.axes), name)
            sizes = opened.sizes({n: np.shape(v) for n, v in given.items()})
            built = model.sized(sizes)
        else:
            built = model.network(batch, inference=True)
        return list(built.run(renamed(values, list(built.inputs), name)).values())

    return run


def _gap_of_program(source: Network, file: str, key: str) -> Gap:
    programs = load_program(file)  # anew: random numbers begin as they do in the source

    def run(batch: int | None, values: Values) -> Sequence[Any]:
        return list(programs.run(key, **values).values())

    return _gap(source, run, key, "nnl")


def _batch(network: Network) -> int | None:
    return next((v.shape[0] for v in network.inputs.values() if v.shape), None)


def _draws(network: Network) -> bool:
    """Whether the outputs depend on random numbers, which are others in another program."""
    nodes = capture([v.edge for v in network.outputs.values()])
    return any(n.op.takes_rng and _probability(n.attrs) != 0 for n in nodes)


def _probability(attrs: Any) -> Any:
    """Of dropout, which draws nothing at 0; None for other functions."""
    return getattr(attrs, "p", getattr(attrs, "dropout", None))


def _gap(source: Network, run: Run, name: str, by: str) -> Gap:
    seed(0)
    values = random_inputs(source)
    want = source.run(values)
    got = run(_batch(source), values)
    if len(want) != len(got):
        raise ValueError(f"--verify: {name} has {len(got)} outputs, the source {len(want)}")
    worst = Gap(0.0, 0.0, 0.0, by)
    for (output, a), b in zip(want.items(), got, strict=True):
        if a.shape != b.shape and b.shape != (a.size,):
            raise ValueError(
                f"--verify: {name}: the output {output!r} is {b.shape}, in the source {a.shape}"
            )
        if a.size:
            wide, found = a.astype(np.float64), b.reshape(a.shape)
            with np.errstate(invalid="ignore"):
                gap = np.abs(wide - found)
            gap = np.where((a == found) | (np.isnan(a) & np.isnan(found)), 0.0, gap)
            difference = float(np.nan_to_num(gap.max(), nan=np.inf))
            value = float(np.abs(wide).max(initial=0.0, where=np.isfinite(wide)))
            worst = max(worst, Gap(difference / max(value, SMALLEST), difference, value, by))
    return worst


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
