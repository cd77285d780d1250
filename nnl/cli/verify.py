# SPDX-License-Identifier: Apache-2.0
"""--verify: run a source and what it was converted to on the same random input."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from nnl.converters.formats import Format, WriteOptions
from nnl.converters.model import Model, Network
from nnl.converters.programs import entries
from nnl.core.graph import capture
from nnl.core.random import seed
from nnl.graph import load_program

logger = logging.getLogger("nnl")

FURTHER = 2  # what an open batch size is tried with, besides the source's: that many more
SMALLEST = 1e-6  # outputs that are all below are compared as if their largest number were this

Values = dict[str, Any]


class Gap(NamedTuple):
    """How far the outputs of two networks are from each other, in the output where it is furthest.

    Attributes:
        relative: The largest difference over the largest finite number of the source's output.
        difference, value: These two.
    """

    relative: float
    difference: float
    value: float


def largest_gap(model: Model, file: str, name: str, target: Format, options: WriteOptions) -> Gap:
    """Compare a file with its source; ONNX Runtime runs it where that is installed.

    Args:
        file, name: Where it is now, and what messages call it.
        options: What it was written with; an open batch size is tried with two.
    Raises:
        ValueError: The result has other inputs or outputs, does not take the batch size, or ONNX
            Runtime does not run it.
    """
    size = options.batch_size
    if target.name == "NNLP":
        return max(_gap_of_program(network, file, key) for key, network in entries(model, options))
    if target.read is None:
        raise ValueError(f"--verify cannot read the format {target.name}")
    source = model.network(None if size == -1 else size, inference=True)
    run = None
    if target.name == "ONNX" and not _draws(source):
        run = _in_onnxruntime(file, name)
    if run is None:
        result = target.read([file])

        def run(batch: int | None, values: Values) -> Values:
            seed(0)  # of functions that draw random numbers
            built = result.network(batch, inference=True)
            return built.run(_renamed(values, list(built.inputs), name))

    found = [_gap(source, run, name)]
    batch = _batch(source)
    if size == -1 and batch is not None:
        found.append(_gap(model.network(batch + FURTHER, inference=True), run, name))
    return max(found)


def _gap_of_program(source: Network, file: str, key: str) -> Gap:
    programs = load_program(file)  # anew: random numbers begin as they do in the source
    return _gap(source, lambda batch, values: programs.run(key, **values), key)


def _batch(network: Network) -> int | None:
    return next((v.shape[0] for v in network.inputs.values() if v.shape), None)


def _draws(network: Network) -> bool:
    """Whether the outputs depend on random numbers, which are others in another program."""
    return any(n.op.takes_rng for n in capture([v.edge for v in network.outputs.values()]))


def _in_onnxruntime(file: str, name: str) -> Callable[[int | None, Values], Values] | None:
    """What runs the file; None where ONNX Runtime is not installed or lacks an operator."""
    try:
        import onnxruntime
    except ModuleNotFoundError:
        return None
    errors = onnxruntime.capi.onnxruntime_pybind11_state
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    except (errors.NotImplemented, errors.Fail) as error:
        logger.warning("--verify reads %s itself, as ONNX Runtime cannot: %s", name, error)
        return None
    except (errors.InvalidGraph, errors.InvalidProtobuf, errors.InvalidArgument) as error:
        raise ValueError(f"--verify: ONNX Runtime does not read {name}: {error}") from error
    inputs = {i.name: _DTYPES.get(i.type, np.float32) for i in session.get_inputs()}

    def run(batch: int | None, values: Values) -> Values:
        given = _renamed(values, list(inputs), name)
        feeds = {n: np.asarray(given[n], dtype) for n, dtype in inputs.items()}
        try:
            outputs = session.run(None, feeds)
        except (errors.RuntimeException, errors.Fail, errors.InvalidArgument) as error:
            raise ValueError(f"--verify: ONNX Runtime does not run {name}: {error}") from error
        return dict(zip((y.name for y in session.get_outputs()), outputs, strict=True))

    return run


_DTYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(bool)": np.bool_,
    **{f"tensor({sign}int{n})": f"{sign}int{n}" for sign in ("", "u") for n in (8, 16, 32, 64)},
}


def _gap(source: Network, run: Callable[[int | None, Values], Values], name: str) -> Gap:
    seed(0)
    values = random_inputs(source)
    want = source.run(values)
    got = run(_batch(source), values)
    if len(want) != len(got):
        raise ValueError(f"--verify: {name} has {len(got)} outputs, the source {len(want)}")
    worst = Gap(0.0, 0.0, 0.0)
    for (output, a), b in zip(want.items(), got.values(), strict=True):
        if a.shape != b.shape:
            raise ValueError(
                f"--verify: {name}: the output {output!r} is {b.shape}, in the source {a.shape}"
            )
        if a.size:
            wide = a.astype(np.float64)
            with np.errstate(invalid="ignore"):
                gap = np.abs(wide - b)
            gap = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, gap)
            difference = float(np.nan_to_num(gap.max(), nan=np.inf))
            value = float(np.abs(wide).max(initial=0.0, where=np.isfinite(wide)))
            worst = max(worst, Gap(difference / max(value, SMALLEST), difference, value))
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


def _renamed(values: Values, names: list[str], file: str) -> Values:
    """The values under the names of a file's inputs: the same, or in the same order."""
    if len(values) != len(names):
        raise ValueError(f"--verify: {file} has the inputs {names}, not {list(values)}")
    if set(values) == set(names):
        return values
    return dict(zip(names, values.values(), strict=True))
