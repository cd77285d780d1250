# SPDX-License-Identifier: Apache-2.0
"""StyleGAN2 with adaptive augmentation: digits from styles.

    python examples/generative/stylegan2.py train [--data DIR]
    python examples/generative/stylegan2.py sample --mix 1          styles of rows and of columns
    python examples/generative/stylegan2.py sample --interpolate 1 --truncation 0.7

The non-saturating loss, R1 in every 16th step and the lengths of paths in every 8th, as in the
paper; styles of two noises are mixed in most images. What the discriminator sees is augmented, more
where it is too sure of real images. --size paper is config F at 256 x 256, for a folder.
Source: Karras et al., arXiv:1912.04958, arXiv:2006.06676. Expected (features.py says what FID is
measured with):

    {"seconds": 671, "FID": 20.49, "precision": 0.59, "recall": 0.3, "augmentation": 0.08}
"""

import numpy as np
from common import adams, average_over, learn, main, pixels
from features import scores
from pictures import digits, folder

import nnl as nn
import nnl.functions as F
from nnl.models.generative import (
    StyleGAN2,
    stylegan2_discriminator,
    stylegan2_mapping,
    stylegan2_synthesis,
)
from nnl.training.generative import (
    AdaptiveAugmentation,
    adversarial_losses,
    augmented,
    path_length,
    r1_penalty,
)

R1_EVERY, PATH_EVERY = 16, 8
MIXED = 0.9  # share of images of two styles
SMALL = StyleGAN2(8, 32, 2, base=256, most=32, colors=1)


class StyleGAN:
    """Mapping and synthesis, and a discriminator."""

    SIZES = {
        "tiny": {"network": StyleGAN2(8, 16, 2, 64, 16, 1), "batch": 8, "r1": 1.0, "steps": 40},
        "small": {"network": SMALL, "batch": 32, "r1": 0.5, "steps": 1500},
        "paper": {"network": StyleGAN2(256, base=16384), "batch": 64, "r1": 1.0, "steps": 400_000},
    }
    OPTIONS = {"truncation": float, "interpolate": int, "mix": int}
    averaged = ("generator",)

    def __init__(self, size, data=None):
        self.size, self.config = size, size["network"]
        n = self.config.resolution
        if self.config.colors == 1:
            self.images = digits(n)[0]
        elif data is None:
            raise ValueError("--size paper wants --data, a folder of pictures")
        else:
            self.images = folder(data, n)
        self.augmentation = AdaptiveAugmentation(images=100e3 if n <= 16 else 500e3)
        self.probability, self.mean = nn.Variable(()), nn.Variable((1,))
        batch = size["batch"]
        z = nn.Variable((batch, self.config.latent))
        self.judge(self.synthesize(self.styles(z)))
        with nn.parameter_scope("generator"):
            self.center = nn.get_parameters(grad_only=False)["mapping/w_avg"]
        adam = {"alpha": 2e-3, "beta1": 0.0, "beta2": 0.99}
        self.solvers = adams(generator=adam, discriminator=adam)

        def made(z, cut):
            """Images of two noises each: one for the layers before the cut, one for the others."""
            w = [self.styles(v) for v in (z[:batch], z[batch:])]
            return w[0] * cut + w[1] * (1.0 - cut)

        def judged(x):
            return self.judge(augmented(x, self.probability))

        @nn.compile
        def discriminate(x, z, cut):
            fake, real = judged(F.unlink(self.synthesize(made(z, cut)))), judged(x)
            loss = adversarial_losses("logistic", fake, real)
            learn(self.solvers["discriminator"], loss)
            return loss, real

        @nn.compile
        def penalise(x):
            x.need_grad = True
            penalty = r1_penalty(judged(x), x)
            learn(self.solvers["discriminator"], penalty * (size["r1"] / 2 * R1_EVERY))
            return penalty

        @nn.compile
        def generate(z, cut):
            loss = adversarial_losses("logistic", judged(self.synthesize(made(z, cut))))
            learn(self.solvers["generator"], loss)
            return loss

        @nn.compile
        def straighten(z):
            w = self.styles(z)
            penalty = path_length(self.synthesize(w), w, self.mean)
            learn(self.solvers["generator"], penalty * (2.0 * PATH_EVERY))
            return penalty

        self._steps = discriminate, penalise, generate, straighten
        self._styles = nn.compile(self.styles)
        self._synthesize = nn.compile(lambda w: self.synthesize(w, "const"))

    def styles(self, z):
        with nn.parameter_scope("generator"):
            return stylegan2_mapping(z, self.config)

    def synthesize(self, w, noise="random"):
        with nn.parameter_scope("generator"):
            return stylegan2_synthesis(w, self.config, noise)

    def judge(self, x):
        with nn.parameter_scope("discriminator"):
            return stylegan2_discriminator(x, self.config)

    def batch(self, rng):
        n, layers = self.size["batch"], self.config.styles
        cut = np.where(rng.random(n) < MIXED, rng.integers(1, layers, n), layers)
        before = (np.arange(layers) < cut[:, None]).astype(np.float32)[:, :, None]
        z = rng.normal(size=(2, 2 * n, self.config.latent)).astype(np.float32)
        return [self.images[rng.integers(len(self.images), size=n)], *z, before]

    def step(self, x, z, other, cut):
        discriminate, penalise, generate, straighten = self._steps
        x, z, other, cut = map(pixels, (x, z, other, cut))
        self.probability.d = self.augmentation.probability
        loss, real = discriminate(x, z, cut)
        self.augmentation.update(real.d)
        found = {"D": loss, "G": generate(other, cut)}
        if self.done % R1_EVERY == R1_EVERY - 1:
            found["R1"] = penalise(x)
        if self.done % PATH_EVERY == PATH_EVERY - 1:
            found["path"] = straighten(pixels(z.d[: max(self.size["batch"] // 2, 1)]))
        w = self._styles(z).d[:, 0].mean(0)  # the mean of styles, for truncation
        self.center.d = self.center.d + (w - self.center.d) * 0.005
        return found

    def state(self):
        return self.augmentation.probability, float(self.mean.d[0])

    def resume(self, state):
        self.augmentation.probability, self.mean.d = state

    def sample(self, count, seed, truncation=1.0, interpolate=0, mix=0):
        rng = np.random.default_rng(seed)
        z = rng.normal(size=(count, self.config.latent)).astype(np.float32)
        n = min(self.size["batch"], count)
        w = average_over(z, n, lambda part: self._styles(pixels(part)).d.copy())
        w = self.center.d + truncation * (w - self.center.d)
        if interpolate:
            t = np.linspace(0, 1, count)[:, None, None]
            w = (1 - t) * w[:1] + t * w[1:2]
        if mix:  # coarse layers of the row's image, fine ones of the column's
            side = int(np.sqrt(count))
            row, column = np.divmod(np.arange(count), side)
            coarse = np.arange(self.config.styles)[:, None] < self.config.styles // 2
            w = np.where(coarse, w[row % count], w[column])
        w = w.astype(np.float32)
        return average_over(w, n, lambda part: self._synthesize(pixels(part)).d.copy())

    def measure(self):
        if self.config.colors != 1:
            return {}
        return scores(self.sample(320, 1)) | {"augmentation": self.augmentation.probability}

    def network(self):
        compiled = nn.compile(lambda z: self.synthesize(self.styles(z), "const"))
        compiled(nn.Variable((1, self.config.latent)))
        return compiled


if __name__ == "__main__":
    main(StyleGAN)
