# SPDX-License-Identifier: Apache-2.0
"""Small models as typed views."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnl.converters.onnx.file import operators as O
from nnl.converters.onnx.file.model import Graph, Model, ValueInfo

F32 = np.dtype(np.float32)
OPSET = 20


def value(name: str, *shape: Any) -> ValueInfo:
    return ValueInfo(name, dtype=F32, shape=shape)


def op(name: str) -> Any:
    return O.operator_class(name, OPSET)


def model(nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: Any) -> Model:
    return Model(
        Graph("net", nodes, inputs, outputs, weights), {"": OPSET, "user": 1}, ir_version=9
    )


def lenet(seed: int = 0) -> Model:
    """Convolution, pooling and two affine layers for images of 8 by 8, with inputs x."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> Any:
        fan = np.prod(shape[1:]) if len(shape) > 1 else 100
        return (rng.normal(size=shape) / np.sqrt(fan)).astype(F32)

    nodes = [
        op("Conv")("x", "conv/w", "conv/b", outputs="a", kernel_shape=(3, 3), pads=(1, 1, 1, 1)),
        op("Relu")("a", outputs="b"),
        op("MaxPool")("b", outputs="c", kernel_shape=(2, 2), strides=(2, 2)),
        op("Flatten")("c", outputs="d"),
        op("Gemm")("d", "hidden/w", "hidden/b", outputs="e", transB=1),
        op("Tanh")("e", outputs="f"),
        op("Gemm")("f", "last/w", "last/b", outputs="scores", transB=1),
    ]
    weights = {"conv/w": draw(6, 1, 3, 3), "conv/b": draw(6), "hidden/w": draw(32, 96)}
    weights |= {"hidden/b": draw(32), "last/w": draw(10, 32), "last/b": draw(10)}
    return model(nodes, [value("x", "N", 1, 8, 8)], [value("scores", "N", 10)], weights)


def linear(seed: int = 0) -> Model:
    """y = x w + b, for three numbers."""
    w = np.random.default_rng(seed).normal(size=(3, 2)).astype(F32)
    nodes = [op("MatMul")("x", "w", outputs="h"), op("Add")("h", "b", outputs="y")]
    weights = {"w": w, "b": np.zeros(2, F32)}
    return model(nodes, [value("x", "N", 3)], [value("y", "N", 2)], weights)


def digits(n: int, seed: int = 0) -> dict[str, Any]:
    """A batch for lenet()."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 1, 8, 8)).astype(F32)
    return {"x": x, "label": rng.integers(0, 10, n)}
