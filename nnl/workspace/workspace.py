# SPDX-License-Identifier: Apache-2.0
"""Workspace: tensors by name, their values, operators run by themselves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from nnl.core.arguments.suggest import did_you_mean
from nnl.core.arrays.array import NdArray
from nnl.core.differentiation.grad import grad
from nnl.core.graph.variable import Variable
from nnl.core.interpreters.switches import auto_forward
from nnl.core.parameters.parameter import (
    Scope,
    parameter_in,
    parameter_scope,
    pop_parameter,
    root_scope,
    set_parameter,
)
from nnl.workspace.tensor import Operator, Tensor, fed


class Workspace:
    """Tensors by name, and their values.

    What is kept from run to run is in the parameter registry, so that `nnl.get_parameters`,
    solvers and `nnl.save_parameters` know it. What was fed or returned last is here.

    Args:
        scope: The part of the registry that the names are in; the root if left out. Models in one
            scope share what they call by one name.
    Attributes:
        tensors, functions: By name; functions as long as somebody holds them.
        values: What was fed or returned last, by name.
    """

    def __init__(self, scope: Scope | None = None) -> None:
        self.scope = root_scope if scope is None else scope
        self.tensors: dict[str, Tensor] = {}
        self.values: dict[str, NdArray] = {}
        self.functions: WeakValueDictionary[str, Any] = WeakValueDictionary()
        self._recorded: dict[str, tuple[Operator, list[Variable], list[Variable]]] = {}
        self._outer: list[Workspace] = []
        self._taken: dict[str, int] = {}  # numbers up to this one follow a name

    def __enter__(self) -> Workspace:
        """Make it the one that new tensors are in."""
        self._outer.append(CURRENT[0])
        CURRENT[0] = self
        return self

    def __exit__(self, *error: object) -> None:
        CURRENT[0] = self._outer.pop()

    # ---- names ----

    def unique(self, name: str) -> str:
        """The name, or with _1, _2, ... at its end the first that is free."""
        if name not in self.tensors:
            return name
        i = self._taken.get(name, 1)
        while (found := f"{name}_{i}") in self.tensors:
            i += 1
        self._taken[name] = i
        return found

    def add(self, name: str, tensor: Tensor) -> str:
        """Note a tensor under its name, which is made unique."""
        name = self.unique(name)
        self.tensors[name] = tensor
        return name

    def __getitem__(self, name: str | Tensor) -> Tensor:
        if isinstance(name, Tensor):
            return name
        try:
            return self.tensors[name]
        except KeyError:
            raise KeyError(
                f"Workspace: no tensor is called {name!r}{did_you_mean(name, self.tensors)}"
            ) from None

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    # ---- values ----

    def parameter(self, name: str) -> Variable | None:
        """What the registry holds under this name."""
        return parameter_in(self.scope, name)

    def lost(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        """Those of some tensors that nothing makes or keeps."""
        scope = self.scope
        return [t for t in tensors if t.operator or parameter_in(scope, t.key) is None]

    def keep(self, tensor: Tensor, value: Any, need_grad: bool = True) -> Variable:
        """Keep a value for a tensor from run to run, or go on with what its name has already."""
        found = self.parameter(tensor.key)
        if found is None:
            found = Variable.from_numpy_array(np.asarray(value, tensor.dtype), need_grad=need_grad)
            with parameter_scope("", self.scope):
                set_parameter(tensor.key, found)
        return found

    def feed(self, tensor: str | Tensor, value: Any) -> None:
        """Set the value of a tensor.

        Raises:
            KeyError: No tensor has this name.
            ValueError: The value has a shape that the tensor cannot have.
        """
        t = self[tensor]
        array = fed(t, value, "Workspace.feed")
        parameter = self.parameter(t.key)
        if parameter is not None:
            parameter.d = array
        else:
            self.values[t.key] = NdArray.from_numpy_array(array)

    def fetch(self, tensor: str | Tensor) -> np.ndarray[Any, Any]:
        """A copy of the value of a tensor: what is kept, or was fed or returned last.

        Raises:
            KeyError: No tensor has this name, or it has no value yet.
        """
        t = self[tensor]
        parameter = self.parameter(t.key)
        if parameter is not None:
            return np.array(parameter.d)
        if t.key not in self.values:
            raise KeyError(f"Workspace.fetch: {t.name!r} has no value: nothing was fed or has run")
        return np.array(self.values[t.key].data)

    def reset(self, keys: Iterable[str] | None = None) -> None:
        """Forget tensors, their values and what the registry keeps for them: all, or some."""
        self._taken.clear()
        if keys is None:
            self.functions.clear()
        for key in list(self.tensors if keys is None else keys):
            with parameter_scope("", self.scope):
                pop_parameter(key)
            for store in (self.tensors, self.values, self._recorded):
                store.pop(key, None)  # type: ignore[attr-defined]

    # ---- operators by themselves ----

    def run(self, operator: Operator) -> None:
        """Run one operator on the values of its inputs; its results become values.

        What its gradient needs stays under the operator's anchor.
        """
        inputs = [
            Variable.from_numpy_array(self.fetch(x), need_grad=True) for x in operator.tensors
        ]
        with auto_forward(True):
            made = operator.results(dict(zip(operator.tensors, inputs, strict=True)))
        for out, v in zip(operator.outputs, made, strict=True):
            self.values[out.key] = (
                v.data if isinstance(v, Variable) else NdArray.from_numpy_array(v)
            )
        self._recorded[operator.anchor] = operator, inputs, made

    def gradient(self, operator: Operator, *output_gradients: Any) -> list[np.ndarray[Any, Any]]:
        """Run the gradient of an operator that has run: those of its tensors, by what it left.

        Args:
            output_gradients: Arrays, one for each of its results; ones where there are none.
        Raises:
            KeyError: The operator has not run, or what it left was released.
        """
        if operator.anchor not in self._recorded:
            raise KeyError(f"Workspace.gradient: {operator.anchor!r} has not run")
        _, inputs, made = self._recorded[operator.anchor]
        starts = [NdArray.from_numpy_array(np.asarray(g, np.float32)) for g in output_gradients]
        with auto_forward(True):
            return [np.array(g.d) for g in grad(made, inputs, starts or None)]

    def release(self, operator: Operator) -> None:
        """Remove an operator's anchor: what its gradient needs is not held for it any more."""
        self._recorded.pop(operator.anchor, None)


CURRENT = [Workspace()]


def current() -> Workspace:
    """The workspace that new tensors are in."""
    return CURRENT[0]
