# SPDX-License-Identifier: Apache-2.0
"""Solvers in NNabla's files: learning-rate schedulers in messages, states in .h5 and .protobuf."""

from __future__ import annotations

import os
from errno import ENOENT
from typing import Any

import numpy as np

from nnl.converters.nnp.members import sealed, whole
from nnl.converters.nnp.messages import messages, parse
from nnl.converters.nnp.parameter_files import h5_value
from nnl.converters.nnp.wire import check_size
from nnl.core.graph.variable import Variable
from nnl.core.parameters.atomic import replacing
from nnl.data.damage import numbers
from nnl.solvers.base import Solver
from nnl.solvers.learning_rate_scheduler import (
    BaseLearningRateScheduler,
    CosineScheduler,
    ExponentialScheduler,
    LinearWarmupScheduler,
    PolynomialScheduler,
    StepScheduler,
)
from nnl.solvers.states import SolverState

# ---- schedulers ----


_KINDS: dict[str, type[BaseLearningRateScheduler]] = {
    "Polynomial": PolynomialScheduler,
    "Cosine": CosineScheduler,
    "Exponential": ExponentialScheduler,
    "Step": StepScheduler,
}


def read_scheduler(message: Any, rate: float, where: str) -> BaseLearningRateScheduler:
    """The scheduler of a Solver message; without one, lr_decay every lr_decay_interval updates.

    Args:
        rate: The learning rate that it starts from.
    Raises:
        ValueError: Its type is unknown, or a number is out of range.
        NotImplementedError: It is a network of its own (Custom).
    """
    kind = message.lr_scheduler_type
    if kind in ("", "None"):
        interval = message.lr_decay_interval or 1
        found: BaseLearningRateScheduler = _made(
            ExponentialScheduler, where, rate, message.lr_decay or 1.0, interval
        )
    elif kind == "Custom":
        raise NotImplementedError(
            f"{where}: the learning-rate scheduler Custom is not supported: load the network with "
            "NnpLoader, or set another scheduler in the file"
        )
    elif kind not in _KINDS:
        raise ValueError(
            f"{where}: the learning-rate scheduler {kind!r} is unknown, known are {sorted(_KINDS)}"
        )
    else:
        part = getattr(message, f"{kind.lower()}_scheduler_param")
        values = [getattr(part, f.name) for f in part.DESCRIPTOR.fields]
        if kind == "Exponential":
            values[1] = values[1] or 1
        if kind == "Step":
            values[1] = list(values[1])
        found = _made(_KINDS[kind], where, rate, *values)
    warm = message.lr_warmup_scheduler_type
    if not warm:
        return found
    if warm != "Linear":
        raise ValueError(f"{where}: the warm-up {warm!r} is unknown, known is 'Linear'")
    steps = message.linear_warmup_scheduler_param.warmup_iter
    return _made(LinearWarmupScheduler, where, found, steps)


def _made(kind: Any, where: str, *args: Any) -> BaseLearningRateScheduler:
    try:
        made: BaseLearningRateScheduler = kind(*args)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    return made


def write_scheduler(scheduler: BaseLearningRateScheduler, message: Any, what: str) -> None:
    """Put a scheduler into a Solver message; its initial rate is the solver's.

    Raises:
        TypeError: The file has no such scheduler.
    """
    if isinstance(scheduler, LinearWarmupScheduler):
        message.lr_warmup_scheduler_type = "Linear"
        message.linear_warmup_scheduler_param.warmup_iter = scheduler.warmup_iter
        scheduler = scheduler.scheduler
    name = next((n for n, kind in _KINDS.items() if type(scheduler) is kind), "")
    if not name:
        raise TypeError(
            f"save: {what}: scheduler is {type(scheduler).__name__}, wanted one of "
            "nnl.utils.learning_rate_scheduler"
        )
    message.lr_scheduler_type = name
    part = getattr(message, f"{name.lower()}_scheduler_param")
    part.SetInParent()
    for f in part.DESCRIPTOR.fields:
        value = getattr(scheduler, f.name)
        if f.name == "iter_steps":
            part.iter_steps.extend(value)
        else:
            setattr(part, f.name, value)


