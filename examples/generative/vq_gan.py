# SPDX-License-Identifier: Apache-2.0
"""VQ-VAE and VQ-GAN: photographs as a few numbers of a code book, and back.

    python examples/generative/vq_gan.py train
    python examples/generative/vq_gan.py sample     held out photographs above what becomes of them

An autoencoder gives each 4 x 4 pixels one of 256 vectors. In the first half of the steps it learns
alone (VQ-VAE); then a discriminator of patches joins in, and how much it counts follows from the
gradients of the last layer (VQ-GAN). Crops of photographs, and their right quarters to measure.
Source: van den Oord et al., arXiv:1711.00937; Esser et al., arXiv:2012.09841. Expected:

    {"steps": 400, "seconds": 126, "PSNR": 16.63, "SSIM": 0.55, "codes in use": 19.0}
"""

import numpy as np
from common import adams, learn, main, pixels
from pictures import pictures

import nnl as nn
import nnl.functions as F
from nnl.metrics import psnr, ssim
from nnl.models.generative import (
    Autoencoder,
    decode,
    encode,
    patch_discriminator,
    quantize_vectors,
)
from nnl.training.generative import adversarial_losses

SMALL = Autoencoder((24, 48, 48), 1, latent=8, codes=256, groups=8, attention=False)
PAPER = Autoencoder((128, 128, 256, 256, 512), 2, latent=256, codes=1024)
LARGEST = 1e4  # how much the discriminator counts at most


class VQGAN:
    """An autoencoder with a code book, and a discriminator that begins later."""

    SIZES = {
        "tiny": {"coder": SMALL, "pixels": 16, "batch": 8, "rate": 2e-3, "steps": 40, "d": 8},
        "small": {"coder": SMALL, "pixels": 32, "batch": 8, "rate": 1e-3, "steps": 400, "d": 16},
        "paper": {
            "coder": PAPER, "pixels": 256, "batch": 12, "rate": 5e-5, "steps": 250_000, "d": 64,
        },
    }  # fmt: skip
    averaged = ("coder",)

    def __init__(self, size, data=None):
        self.size, self.config = size, size["coder"]
        self.pictures = pictures(data, size["pixels"])
        shape = size["batch"], 3, size["pixels"], size["pixels"]
        x = nn.Variable(shape)
        self.judge(self.code(x)[0])
        adam = {"alpha": size["rate"], "beta1": 0.5, "beta2": 0.9}
        self.solvers = adams(coder=adam, judge=adam)
        last = nn.get_parameters()["coder/decoder/conv_out/weight"]

        @nn.compile
        def alone(x):
            y, _, loss = self.code(x)
            error = F.mean(F.abs(y - x))
            learn(self.solvers["coder"], error + loss)
            return error

        @nn.compile
        def against(x):
            y, _, loss = self.code(x)
            error, deceived = F.mean(F.abs(y - x)), -F.mean(self.judge(y))
            weights = [nn.grad([v], [last])[0] for v in (error, deceived)]
            lengths = [F.pow_scalar(F.sum(g * g) + 1e-12, 0.5) for g in weights]
            share = F.clip_by_value(F.unlink(lengths[0] / (lengths[1] + 1e-4)), 0.0, LARGEST)
            learn(self.solvers["coder"], error + loss + 0.8 * share * deceived)
            judged = adversarial_losses("hinge", self.judge(F.unlink(y)), self.judge(x))
            learn(self.solvers["judge"], 0.5 * judged)
            return error, judged

        self._alone, self._against = alone, against
        self._code = nn.compile(lambda x: self.code(x)[:2])

    def code(self, x):
        """What becomes of images, their numbers, and the loss of the code book."""
        with nn.parameter_scope("coder"):
            z, numbers, loss = quantize_vectors(encode(x, self.config), self.config)
            return decode(z, self.config), numbers, loss

    def judge(self, x):
        with nn.parameter_scope("judge"):
            return patch_discriminator(x, self.size["d"], 2, norm="instance")

    def batch(self, rng):
        return [self.pictures(self.size["batch"], rng)]

    def step(self, x):
        x = pixels(x)
        if self.done < self.size["steps"] // 2:
            return {"error": self._alone(x)}
        return dict(zip(("error", "judge"), self._against(x), strict=True))

    def made(self, count, seed):
        """Held out images, what becomes of them, and the numbers between."""
        n, found = self.size["batch"], []
        rng = np.random.default_rng(seed)
        for _ in range(-(-count // n)):
            x = self.pictures(n, rng, held_out=True)
            y, numbers = self._code(pixels(x))
            found.append((x, y.d.copy(), numbers.d.copy()))
        return [np.concatenate(parts)[:count] for parts in zip(*found, strict=True)]

    def sample(self, count, seed):
        x, y, _ = self.made(count // 2, seed)
        return np.stack([x, y], 1).reshape(-1, *x.shape[1:])

    def measure(self):
        x, y, numbers = self.made(64, 1)
        y = y.clip(-1, 1)
        found = {"PSNR": psnr(x, y, 2).mean(), "SSIM": ssim(x, y, 2).mean()}
        return found | {"codes in use": len(np.unique(numbers))}

    def network(self):
        compiled = nn.compile(lambda x: self.code(x)[:2])
        compiled(nn.Variable((1, 3, self.size["pixels"], self.size["pixels"])))
        return compiled


if __name__ == "__main__":
    main(VQGAN)
