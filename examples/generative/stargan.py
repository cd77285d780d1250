# SPDX-License-Identifier: Apache-2.0
"""StarGAN: one generator that gives photographs any of four colour casts.

    python examples/generative/stargan.py train
    python examples/generative/stargan.py sample    a photograph, then as red, green, blue, yellow

The generator hears which of the attributes an image should have; the discriminator says whether it
is real and which it has. What is changed and changed back should be what it was. Crops of
photographs get one of the casts at random, and no image is seen with two.
Source: Choi et al., arXiv:1711.09020. Expected (share whose cast is the one that was asked for, by
the mean colour alone, a quarter by chance; and PSNR there and back. A thousand steps take 19 s of
processor time. At a rate of 5e-4 the discriminator did not learn to tell the casts):

    {"steps": 4500, "right": 1.0, "PSNR": 15.17}
"""

import numpy as np
from common import adams, learn, main, pixels
from pictures import crops

import nnl as nn
import nnl.functions as F
from nnl.metrics import psnr
from nnl.models.generative import stargan_discriminator, stargan_generator
from nnl.training.generative import adversarial_losses, gradient_penalty

CASTS = np.array([[1, 0.4, 0.4], [0.4, 1, 0.4], [0.4, 0.4, 1], [1, 1, 0.2]], np.float32)


def cast(images, kinds):
    """Grey images in colours of their kinds: (N, 3, H, W) in [-1, 1]."""
    grey = (images.mean(1, keepdims=True) + 1) / 2
    return grey * CASTS[kinds][:, :, None, None] * 2 - 1


class StarGAN:
    """One generator for all attributes."""

    SIZES = {
        "tiny": {"pixels": 16, "batch": 4, "g": 6, "blocks": 1, "d": 8, "layers": 3,
                 "rates": (5e-4, 5e-4), "every": 5, "steps": 40},
        "small": {"pixels": 32, "batch": 8, "g": 12, "blocks": 2, "d": 16, "layers": 4,
                  "rates": (6e-4, 2e-4), "every": 3, "steps": 4500},
        "paper": {"pixels": 128, "batch": 16, "g": 64, "blocks": 6, "d": 64, "layers": 6,
                  "rates": (1e-4, 1e-4), "every": 5, "steps": 200_000},
    }  # fmt: skip
    averaged = ("generator",)
    kinds = len(CASTS)

    def __init__(self, size, data=None):
        if data is not None:
            raise ValueError("stargan makes its own attributes: --data is of no use")
        self.size, n = size, size["pixels"]
        self.judge(self.turn(nn.Variable((size["batch"], 3, n, n)), self.label()))
        adam = [{"alpha": rate, "beta1": 0.5, "beta2": 0.999} for rate in size["rates"]]
        self.solvers = adams(generator=adam[0], discriminator=adam[1])

        @nn.compile
        def discriminate(x, old, new):
            fake = F.unlink(self.turn(x, new))
            real, found = self.judge(x)
            judged = adversarial_losses("wasserstein", self.judge(fake)[0], real)

            def scores(h):
                return F.mean(self.judge(h)[0], axis=(1, 2, 3))

            penalty = gradient_penalty(scores, x, fake)
            named = F.mean(F.sigmoid_cross_entropy(found, old))
            learn(self.solvers["discriminator"], judged + 10.0 * penalty + named)
            return judged, named

        @nn.compile
        def generate(x, old, new):
            fake = self.turn(x, new)
            scores, found = self.judge(fake)
            back = F.mean(F.abs(self.turn(fake, old) - x))
            named = F.mean(F.sigmoid_cross_entropy(found, new))
            fooled = adversarial_losses("wasserstein", scores)
            learn(self.solvers["generator"], fooled + named + 10.0 * back)
            return back, named

        self._discriminate, self._generate = discriminate, generate
        self._turn = nn.compile(self.turn)

    def label(self):
        return nn.Variable((self.size["batch"], self.kinds))

    def turn(self, x, wanted):
        with nn.parameter_scope("generator"):
            return stargan_generator(x, wanted, self.size["g"], self.size["blocks"])

    def judge(self, x):
        with nn.parameter_scope("discriminator"):
            return stargan_discriminator(x, self.kinds, self.size["d"], self.size["layers"])

    def batch(self, rng, held_out=False):
        n = self.size["batch"]
        old, new = rng.integers(self.kinds, size=(2, n))
        images = cast(crops(n, self.size["pixels"], rng, held_out), old)
        eye = np.eye(self.kinds, dtype=np.float32)
        return [images, eye[old], eye[new]]

    def step(self, *arrays):
        """The generator learns in every fifth step only, or as often as the size says."""
        given = [pixels(a) for a in arrays]
        found = dict(zip(("judge", "named"), self._discriminate(*given), strict=True))
        every = self.size["every"]
        if self.done % every == every - 1:
            found |= dict(zip(("back", "named by G"), self._generate(*given), strict=True))
        return found

    def sample(self, count, seed):
        rng = np.random.default_rng(seed)
        eye = np.eye(self.kinds, dtype=np.float32)
        rows = []
        while len(rows) * (1 + self.kinds) < count:
            x, _, _ = self.batch(rng, held_out=True)
            made = [self._turn(pixels(x), pixels(eye[[k] * len(x)])).d.copy() for k in range(4)]
            rows += list(np.stack([x, *made], 1))
        return np.concatenate(rows)[:count]

    def measure(self):
        rng, right, noise = np.random.default_rng(1), [], []
        for _ in range(8):
            x, old, new = self.batch(rng, held_out=True)
            made = self._turn(pixels(x), pixels(new)).d.copy()
            colors = (made.clip(-1, 1) + 1).mean((2, 3))
            unit = [c / np.linalg.norm(c, axis=1, keepdims=True) for c in (colors, CASTS)]
            right.append((unit[0] @ unit[1].T).argmax(1) == new.argmax(1))
            noise.append(psnr(x, self._turn(pixels(made), pixels(old)).d, 2))
        return {"right": np.mean(right), "PSNR": np.mean(noise)}

    def network(self):
        n, compiled = self.size["pixels"], nn.compile(self.turn)
        compiled(nn.Variable((1, 3, n, n)), nn.Variable((1, self.kinds)))
        return compiled


if __name__ == "__main__":
    main(StarGAN)
