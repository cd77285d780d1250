# SPDX-License-Identifier: Apache-2.0
"""The files of a training run: results*.nnp, checkpoint.nnp and monitoring_report.yml."""

from __future__ import annotations

import io
import json
import os
import re
import time
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from nnl.converters.nnp.archive import Content, read_files
from nnl.converters.nnp.building import NewParameters
from nnl.converters.nnp.parameter_files import Stored, stored_bytes
from nnl.converters.nnp.solver_files import write_h5
from nnl.converters.nnp.training_reader import restore_optimizer_state
from nnl.converters.nnp.writer import VERSION, archive, to_text
from nnl.core.ops import random as nnl_random
from nnl.core.parameters.atomic import replacing
from nnl.core.parameters.parameter import get_parameters

BEST, BETWEEN, CURRENT = "results.nnp", "checkpoint.nnp", "results_current_{}.nnp"
REPORT = "monitoring_report.yml"
SPARE_S, SPARE_EPOCHS = 180.0, 10  # an epoch is not saved as long after the one before
LARGEST_STATE = 2**20  # bytes
_STATE = "train_state.json"
_TEXT = (".nntxt", ".prototxt")


class Checkpoints:
    """What a training run writes into its folder, every file complete or not at all.

    Args:
        folder: Made if missing.
        config: The training file, whose network stands in every checkpoint as it is.
        info: What was loaded from it.
        writes: Whether this process writes anything, and not another one of its team.
    """

    def __init__(
        self, folder: str | os.PathLike[str], config: str, info: Any, writes: bool = True
    ) -> None:
        self.folder, self.info, self.writes = Path(folder), info, writes
        self.folder.mkdir(parents=True, exist_ok=True)
        self.network = _network_text(config, info)
        self.saved: tuple[int, float] = (0, -np.inf)  # epoch and time of the last one
        self.report: list[str] = []

    def begin(self) -> None:
        """Remove what another run has left, which resuming would take for this one's."""
        if not self.writes:
            return
        for path in (*self._currents().values(), self.folder / BETWEEN, self.folder / REPORT):
            path.unlink(missing_ok=True)

    def save_best(self, state: dict[str, Any]) -> None:
        """Write results.nnp."""
        self._write(BEST, state)

    def save_epoch(self, epoch: int, state: dict[str, Any], force: bool = False) -> str | None:
        """Write results_current_N.nnp and remove older ones, if the last one is long ago.

        Returns:
            The name of the file, None if it is not yet time.
        """
        last, when = self.saved
        due = epoch - last > SPARE_EPOCHS or time.monotonic() - when > SPARE_S
        name = CURRENT.format(epoch)
        if not self.writes or (not force and (not due or (self.folder / name).exists())):
            return None
        old = [p for n, p in self._currents().items() if n != epoch]
        self._write(name, state)
        for path in (*old, self.folder / BETWEEN):
            path.unlink(missing_ok=True)
        self.saved = epoch, time.monotonic()
        return name

    def save_between(self, state: dict[str, Any]) -> None:
        """Write checkpoint.nnp: a state within an epoch."""
        self._write(BETWEEN, state)

    def add_to_report(self, epoch: int, values: dict[str, float]) -> None:
        """Write monitoring_report.yml with one more epoch, counted from 1."""
        lines = "".join(f"  {name}: {float(value)!r}\n" for name, value in values.items())
        self.report.append(f"{epoch - 1}:\n{lines}")
        if not self.writes:
            return
        with replacing(self.folder / REPORT) as file:
            file.write_text("".join(self.report), "utf-8")

    def _currents(self) -> dict[int, Path]:
        found = {}
        for path in self.folder.glob(CURRENT.format("*")):
            number = re.fullmatch(r"results_current_(\d+)", path.stem)
            if number:
                found[int(number[1])] = path
        return found

    def _write(self, name: str, state: dict[str, Any]) -> None:
        if not self.writes:
            return
        parameters = get_parameters(grad_only=False).items()
        stored = [Stored(k, v.data.read("host"), v.need_grad) for k, v in parameters]
        members = {"nnp_version.txt": VERSION.encode(), self.network[0]: self.network[1]}
        members["parameter.h5"] = stored_bytes(stored, ".h5")
        for key, o in self.info.optimizers.items():
            buffer = io.BytesIO()
            write_h5(o.solver, buffer)
            members[f"{key}_{o.solver.name}_optimizer.h5.optimizer"] = buffer.getvalue()
        members[_STATE] = json.dumps(state | nnl_random.get_state()).encode()
        with replacing(self.folder / name) as file:
            file.write_bytes(archive(members))

    def resume(self, per_epoch: int) -> dict[str, Any] | None:
        """Take over the newest checkpoint in the folder; None if there is none.

        Args:
            per_epoch: Iterations of an epoch, for checkpoints of NNabla, which do not say them.
        Raises:
            ValueError: It is damaged, or of another network.
        """
        found = [({"iteration": n * per_epoch}, path) for n, path in self._currents().items()]
        found += [({"iteration": 0}, p) for p in [self.folder / BETWEEN] if p.exists()]
        if not found:
            return None
        states = [(state | _state_of(path), path) for state, path in found]
        state, path = max(states, key=lambda s: s[0]["iteration"])
        restore(str(path), self.info)
        _set_random_state(state)
        done = state["iteration"] // max(per_epoch, 1)
        report = self.folder / REPORT
        text = report.read_text("utf-8") if report.exists() else ""
        for entry in re.findall(r"^\d+:\n(?:  .*\n)*", text, re.MULTILINE):
            if int(entry.partition(":")[0]) < done - bool(state.get("test_is_due")):
                self.report.append(entry)
        return state | {"file": path.name}


