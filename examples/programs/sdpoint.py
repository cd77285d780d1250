# SPDX-License-Identifier: Apache-2.0
"""ResNet-50 with stochastic downsampling: each step is cheaper from another block on, or from none.

    python examples/programs/sdpoint.py [--mode coexecute] [--steps 100] [--size paper]

Python draws the block; the step writes to attributes of all blocks, and each of them branches on
its own. Source: Kuen et al., Stochastic Downsampling for Cost-Adjustable Inference and Improved
Regularization in Convolutional Networks, arXiv:1801.11335.

Expected, with --mode coexecute:

    loss 3.8353 after 10 steps, 0.5254 after 100
"""

import random

import resnet50
from common import main

import nnl.functions as F

POINTS = ("stage1_block3", "stage2_block4", None)
RATIO = 0.5


class SDBlock(resnet50.Bottleneck):
    downsampling_ratio = 1.0

    def call(self, x):
        h = super().call(x)
        if self.downsampling_ratio < 1:
            ratio = (self.downsampling_ratio, self.downsampling_ratio)
            h = F.interpolate(h, scale=ratio, mode="linear", align_corners=False)
        return h


class SDResNet50(resnet50.ResNet50):
    def block(self, stage, inner, stride):
        return SDBlock(inner, stride)

    def stochastic_downsampling(self, point, ratio=None):
        """Let the feature maps shrink behind one block, and behind no other."""
        for name, block in self.submodules.items():
            if name == point:
                block.downsampling_ratio = RATIO if ratio is None else ratio
            else:
                block.downsampling_ratio = 1.0


class Program(resnet50.Program):
    network = SDResNet50

    def __init__(self, size):
        super().__init__(size)
        self.random = random.Random(1)

    def step(self, image, label):
        self.net.stochastic_downsampling(self.random.choice(POINTS))
        return super().step(image, label)


if __name__ == "__main__":
    main(Program)