# ---- states ----


Path = str | os.PathLike[str]


def save_h5(solver: Solver, path: Path) -> None:
    """One group per parameter with `t` and one dataset per state, all numbered by `index`."""
    with replacing(path) as temporary:
        write_h5(solver, temporary)


def write_h5(solver: Solver, target: Any) -> None:
    """As save_h5, to a path or a file that can be read and written."""
    import h5py

    with h5py.File(target, "w") as file:
        for index, (key, state) in enumerate(solver.get_states().items()):
            group = file.create_group(key)
            group.attrs["index"] = index
            group["t"] = np.int64(state.t)
            for i, (name, v) in enumerate(state.pstate.items()):
                group[name] = h5_value(v.data.read("host"))
                group[name].attrs["index"] = i


# what h5py raises on damaged files, a name that is no text among it
_BROKEN = (OSError, RuntimeError, KeyError, TypeError, ValueError, OverflowError, MemoryError)


def load_h5(solver: Solver, path: Any) -> None:
    """Set the solver's states from a path or file that save_h5 or NNabla wrote.

    Raises:
        ValueError: It is not such a file, or does not fit the solver's parameters.
    """
    import h5py

    states: dict[str, SolverState] = {}
    name = path if isinstance(path, (str, os.PathLike)) else "file"
    where = f"{solver.name}.load_states: {name}"

    def visit(key: str, group: Any) -> None:
        if not isinstance(group, h5py.Group):
            return
        # links to other names or files are not followed
        own = [n for n in group if isinstance(group.get(n, getlink=True), h5py.HardLink)]
        arrays = {
            name: numbers(group[name], f"{where}: {key!r}: {name}")
            for name in own
            if isinstance(group[name], h5py.Dataset)
        }
        if "t" in arrays:
            t = int(arrays.pop("t"))
            pstate = {name: Variable.from_numpy_array(y) for name, y in arrays.items()}
            states[key] = SolverState(pstate, t)

    try:
        with h5py.File(path, "r") as file:
            file.visititems(visit)
    except FileNotFoundError:
        raise FileNotFoundError(ENOENT, os.strerror(ENOENT), path) from None  # not HDF5's text
    except _BROKEN as error:
        if str(error).startswith(where):
            raise
        raise ValueError(f"{where}: not an HDF5 file of states: {error}") from error
    solver.set_states(states)


def state_arrays(solver: Solver) -> list[tuple[str, Variable]]:
    """The arrays of all states, with their names."""
    return [x for state in solver.get_states().values() for x in state.pstate.items()]


def save_protobuf(solver: Solver, path: Path) -> None:
    """An Optimizer message that holds only the states."""
    check_size(f"{solver.name}.save_states: {path}", state_arrays(solver))
    optimizer = messages()["Optimizer"]()
    solver.set_states_to_protobuf(optimizer)
    with replacing(path) as temporary:
        temporary.write_bytes(sealed(optimizer.SerializeToString()))


def load_protobuf(solver: Solver, path: Path) -> None:
    """Set the solver's states from a binary or text Optimizer message."""
    text = str(path).endswith((".nntxt", ".prototxt"))
    where = f"{solver.name}.load_states: {path}"
    with open(path, "rb") as file:
        content = whole(file, where).read().tobytes()
    solver.set_states_from_protobuf(parse("Optimizer", content, text, where))


def _only_binary(solver: Solver, path: Path) -> None:
    raise ValueError(
        f"{solver.name}.save_states: path is {str(path)!r}, wanted the extension .h5 or .protobuf"
    )


# Extension -> (save, load), called with (solver, path).
STATE_FILES = {
    ".h5": (save_h5, load_h5),
    ".protobuf": (save_protobuf, load_protobuf),
    ".nntxt": (_only_binary, load_protobuf),
    ".prototxt": (_only_binary, load_protobuf),
}
