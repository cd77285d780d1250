# SPDX-License-Identifier: Apache-2.0
"""load: an ONNX file as a function of Variables and arrays, whose weights are nnl parameters."""

from __future__ import annotations

import itertools
import logging
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from nnl.converters.onnx.file.errors import OnnxError, UnsupportedOperator
from nnl.converters.onnx.file.model import Graph, Model, ValueInfo
from nnl.converters.onnx.file.reader import naming, read
from nnl.converters.onnx.running import families as _handlers  # noqa: F401  registers the importers
from nnl.converters.onnx.running.exactness import ExactInterpreter
from nnl.converters.onnx.running.interpreter import Interpreter, Scope
from nnl.converters.onnx.running.plans import ModelPlans
from nnl.converters.onnx.running.weights import constants_of, frozen_of, parameter_names
from nnl.converters.onnx.values.counted import finished
from nnl.converters.onnx.values.values import array, dtype_of, is_float, is_var, tagged
from nnl.core.graph.variable import Variable
from nnl.core.interpreters.interpreter import EAGER, STATIC
from nnl.core.parameters.parameter import (
    all_or_nothing,
    get_current_parameter_scope,
    get_parameter,
    get_parameter_or_create,
)
from nnl.core.settings.context import using

logger = logging.getLogger("nnl")

# {parameter: checksum of the initializer that it was made of}
_MADE: WeakKeyDictionary[Variable, int] = WeakKeyDictionary()


def load(
    source: Any,
    trainable: Callable[[str, Any], bool] | None = None,
    max_trips: int | None = None,
) -> OnnxModel:
    """Load an ONNX model.

    Args:
        source: Path of an .onnx file, its bytes, an onnx.ModelProto, or a typed Model.
        trainable: f(name, array) -> bool chooses which initializers become parameters that
            train. If left out, all of up to 32 bits do, but for scalars, running statistics of
            batch normalisation, and those that only serve as bounds, scales and the like. What
            does not train stays a constant, as do the values of Constant nodes.
        max_trips: Where loops end in static graphs whose number of trips only values of the run
            know: their gradients need a bound. A loop with a smaller one of its own keeps that.
    Raises:
        OnnxError: The file is damaged, hostile, or no ONNX model.
        UnsupportedOperator: It has operators that cannot be imported; all of them are named.

    An example, with a file of one node, y = x * 2:

        net = load("double.onnx")
        y = net(nn.Variable((8, 3)))       # records a graph; in nn.auto_forward() computes
        (y,) = net.run(np.ones((8, 3)))    # computes, numpy in and out
    """
    model = source if isinstance(source, Model) else read(source)
    return OnnxModel(model, trainable, max_trips)


