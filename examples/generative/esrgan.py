# SPDX-License-Identifier: Apache-2.0
"""ESRGAN: photographs of four times the size.

    python examples/generative/esrgan.py train [--data DIR]
    python examples/generative/esrgan.py sample    a photograph in few pixels, four times larger

RRDBNet learns to be near to the true image first (L1); in the last quarter of the steps a
relativistic discriminator joins in: real images should look more real than made ones. Crops of
photographs, halved twice. --size paper are the 16.7 million parameters of the published network,
whose file `nnl.converters.weights.load_weights` reads.
Source: Wang et al., arXiv:1809.00219; without its distance of features, for want of a network.
The rate of the last quarter is a tenth. Expected, beside bicubic interpolation, of the parts of
photographs that training never saw (a larger share of the discriminator costs PSNR):

    {"seconds": 392, "PSNR": 26.56, "PSNR bicubic": 26.41, "SSIM": 0.81, "SSIM bicubic": 0.82}
"""

import numpy as np
from common import adams, learn, main, pixels
from pictures import pictures, resized, smaller

import nnl as nn
import nnl.functions as F
from nnl.metrics import ssim
from nnl.models.generative import patch_discriminator, rrdb_net


class ESRGAN:
    """A network that makes images larger, and a discriminator that comes last."""

    SIZES = {
        "tiny": {"pixels": 16, "batch": 4, "g": 8, "blocks": 1, "d": 8, "layers": 1,
                 "share": 5e-3, "steps": 40},
        "small": {"pixels": 32, "batch": 8, "g": 16, "blocks": 2, "d": 16, "layers": 2,
                  "share": 1e-3, "steps": 4000},
        "paper": {"pixels": 128, "batch": 16, "g": 64, "blocks": 23, "d": 64, "layers": 3,
                  "share": 5e-3, "steps": 1_400_000},
    }  # fmt: skip
    averaged = ("generator",)

    def __init__(self, size, data=None):
        self.size, n = size, size["pixels"]
        self.pictures = pictures(data, n)
        self.judge(self.enlarge(nn.Variable((size["batch"], 3, n // 4, n // 4))))
        self.rate = 2e-4 if size["blocks"] == 23 else 1e-3
        self.solvers = adams(generator={"alpha": self.rate}, discriminator={"alpha": self.rate / 2})

        @nn.compile
        def alone(small, large):
            error = F.mean(F.abs(self.enlarge(small) - large))
            learn(self.solvers["generator"], error)
            return error

        def relative(better, worse):
            """Whether scores of one side are above the mean of the other, and the reverse."""
            means = [F.mean(s, axis=(0, 1, 2, 3), keepdims=True) for s in (better, worse)]
            return F.mean(F.softplus(means[1] - better)) + F.mean(F.softplus(worse - means[0]))

        @nn.compile
        def against(small, large):
            made = self.enlarge(small)
            error = F.mean(F.abs(made - large))
            fooled = relative(self.judge(made), F.unlink(self.judge(large)))
            learn(self.solvers["generator"], error + size["share"] * fooled)
            judged = relative(self.judge(large), self.judge(F.unlink(made)))
            learn(self.solvers["discriminator"], judged)
            return error, judged

        self._alone, self._against = alone, against
        self._enlarge = nn.compile(self.enlarge)

    def enlarge(self, x):
        with nn.parameter_scope("generator"):
            return rrdb_net(x, self.size["g"], self.size["blocks"], self.size["g"] // 2)

    def judge(self, x):
        with nn.parameter_scope("discriminator"):
            return patch_discriminator(x, self.size["d"], self.size["layers"], "instance")

    def batch(self, rng, held_out=False):
        large = (self.pictures(self.size["batch"], rng, held_out) + 1) / 2
        return [smaller(large), large]

    def step(self, *arrays):
        given = [pixels(a) for a in arrays]
        if self.done < self.size["steps"] * 3 // 4:
            return {"L1": self._alone(*given)}
        self.solvers["generator"].set_learning_rate(self.rate / 10)
        return dict(zip(("L1", "judge"), self._against(*given), strict=True))

    def made(self, count, seed):
        rng, found = np.random.default_rng(seed), []
        for _ in range(-(-count // self.size["batch"])):
            small, large = self.batch(rng, held_out=True)
            found.append((small, self._enlarge(pixels(small)).d.clip(0, 1), large))
        return [np.concatenate(parts)[:count] for parts in zip(*found, strict=True)]

    def sample(self, count, seed):
        small, made, large = self.made(-(-count // 3), seed)
        small = small.repeat(4, 2).repeat(4, 3)
        return np.stack([small, made, large], 1).reshape(-1, *large.shape[1:]) * 2 - 1

    def measure(self):
        small, made, large = self.made(64, 1)
        bicubic = resized(small, self.size["pixels"])
        # of all pixels together, since a black sky alone has any PSNR
        errors = {"PSNR": made, "PSNR bicubic": bicubic}
        found = {name: 10 * np.log10(1 / ((y - large) ** 2).mean()) for name, y in errors.items()}
        both = {"SSIM": made, "SSIM bicubic": bicubic}
        return found | {name: ssim(large, y).mean() for name, y in both.items()}

    def network(self):
        n, compiled = self.size["pixels"] // 4, nn.compile(self.enlarge)
        compiled(nn.Variable((1, 3, n, n)))
        return compiled


if __name__ == "__main__":
    main(ESRGAN)
