# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime: it reads ONNX itself, so the writer of the typed view takes the visitor's place."""

from __future__ import annotations

import os
import tempfile
from copy import copy
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from nnl.converters.onnx.file.errors import UnsupportedOperator
from nnl.converters.onnx.file.model import Graph, Model, Node, ValueInfo
from nnl.converters.onnx.file.operators import operator_class
from nnl.converters.onnx.file.writer import write
from nnl.deep500.contract import GRADIENT, Network, listed
from nnl.deep500.execution import Values
from nnl.deep500.operation import Operation

# Else it refuses what was not yet released when it was.
os.environ.setdefault("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")
IR = 10  # the newest format of files that older releases read, too; later ones only have more types


@cache
def newest() -> int:
    """The newest version of ONNX's operators that this ONNX Runtime knows."""
    from onnx import defs

    value = [ValueInfo("x", dtype=np.dtype(np.float32), shape=(1,))]
    for version in range(defs.onnx_opset_version(), 1, -1):
        node = operator_class("Neg", version)("x", outputs="y")
        graph = Graph("probe", [node], value, [replace(value[0], name="y")])
        try:
            onnxruntime.InferenceSession(
                write(Model(graph, {"": version}, ir_version=IR)), _options(), _providers("cpu")
            )
        except Exception:  # its errors have no common class but this one
            continue
        return version
    raise UnsupportedOperator("onnxruntime runs no version of Neg")


def readable(model: Model) -> bytes:
    """The model as a file that this ONNX Runtime reads, whatever version it came with."""
    import onnx

    data = write(replace(model, ir_version=min(model.ir_version, IR)))
    if model.opsets.get("", 0) <= newest():
        return data
    try:
        proto = onnx.version_converter.convert_version(onnx.load_from_string(data), newest())
    except RuntimeError:  # an operator that the older version does not have
        return data
    proto.ir_version = IR
    return bytes(proto.SerializeToString())


def _options() -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    threads = os.environ.get("OMP_NUM_THREADS")
    if threads:
        options.intra_op_num_threads = int(threads)
    return options


def _providers(device: str) -> list[str]:
    return ["CUDAExecutionProvider" if device == "cuda" else "CPUExecutionProvider"]


def _whole(node: Node) -> Node:
    """The node with the second output that its gradient is computed from."""
    if node.op_type not in ("SoftmaxCrossEntropyLoss", "MaxPool") or len(node.outputs) > 1:
        return node
    found = copy(node)
    found.outputs = (*node.outputs, f"{node.outputs[0]}/more")
    return found


class OnnxRuntimeNetwork(Network):
    """A model on ONNX Runtime. It trains where the package onnxruntime-training is installed, which
    takes the place of onnxruntime and needs PyTorch.

    Args:
        device: "cpu", or "cuda" with the package onnxruntime-gpu.
    """

    backend, package, devices = "onnxruntime", "onnxruntime", ("cpu", "cuda")
    trains = find_spec("onnxruntime.training") is not None
    training_hint = "pip install onnxruntime-training in the place of onnxruntime"

    def missing(self) -> list[str]:
        return listed([n for n in self.graph.walk() if isinstance(n, Operation)])

    def _build(self) -> None:
        self.session = self.module = None
        try:
            if self.loss and self.trains:
                self._build_training()
            else:
                self.session = onnxruntime.InferenceSession(
                    readable(self.model), _options(), _providers(self.device)
                )
        except Exception as error:  # its errors have no common class but this one
            raise UnsupportedOperator(f"onnxruntime refuses the model: {error}") from error

    def _build_training(self) -> None:
        import onnx
        from onnxruntime.training import api, artifacts

        onnxruntime.set_default_logger_severity(3)  # it tells of every pass over the gradients
        outputs = sorted(self.graph.outputs, key=lambda v: v.name != self.loss)  # the loss first
        self.names = [v.name for v in outputs]
        nodes = [_whole(node) for node in self.graph.nodes]
        model = replace(self.model, graph=replace(self.graph, nodes=nodes, outputs=outputs))
        proto = onnx.shape_inference.infer_shapes(onnx.load_from_string(readable(model)))
        frozen = [n for n in self.graph.initializers if n not in self._names]
        with tempfile.TemporaryDirectory() as folder:
            artifacts.generate_artifacts(
                proto, self._names, frozen, artifact_directory=folder, prefix=""
            )
            made = Path(folder)
            self.state = api.CheckpointState.load_checkpoint(str(made / "checkpoint"))
            self.module = api.Module(
                str(made / "training_model.onnx"),
                self.state,
                str(made / "eval_model.onnx"),
                self.device or "cpu",
                _options(),
            )

    def _release(self) -> None:
        self.session = self.module = None

    def _infer(self, inputs: Values) -> dict[str, Any]:
        if self.module is not None:
            return self._called(self.module.eval(), inputs)
        names = [v.name for v in self.graph.outputs]
        return dict(zip(names, self.session.run(names, inputs), strict=True))

    def _backprop(self, inputs: Values) -> dict[str, Any]:
        self.module.lazy_reset_grad()
        return self._called(self.module.train(), inputs)

    def _called(self, module: Any, inputs: Values) -> dict[str, Any]:
        outs = module(*[inputs[n] for n in module.input_names()])
        found = dict(zip(self.names, outs if isinstance(outs, tuple) else (outs,), strict=True))
        return {v.name: found[v.name] for v in self.graph.outputs}

    def plain_inference(self, inputs: Any) -> Any:
        self.setup()
        if self.session is None:
            return super().plain_inference(inputs)
        given, names = self._bound(inputs), [v.name for v in self.graph.outputs]
        return lambda: self.session.run(names, given)

    def _read(self, name: str) -> Any:
        own = name.removesuffix(GRADIENT)
        if self.module is None:
            return self.graph.initializers[own]
        parameter = self.state.parameters[own]
        if own == name:
            return parameter.data
        grad = parameter.grad
        return np.zeros_like(parameter.data) if grad is None else grad

    def _write(self, name: str, value: Any) -> None:
        if self.module is not None and name in self._names:
            self.state.parameters[name] = value
            return
        self.teardown()  # weights are part of the session
        self.graph.initializers[name] = value
