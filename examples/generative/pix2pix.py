# SPDX-License-Identifier: Apache-2.0
"""pix2pix: photographs from their edges.

    python examples/generative/pix2pix.py train [--data DIR]
    python examples/generative/pix2pix.py sample    edges, what is made of them, photographs

A U-Net makes an image of another one, near to the true one (L1, 100 times) and such that a
discriminator of patches, which sees both, takes it for real. --data has folders `a` and `b` with
pictures of the same names, from a to b; else edges and crops of photographs.
Source: Isola et al., arXiv:1611.07004; but samples are normalised by running statistics, as the
files of `export` are, and not by those of the batch. Expected, of the quarter of each photograph
that training never saw, of --steps 400 (grey alone has a PSNR of 11.0):

    {"steps": 400, "seconds": 35, "PSNR": 14.41, "SSIM": 0.17}
"""

import numpy as np
from common import adams, learn, main, pixels
from pictures import edges, pairs, pictures

import nnl as nn
import nnl.functions as F
from nnl.metrics import psnr, ssim
from nnl.models.generative import patch_discriminator, pix2pix_generator
from nnl.training.generative import adversarial_losses

ADAM = {"alpha": 2e-4, "beta1": 0.5}


class Pix2Pix:
    """A generator of images from images, and a discriminator of pairs."""

    SIZES = {
        "tiny": {"pixels": 16, "batch": 4, "g": 8, "depth": 3, "d": 8, "layers": 1, "steps": 40},
        "small": {
            "pixels": 32, "batch": 8, "g": 24, "depth": 5, "d": 16, "layers": 2, "steps": 800,
        },
        "paper": {
            "pixels": 256, "batch": 1, "g": 64, "depth": 8, "d": 64, "layers": 3, "steps": 80_000,
        },
    }  # fmt: skip
    averaged = ("generator",)

    def __init__(self, size, data=None):
        self.size, n = size, size["pixels"]
        self.pictures = pictures(None, n) if data is None else pairs(data, n)
        self.inputs = 1 if data is None else 3
        source = nn.Variable((size["batch"], self.inputs, n, n))
        self.judge(source, self.generate(source))
        rate = ADAM if size["batch"] == 1 else ADAM | {"alpha": 1e-3}
        self.solvers = adams(generator=rate, discriminator=rate | {"alpha": rate["alpha"] / 2})

        @nn.compile
        def step(source, target):
            made = self.generate(source)
            fake, real = self.judge(source, F.unlink(made)), self.judge(source, target)
            judged = 0.5 * adversarial_losses("logistic", fake, real)
            learn(self.solvers["discriminator"], judged)
            error = F.mean(F.abs(made - target))
            deceived = adversarial_losses("logistic", self.judge(source, made))
            learn(self.solvers["generator"], deceived + 100.0 * error)
            return error, judged, deceived

        self._step, self._generate = step, nn.compile(self.drawn)

    def generate(self, source, test=False):
        with nn.parameter_scope("generator"):
            return pix2pix_generator(source, 3, self.size["g"], self.size["depth"], test=test)

    def drawn(self, source):
        """What files and samples have: normalised by running statistics."""
        return self.generate(source, test=True)

    def judge(self, source, image):
        both = F.concatenate(source, image, axis=1)
        with nn.parameter_scope("discriminator"):
            return patch_discriminator(both, self.size["d"], self.size["layers"])

    def batch(self, rng, held_out=False):
        images = self.pictures(self.size["batch"], rng, held_out)
        return [edges(images), images] if self.inputs == 1 else [images[:, 0], images[:, 1]]

    def step(self, *arrays):
        return dict(zip(("L1", "judge", "deceive"), self._step(*map(pixels, arrays)), strict=True))

    def made(self, count, seed):
        rng, found = np.random.default_rng(seed), []
        for _ in range(-(-count // self.size["batch"])):
            source, target = self.batch(rng, held_out=True)
            found.append((source, self._generate(pixels(source)).d.copy(), target))
        return [np.concatenate(parts)[:count] for parts in zip(*found, strict=True)]

    def sample(self, count, seed):
        source, made, target = self.made(-(-count // 3), seed)
        source = np.broadcast_to(source, target.shape)
        return np.stack([source, made, target], 1).reshape(-1, *target.shape[1:])

    def measure(self):
        _, made, target = self.made(64, 1)
        return {"PSNR": psnr(target, made, 2).mean(), "SSIM": ssim(target, made, 2).mean()}

    def network(self):
        n, compiled = self.size["pixels"], nn.compile(self.drawn)
        compiled(nn.Variable((1, self.inputs, n, n)))
        return compiled


if __name__ == "__main__":
    main(Pix2Pix)
