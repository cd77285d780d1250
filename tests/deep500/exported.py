# SPDX-License-Identifier: Apache-2.0
"""LeNet and ResNet-18 as PyTorch writes them for training; loss curves, also without PyTorch.

python -m tests.deep500.exported BACKEND MODEL.onnx RATE        prints the losses
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import nnl.deep500 as d5
from nnl.deep500.optimizers import optimizer

STEPS = 8


def curve(path: str, backend: str, lr: float) -> list[float]:
    """Losses of some steps with momentum, each on a batch of its own."""
    net = d5.network(path, backend)
    net.add_loss()
    train = optimizer("momentum", net, lr=lr, momentum=0.5)
    (x,) = [v for v in net.graph.inputs if v.name != "label"]
    rng = np.random.default_rng(0)
    losses = []
    for _ in range(STEPS):
        batch = {x.name: rng.normal(size=(8, *x.shape[1:])), "label": rng.integers(0, 10, 8)}
        losses.append(float(train.train(batch)["loss"]))
    return losses


def lenet() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 16, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(16, 16, 5), nn.MaxPool2d(2),
        nn.ReLU(), nn.Flatten(), nn.Linear(256, 50), nn.ReLU(), nn.Linear(50, 10),
    )  # fmt: skip


def resnet18() -> Any:
    """He et al. 2015, table 1, for pictures of 32 by 32: no first pooling."""
    from torch import nn

    class Block(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(),
                nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
                nn.BatchNorm2d(outputs),
            )
            self.short = nn.Sequential()
            if stride != 1 or inputs != outputs:
                self.short = nn.Sequential(
                    nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
                )

        def forward(self, x: Any) -> Any:
            return nn.functional.relu(self.body(x) + self.short(x))

    layers: list[Any] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    width = 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(width, outputs, stride), Block(outputs, outputs, 1)]
        width = outputs
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)]
    return nn.Sequential(*layers)


# maker, shape of inputs, learning rate: with a larger one ResNet-18 on noise is chaotic, and sums
# in another order become other losses within few steps
MODELS = {
    "lenet": (lenet, (2, 1, 28, 28), 0.02),
    "resnet18": (resnet18, (2, 3, 32, 32), 0.001),
}


def write(name: str, path: str) -> None:
    """Let PyTorch write a model for training: batch normalisation keeps its statistics apart."""
    import torch

    make, shape, _ = MODELS[name]
    torch.manual_seed(0)
    torch.onnx.export(
        make().train(),
        (torch.randn(shape),),
        path,
        training=torch.onnx.TrainingMode.TRAINING,
        do_constant_folding=False,
        input_names=["x"],
        output_names=["scores"],
        dynamic_axes={"x": {0: "n"}, "scores": {0: "n"}},
        opset_version=17,
        dynamo=False,
    )


if __name__ == "__main__":
    print(*curve(sys.argv[2], sys.argv[1], float(sys.argv[3])))
