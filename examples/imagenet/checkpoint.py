# SPDX-License-Identifier: Apache-2.0
"""Everything that training needs to go on where it was, in one file.

The file is a safetensors file: parameters, states of the solvers and moving averages are arrays,
the rest is JSON in its metadata. It takes the place of the one before when it is complete, so
there is always a whole one. Random numbers need no state: they follow from the position.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from step import Training, network_parameters

import nnl as nn
from nnl.core.parameters.safetensors import read_header, save
from nnl.solvers import SolverState

NAME = "checkpoint.safetensors"
# Options that the numbers of a run depend on: another value would be another run.
SAME = (
    *("network", "size", "batch_size", "accumulate", "epochs", "solver", "learning_rate"),
    *("schedule", "warmup", "momentum", "weight_decay", "decay_all", "clip_norm", "smoothing"),
    *("mixup", "cutmix", "dropout", "ema", "ema_every", "seed", "sync_bn", "type_config"),
    *("jitter", "zero_gamma"),
)


def arrays_of(training: Training) -> dict[str, np.ndarray]:
    """All arrays that a step changes, by name."""
    arrays = {f"parameter/{k}": v.d for k, v in network_parameters().items()}
    for i, solver in enumerate(training.solvers):
        for key, state in solver.get_states().items():
            arrays[f"solver{i}/{key}/t"] = np.array(state.t)
            arrays |= {f"solver{i}/{key}/{n}": v.d for n, v in state.pstate.items()}
    if training.average is not None:
        arrays |= {f"average/{k}": v.data for k, v in training.average.values.items()}
    if training.scale is not None:
        arrays["scale/value"] = training.scale.value.data
        arrays["scale/counts"] = training.scale.counts.data
    return arrays


def write(folder: Path, options: Any, training: Training, progress: dict[str, Any]) -> Path:
    """Save a checkpoint.

    Args:
        progress: What else training needs: where it is and what has happened.
    Raises:
        OSError: It cannot be written; the one before is still there.
    """
    if training.average is not None:
        progress = {**progress, "averaged": training.average.updates}
    facts = {"options": facts_of(options, training), "progress": progress}
    path = folder / NAME
    save(path, arrays_of(training), {"imagenet": json.dumps(facts)})
    return path


def facts_of(options: Any, training: Training) -> dict[str, Any]:
    """What has to be the same in the run that goes on."""
    facts = {name: getattr(options, name) for name in SAME}
    return {**facts, "processes": training.comm.size, "classes": training.classes}


def read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays of a checkpoint and its facts.

    Raises:
        FileNotFoundError: There is none.
        ValueError: The file is damaged, or no checkpoint of this program.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    data = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)
    entries, metadata = read_header(data, str(path))
    if "imagenet" not in metadata:
        raise ValueError(f"{path}: this is no checkpoint of train.py")
    arrays = {
        name: np.array(data[e.begin : e.end]).view(e.dtype).reshape(e.shape)
        for name, e in entries.items()
    }
    facts = json.loads(metadata["imagenet"])
    if not all(isinstance(facts.get(key), dict) for key in ("options", "progress")):
        raise ValueError(f"{path}: its metadata is damaged")
    return arrays, facts


def restore(path: Path, options: Any, training: Training) -> dict[str, Any]:
    """Make everything as it was when a checkpoint was written; its progress.

    Raises:
        ValueError: It is of another run; the text names what differs. Nothing is changed then.
    """
    arrays, facts = read(path)
    there, here = facts["options"], facts_of(options, training)
    for name, value in here.items():
        if there.get(name) != value:
            flag = name if name in ("processes", "classes") else f"--{name.replace('_', '-')}"
            raise ValueError(
                f"{path} is of another run: {flag} was {there.get(name)}, and is {value} now"
            )
    _check(path, arrays, arrays_of(training))
    for key, v in network_parameters().items():
        v.d = arrays[f"parameter/{key}"]
    for i, solver in enumerate(training.solvers):
        solver.set_states(
            {key: _state(arrays, f"solver{i}/{key}/", s) for key, s in solver.get_states().items()}
        )
    if training.average is not None:
        training.average.updates = facts["progress"]["averaged"]
        for key, value in training.average.values.items():
            value.data = arrays[f"average/{key}"]
    if training.scale is not None:
        training.scale.set(float(arrays["scale/value"]))
        training.scale.counts.data = arrays["scale/counts"]
    progress: dict[str, Any] = facts["progress"]
    return progress


def _state(arrays: dict[str, np.ndarray], at: str, like: SolverState) -> SolverState:
    states = {n: nn.Variable.from_numpy_array(arrays[at + n]) for n in like.pstate}
    return SolverState(states, int(arrays[at + "t"]))


def _check(path: Path, arrays: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    for name, like in wanted.items():
        if name not in arrays or arrays[name].shape != like.shape:
            raise ValueError(f"{path}: there is no {name} of the shape {like.shape} in it")


def restore_network(path: Path) -> None:
    """Set the network's parameters alone: to their averages, if the run had some.

    Raises:
        ValueError: It is of another network. Nothing is changed then.
    """
    arrays, facts = read(path)
    kind = "average" if facts["options"].get("ema") else "parameter"
    found = network_parameters()
    _check(path, arrays, {f"{kind}/{key}": v.d for key, v in found.items()})
    for key, v in found.items():
        v.d = arrays[f"{kind}/{key}"]
