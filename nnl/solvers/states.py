# SPDX-License-Identifier: Apache-2.0
"""The states of a solver: what they are, and how they are read, set, saved and loaded."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nnl.core.arrays.spec import ShapeError
from nnl.core.graph.variable import Variable
from nnl.core.parameters.parameter import FILES


@dataclass
class SolverState:
    """The state of one parameter.

    Attributes:
        pstate: State arrays by name, as Variables.
        t: How many updates it has had.
    Example:
        >>> state = S.SolverState(t=3)
        >>> state.t, state.pstate
        (3, {})
    """

    pstate: dict[str, Variable] = field(default_factory=dict)
    t: int = 0


class Stated:
    """What has states; `name` and `_entries` are of the class."""

    name: str
    _entries: Mapping[str, Any]

    def get_states(self) -> dict[str, SolverState]:
        """The states by parameter name: the arrays themselves, and t as it is now."""
        return {
            key: SolverState(dict(e.pstate), int(e.t.data.read("host")))
            for key, e in self._entries.items()
        }

    def set_states(self, states: Mapping[str, SolverState]) -> None:
        """Share (`v.data = nd`; another dtype is copied) the states of some or all parameters.

        Raises:
            ValueError: A parameter is not registered, its state names or shapes differ, or t is
                negative. Nothing is changed then.
        """
        where = f"{self.name}.set_states"
        for key, state in states.items():
            entry = self._entries.get(key)
            if entry is None:
                raise ValueError(
                    f"{where}: {key!r} is no parameter of this solver, call set_parameters first"
                )
            if set(state.pstate) != set(entry.pstate):
                raise ValueError(
                    f"{where}: {key!r} has the states {sorted(state.pstate)}, "
                    f"wanted {sorted(entry.pstate)}"
                )
            for name, v in state.pstate.items():
                if v.shape != entry.pstate[name].shape:
                    raise ShapeError(
                        f"{where}: {name} of {key!r} has the shape {v.shape}, "
                        f"wanted {entry.pstate[name].shape}"
                    )
            if state.t < 0:
                raise ValueError(f"{where}: t of {key!r} is {state.t}, wanted a number >= 0")
        for key, state in states.items():
            entry = self._entries[key]
            for name, v in state.pstate.items():
                own = entry.pstate[name]
                same = v.data.dtype == own.data.dtype
                own.data = v.data if same else own.data.copy_from(v.data)
            entry.t.data.data[()] = state.t

    def save_states(self, path: str) -> None:
        """Write the states to a .h5 or .protobuf file, which NNabla can read as well.

        Raises:
            ValueError: The path has another extension.
        """
        self._state_file("save_states", path)[0](self, path)

    def load_states(self, path: str) -> None:
        """Read the states from a .h5, .protobuf or .nntxt file.

        The parameters must have been set; a wrong file changes nothing.

        Raises:
            ValueError: The path has another extension, or the states do not fit; see set_states.
        """
        self._state_file("load_states", path)[1](self, path)

    def _state_file(self, method: str, path: str) -> Any:
        files = FILES["solver_states"]()
        extension = os.path.splitext(path)[1]
        if extension not in files:
            raise ValueError(
                f"{self.name}.{method}: path is {str(path)!r}, wanted the extension "
                f"{' or '.join(sorted(files))}"
            )
        return files[extension]

    def set_states_to_protobuf(self, optimizer: Any) -> None:
        """Write the states into `optimizer.solver.states` of an Optimizer message."""
        for key, state in self.get_states().items():
            message = optimizer.solver.states[key]
            message.t = state.t
            for name, v in state.pstate.items():
                entry = message.state_parameter[name]
                del entry.shape.dim[:], entry.data[:]
                entry.shape.dim.extend(v.shape)
                entry.data.extend(v.data.read("host").astype(np.float32).ravel())

    def set_states_from_protobuf(self, optimizer_proto: Any) -> None:
        """Set the states from `solver.states` of an Optimizer message; raises as set_states."""
        states = {}
        for key, message in optimizer_proto.solver.states.items():
            pstate = {}
            for name, entry in message.state_parameter.items():
                shape, data = tuple(entry.shape.dim), np.array(entry.data, np.float32)
                if data.size != math.prod(shape):
                    raise ShapeError(
                        f"{self.name}.set_states_from_protobuf: {name} of {key!r} has "
                        f"{data.size} values for the shape {shape}"
                    )
                pstate[name] = Variable.from_numpy_array(data.reshape(shape))
            states[key] = SolverState(pstate, int(message.t))
        self.set_states(states)
