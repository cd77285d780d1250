# SPDX-License-Identifier: Apache-2.0
"""function and shared: what runs, and what it keeps from run to run."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import nnl.workspace as ws
from nnl.core.graph.variable import Variable
from nnl.core.parameters.parameter import parameter_scope, set_parameter
from nnl.dialects.theano.elementwise import cast
from nnl.dialects.theano.methods import Operators
from nnl.dialects.theano.variable import array_of, as_tensor_variable, named, precision
from nnl.graph.program.program import Program


class MissingInputError(Exception):
    """A function needs a variable that is neither given nor shared."""


class UnusedInputError(Exception):
    """A function is given a variable that it does not need."""


class OrderedUpdates(OrderedDict):  # type: ignore[type-arg]
    """{shared variable: its next value}, which may be added to."""

    def __add__(self, other: Any) -> OrderedUpdates:
        found = OrderedUpdates(self)
        found.update(other)
        return found

    def __radd__(self, other: Any) -> OrderedUpdates:
        return OrderedUpdates(other) + self


class SharedVariable(Operators):
    """A variable with a value that functions share and update."""

    default_update: Any = None

    def get_value(self, borrow: bool = False, return_internal_type: bool = False) -> Any:
        """A copy of its value; of the kept array itself, where borrow is True."""
        held = self._parameter().d
        return held if borrow else np.array(held)

    def set_value(self, new_value: Any, borrow: bool = False) -> None:
        """Keep another value. It may have other sizes, and has as many axes.

        Raises:
            TypeError: It has another number of axes.
        """
        array = np.asarray(new_value)
        _check(self, array)
        array = array.astype(self.dtype)
        if array.shape == self._parameter().shape:
            self._parameter().d = array
        else:
            _keep(self, array)

    value = property(get_value, set_value)

    def zero(self, borrow: bool = False) -> None:
        """Keep zeros."""
        self._parameter().d = 0

    def _parameter(self) -> Variable:
        found = self.workspace.parameter(self.key)
        if found is None:
            raise ValueError(f"shared: the value of {self!r} is gone from the parameters")
        return found

    def __reduce__(self) -> Any:
        return shared, (self.get_value(), self.name)


def _keep(x: SharedVariable, array: np.ndarray[Any, Any]) -> None:
    made = Variable.from_numpy_array(array, need_grad=array.dtype.kind == "f")
    with parameter_scope("", x.workspace.scope):
        set_parameter(x.key, made)


def shared(
    value: Any, name: str | None = None, strict: bool = False, allow_downcast: bool | None = None,
    borrow: bool = False, broadcastable: Sequence[bool] | None = None, **more: Any,
) -> SharedVariable:  # fmt: skip
    """A variable with a value, which is a parameter of nnl under its name, made unique.

    Raises:
        TypeError: The value is no array or number.
    """
    if isinstance(value, ws.Tensor):
        raise TypeError(
            "Shared variable constructor needs numeric values and not symbolic variables."
        )
    array = array_of(value, np.asarray(value).dtype)
    flags = broadcastable or (False,) * array.ndim
    space = ws.current()
    key, n = space.unique((name or "shared").replace("/", ".")), 0
    while space.parameter(key) is not None:  # of nnl itself, or of a workspace before
        n += 1
        key = space.unique(f"{name or 'shared'}_{n}".replace("/", "."))
    made = SharedVariable(space, key, [1 if b else None for b in flags], array.dtype)
    _keep(made, np.array(array))
    return named(made, name)  # type: ignore[no-any-return]


class In:
    """An input of a function.

    Args:
        variable: What is given.
        value: What it is where it is left out.
        update: The value of the next call, where it is left out then.
    """

    def __init__(
        self, variable: Any, name: str | None = None, value: Any = None, update: Any = None,
        **more: Any,
    ) -> None:  # fmt: skip
        self.variable, self.name, self.value, self.update = variable, name, value, update


def Param(variable: Any, default: Any = None, name: str | None = None, **more: Any) -> In:
    """An input of a function, with a value for where it is left out."""
    return In(variable, name, default)


class Out:
    """An output of a function."""

    def __init__(self, variable: Any, borrow: bool = False) -> None:
        self.variable = variable


class Function:
    """What `function` returns: called with values it gives values.

    Attributes:
        program: The program of the latest call.
        inner: The nnl.workspace.Function.
    """

    def __init__(self, inner: ws.Function, inputs: list[In], form: Any, name: str | None) -> None:
        self.inner, self.inputs, self.form, self.name = inner, inputs, form, name
        self.trust_input = False
        self.downcast: bool | None = None

    def __call__(self, *args: Any, **given: Any) -> Any:
        if len(args) > len(self.inputs):
            raise TypeError(
                f"Too many parameter passed to theano function: got {len(args)}, wanted at most "
                f"{len(self.inputs)}"
            )
        values, updated = list(args), {}
        for i in self.inputs[len(args) :]:
            name = i.name or i.variable.name
            if name in given:
                values.append(given.pop(name))
            elif i.variable in given:
                values.append(given.pop(i.variable))
            elif i.value is not None:
                values.append(
                    i.value.get_value() if isinstance(i.value, SharedVariable) else i.value
                )
            else:
                raise TypeError(f"Missing required input: {i.variable!r}")
        if given:
            raise TypeError(f"Unknown input or state: {next(iter(given))!r}")
        arrays = [self._fed(i, v) for i, v in zip(self.inputs, values, strict=True)]
        with precision():
            found = self.inner(*arrays)
        results = [
            v.astype(t.dtype, copy=False) for t, v in zip(self.inner.outputs, found, strict=True)
        ]
        for i in self.inputs:
            if i.update is not None:
                updated[i] = results.pop()
        for i, v in zip(updated, reversed(list(updated.values())), strict=True):
            i.value = v
        return self.form(results)

    def _fed(self, i: In, value: Any) -> Any:
        array = np.asarray(value)
        _check(i.variable, array)
        kind = np.dtype(i.variable.dtype).kind
        if kind in "iub" and not self.downcast:
            if not np.array_equal(array, array.astype(i.variable.dtype)):
                raise TypeError(
                    f"TensorType({i.variable.dtype}) cannot store the value {value!r} of "
                    f"{i.variable!r} without losing precision; give allow_input_downcast=True"
                )
        return array

    @property
    def program(self) -> Program:
        """The program of the latest call, as it runs."""
        return self.inner.program

    def text(self, passes: bool = True) -> str:
        """The program of the latest call, a line a step; without passes, as it was written down."""
        return self.inner.text(passes)


def _check(x: Any, array: np.ndarray[Any, Any]) -> None:
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{x!r} got {array.dtype} values, wanted numbers")
    if x.ndim is not None and array.ndim != x.ndim:
        raise TypeError(
            f"Wrong number of dimensions: expected {x.ndim}, got {array.ndim} with shape "
            f"{array.shape}, for {x!r}"
        )


def _pairs(given: Any, what: str) -> dict[Any, Any]:
    rows = list(given.items() if isinstance(given, Mapping) else given or ())
    found = dict(rows)
    if len(found) < len(rows):
        raise ValueError(f"function: {what} has a variable twice: {[x for x, _ in rows]}")
    return found


def function(
    inputs: Any = (), outputs: Any = None, mode: Any = None, updates: Any = None,
    givens: Any = None, no_default_updates: Any = False, accept_inplace: bool = False,
    name: str | None = None, rebuild_strict: bool = True, allow_input_downcast: bool | None = None,
    profile: Any = None, on_unused_input: str | None = None, updater: ws.Updater | None = None,
    swaps: Any = None,
) -> Function:  # fmt: skip
    """What computes outputs from inputs and what is shared.

    Args:
        inputs: Variables, or In(...) of them; one alone or several.
        outputs: A variable, a list, a dict by name, or None.
        updates: {shared variable: its next value}, or pairs; all are computed before any is kept.
        givens, swaps: {variable: what takes its place}.
        on_unused_input: "raise", "warn" or "ignore".
        updater: Its gradients are computed and its update made at each call.
    Raises:
        MissingInputError: Something needed is neither given nor shared.
        UnusedInputError: An input is not needed.
        TypeError: An input is no variable, or an update does not fit.
        ValueError: A variable is among the inputs, updates or givens twice.
    """
    listed = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    taken = [i if isinstance(i, In) else In(i) for i in listed]
    for i in taken:
        if not isinstance(i.variable, ws.Tensor):
            raise TypeError(
                f"Unknown parameter type: {type(i.variable).__name__}, of {i.variable!r}"
            )
        if isinstance(i.variable, SharedVariable):
            raise TypeError(f"Cannot use a shared variable ({i.variable!r}) as explicit input")
    form: Any = list
    if outputs is None:
        wanted: list[Any] = []
    elif isinstance(outputs, Mapping):
        wanted, names = list(outputs.values()), list(outputs)
        form = lambda found: dict(zip(names, found, strict=True))  # noqa: E731
    elif isinstance(outputs, (list, tuple)):
        wanted = list(outputs)
    else:
        wanted, form = [outputs], lambda found: found[0]
    wanted = [as_tensor_variable(y.variable if isinstance(y, Out) else y) for y in wanted]
    wanted += [as_tensor_variable(i.update) for i in reversed(taken) if i.update is not None]
    replaced = {
        x: v if isinstance(v, ws.Tensor) else as_tensor_variable(v)
        for x, v in (_pairs(givens, "givens") | _pairs(swaps, "swaps")).items()
    }
    changed = {}
    for x, new in _pairs(updates, "updates").items():
        if not x.kept:
            raise TypeError(f"update target must be a SharedVariable, got {x!r}")
        y = as_tensor_variable(new)
        if y.ndim is not None and y.ndim != x.ndim:
            raise TypeError(
                f"An update must have the same type as the original shared variable: {x!r} has "
                f"{x.ndim} axes, its update {y.ndim}"
            )
        changed[x] = cast(y, x.dtype)
    variables = [i.variable for i in taken]
    targets = [*wanted, *changed.values(), *[g for _, g in (updater.pairs if updater else ())]]
    operators, leaves = ws.needed(targets, variables, replaced)
    used = leaves | {t for op in operators for t in op.tensors} | set(targets) | set(replaced)
    used |= {v for v in replaced.values() if isinstance(v, ws.Tensor)}
    if (on_unused_input or "raise") == "raise":
        for x in variables:
            if x not in used:
                raise UnusedInputError(
                    f"theano.function was asked to create a function computing outputs given "
                    f"certain inputs, but the provided input variable {x!r} is not part of the "
                    "computational graph needed to compute the outputs. To make this error into a "
                    "warning, you can pass on_unused_input='warn'."
                )
    for x in leaves:
        new = getattr(x, "default_update", None)
        if new is not None and x not in changed and no_default_updates is not True:
            changed[x] = cast(new, x.dtype)
        if not x.kept and x not in replaced and x.key not in x.workspace.values:
            raise MissingInputError(
                f"Undeclared input: {x!r} is needed and neither given to the function nor shared"
            )
    inner = ws.Function(variables, wanted, changed, updater, True, replaced, name or "function")
    made = Function(inner, taken, form, name)
    made.downcast = allow_input_downcast
    return made
