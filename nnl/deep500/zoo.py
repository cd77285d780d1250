# SPDX-License-Identifier: Apache-2.0
"""Small networks as typed models, and data for them that is made or ships with a package."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnl.converters.onnx.file.model import Graph, Model, ValueInfo
from nnl.converters.onnx.file.operators import operator_class

OPSET = 20
_FLOAT = np.dtype(np.float32)


class _Builder:
    """A graph that grows by one layer per call, with He's initial weights."""

    def __init__(self, shape: tuple[int, ...], seed: int) -> None:
        self.rng, self.nodes, self.weights = np.random.default_rng(seed), [], {}  # type: ignore[var-annotated]
        self.shape, self.value, self.count = shape, "x", 0

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        self.count += 1
        made = f"{kind.lower()}{self.count}"
        op = operator_class(kind, OPSET)
        self.nodes.append(op(*inputs, outputs=made, name=made, **attributes))
        return made

    def weight(self, name: str, shape: tuple[int, ...], scale: float | None = None) -> str:
        fan = int(np.prod(shape[1:]))
        scale = np.sqrt(2 / fan) if scale is None else scale
        self.weights[name] = (self.rng.normal(size=shape) * scale).astype(_FLOAT)
        return name

    def conv(self, x: str, channels: tuple[int, int], kernel: int, stride: int = 1) -> str:
        key = f"conv{self.count + 1}"
        w = self.weight(f"{key}/w", (channels[1], channels[0], kernel, kernel))
        pads, strides = (kernel // 2,) * 4, (stride, stride)
        return self.node("Conv", x, w, kernel_shape=(kernel,) * 2, pads=pads, strides=strides)

    def norm(self, x: str, channels: int) -> str:
        key = f"norm{self.count + 1}"
        values = {"scale": np.ones, "bias": np.zeros, "mean": np.zeros, "var": np.ones}
        for name, make in values.items():
            self.weights[f"{key}/{name}"] = make(channels, _FLOAT)
        return self.node("BatchNormalization", x, *[f"{key}/{n}" for n in values], training_mode=1)

    def affine(self, x: str, sizes: tuple[int, int]) -> str:
        key = f"affine{self.count + 1}"
        w = self.weight(f"{key}/w", (sizes[1], sizes[0]), 1 / np.sqrt(sizes[0]))
        self.weights[f"{key}/b"] = np.zeros(sizes[1], _FLOAT)
        return self.node("Gemm", x, w, f"{key}/b", transB=1)

    def model(self, scores: str, classes: int) -> Model:
        self.nodes.append(operator_class("Identity", OPSET)(scores, outputs="scores"))
        inputs = [ValueInfo("x", dtype=_FLOAT, shape=("N", *self.shape))]
        outputs = [ValueInfo("scores", dtype=_FLOAT, shape=("N", classes))]
        graph = Graph("net", self.nodes, inputs, outputs, self.weights)
        return Model(graph, {"": OPSET}, ir_version=9)


def lenet(shape: tuple[int, int, int] = (1, 8, 8), classes: int = 10, seed: int = 0) -> Model:
    """Two convolutions with pooling and two affine layers."""
    b = _Builder(shape, seed)
    h = "x"
    channels, height, width = shape
    for out in (16, 32):
        h = b.node("Relu", b.conv(h, (channels, out), 3))
        h = b.node("MaxPool", h, kernel_shape=(2, 2), strides=(2, 2))
        channels, height, width = out, height // 2, width // 2
    h = b.node("Relu", b.affine(b.node("Flatten", h), (channels * height * width, 64)))
    return b.model(b.affine(h, (64, classes)), classes)


def resnet(
    shape: tuple[int, int, int] = (3, 32, 32),
    classes: int = 10,
    blocks: tuple[int, ...] = (1, 1, 1),
    width: int = 16,
    seed: int = 0,
) -> Model:
    """A residual network for small images: blocks of two convolutions, halved from stage to stage.

    Batch normalisation takes the statistics of the batch, also in tests.
    """
    b = _Builder(shape, seed)
    h = b.node("Relu", b.norm(b.conv("x", (shape[0], width), 3), width))
    channels = width
    for stage, count in enumerate(blocks):
        for i in range(count):
            out, stride = width * 2**stage, 2 if stage and not i else 1
            short = h
            h = b.node("Relu", b.norm(b.conv(h, (channels, out), 3, stride), out))
            h = b.norm(b.conv(h, (out, out), 3), out)
            if channels != out:
                short = b.norm(b.conv(short, (channels, out), 1, stride), out)
            h = b.node("Relu", b.node("Add", h, short))
            channels = out
    h = b.node("Flatten", b.node("GlobalAveragePool", h))
    return b.model(b.affine(h, (channels, classes)), classes)


MODELS = {"lenet": lenet, "resnet": resnet}


def digits() -> dict[str, Any]:
    """1,797 handwritten digits of 8 by 8, from scikit-learn's package.

    Raises:
        ModuleNotFoundError: It is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("digits need scikit-learn: pip install scikit-learn") from error
    images, label = load_digits(return_X_y=True)
    x = (images.reshape(-1, 1, 8, 8) / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(x))
    return {"x": x[order], "label": label[order].astype(np.int64)}


def pictures(n: int = 2000, classes: int = 10, seed: int = 0) -> dict[str, Any]:
    """Pictures of CIFAR's shape, drawn: gratings whose direction and colour tell the class, at
    random places and sizes and in noise."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, classes, n)
    v, u = np.mgrid[-1:1:32j, -1:1:32j]
    angle = (label % 5) * np.pi / 5 + rng.normal(0, 0.12, n)
    frequency, phase = rng.uniform(6, 10, n), rng.uniform(0, 2 * np.pi, n)
    along = np.cos(angle)[:, None, None] * u + np.sin(angle)[:, None, None] * v
    wave = np.sin(along * frequency[:, None, None] + phase[:, None, None])
    colour = np.where(label[:, None] < 5, [1.0, 0.6, 0.3], [0.3, 0.6, 1.0])
    colour = colour + rng.normal(0, 0.25, (n, 3))
    x = wave[:, None] * colour[:, :, None, None] + rng.normal(0, 0.6, (n, 3, 32, 32))
    return {"x": x.astype(np.float32), "label": label.astype(np.int64)}


DATA = {"digits": digits, "pictures": pictures}
