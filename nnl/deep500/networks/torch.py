# SPDX-License-Identifier: Apache-2.0
"""PyTorch: eager, or the traced graph through torch.compile."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from nnl.deep500.contract import GRADIENT, NativeTraining, listed
from nnl.deep500.execution import Values, VisitorNetwork
from nnl.deep500.networks.torch_visitor import DTYPES, TorchVisitor
from nnl.deep500.operation import Operation


class TorchNetwork(VisitorNetwork):
    """A model on PyTorch.

    Args:
        device: "cpu", "cuda", or either with ":compiled" for torch.compile.
    """

    backend, package = "torch", "torch"
    devices = "cpu", "compiled", "cpu:compiled", "cuda", "cuda:compiled"

    def __init__(self, model: Any, device: str = "", trainable: Any = None) -> None:
        place, _, how = (device or "cpu").partition(":")
        if place == "compiled":
            place, how = "cpu", place
        self.place, self.compiled = place, how == "compiled"
        self.visitor = TorchVisitor(place)
        self._graphs: dict[Any, Any] = {}
        super().__init__(model, device, trainable)

    def missing(self) -> list[str]:
        # tracing would take what a body in numpy gives for a constant
        own = [n for n in self.graph.walk() if self.compiled and isinstance(n, Operation)]
        return listed(own) or super().missing()

    def constant(self, value: Any) -> Any:
        return self.visitor.constant(value)

    def variable(self, value: Any) -> Any:
        return torch.tensor(np.array(value), device=self.place, requires_grad=True)

    def array(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return np.array(self.visitor.host(value))
        return None if value is None else [self.array(v) for v in value]

    def _given(self, inputs: Values) -> Values:
        if self.place != "cpu":
            return super()._given(inputs)
        return {n: self._shared(v) for n, v in inputs.items()}

    def _shared(self, value: Any) -> Any:
        """As constant(), in the memory of the array: nothing writes to inputs, and outputs are
        copies."""
        if isinstance(value, np.ndarray) and value.dtype in DTYPES and value.flags.carray:
            return torch.from_numpy(value)
        return self.constant(value)

    def _release(self) -> None:
        super()._release()
        self._graphs = {}

    def _run(self, inputs: Values) -> list[Any]:
        if not self.compiled:
            return super()._run(inputs)
        key = tuple((n, tuple(v.shape), v.dtype) for n, v in inputs.items())
        names = [*self.values, *inputs]
        given = [*self.values.values(), *inputs.values()]
        call = self._graphs.get((key, torch.is_grad_enabled()))
        if call is None:
            call = self._compile(names, given)
            self._graphs[key, torch.is_grad_enabled()] = call
        return list(call(*given))

    def _compile(self, names: list[str], given: list[Any]) -> Any:
        """The graph as torch's own operators, traced once, then compiled."""
        return torch.compile(self._exported(names, given))

    def _exported(self, names: list[str], given: list[Any]) -> Any:
        """The graph as a torch.fx module of these values, with code of its own."""
        from torch.fx.experimental.proxy_tensor import make_fx

        def whole(*values: Any) -> Any:
            named = {**self.constants, **dict(zip(names, values, strict=True))}
            return self.machine.run(self.graph, named)

        made = make_fx(whole)(*given)
        made.graph.eliminate_dead_code()
        made.recompile()
        return made

    def _infer(self, inputs: Values) -> dict[str, Any]:
        with torch.no_grad():
            return super()._infer(inputs)

    def step(self, inputs: Values) -> list[Any]:
        """Outputs as tensors, with the gradients of the loss in the parameters."""
        outs = self._run(self._given(inputs))
        loss = outs[self._loss_at]
        for v in self.values.values():
            v.grad = None
        (loss if loss.ndim == 0 else loss.sum()).backward()
        return outs

    def _backprop(self, inputs: Values) -> dict[str, Any]:
        return self._results(self.step(inputs))

    def _read(self, name: str) -> Any:
        own = name.removesuffix(GRADIENT)
        v = self.values[own]
        if own == name:
            return self.visitor.host(v)
        return (
            np.zeros(v.shape, self.visitor.dtype(v))
            if v.grad is None
            else self.visitor.host(v.grad)
        )

    def _write(self, name: str, value: Any) -> None:
        if name not in self.values:
            self.constants[name] = self.constant(value)
            return
        with torch.no_grad():
            self.values[name].copy_(torch.from_numpy(np.array(value)))

    def _plain(self, given: list[Any]) -> Any:
        """The graph as a program of these inputs alone."""
        values = [*self.values.values(), *given]
        made = self._exported([*self.values, *[v.name for v in self.graph.inputs]], values)
        return torch.compile(made) if self.compiled else made

    def plain_inference(self, inputs: Any) -> Any:
        self.setup()
        values = self._bound(inputs)
        if not all(isinstance(v, np.ndarray) for v in values.values()):
            return super().plain_inference(inputs)
        weights, place = list(self.values.values()), self.place
        call = self._plain([torch.from_numpy(v).to(place) for v in values.values()])

        def run() -> list[Any]:
            with torch.no_grad():
                outs = call(*weights, *[torch.from_numpy(v).to(place) for v in values.values()])
                return [np.array(y.numpy(force=True)) for y in outs]

        return run

    def plain_training(self, rule: str, **settings: float) -> Any:
        """The graph exported to torch.fx, with torch's optimizer."""
        self.setup()
        weights = list(self.values.values())
        optimizer = self._optimizer(rule, settings) if rule else None
        at, names, place = self._loss_at, [v.name for v in self.graph.inputs], self.place
        made: list[Any] = []

        def train(inputs: Any) -> float:
            given = [torch.from_numpy(inputs[n]).to(place) for n in names]
            if not made:
                made.append(self._plain(given))
            outs = made[0](*weights, *given)
            for v in weights:
                v.grad = None
            outs[at].backward()
            if optimizer is not None:
                optimizer.step()
            return float([np.array(y.numpy(force=True)) for y in outs][at])

        return train

    def native_optimizer(self, rule: str, **settings: float) -> NativeTraining:
        optimizer = self._optimizer(rule, settings)
        weights = list(self.values.values())
        parts = NativeTraining(
            lambda inputs: self._results(self.step(self._bound(inputs))), optimizer.step
        )
        if self.place == "cpu":  # then numpy arrays share the memory of tensors
            parts.change_gradients = lambda change: change([v.grad.numpy() for v in weights])
            parts.change_parameters = lambda change: change([v.detach().numpy() for v in weights])
        return parts

    def _optimizer(self, rule: str, s: dict[str, float]) -> Any:
        self.setup()
        makers: dict[str, Any] = {
            "sgd": torch.optim.SGD,
            "momentum": torch.optim.SGD,
            "nesterov": partial(torch.optim.SGD, nesterov=True),
            "adagrad": torch.optim.Adagrad,
            "adam": torch.optim.Adam,
        }
        if rule not in makers:
            return super().native_optimizer(rule, **s)
        settings: dict[str, Any] = {k: v for k, v in s.items() if not k.startswith("beta")}
        if rule == "adam":
            settings["betas"] = s["beta1"], s["beta2"]
        return makers[rule](list(self.values.values()), **settings)
