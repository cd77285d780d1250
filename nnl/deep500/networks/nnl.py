# SPDX-License-Identifier: Apache-2.0
"""nnl itself. The importer of nnl.converters.onnx is its visitor; this is its Network."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np

import nnl.solvers as S
from nnl.converters.onnx.file.errors import OnnxError, UnsupportedOperator
from nnl.converters.onnx.file.registry import ONNX
from nnl.converters.onnx.running.onnx_model import OnnxModel
from nnl.converters.onnx.values.values import var
from nnl.core.graph.variable import Variable, forward_all
from nnl.core.interpreters.switches import no_grad
from nnl.core.ops.python_function import PythonFunction
from nnl.core.parameters.parameter import parameter_scope
from nnl.core.settings.context import using
from nnl.deep500.contract import GRADIENT, NativeTraining, Network, listed
from nnl.deep500.execution import Values
from nnl.deep500.operation import Operation
from nnl.ext import get_extension_context

_FLOATS = (np.float16, np.float32, np.float64)
_SOLVERS = {
    "sgd": (S.Sgd, {}),
    "momentum": (S.Momentum, {}),
    "nesterov": (S.Nesterov, {}),
    "adagrad": (S.Adagrad, {}),
    "adam": (S.Adam, {"lr": "alpha"}),
}


class _Own(PythonFunction):
    """An operator whose body the user wrote for numpy."""

    def __init__(self, op: Operation) -> None:
        super().__init__()
        self.op = op

    @property
    def name(self) -> str:
        return self.op.op_type

    def min_outputs(self) -> int:
        return len(self.op.gives)

    def setup_impl(self, inputs: Any, outputs: Any) -> None:
        shapes = self.op.output_shapes(*[v.shape for v in inputs])
        for out, shape in zip(outputs, shapes, strict=True):
            out.reset_shape(shape, True)

    def forward_impl(self, inputs: Any, outputs: Any) -> None:
        for out, y in zip(outputs, self.op.computed([v.d for v in inputs]), strict=True):
            out.d = y

    def backward_impl(self, inputs: Any, outputs: Any, propagate_down: Any, accum: Any) -> None:
        found = self.op.gradients(
            [v.d for v in inputs], [v.d for v in outputs], [v.g for v in outputs]
        )
        for v, g, wanted, add in zip(inputs, found, propagate_down, accum, strict=True):
            if wanted:
                v.g = v.g + g if add else g


def _run_own(ctx: Any, node: Any, *inputs: Any) -> Any:
    return _Own(node)(*[var(x) for x in inputs])


def _arrays(inputs: Values) -> bool:
    return all(isinstance(v, np.ndarray) for v in inputs.values())


def _ends(outs: list[Variable]) -> list[Variable]:
    """The outputs that no other one is computed from. To run them is to run all; a loss alone is
    run together with its backward pass, several ends are not."""
    read: set[Any] = set()
    for y in outs:
        y.visit(lambda f: read.update(f.inputs))
    return [y for y in outs if y not in read]


class NnlNetwork(Network):
    """A model on nnl.

    The graph is static where it can be: an input of integers that decides shapes is a constant, and
    then the graph is run as it is read.

    Args:
        device: "cpu" (the native library), "numpy", "cudnn" or "cuda", and a type: "cpu:half".
    """

    backend = "nnl"

    def __init__(self, model: Any, device: str = "", trainable: Any = None) -> None:
        name, _, kind = (device or "cpu").partition(":")
        self.context = get_extension_context(name, type_config=kind or "float")
        self.scope: Any = OrderedDict()  # a plain dict is no scope
        super().__init__(model, device, trainable)

    def _here(self) -> Any:
        return using(context=self.context, target=self.context.target)

    def missing(self) -> list[str]:
        for node in self.graph.walk():
            key = node.domain, node.op_type
            if isinstance(node, Operation) and key not in ONNX.imports:
                ONNX.importer(node.op_type, domain=node.domain)(_run_own)
        try:
            OnnxModel(self.model)
        except UnsupportedOperator as error:
            return listed([n for n in self.graph.walk() if n.op_type in error.reason])
        return []

    def _build(self) -> None:
        self.net = OnnxModel(self.model, lambda name, _: name in self._names)
        self.graphs: dict[Any, Any] = {}
        self._latest: Any = (), None  # what the step before was given, and its graph
        self.scope = OrderedDict()
        with self._here(), parameter_scope("", self.scope):
            made = self.net.parameters()
        self.parameter = {name: made[name] for name in self._names}

    def _release(self) -> None:
        self.graphs, self.parameter, self._latest = {}, {}, ((), None)

    def _static(self, inputs: Values) -> Any:
        """Inputs, outputs, and what to run for these shapes; None where it cannot be recorded."""
        key = tuple([(v.shape, v.dtype) for v in inputs.values()])
        found = self.graphs.get(key, self)
        if found is self:  # no graph yet; None says that there is none
            with parameter_scope("", self.scope):
                found = self.graphs[key] = self._record(inputs)
        return found

    def _record(self, inputs: Values) -> Any:
        infos = {v.name: v for v in self.graph.inputs}
        whole = [n for n, v in inputs.items() if v.dtype not in _FLOATS]
        types = [v.dtype for v in self.graph.outputs if v.dtype is not None]
        small = [t for t in types if t.kind not in "iub" and t not in _FLOATS]
        # integers may decide shapes; small floats are rounded to where they are read
        if small or (whole and not self.loss):
            return None
        given = {n: Variable(v.shape) for n, v in inputs.items()}
        for n, v in given.items():
            v.d = inputs[n]
            if infos[n].dtype is None:
                v.info = inputs[n].dtype
        try:
            outs = self.net(**given)
        except OnnxError:
            return None
        outs = list(outs) if isinstance(outs, tuple) else [outs]
        if not all(isinstance(y, Variable) for y in outs):
            return None
        for y in outs:
            y.persistent = True
        return given, outs, _ends(outs)

    def _infer(self, inputs: Values) -> dict[str, Any]:
        with self._here():
            static = self._static(inputs) if _arrays(inputs) else None
            if static is None:
                with no_grad(), parameter_scope("", self.scope):
                    outs = self.net.run(*inputs.values())
                return dict(zip(self._given_back, outs, strict=True))
            self._fill(static[0], inputs)
            forward_all(static[2], clear_buffer=True)
            return self._results(static[1])

    def _fill(self, given: Any, inputs: Mapping[str, Any]) -> None:
        for name, value in inputs.items():
            given[name].d = value

    def _results(self, outs: list[Any]) -> dict[str, Any]:
        found = {}
        for info, y in zip(self.graph.outputs, outs, strict=True):
            found[info.name] = np.array(y.d, info.dtype)
        return found

    def _is_like_latest(self, inputs: Mapping[str, Any]) -> bool:
        """Whether inputs are such arrays as those of the step before, which were checked."""
        checked = self._latest[0]
        if len(inputs) != len(checked):
            return False
        for name, shape, dtype in checked:
            value = inputs.get(name)
            if type(value) is not np.ndarray or value.dtype is not dtype or value.shape != shape:
                return False
        return bool(checked)

    def step(self, inputs: Mapping[str, Any], zero_grad: Any = None) -> list[Any]:
        """Outputs as Variables, with the gradients of the loss in the parameters."""
        if not self._is_like_latest(inputs):
            inputs = self._bound(inputs)
            found = self._static(inputs)
            if found is None:
                raise OnnxError(f"{self.backend}: the graph cannot be recorded for training")
            self._latest = [(n, v.shape, v.dtype) for n, v in inputs.items()], found
        static = self._latest[1]
        self._fill(static[0], inputs)
        (zero_grad or self._zero)()
        forward_all(static[2], clear_no_need_grad=True)
        outs: list[Any] = static[1]
        outs[self._loss_at].backward(clear_buffer=True)
        return outs

    def _zero(self) -> None:
        for v in self.parameter.values():
            v.grad.zero()

    def _backprop(self, inputs: Values) -> dict[str, Any]:
        with self._here():
            return self._results(self.step(inputs))

    def _read(self, name: str) -> Any:
        own = name.removesuffix(GRADIENT)
        with self._here():
            v = self.parameter[own]
            return v.d if own == name else v.g

    def _write(self, name: str, value: Any) -> None:
        with self._here():
            self.parameter[name].d = value

    def _solver(self, rule: str, settings: dict[str, float]) -> Any:
        self.setup()
        make, names = _SOLVERS[rule]
        solver = make(**{names.get(k, k): v for k, v in settings.items()})
        with self._here():
            solver.set_parameters(self.parameter)
        return solver

    def plain_inference(self, inputs: Any) -> Any:
        self.setup()
        values = self._bound(inputs)
        with self._here():
            static = self._static(values) if _arrays(values) else None
        if static is None:
            return super().plain_inference(inputs)

        def run() -> list[Any]:
            with self._here():
                for name, v in static[0].items():
                    v.d = values[name]
                forward_all(static[2], clear_buffer=True)
                return [np.array(y.d) for y in static[1]]

        return run

    def plain_training(self, rule: str, **settings: float) -> Any:
        self.setup()
        solver = self._solver(rule, settings) if rule else None

        zero_grad = self._zero if solver is None else solver.zero_grad

        def train(inputs: Any) -> float:
            if not self.graphs:
                with self._here():
                    self._static(self._bound(inputs))
            ((given, outs, ends),) = self.graphs.values()
            with self._here():
                for name, v in given.items():
                    v.d = inputs[name]
                zero_grad()
                forward_all(ends, clear_no_need_grad=True)
                outs[self._loss_at].backward(clear_buffer=True)
                if solver is not None:
                    solver.update()
                return float([np.array(y.d) for y in outs][self._loss_at])

        return train

    def native_optimizer(self, rule: str, **settings: float) -> NativeTraining:
        if rule not in _SOLVERS:
            return super().native_optimizer(rule, **settings)
        solver = self._solver(rule, settings)
        parameters = list(self.parameter.values())

        def run(inputs: Any) -> dict[str, Any]:
            with self._here():
                return self._results(self.step(inputs, solver.zero_grad))

        def update() -> None:
            with self._here():
                solver.update()

        def whole(inputs: Any) -> dict[str, Any]:
            with self._here():
                outs = self.step(inputs, solver.zero_grad)
                solver.update()
                return self._results(outs)

        return NativeTraining(
            run,
            update,
            whole,
            lambda change: change([v.grad for v in parameters]),
            lambda change: change([v.data for v in parameters]),
        )
