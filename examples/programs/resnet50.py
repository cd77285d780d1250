# SPDX-License-Identifier: Apache-2.0
"""ResNet-50 learns to tell pictures of a few patterns apart.

    python examples/programs/resnet50.py [--mode coexecute] [--steps 100] [--size paper]

Modules with state, batch normalisation, momentum, weight decay, and a learning rate that is another
number in every step. Source: He et al., arXiv:1512.03385.

Expected, with --mode coexecute:

    loss 1.8314 after 10 steps, 0.0020 after 100
"""

import numpy as np
from common import main

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
import nnl.solvers as S
from nnl.models.convolution import conv_bn

BLOCKS = (3, 4, 6, 3)
# batch, height and width, channels of the stem, classes, learning rate
SIZES = {"small": (8, 48, 8, 4, 0.003), "paper": (64, 224, 64, 1000, 0.025)}
WARM_UP = 20  # steps that the learning rate rises for


class Bottleneck(nn.Module):
    """relu(shortcut(x) + three convolutions of x)."""

    def __init__(self, inner, stride):
        self.inner, self.outer, self.stride = inner, 4 * inner, stride

    def call(self, x):
        test = not self.training
        h = conv_bn(x, self.inner, 1, "conv1", test)
        h = conv_bn(h, self.inner, 3, "conv2", test, self.stride)
        h = conv_bn(h, self.outer, 1, "conv3", test, activation=None)
        if x.shape[1] != self.outer:
            x = conv_bn(x, self.outer, 1, "shortcut", test, self.stride, activation=None)
        return F.relu(h + x)


class ResNet50(nn.Module):
    """Sixteen blocks in four stages."""

    def __init__(self, channels, classes):
        self.channels, self.classes = channels, classes
        for stage, n in enumerate(BLOCKS, 1):
            for i in range(n):
                stride = 2 if i == 0 and stage > 1 else 1
                block = self.block(stage, channels * 2 ** (stage - 1), stride)
                setattr(self, f"stage{stage}_block{i + 1}", block)

    def block(self, stage, inner, stride):
        return Bottleneck(inner, stride)

    def call(self, x):
        h = conv_bn(x, self.channels, 7, "stem", not self.training, stride=2)
        h = F.max_pooling(h, (3, 3), stride=(2, 2), pad=(1, 1))
        for block in self.submodules.values():
            h = block(h)
        return PF.affine(F.mean(h, axis=(2, 3)), self.classes, name="classifier")


def pictures(rng, batch, size, classes):
    """Endless batches of noise over one pattern per class, and the classes."""
    patterns = rng.normal(size=(classes, 3, 8, 8)).repeat(size // 8, 2).repeat(size // 8, 3)
    while True:
        label = rng.integers(0, classes, (batch, 1))
        noise = rng.standard_normal((batch, 3, size, size), np.float32)
        yield patterns[label[:, 0]].astype(np.float32) + noise, label


class Program:
    unit = "images"
    network = ResNet50

    def __init__(self, size):
        self.items, self.pixels, channels, self.classes, self.peak_rate = SIZES[size]
        self.net = self.network(channels, self.classes)
        self.net(nn.Variable((self.items, 3, self.pixels, self.pixels)))  # makes the parameters
        self.solver = S.Momentum(self.peak_rate, 0.9)
        self.solver.set_parameters(self.net.get_parameters())
        self.steps_done = 0

    def batches(self, rng):
        return pictures(rng, self.items, self.pixels, self.classes)

    def step(self, image, label):
        self.steps_done += 1
        x = nn.Variable.from_numpy_array(image)
        t = nn.Variable.from_numpy_array(label)
        loss = F.mean(F.softmax_cross_entropy(self.net(x), t))
        self.solver.zero_grad()
        loss.backward()
        self.solver.set_learning_rate(self.peak_rate * min(1, self.steps_done / WARM_UP))
        self.solver.weight_decay(1e-4)
        self.solver.update()
        return loss


if __name__ == "__main__":
    main(Program)