def restore(path: str, info: Any) -> None:
    """Set parameters, and the solvers' states if there are some, from a file.

    Raises:
        ShapeError, ValueError: It does not fit the networks, or is damaged; nothing is changed.
    """
    content = read_files(path, "", "nnl train")
    NewParameters(content.promised, content.where).commit(content.wait)
    for name, o in info.optimizers.items():
        if name in content.states:
            o.solver_checkpoint = content.states[name]
            restore_optimizer_state(o, content.where)


def initial_parameters(content: Content) -> None:
    """Take the values of parameters that a training file holds, but has no initialiser for.

    Those with one begin anew, as in NNabla, which takes no values from a training file: without an
    initialiser that leaves zeros, from which no network learns.
    """
    drawn = {v.name for n in content.proto.network for v in n.variable if v.HasField("initializer")}
    stored = [p for p in content.stored if p.name not in drawn]
    NewParameters(stored, content.where).commit()


def _network_text(config: str, info: Any) -> tuple[str, bytes]:
    """Name and content of the member that describes the networks."""
    if config.endswith(_TEXT):
        return os.path.basename(config), Path(config).read_bytes()
    if config.endswith(".nnp"):
        with zipfile.ZipFile(config) as source:
            names = [n for n in source.namelist() if n.endswith(_TEXT)]
            if len(names) == 1:
                return os.path.basename(names[0]), source.read(names[0])
    return "network.nntxt", to_text(info.proto)


def _state_of(path: Path) -> dict[str, Any]:
    try:
        with zipfile.ZipFile(path) as source:
            if _STATE not in source.namelist():
                return {}
            if source.getinfo(_STATE).file_size > LARGEST_STATE:
                raise ValueError(f"{_STATE} is too large")
            state = json.loads(source.read(_STATE))
    except (zipfile.BadZipFile, zlib.error, ValueError) as error:
        raise ValueError(f"nnl train: {path} is damaged: {error}") from error
    good = isinstance(state, dict) and isinstance(state.get("iteration"), int)
    if not good or not 0 <= state["iteration"] < 2**62:
        raise ValueError(f"nnl train: {path}: {_STATE} is no state of a training run")
    return state


def _set_random_state(state: dict[str, Any]) -> None:
    try:
        nnl_random.set_state(state)
    except (TypeError, ValueError, OverflowError, KeyError) as error:
        raise ValueError(f"nnl train: {_STATE} is no state of a training run: {error}") from error