class OnnxModel:
    """A loaded model: call it with Variables or arrays.

    Attributes:
        model: The typed view of the file.
        inputs, outputs: Names, in order.
        open: Whether it is recorded for open sizes, at some of them.
        bounded: Whether a static graph may give arrays of the greatest size where only values of
            the run say how many rows there are; see nnl.at_most.
    """

    open = bounded = False

    def __init__(
        self,
        model: Model,
        trainable: Callable[[str, Any], bool] | None = None,
        max_trips: int | None = None,
    ) -> None:
        self.model, self.max_trips = model, max_trips
        with naming(model.file):
            self._set_up(trainable)

    def _set_up(self, trainable: Callable[[str, Any], bool] | None) -> None:
        model = self.model
        self.infos: list[ValueInfo] = model.graph.inputs
        self.inputs = [v.name for v in model.graph.needed_inputs]
        self.outputs = [v.name for v in model.graph.outputs]
        floats = {n: a for n, a in _initializers(model.graph) if is_float(a.dtype)}
        self._values: dict[str, Any] = dict(_initializers(model.graph))
        statistics = frozen_of(model.graph)
        if trainable is None:
            settings = constants_of(model.graph)
            chosen = {
                n
                for n, a in floats.items()
                if n not in settings and n not in statistics and a.ndim and a.dtype.itemsize <= 4
            }
        else:
            chosen = {n for n, a in floats.items() if trainable(n, a)}
        # statistics are parameters too, because training may update them
        keep, frozen = chosen | (statistics & set(floats)), statistics - chosen
        self._scope: Any = None  # where it was called last
        self._frozen = frozen
        self._names = parameter_names(n for n in floats if n in keep)
        self._apart = False  # whether it is known that its names are free, or its own
        self._plans: ModelPlans | None = None
        self._check_operators()

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Run the model on Variables or arrays, by position or name.

        Records a graph in static mode and computes in nnl.auto_forward(). Arrays are constants.

        Returns:
            The output, or a tuple of outputs: Variables, numpy arrays where a value is constant or
            an integer known now, lists for sequences.
        Raises:
            OnnxError: An input is missing or does not fit, or a node fails; names the node.
        """
        outs = self._run(args, named)
        return outs[0] if len(outs) == 1 else tuple(outs)

    def run(self, *args: Any, **named: Any) -> list[Any]:
        """Compute the outputs for arrays now, as numpy arrays of the types the model declares."""
        found = self._from_plan(args, named)
        if found is not None:
            return found
        with using(interpreter=EAGER, no_grad=True), naming(self.model.file):
            outs = self._run(args, named, compute=True)
            infos = self.model.graph.outputs
            return [_plain(v, info) for v, info in zip(outs, infos, strict=True)]

    def _from_plan(self, args: Any, named: Mapping[str, Any]) -> list[Any] | None:
        """What a static graph that is kept gives; None where only the interpreter will do."""
        if len(args) == 1 and isinstance(args[0], dict) and not named:
            args, named = (), args[0]
        if args and named or len(args or named) != len(self.inputs):
            return None
        try:
            values = args or [named[n] for n in self.inputs]
        except KeyError:
            return None
        if self._plans is None:
            self._keep_apart()
            names = list(self._names.values())
            self._plans = ModelPlans(self.model, self.inputs, self._record, names)
        plans = self._plans
        if not plans.static:
            return None
        for info, v in zip(plans.infos, values, strict=True):
            if type(v) is not np.ndarray or v.dtype != info.dtype:
                with naming(self.model.file):  # float64, as numpy makes it, numbers and lists
                    values = [_input(i, x, False) for i, x in zip(plans.infos, values, strict=True)]
                break
        return plans.run(values)

    def _record(self, **named: Any) -> list[Any]:
        with using(interpreter=STATIC, no_grad=True):
            return self._run((), named, interpreter=ExactInterpreter)

    def _run(
        self,
        args: Any,
        named: Mapping[str, Any],
        compute: bool = False,
        interpreter: type[Interpreter] = Interpreter,
    ) -> list[Any]:
        with naming(self.model.file):
            values = self._bind(args, named, compute)
            self._warn_of_strangers()
            machine = interpreter(self.model, self._initial, self.max_trips)
            machine.open = self.open
            machine.bounded = self.bounded and not compute and interpreter is Interpreter
            machine.cuts = machine.cuts or machine.bounded
            outs: list[Any] = all_or_nothing(
                machine.run, (self.model.graph, values, Scope(None, None)), {}
            )
            return [finished(y) for y in outs]

    def _keep_apart(self) -> None:
        """Take names in a scope of its own where another model has parameters of these names."""
        if self._apart:
            return
        self._apart = True
        if not any(self._is_of_another(name, key) for name, key in self._names.items()):
            return
        stem = Path(self.model.file or self.model.graph.name).stem.strip("/ ") or "model"
        places = (stem if i == 1 else f"{stem}_{i}" for i in itertools.count(1))
        for place in places:
            names = {name: f"{place}/{key}" for name, key in self._names.items()}
            if not any(self._is_of_another(name, key) for name, key in names.items()):
                break
        logger.info(
            "%s: its parameters are in the scope %r, as another model's have names of its own",
            self.model.file or "an ONNX model",
            place,
        )
        self._names = names

    def _is_of_another(self, name: str, key: str) -> bool:
        """Whether a parameter of this name was made of another initializer than this model's.

        One that no model has made was loaded from a file, for this model as far as one can know.
        """
        found = get_parameter(key)
        made_of = None if found is None else _MADE.get(found)
        return made_of is not None and made_of != _checksum(self._values[name])

    def _warn_of_strangers(self) -> None:
        """Say so when this scope holds parameters of these names before the first call in it.

        They may be the model's own, loaded from a file, or those of another model.
        """
        self._keep_apart()
        scope = get_current_parameter_scope()
        if scope is self._scope:
            return
        self._scope = scope
        found = [key for key in self._names.values() if get_parameter(key) is not None]
        if found:
            logger.warning(
                "%s uses %d parameters that the current scope has already, such as %r; call it in "
                "a nnl.parameter_scope of its own to keep models apart",
                self.model.file or "an ONNX model",
                len(found),
                found[0],
            )

    def _bind(self, args: Any, named: Mapping[str, Any], compute: bool) -> list[Any]:
        given = dict(named)
        if len(args) == 1 and isinstance(args[0], dict):
            given.update(args[0])
            args = ()
        if len(args) > len(self.inputs):
            raise OnnxError(f"takes {len(self.inputs)} inputs {self.inputs}, got {len(args)}")
        for name, value in zip(self.inputs, args, strict=False):
            if name in given:
                raise OnnxError(f"got two values for the input {name!r}")
            given[name] = value
        known = {info.name for info in self.infos}
        for name in given:
            if name not in known:
                raise OnnxError(f"has no input {name!r}, its inputs are {self.inputs}")
        missing = [n for n in self.inputs if n not in given]
        if missing:
            raise OnnxError(f"needs the inputs {missing}")
        return [_input(info, given.get(info.name), compute) for info in self.infos]

    def _initial(self, name: str, value: Any) -> Any:
        """The value of an initializer: a parameter, or the array itself."""
        key = self._names.get(name)
        if key is None or self._values.get(name) is not value:
            return value
        new = get_parameter(key) is None
        handle = get_parameter_or_create(
            key, value.shape, lambda shape: value, need_grad=name not in self._frozen
        )
        if new:
            made = get_parameter(key)
            assert made is not None
            _MADE[made] = _checksum(value)
        return tagged(handle, value.dtype)

    def parameters(self) -> dict[str, Variable]:
        """The parameters of the current scope by initializer name; made if they do not exist."""
        self._keep_apart()
        self._scope = get_current_parameter_scope()
        for name in self._names:
            self._initial(name, self._values[name])
        found = {name: get_parameter(key) for name, key in self._names.items()}
        return {name: v for name, v in found.items() if v is not None}

    def parameter_names(self) -> dict[str, str]:
        """Name in the parameter registry by initializer name.

        It begins with the name of the file, as a scope, where another model's parameters of the
        same names are in the registry when this one is first called.
        """
        return dict(self._names)

    def _check_operators(self) -> None:
        machine = Interpreter(self.model, self._initial)
        missing: dict[str, str] = {}
        for node in self.model.walk():
            try:
                machine.handler(node)
            except UnsupportedOperator:
                name = f"{node.domain or 'ai.onnx'}.{node.op_type}"
                missing.setdefault(name, node.label)
        if missing:
            listed = ", ".join(f"{name} ({label})" for name, label in sorted(missing.items()))
            raise UnsupportedOperator(
                f"operators without an importer: {listed} (documentation: onnx_report#operators)"
            )

    def __repr__(self) -> str:
        return (
            f"<OnnxModel {self.model.graph.name!r}: {len(self.model.graph.nodes)} nodes, "
            f"{self.inputs} -> {self.outputs}>"
        )


def _checksum(array: np.ndarray[Any, Any]) -> int:
    return zlib.crc32(np.ascontiguousarray(array), zlib.crc32(repr(array.shape).encode()))


def _initializers(graph: Graph) -> list[tuple[str, Any]]:
    from nnl.converters.onnx.file.model import subgraphs

    found = list(graph.initializers.items())
    for node in graph.nodes:
        for inner in subgraphs(node):
            found += _initializers(inner)
    return found


def _input(info: ValueInfo, value: Any, compute: bool) -> Any:
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise OnnxError(f"input {info.name!r} has masked elements: filled(0) gives them a value")
    if value is None or info.kind != "tensor":
        return _sequence(value, info, compute)
    if is_var(value):
        if info.dtype is not None:
            value = tagged(Variable.of_edge(value.edge, value._data), info.dtype)
        _check_rank(info, value.shape)
        return value
    if isinstance(value, (list, tuple)) and info.dtype is None:
        return list(value)
    value = np.asarray(value)
    if info.dtype is not None and value.dtype != info.dtype:
        if value.dtype.kind in "US" and info.dtype == object:
            value = value.astype(object)
        elif not np.can_cast(value.dtype, info.dtype, "same_kind"):
            raise OnnxError(f"input {info.name!r} is {value.dtype.name}, wanted {info.dtype.name}")
        else:
            value = value.astype(info.dtype)
    _check_rank(info, value.shape)
    if compute and value.dtype.kind == "f":
        tag = value.dtype
        kept = value.astype(np.float32) if tag.itemsize < 4 else value  # float8_e5m2 is an "f" too
        return tagged(Variable.from_numpy_array(kept), tag)
    return value


def _sequence(value: Any, info: ValueInfo, compute: bool) -> Any:
    if value is None or is_var(value):
        return value
    if isinstance(value, (list, tuple)):
        return [v if is_var(v) or v is None else np.asarray(v) for v in value]
    return np.asarray(value)


def _check_rank(info: ValueInfo, shape: tuple[int, ...]) -> None:
    if info.shape is not None and len(info.shape) != len(shape):
        raise OnnxError(
            f"input {info.name!r} has the shape {shape}, wanted rank {len(info.shape)}: "
            f"{info.shape}"
        )


def _plain(value: Any, info: ValueInfo) -> Any:
    if isinstance(value, list):
        return [v if isinstance(v, dict) else _plain(v, ValueInfo(info.name)) for v in value]
    if value is None:
        return None
    out = array(value)
    if info.kind == "tensor" and info.dtype is not None and dtype_of(out) != info.dtype:
        out = out.astype(info.dtype)
    return np.array(out)
