# SPDX-License-Identifier: Apache-2.0
"""Programs with open sizes, run as C++ programs run them: a new size costs them little.

The library plans a new size in a few ms, where plans of Python's passes and definitions take ten
times that. It has no part in what the program is: whatever it does not take, or fails at, a plan
does instead, and says what is wrong.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from threading import Lock
from typing import Any

import numpy as np

from nnl.core.arrays.array import NdArray
from nnl.core.settings.context import SPACES, Target
from nnl.graph.lowering.buffer_owners import is_held
from nnl.graph.printing.profile import PROFILES
from nnl.graph.program.program import INPUT, SPACE, Program
from nnl.graph.program.turns import Runners, Turns

Values = Mapping[str, Any]
Array = np.ndarray[Any, Any]


def models_of(
    path: str, stamp: os.stat_result, name: str, program: Program,
    arrays: Mapping[str, NdArray], target: Target, turns: Turns,
) -> Models | None:  # fmt: skip
    """What runs an open program in the library; None where nothing does, as on a device.

    Args:
        stamp: Of the file that the program and the arrays are from.
        arrays: Those of the file, by name.
    """
    native = any(b.fused and b.space == SPACE for b in target.backends)
    file = getattr(SPACES[SPACE].library(), "ModelFile", None)
    if file is None or not native or target.backends[0].space != SPACE or program.changes:
        return None
    given = [s for s in program.slots if s.role == INPUT]
    made = [program.slots[i] for i in program.outputs.values()]
    if not all(s.spec.dtype.isbuiltin == 1 for s in (*given, *made)):  # types without buffers
        return None
    try:
        now = os.stat(path)
        same = (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns)
        if same != (stamp.st_dev, stamp.st_ino, stamp.st_size, stamp.st_mtime_ns):
            return None
        read = {s.name: arrays[s.name] for s in program.slots[1:] if s.stored}
        return Models(file(path), name, program, read, turns)
    except (OSError, ValueError):
        return None


class Models:
    """Models of the library for one program: one for each thread that runs it at this time."""

    def __init__(
        self, file: Any, name: str, program: Program, arrays: Mapping[str, NdArray], turns: Turns
    ) -> None:
        self._file, self._arrays, self._lock = file, [*arrays.items()], Lock()
        # the file holds what they hold, as long as nobody writes to them
        self._seen = [nd.lasting_record().version for _, nd in self._arrays]
        slots, model = program.slots, SPACES[SPACE].library().Model
        inputs = {s.name: s.spec.dtype for s in slots if s.role == INPUT}
        hidden = {count for count, _ in program.counts.values()}
        made = {k: i for k, i in program.outputs.items() if k not in hidden}
        outputs = {k: slots[i].spec.dtype for k, i in made.items()}
        self._models = Runners(lambda: _Model(model(file, name), inputs, outputs), turns, False)
        self._models.idle.append(_Model(model(file, name), inputs, outputs))

    def run(self, values: Values) -> dict[str, Array] | None:
        """The outputs by name; None: a plan has to do it, or to say what is wrong."""
        if PROFILES:  # of steps, which a plan tells of
            return None
        try:
            self._follow()
            found: dict[str, Array] = self._models.run(values)
            return found
        except ValueError:
            return None

    def _follow(self) -> None:
        """Give the library the present values of the arrays."""
        changed = [
            i
            for i, (_, nd) in enumerate(self._arrays)
            if nd.record.version != self._seen[i] or SPACE not in nd.bufs or is_held(nd)
        ]
        if not changed:
            return
        with self._lock:
            for i in changed:
                name, nd = self._arrays[i]
                self._file.set_parameter(name, np.ascontiguousarray(nd.read(SPACE)))
                # who holds the numpy array may write to it unseen, and let go before the next run
                self._seen[i] = -1 if is_held(nd) else nd.lasting_record().version


class _Model:
    """For one thread at a time."""

    def __init__(
        self, model: Any, inputs: Mapping[str, np.dtype[Any]], outputs: Mapping[str, np.dtype[Any]]
    ) -> None:
        self.model, self.inputs, self.outputs = model, inputs, outputs

    def run(self, values: Values) -> dict[str, Array]:
        model = self.model
        given = []  # the model reads them where they are
        for name, dtype in self.inputs.items():
            array = np.ascontiguousarray(values[name], dtype)  # which makes a row of a number
            given.append(array.reshape(values[name].shape))
            model.give(name, given[-1])
        model.execute()
        found = {}
        for name, dtype in self.outputs.items():
            found[name] = np.empty(model.shape(name), dtype)
            model.take(name, found[name])
        return found
