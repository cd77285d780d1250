# SPDX-License-Identifier: Apache-2.0
"""DCGAN: one network learns to paint discs, another to tell them from real ones.

    python examples/programs/dcgan.py [--mode coexecute] [--steps 100] [--size paper]

Two networks and two solvers in one step; what the first paints is used twice, once cut off from it.
The loss is that of the second network. Source: Radford, Metz and Chintala, arXiv:1511.06434.

Expected, with --mode coexecute:

    loss 1.0886 after 10 steps, 0.2563 after 100
"""

import numpy as np
from common import main

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl.models import dcgan_discriminator, dcgan_generator

PIXELS, COLORS = 64, 1
# batch, numbers of noise, channels of the layers with the largest maps
SIZES = {"small": (4, 16, 4), "paper": (500, 100, 64)}


def discs(rng, batch):
    """Endless batches of bright discs on dark ground, (B, 1, 64, 64) in [-1, 1]."""
    y, x = np.mgrid[:PIXELS, :PIXELS]
    while True:
        row, column = rng.uniform(24, 40, (2, batch, 1, 1, 1))
        radius = rng.uniform(8, 20, (batch, 1, 1, 1))
        distance = np.hypot(y - row, x - column)
        yield (np.tanh(radius - distance).astype(np.float32),)


def loss_of(scores, real):
    """Mean cross entropy of scores, where all images are real or none is."""
    return F.mean(F.sigmoid_cross_entropy(scores, F.constant(real, scores.shape)))


class Program:
    unit = "images"

    def __init__(self, size):
        self.items, self.noise, self.channels = SIZES[size]
        self.discriminate(self.generate())  # makes the parameters
        self.generator, self.discriminator = S.Adam(2e-4, beta1=0.5), S.Adam(2e-4, beta1=0.5)
        for name in ("generator", "discriminator"):
            with nn.parameter_scope(name):
                getattr(self, name).set_parameters(nn.get_parameters())
        self.generator_losses = []

    def batches(self, rng):
        return discs(rng, self.items)

    def generate(self):
        with nn.parameter_scope("generator"):
            return dcgan_generator(F.randn(shape=(self.items, self.noise)), self.channels, COLORS)

    def discriminate(self, images):
        with nn.parameter_scope("discriminator"):
            return dcgan_discriminator(images, self.channels)

    def step(self, images):
        painted = self.generate()

        real = self.discriminate(nn.Variable.from_numpy_array(images))
        fake = self.discriminate(painted.unlinked())
        loss = loss_of(real, 1) + loss_of(fake, 0)
        self.discriminator.zero_grad()
        loss.backward()
        self.discriminator.update()

        deceived = loss_of(self.discriminate(painted), 1)
        self.generator.zero_grad()
        deceived.backward()
        self.generator.update()
        self.generator_losses.append(deceived.unlinked())
        return loss


if __name__ == "__main__":
    main(Program)
