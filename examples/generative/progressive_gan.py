# SPDX-License-Identifier: Apache-2.0
"""Progressive GAN: digits of 4 x 4 pixels, then of 8 x 8, by networks that grow.

    python examples/generative/progressive_gan.py train
    python examples/generative/progressive_gan.py sample --interpolate 1

Each size has a phase in which its new layers fade in, and one in which they stay. The loss of
Wasserstein with a gradient penalty, and a small one that keeps scores of real images near 0.
--size paper goes up to 1024 x 1024 with 23.1 million parameters on each side, for a folder.
Source: Karras et al., arXiv:1710.10196. Expected (features.py says what FID is measured with):

    {"steps": 800, "seconds": 54, "FID": 8.71, "precision": 0.68, "recall": 0.63}
"""

import numpy as np
from common import adams, average_over, learn, main, pixels
from features import scores
from pictures import digits, folder

import nnl as nn
import nnl.functions as F
from nnl.models.generative import progressive_discriminator, progressive_generator
from nnl.training.generative import adversarial_losses, gradient_penalty


class ProgressiveGAN:
    """Two networks, of a size that grows with the steps."""

    SIZES = {
        "tiny": {"pixels": 8, "latent": 16, "base": 64, "most": 16, "batch": 8, "steps": 200},
        "small": {"pixels": 8, "latent": 32, "base": 128, "most": 32, "batch": 16, "steps": 800},
        "paper": {
            "pixels": 1024, "latent": 512, "base": 8192, "most": 512, "batch": 16,
            "steps": 750_000,
        },
    }  # fmt: skip
    OPTIONS = {"interpolate": int}
    averaged = ("generator",)

    def __init__(self, size, data=None):
        self.size, self.fade = size, nn.Variable((1,))
        n = size["pixels"]
        self.images = digits(n)[0] if data is None else folder(data, n)
        self.colors = self.images.shape[1]
        self.sizes = [2**i for i in range(2, n.bit_length())]
        z = nn.Variable((size["batch"], size["latent"]))
        for of in self.sizes:  # makes the parameters of all sizes
            self.judge(self.generate(z, of))
        adam = {"alpha": 1e-3, "beta1": 0.0, "beta2": 0.99}
        self.solvers = adams(generator=adam, discriminator=adam)

        @nn.compile
        def step(x, z, other):
            of = x.shape[2]
            fake = F.unlink(self.generate(z, of))
            real, made = self.judge(x), self.judge(fake)
            loss = adversarial_losses("wasserstein", made, real)
            penalty = gradient_penalty(self.judge, x, fake)
            drift = 1e-3 * F.mean(real * real)
            learn(self.solvers["discriminator"], loss + 10.0 * penalty + drift)
            fooled = adversarial_losses("wasserstein", self.judge(self.generate(other, of)))
            learn(self.solvers["generator"], fooled)
            return loss, penalty

        self._step, self._generate = step, nn.compile(lambda z: self.generate(z, n, False))

    def generate(self, z, of, fading=True):
        fade = self.fade if fading else None
        with nn.parameter_scope("generator"):
            sizes = self.size["base"], self.size["most"], self.colors
            return progressive_generator(z, of, fade, *sizes)

    def judge(self, x):
        with nn.parameter_scope("discriminator"):
            fade = self.fade if x.shape[2] > 4 else None
            return progressive_discriminator(x, fade, self.size["base"], self.size["most"])

    def phase(self):
        """The size of images now, and the share of its newest layers."""
        at = (2 * len(self.sizes) - 1) * min(self.done / self.size["steps"], 1 - 1e-9)
        number = int(at + 1) // 2
        return self.sizes[number], min(2 * (at - max(2 * number - 1, 0)), 1) if number else 1.0

    def batch(self, rng):
        n, (of, share) = self.size["batch"], self.phase()
        x = halved(self.images[rng.integers(len(self.images), size=n)], of)
        if share < 1:  # real images fade as well
            old = halved(x, of // 2).repeat(2, 2).repeat(2, 3)
            x = (old + share * (x - old)).astype(np.float32)
        z = rng.normal(size=(2, n, self.size["latent"])).astype(np.float32)
        return [x, *z]

    def step(self, *arrays):
        self.fade.d = self.phase()[1]
        found = self._step(*map(pixels, arrays))
        return dict(zip(("loss", "penalty"), found, strict=True))

    def sample(self, count, seed, interpolate=0):
        rng = np.random.default_rng(seed)
        z = rng.normal(size=(count, self.size["latent"])).astype(np.float32)
        if interpolate:
            t = np.linspace(0, np.pi / 2, count)[:, None]
            z = (np.cos(t) * z[:1] + np.sin(t) * z[1:2]).astype(np.float32)
        n = min(self.size["batch"], count)
        return average_over(z, n, lambda part: self._generate(pixels(part)).d.copy())

    def measure(self):
        return scores(self.sample(320, 1)) if self.colors == 1 else {}

    def network(self):
        compiled = nn.compile(lambda z: self.generate(z, self.size["pixels"], False))
        compiled(nn.Variable((1, self.size["latent"])))
        return compiled


def halved(images, size):
    """Means of pixels, until images have the size."""
    while images.shape[-1] > size:
        n, c, h, w = images.shape
        images = images.reshape(n, c, h // 2, 2, w // 2, 2).mean((3, 5))
    return images


if __name__ == "__main__":
    main(ProgressiveGAN)
