# SPDX-License-Identifier: Apache-2.0
"""What OnnxModel.run keeps between its calls: static graphs of a model for shapes of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any, NamedTuple

import numpy as np

from nnl.converters.onnx.file.model import Model, ValueInfo, subgraphs
from nnl.converters.onnx.file.operators import Node
from nnl.converters.onnx.importing.learning.features import dicts, labels
from nnl.converters.onnx.running.exactness import OF_INPUTS, made_whole
from nnl.converters.onnx.running.interpreter import draws
from nnl.converters.onnx.values.strings import STRING, words_of
from nnl.converters.onnx.values.values import dtype_of, is_var, tagged
from nnl.core.arrays.array import NdArray
from nnl.core.graph.node import Value, capture
from nnl.core.graph.variable import Variable
from nnl.core.ops.caches import Plans
from nnl.core.parameters.parameter import get_current_parameter_scope
from nnl.core.settings.context import EPOCH, SPACES, STATE
from nnl.graph.lowering.lowering import lower, settle
from nnl.graph.open_sizes.at_most import counted, rows_of
from nnl.graph.plan.plan import Plan
from nnl.graph.program.turns import Runners, Turns

KEPT = 8  # plans of a model: each has memory of its own, and weights as its kernels want them
AT_ONCE = 4  # shapes that get a plan when they come first; later ones when they come again
REMEMBERED = 1024  # shapes that came once
Array = np.ndarray[Any, Any]


class Entry(NamedTuple):
    """A graph for some shapes.

    Attributes:
        settings: Positions and values of the inputs that are constants of the graph.
        runners: What runs it; None where the model is no static graph at these shapes.
    """

    settings: tuple[tuple[int, int], ...]
    runners: Runners | None


class ModelPlans:
    """Plans of a model by shapes of its inputs.

    One whole number, such as a rate of samples, is a constant of the graph until it changes; from
    then on it is an input as any other. What cannot be a static graph is left to the interpreter.

    Args:
        inputs: Names of those that every call gives.
        record: Gives the outputs for Variables and constants by name of input.
        names: Of the parameters that it reads, in the scope of the call.
    Attributes:
        static: Whether any call may have a plan.
    """

    def __init__(
        self,
        model: Model,
        inputs: Sequence[str],
        record: Callable[..., Sequence[Any]],
        names: Sequence[str],
    ) -> None:
        infos = {v.name: v for v in model.graph.inputs}
        self.infos = [infos[n] for n in inputs]
        self.outputs, self.model = model.graph.outputs, model
        self.zipped = {
            n.outputs[0]: labels(n) for n in model.graph.nodes if n.op_type == "ZipMap"
        }  # outputs that are dicts
        self.record, self.names = record, names
        whole = made_whole(model)
        self._small = [v.dtype != np.float32 or v.name in whole for v in self.infos]
        self._plans, self._turns = Plans(KEPT), Turns()
        self._came: set[Any] = set()
        numbers = all(v.kind == "tensor" and _is_taken(v.dtype) for v in self.infos)
        self.static = numbers and not any(map(_differs, model.walk()))

    def run(self, values: Sequence[Any]) -> list[Array] | None:
        """The outputs for a value of each input; None where the interpreter has to compute them."""
        given: list[Array] = []
        for info, small, value in zip(self.infos, self._small, values, strict=True):
            if type(value) is not np.ndarray or value.dtype != info.dtype:
                return None
            if value.dtype == STRING:
                value = words_of(self.model).numbers(value)
            if small and value.dtype.kind in "if" and not _is_small(value):
                return None
            given.append(value)
        scope = get_current_parameter_scope()
        key = (STATE.target, id(scope), *[v.shape for v in given])
        entry: Entry | None = self._plans.find(key)
        if entry is None:
            if len(self._came) >= AT_ONCE and key not in self._came:
                if len(self._came) >= REMEMBERED:
                    self._came.clear()
                self._came.add(key)
                return None
            self._came.add(key)
            settings = [(i, v.item()) for i, v in enumerate(given) if self._is_setting(i, v)]
            entry = self._make(key, given, tuple(settings))
        if any(given[i].item() != number for i, number in entry.settings):
            entry = self._make(key, given, ())
        if entry.runners is None:
            return None
        try:
            found: list[Array] = entry.runners.run(given)
            return found
        except _Stale:
            self._plans.pop(key, None)
            return self.run(given)
        except Exception:  # the interpreter says what and where in the words of the file
            return None

    def _is_setting(self, i: int, value: Array) -> bool:
        return value.size == 1 and np.dtype(self.infos[i].dtype).kind == "i"

    def _make(
        self, key: Any, given: Sequence[Array], settings: tuple[tuple[int, int], ...]
    ) -> Entry:
        def make() -> ModelPlan:
            return ModelPlan(self, given, {i for i, _ in settings})

        def entry() -> Entry:
            try:
                first = make()
            except Exception:  # such as a shape that values decide
                return Entry((), None)
            runners = Runners(make, self._turns, False)
            runners.idle.append(first)
            return Entry(settings, runners)

        made: Entry = self._plans.put(key, entry)
        return made


class _Stale(Exception):
    """Parameters that the graph reads were replaced, or have another type."""


class ModelPlan:
    """A static graph of a model at one size, for one thread at a time."""

    def __init__(self, plans: ModelPlans, given: Sequence[Array], constants: set[int]) -> None:
        named: dict[str, Any] = {}
        inputs = []
        self._inputs: list[tuple[int, NdArray]] = []
        for i, (info, value) in enumerate(zip(plans.infos, given, strict=True)):
            if i in constants:
                named[info.name] = value.copy()
                continue
            x = Variable(value.shape)
            x.data.set_spec(x.spec.with_dtype(value.dtype))
            named[info.name] = tagged(x, info.dtype)
            inputs.append(x)
            self._inputs.append((i, x.data))
        self._values = plans.record(**named)
        if any(not (is_var(y) or isinstance(y, np.ndarray)) for y in self._values):
            raise TypeError("the graph has outputs that are no tensors")
        self._plans = plans
        pairs = zip(plans.outputs, self._values, strict=True)
        self._types = [info.dtype or dtype_of(y) for info, y in pairs]
        edges = [y.edge for y in self._values if is_var(y)]
        self._counts = {e.key: c for e in edges if (c := counted(e)) is not None}
        edges = [e for e in edges if e.key not in self._counts]
        edges += [e for c in self._counts.values() for e in (c.x, c.number)]
        kept = {e.key for e in edges if e.node is not None}
        leaves = [x.edge for x in inputs]
        program, binding = lower(capture(edges), kept, plain=kept, inputs=leaves)
        settle(program, binding, leaves)
        self._plan = Plan.rest(program, binding, 0)
        self._scopes: list[Any] = []
        self._leaves: list[str] = []
        self._found: list[Any] = []
        for name in plans.names:
            scope: Any = get_current_parameter_scope()
            for part in name.split("/"):
                self._scopes.append(scope)
                self._leaves.append(part)
                scope = scope[part]
                self._found.append(scope)
        self._epoch, self._specs = EPOCH.now, self._specs_now()

    def _specs_now(self) -> list[Any]:
        return [v.data.spec for v in self._found if is_var(v)]

    def run(self, given: Sequence[Array]) -> list[Array]:
        if not all(map(is_, map(dict.get, self._scopes, self._leaves), self._found)):
            raise _Stale
        if self._epoch != EPOCH.now:
            if self._specs != self._specs_now():  # say float64, as numpy makes it
                raise _Stale
            self._epoch = EPOCH.now
        for i, nd in self._inputs:
            nd.write("host", np.ascontiguousarray(given[i]))
        self._plan.run()
        return [
            self._ends(info, self._value(y.edge) if is_var(y) else y, t)
            for info, y, t in zip(self._plans.outputs, self._values, self._types, strict=True)
        ]

    def _ends(self, info: ValueInfo, value: Array, dtype: Any) -> Any:
        """An output as the model declares it."""
        names = self._plans.zipped.get(info.name)
        if names is not None:
            return dicts(names, value)
        if dtype == STRING and value.dtype != STRING:
            return words_of(self._plans.model).words(value)
        return np.array(value, dtype)

    def _value(self, y: Value) -> Array:
        if y.key in self._counts:
            x, count, axis = self._counts[y.key]
            return rows_of("run", self._value(x), self._value(count), axis)
        if y.node is None:
            return y.data.read("host")  # type: ignore[union-attr]
        space, buf = self._plan.published(self._plan.slot_of[y.key])
        return SPACES[space].to_host(buf)


def _is_taken(dtype: Any) -> bool:
    return dtype is not None and np.dtype(dtype) in _TAKEN


_TAKEN = {np.dtype(t) for t in (np.float32, np.int32, np.int64, bool, STRING)}


def _is_small(value: Array) -> bool:
    if value.size <= 64:  # a list is read before numpy has begun
        numbers = value.ravel().tolist()
        return all([-OF_INPUTS <= n <= OF_INPUTS for n in numbers])
    return bool(-OF_INPUTS <= value.min() and value.max() <= OF_INPUTS)


def _differs(node: Node) -> bool:
    """Whether it gives other values at every run; the schema says it of graphs and Dropout, too."""
    return draws(node) and node.op_type != "Dropout" and not subgraphs(node)
