# SPDX-License-Identifier: Apache-2.0
"""Files from which a training run of one's own loop goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from nnl.core.arrays.array import NdArray
from nnl.core.graph.variable import Variable
from nnl.core.ops import random as nnl_random
from nnl.core.parameters.safetensors import read_header, save
from nnl.solvers import Solver, SolverState

Parameters = Mapping[str, Variable]


def save_run(
    path: str | os.PathLike[str],
    parameters: Parameters,
    solvers: Mapping[str, Solver],
    progress: Any,
    averages: Mapping[str, NdArray] | None = None,
) -> None:
    """Everything that a run needs to go on, in one file that is there whole or not at all.

    Args:
        path: A .safetensors file.
        parameters: By name, with running statistics.
        solvers: By names of one's own; their states are saved.
        progress: What the loop itself wants to know again, of what JSON holds.
        averages: As of MovingAverage.values.
    Example:
        >>> w = nn.Variable.from_numpy_array(np.ones(2), need_grad=True)
        >>> solver = S.Adam(0.1)
        >>> solver.set_parameters({"w": w})
        >>> save_run("run.safetensors", {"w": w}, {"solver": solver}, {"step": 7})
        >>> load_run("run.safetensors", {"w": w}, {"solver": solver})
        {'step': 7}
    """
    arrays = {f"parameter/{k}": v.d for k, v in parameters.items()}
    for name, solver in solvers.items():
        for key, state in solver.get_states().items():
            at = f"solver/{name}/{key}"
            arrays[f"{at}/t"] = np.array(state.t)
            arrays |= {f"{at}/{n}": v.d for n, v in state.pstate.items()}
    arrays |= {f"average/{k}": v.data for k, v in (averages or {}).items()}
    functions = [int(n) for n in nnl_random.STREAMS.functions.data.data]
    save(str(path), arrays, {"progress": json.dumps(progress), "functions": json.dumps(functions)})


def load_run(
    path: str | os.PathLike[str],
    parameters: Parameters,
    solvers: Mapping[str, Solver],
    averages: Mapping[str, NdArray] | None = None,
) -> Any:
    """Make everything as it was when `save_run` wrote the file, random streams of functions too.

    Returns:
        The progress.
    Raises:
        ValueError: The file is of another network, or damaged. Nothing is changed then.
    Example:
        >>> try:
        ...     np.zeros(3).tofile("other.safetensors")
        ...     load_run("other.safetensors", {}, {})
        ... except ValueError as error:
        ...     print(str(error)[:27])
        load_run: other.safetensors
    """
    where = f"load_run: {path}"
    data = np.fromfile(path, np.uint8)
    entries, metadata = read_header(data, where)
    given = {k: data[e.begin : e.end].view(e.dtype).reshape(e.shape) for k, e in entries.items()}
    states = {n: s.get_states() for n, s in solvers.items()}
    wanted: dict[str, tuple[int, ...]] = {f"parameter/{k}": v.shape for k, v in parameters.items()}
    wanted |= {f"average/{k}": v.shape for k, v in (averages or {}).items()}
    for name, of in states.items():
        for key, state in of.items():
            wanted[f"solver/{name}/{key}/t"] = ()
            wanted |= {f"solver/{name}/{key}/{n}": v.shape for n, v in state.pstate.items()}
    for key, shape in wanted.items():
        if key not in given:
            raise ValueError(
                f"{where}: it has no {key!r}: it is of another network or another size"
            )
        if given[key].shape != shape:
            raise ValueError(f"{where}: {key!r} has the shape {given[key].shape}, wanted {shape}")
    try:
        progress = json.loads(metadata["progress"])
        functions = np.array(json.loads(metadata["functions"]), np.uint64)
        nnl_random.STREAMS.functions.data.data[:] = functions
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{where}: it is no file of save_run: {error}") from error
    for key, v in parameters.items():
        v.d = given[f"parameter/{key}"]
    for key, average in (averages or {}).items():
        average.data[...] = given[f"average/{key}"]
    for name, solver in solvers.items():
        restored = {}
        for key, state in states[name].items():
            at = f"solver/{name}/{key}"
            held = {n: Variable.from_numpy_array(given[f"{at}/{n}"].copy()) for n in state.pstate}
            restored[key] = SolverState(held, int(given[f"{at}/t"]))
        solver.set_states(restored)
    return progress
