# SPDX-License-Identifier: Apache-2.0
"""ResNet-50 with DropBlock, which drops more and more squares of its feature maps.

    python examples/programs/dropblock.py [--mode coexecute] [--steps 100] [--size paper]

The share that is kept is an attribute of the layers, a plain number that the trainer sets anew in
every step. Source: Ghiasi, Lin and Le, arXiv:1810.12890.

Expected, with --mode coexecute:

    loss 1.7741 after 10 steps, 0.0032 after 100
"""

import resnet50
from common import main

import nnl as nn
import nnl.functions as F


class DropBlock(nn.Module):
    """Sets squares of every channel to 0 and scales up what is left; algorithm 1 of the paper."""

    def __init__(self, block_size=3):
        self.block_size = block_size
        self.keep_prob = 1.0

    def set_keep_prob(self, keep_prob):
        self.keep_prob = keep_prob

    def call(self, x):
        if not self.training:
            return x
        batch, channels, height, width = x.shape
        side = min(self.block_size, height, width)
        # where the upper left corner of a square may be
        rows, columns = height - side + 1, width - side + 1
        gamma = (1 - self.keep_prob) / side**2 * (height * width) / (rows * columns)
        corners = F.less_scalar(F.rand(shape=(batch, channels, rows, columns)), gamma)
        pad = (side - 1, side - 1)
        keep = 1 - F.max_pooling(corners, (side, side), stride=(1, 1), pad=pad)
        return x * keep / F.mean(keep, keepdims=True)


class DropBottleneck(resnet50.Bottleneck):
    def __init__(self, inner, stride):
        super().__init__(inner, stride)
        self.drop = DropBlock()

    def call(self, x):
        return self.drop(super().call(x))


class DropResNet50(resnet50.ResNet50):
    """DropBlock after each block of the last two stages."""

    def block(self, stage, inner, stride):
        return (DropBottleneck if stage >= 3 else resnet50.Bottleneck)(inner, stride)

    def set_keep_prob(self, keep_prob):
        for block in self.submodules.values():
            if isinstance(block, DropBottleneck):
                block.drop.set_keep_prob(keep_prob)


class Program(resnet50.Program):
    network = DropResNet50
    last_keep_prob, fall = 0.9, 1000  # and the steps until it is reached

    def step(self, image, label):
        done = min(1, self.steps_done / self.fall)
        self.net.set_keep_prob(1 - done * (1 - self.last_keep_prob))
        return super().step(image, label)


if __name__ == "__main__":
    main(Program)
