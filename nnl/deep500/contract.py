# SPDX-License-Identifier: Apache-2.0
"""Network: all state of a model on one back end, behind one contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from nnl.converters.onnx.file import operators
from nnl.converters.onnx.file.errors import UnsupportedOperator
from nnl.converters.onnx.file.model import Graph, Model, Node, ValueInfo
from nnl.converters.onnx.file.reader import read
from nnl.converters.onnx.running.weights import constants_of, frozen_of

GRADIENT = "@gradient"  # appended to a parameter's name


class NetworkError(ValueError):
    """A network was asked for what it does not have, or given what it does not take."""


@dataclass
class NativeTraining:
    """A training step inside of a back end, in its parts.

    Attributes:
        run: Inputs by name -> outputs by name; leaves the gradients in the back end.
        update: Changes the parameters.
        whole: Both in one call, where that is cheaper; leaves the gradients there too.
        change_gradients, change_parameters: Call a function with all gradients, or parameters, as
            arrays that it changes in place, between the two. They are the back end's own; where its
            arrays cannot be written to, copies that it takes back. None where neither is there.
    """

    run: Callable[[Mapping[str, Any]], dict[str, Any]]
    update: Callable[[], None]
    whole: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None
    change_gradients: Callable[[Callable[[list[Any]], None]], None] | None = None
    change_parameters: Callable[[Callable[[list[Any]], None]], None] | None = None


class Network:
    """A model on one back end. Everything above - optimizers, runners, metrics - uses only this.

    Args:
        model: Path of an .onnx file, its bytes, or a typed Model, which stays as it is.
        device: Of the back end; "" is its default.
        trainable: Names of the initializers that train. If left out: those of floating point but
            for scalars, running statistics, and what only serves as bounds, scales and the like.
        label: What the input of labels is called, if one is added with a loss.
    Raises:
        UnsupportedOperator: The back end cannot run the model; all its missing operators are named.
        NetworkError: The back end has no such device.

    Class attributes:
        backend: Its name. package: What must be installed. trains: Whether it has gradients.
        devices: Those that it has, where it does not say so itself.
        training_hint: What would have to be installed for them, where it has none.
    """

    backend: ClassVar[str] = ""
    package: ClassVar[str] = "numpy"
    trains: ClassVar[bool] = True
    devices: ClassVar[tuple[str, ...]] = ()
    training_hint: ClassVar[str] = ""

    def __init__(
        self, model: Any, device: str = "", trainable: Sequence[str] | None = None
    ) -> None:
        if device and self.devices and device not in self.devices:
            raise NetworkError(
                f"{self.backend} has no device {device!r}, wanted {' or '.join(self.devices)}"
            )
        view = model if isinstance(model, Model) else read(model)
        g = view.graph
        graph = Graph(g.name, [*g.nodes], [*g.inputs], [*g.outputs], dict(g.initializers))
        graph.inputs = [v for v in graph.inputs if v.name not in graph.initializers]
        self.model: Model = replace(view, graph=graph)
        self.graph, self.device = graph, device
        self.loss = ""
        self._names = _trainable(graph) if trainable is None else list(trainable)
        for name in self._names:
            if name not in graph.initializers:
                raise NetworkError(f"trainable: {name!r} is no initializer of the model")
        self._ready = False
        missing = self.missing()
        if missing:
            raise UnsupportedOperator(
                f"{self.backend} has no operators for: {', '.join(missing)}", view.file
            )

    # ---- the life of a network ----

    def setup(self) -> None:
        """Build everything; called by the first method that needs it."""
        if not self._ready:
            self._wanted = [
                (v, v.name, v.kind == "tensor", v.dtype, None if v.shape is None else len(v.shape))
                for v in self.graph.inputs
            ]
            self._given_back = [v.name for v in self.graph.outputs]
            self._loss_at = self._given_back.index(self.loss) if self.loss else -1
            self._build()
            self._ready = True

    def teardown(self) -> None:
        """Give memory, sessions and files back. Parameters stay: setup() may follow."""
        if self._ready:
            for name in self._names:
                self.graph.initializers[name] = np.array(self._read(name))
            self._ready = False
            self._release()

    def __enter__(self) -> Network:
        self.setup()
        return self

    def __exit__(self, *error: Any) -> None:
        self.teardown()

    # ---- running ----

    def inference(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs by name, as numpy arrays (lists for sequences).

        Raises:
            NetworkError: An input is missing, unknown or of the wrong rank.
        """
        self.setup()
        return self._infer(self._bound(inputs))

    def inference_and_backprop(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """As inference(); afterwards the gradients of the loss can be fetched.

        Raises:
            NetworkError: No loss was added. NotImplementedError: The back end has no gradients.
        """
        self._need_gradients()
        self.setup()
        return self._backprop(self._bound(inputs))

    def gradient(self) -> list[tuple[str, str]]:
        """(parameter, name of its gradient) of every parameter."""
        return [(n, n + GRADIENT) for n in self._names]

    def _need_gradients(self) -> None:
        if not self.trains:
            raise NotImplementedError(
                f"{self.backend} runs inference only; nnl, torch, tensorflow and reference train"
                + (f", and it with: {self.training_hint}" if self.training_hint else "")
            )
        if not self.loss:
            raise NetworkError("the network has no loss: call add_loss() first")

    def _bound(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        values = {}
        for info, name, tensor, dtype, rank in self._wanted:
            value = inputs.get(name)
            if value is None:
                if info.kind == "optional":
                    values[name] = None
                    continue
                raise NetworkError(f"the input {name!r} is missing, got {sorted(inputs)}")
            if tensor:
                value = np.asarray(value)
                if dtype is not None and value.dtype != dtype:
                    value = value.astype(dtype)
                if rank is not None and rank != value.ndim:
                    raise NetworkError(
                        f"the input {name!r} has the shape {value.shape}, wanted {info.shape}"
                    )
            values[name] = value
        if len(inputs) > len(values):
            unknown = sorted(set(inputs) - set(values))
            raise NetworkError(f"there are no inputs {unknown}, the network has {sorted(values)}")
        return values

    # ---- state ----

    def parameters(self) -> list[str]:
        """Names of the parameters, in the order of the file."""
        return list(self._names)

    def fetch(self, names: Sequence[str]) -> list[Any]:
        """Parameters and gradients by name, as numpy arrays of their own.

        Raises:
            NetworkError: There is none of that name. Other values are outputs: see add_output().
        """
        self.setup()
        return [np.array(self._read(self._known("fetch", name))) for name in names]

    def feed(self, name: str, value: Any) -> None:
        """Set a parameter.

        Raises:
            NetworkError: There is none of that name, or it has another shape.
        """
        self.setup()
        initial = self.graph.initializers.get(name)
        if initial is None:
            raise NetworkError(f"feed: there is no parameter {name!r}")
        value = np.asarray(value, initial.dtype)
        if value.shape != initial.shape:
            raise NetworkError(f"feed: {name!r} is {initial.shape}, got {value.shape}")
        self._write(name, value)

    def _known(self, call: str, name: str) -> str:
        if name.removesuffix(GRADIENT) in self._names:
            return name
        hint = "; add_output() makes any value an output"
        raise NetworkError(f"{call}: there is no parameter or gradient {name!r}{hint}")

    # ---- extending the graph ----

    def add_node(self, node: Node) -> None:
        """Put a node into the graph, where its inputs allow.

        Raises:
            UnsupportedOperator: The back end does not have the operator.
        """
        self.teardown()
        self.graph.nodes.append(node)
        self.graph.sort()
        missing = self.missing()
        if missing:
            self.graph.nodes.remove(node)
            raise UnsupportedOperator(f"{self.backend} has no operators for: {', '.join(missing)}")

    def add_output(self, name: str) -> None:
        """Make a value of the graph an output.

        Raises:
            NetworkError: The graph has no such value.
        """
        made = {o for n in self.graph.nodes for o in n.outputs if o}
        if name not in made:
            raise NetworkError(f"add_output: the graph makes no value {name!r}")
        if name not in [v.name for v in self.graph.outputs]:
            self.teardown()
            self.graph.outputs.append(ValueInfo(name))

    def add_loss(
        self, scores: str = "", label: str = "label", kind: str = "cross_entropy", name: str = ""
    ) -> str:
        """Add a loss, the mean over the batch, which inference_and_backprop() differentiates.

        Args:
            scores: The value that is judged; the first output if left out.
            label: The input that is made for what is wanted: class numbers, or values.
            kind: "cross_entropy" (of softmax), "squared_error", or "value": `scores` is the loss.
            name: Of the loss; "loss" if left out.
        Returns:
            The name.
        """
        scores = scores or self.graph.outputs[0].name
        made = {o for n in self.graph.nodes for o in n.outputs}
        if scores not in made:
            raise NetworkError(f"add_loss: the graph makes no value {scores!r}")
        info = next((v for v in self.graph.outputs if v.name == scores), ValueInfo(scores))
        self.teardown()
        if kind == "value":
            self.loss = scores
            self.add_output(scores)
            return scores
        name = name or "loss"
        version = self.model.opsets[""]
        inputs = [v.name for v in self.graph.inputs]
        if kind == "cross_entropy":
            if version < 12:
                raise NetworkError(
                    f"add_loss: cross_entropy is an operator since version 12 of ONNX, the model "
                    f"is for {version}: give an Operation, or convert the model"
                )
            cls = operators.operator_class("SoftmaxCrossEntropyLoss", version)
            nodes = [cls(scores, label, outputs=name)]
            batch = None if not info.shape else (info.shape[0], *info.shape[2:])
            wanted = ValueInfo(label, dtype=np.dtype(np.int64), shape=batch)
        elif kind == "squared_error":
            sub, mul = (operators.operator_class(n, version) for n in ("Sub", "Mul"))
            mean = operators.operator_class("ReduceMean", version)
            d, s = f"{name}/difference", f"{name}/square"
            nodes = [sub(scores, label, outputs=d), mul(d, d, outputs=s)]
            nodes.append(mean(s, outputs=name, keepdims=0))
            wanted = ValueInfo(label, dtype=np.dtype(np.float32), shape=info.shape)
        else:
            raise NetworkError(
                f"add_loss: kind is {kind!r}, wanted cross_entropy, squared_error or value"
            )
        if label not in inputs:
            self.graph.inputs.append(wanted)
        for node in nodes:
            self.add_node(node)
        self.loss = name
        self.add_output(name)
        return name

    # ---- what a back end implements ----

    def missing(self) -> list[str]:
        """Operators of the graph that the back end does not have, each with one of its nodes."""
        return []

    def _build(self) -> None:
        raise NotImplementedError(f"{type(self).__name__}: implement _build()")

    def _release(self) -> None:
        """Drop what _build() made."""

    def _infer(self, inputs: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError(f"{type(self).__name__}: implement _infer(inputs)")

    def _backprop(self, inputs: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError(f"{type(self).__name__}: implement _backprop(inputs)")

    def _read(self, name: str) -> Any:
        """A parameter, or a gradient, as a numpy array."""
        return self.graph.initializers[name]

    def _write(self, name: str, value: Any) -> None:
        self.graph.initializers[name] = value

    def native_optimizer(self, rule: str, **settings: float) -> NativeTraining:
        """Training with an optimizer of the back end.

        Raises:
            NotImplementedError: The back end has no optimizer of this rule.
        """
        raise NotImplementedError(f"{self.backend} has no optimizer {rule!r} of its own")

    def plain_inference(self, inputs: Mapping[str, Any]) -> Callable[[], Any]:
        """Inference as somebody would write it for this back end alone, to compare times with: all
        outputs as numpy arrays.

        Raises:
            NotImplementedError: The back end has none.
        """
        raise NotImplementedError(f"{self.backend} has no plain program of its inference")

    def plain_training(self, rule: str, **settings: float) -> Any:
        """The training step in the same way: a function of inputs that gives the loss. It reads all
        outputs, as the others do. An empty rule leaves the update out.

        Raises:
            NotImplementedError: The back end has none.
        """
        raise NotImplementedError(f"{self.backend} has no plain program of its training")

    def save(self, path: str | Path) -> None:
        """Write the model with its present parameters as an ONNX file."""
        from nnl.converters.onnx.file.writer import write

        self.teardown()
        write(self.model, path)


def _trainable(graph: Graph) -> list[str]:
    kept = constants_of(graph) | frozen_of(graph)
    return [
        n
        for n, a in graph.initializers.items()
        if n not in kept and a.ndim and a.dtype in (np.float32, np.float64)
    ]


def listed(nodes: Sequence[Node]) -> list[str]:
    """Every operator among the nodes, once, with the first node that has it."""
    found: dict[str, str] = {}
    for node in nodes:
        found.setdefault(f"{node.domain or 'ai.onnx'}.{node.op_type}", node.label)
    return [f"{name} ({label})" for name, label in sorted(found.items())]
