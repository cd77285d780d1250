# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime: it reads ONNX itself, so the writer of the typed view takes the visitor's place."""

from __future__ import annotations

import os
from typing import Any

import onnxruntime

from nnl.converters.onnx.errors import UnsupportedOperator
from nnl.converters.onnx.writer import write
from nnl.deep500.contract import Network, listed
from nnl.deep500.execution import Values
from nnl.deep500.operation import Operation


class OnnxRuntimeNetwork(Network):
    """A model on ONNX Runtime, inference only.

    Args:
        device: "cpu", or "cuda" with the package onnxruntime-gpu.
    """

    backend, package, trains = "onnxruntime", "onnxruntime", False

    def missing(self) -> list[str]:
        return listed([n for n in self.graph.walk() if isinstance(n, Operation)])

    def _build(self) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        threads = os.environ.get("OMP_NUM_THREADS")
        if threads:
            options.intra_op_num_threads = int(threads)
        name = "CUDAExecutionProvider" if self.device == "cuda" else "CPUExecutionProvider"
        try:
            self.session = onnxruntime.InferenceSession(write(self.model), options, [name])
        except Exception as error:  # its errors have no common class but this one
            raise UnsupportedOperator(f"onnxruntime refuses the model: {error}") from error

    def _release(self) -> None:
        self.session = None

    def _infer(self, inputs: Values) -> dict[str, Any]:
        names = [v.name for v in self.graph.outputs]
        return dict(zip(names, self.session.run(names, inputs), strict=True))

    def plain_inference(self, inputs: Any) -> Any:
        self.setup()
        given, names = self._bound(inputs), [v.name for v in self.graph.outputs]
        return lambda: self.session.run(names, given)

    def _write(self, name: str, value: Any) -> None:
        self.graph.initializers[name] = value
        self._ready = False  # weights are part of the session
