# SPDX-License-Identifier: Apache-2.0
"""OpenVINO: it reads ONNX itself, so the writer of the typed view takes the visitor's place."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import openvino

from nnl.converters.onnx.file.errors import UnsupportedOperator
from nnl.converters.onnx.file.writer import write
from nnl.deep500.contract import Network, listed
from nnl.deep500.execution import Values
from nnl.deep500.operation import Operation


class OpenVinoNetwork(Network):
    """A model on OpenVINO, inference only.

    Args:
        device: "cpu", or "gpu" for Intel's.
    """

    backend, package, trains = "openvino", "openvino", False

    def missing(self) -> list[str]:
        return listed([n for n in self.graph.walk() if isinstance(n, Operation)])

    def _build(self) -> None:
        core = openvino.Core()
        settings = {"INFERENCE_PRECISION_HINT": "f32"}
        threads = os.environ.get("OMP_NUM_THREADS")
        if threads:
            settings["INFERENCE_NUM_THREADS"] = threads
        try:
            model = core.read_model(write(self.model))
            self.compiled = core.compile_model(model, (self.device or "cpu").upper(), settings)
        except RuntimeError as error:
            raise UnsupportedOperator(f"openvino refuses the model: {error}") from error
        self.names = [v.name for v in self.graph.inputs]

    def _release(self) -> None:
        self.compiled = None

    def _infer(self, inputs: Values) -> dict[str, Any]:
        outs = self.compiled([inputs[n] for n in self.names])
        found = {}
        for i, info in enumerate(self.graph.outputs):
            y = np.array(outs[i])
            found[info.name] = y if info.dtype is None else y.astype(info.dtype, copy=False)
        return found

    def plain_inference(self, inputs: Any) -> Any:
        self.setup()
        given = self._bound(inputs)
        return lambda: [np.array(y) for y in self.compiled([given[n] for n in self.names]).values()]

    def _write(self, name: str, value: Any) -> None:
        self.graph.initializers[name] = value
        self._ready = False  # weights are part of the compiled model
