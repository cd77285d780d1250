# SPDX-License-Identifier: Apache-2.0
"""CycleGAN: photographs as they would be at night, and back, without pairs.

    python examples/generative/cyclegan.py train [--data DIR]
    python examples/generative/cyclegan.py sample    a photograph, by night, back; then the reverse

Two generators and two discriminators of patches: what goes there and back should be what it was
(L1, 10 times), look real on the way, and stay what it is where it is there already (L1, 5 times).
Discriminators also see images of the past. --data has folders `a` and `b` of pictures that need not
belong together; else crops of photographs, and other crops darkened and tinted.
Source: Zhu et al., arXiv:1703.10593. Expected of --steps 500, of held out parts (PSNR against what
the rule gives that darkens, beside that of what is left as it is; and of there and back):

    {"steps": 500, "seconds": 65, "PSNR back": 13.8908, "PSNR": 19.067, "PSNR as it is": 13.7547}
"""

from pathlib import Path

import numpy as np
from common import adams, learn, main, pixels
from pictures import pictures, scenes

import nnl as nn
import nnl.functions as F
from nnl.metrics import psnr
from nnl.models.generative import patch_discriminator, resnet_generator
from nnl.parametric_functions.initializer import ConstantInitializer
from nnl.training.generative import ImagePool, adversarial_losses

TINT = np.array([0.35, 0.45, 0.9], np.float32)[:, None, None]
WAYS = ("ab", "ba")


def night(images):
    """Darker and bluer."""
    return ((images + 1) / 2) ** 1.5 * TINT * 2 - 1


class CycleGAN:
    """Two generators and two discriminators."""

    SIZES = {
        "tiny": {"pixels": 16, "batch": 2, "g": 6, "blocks": 1, "d": 8, "layers": 1, "pool": 8,
                 "rate": 1e-3, "steps": 40},
        "small": {"pixels": 32, "batch": 4, "g": 12, "blocks": 2, "d": 16, "layers": 2, "pool": 50,
                  "rate": 5e-4, "steps": 1000},
        "paper": {"pixels": 256, "batch": 1, "g": 64, "blocks": 9, "d": 64, "layers": 3, "pool": 50,
                  "rate": 2e-4, "steps": 250_000},
    }  # fmt: skip
    averaged = ("generator",)
    channels = 3

    def __init__(self, size, data=None):
        self.size, self.data, n = size, data, size["pixels"]
        self.sides = self.domains()
        self.shape = self.channels, n, n
        x = nn.Variable((size["batch"], *self.shape))
        for way in WAYS:
            self.judge(self.turn(x, way), way[1])
        adam = {"alpha": size["rate"], "beta1": 0.5}
        self.solvers = adams(generator=adam, judge=adam)
        self.pools = [ImagePool(size["pool"], seed) for seed in (0, 1)]
        with nn.parameter_scope("pools"):  # so that checkpoints have them
            self.past = nn.parametric_functions.get_parameter_or_create(
                "images", (2, size["pool"], *self.shape), ConstantInitializer(0), need_grad=False
            )

        @nn.compile
        def generate(a, b):
            made = self.turn(a, "ab"), self.turn(b, "ba")
            again = self.turn(made[0], "ba"), self.turn(made[1], "ab")
            back = F.mean(F.abs(again[0] - a)) + F.mean(F.abs(again[1] - b))
            fooled = [
                adversarial_losses("least_squares", self.judge(y, way[1]))
                for y, way in zip(made, WAYS, strict=True)
            ]
            loss = fooled[0] + fooled[1] + 10.0 * back
            for x, y, way in zip((a, b), made, WAYS[::-1], strict=True):
                same = F.mean(F.abs(self.turn(x, way) - x))
                loss = loss + 5.0 * same + self.kept(x, y)
            learn(self.solvers["generator"], loss)
            return *made, back, fooled[0]

        @nn.compile
        def discriminate(a, b, past_b, past_a):
            losses = [
                adversarial_losses("least_squares", self.judge(old, side), self.judge(x, side))
                for x, old, side in ((a, past_a, "a"), (b, past_b, "b"))
            ]
            loss = 0.5 * (losses[0] + losses[1])
            learn(self.solvers["judge"], loss)
            return loss

        self._generate, self._discriminate = generate, discriminate
        self._turns = {way: nn.compile(lambda x, way=way: self.turn(x, way)) for way in WAYS}

    def domains(self):
        """What draws images of a, and of b."""
        n = self.size["pixels"]
        if self.data is not None:
            return [pictures(Path(self.data) / side, n) for side in "ab"]
        draw = pictures(None, n, scenes)
        return draw, lambda *args: night(draw(*args))

    def turn(self, x, way):
        with nn.parameter_scope(f"generator/{way}"):
            return resnet_generator(x, 3, self.size["g"], self.size["blocks"])

    def judge(self, x, side):
        with nn.parameter_scope(f"judge/{side}"):
            return patch_discriminator(x, self.size["d"], self.size["layers"], "instance")

    def kept(self, x, y):
        """A further loss of what becomes of x."""
        return 0.0

    def batch(self, rng, held_out=False):
        return [draw(self.size["batch"], rng, held_out) for draw in self.sides]

    def step(self, a, b):
        a, b = pixels(a), pixels(b)
        *made, back, fooled = self._generate(a, b)
        past = [pool.exchange(y.d) for pool, y in zip(self.pools, made, strict=True)]
        return {
            "back": back,
            "fooled": fooled,
            "judge": self._discriminate(a, b, *map(pixels, past)),
        }

    def state(self):
        past = np.zeros(self.past.shape, np.float32)
        for images, pool in zip(past, self.pools, strict=True):
            images[: len(pool.images)] = np.reshape(pool.images, (-1, *self.shape))
        self.past.d = past
        return [[len(pool.images), pool.rng.bit_generator.state] for pool in self.pools]

    def resume(self, state):
        for pool, images, (count, drawn) in zip(self.pools, self.past.d, state, strict=True):
            pool.images, pool.rng.bit_generator.state = [*images[:count].copy()], drawn

    def made(self, count, seed):
        """Images of both sides, what becomes of them, and what that becomes on the way back."""
        rng, found = np.random.default_rng(seed), []
        for _ in range(-(-count // self.size["batch"])):
            rows = []
            for x, (there, back) in zip(
                self.batch(rng, held_out=True), (WAYS, WAYS[::-1]), strict=True
            ):
                y = self._turns[there](pixels(x)).d.copy()
                rows.append([x, y, self._turns[back](pixels(y)).d.copy()])
            found.append(rows)
        return np.concatenate(found, axis=2)[:, :, :count]

    def sample(self, count, seed):
        made = self.made(-(-count // 6), seed)[..., :3, :, :]
        return made.transpose(2, 0, 1, 3, 4, 5).reshape(-1, 3, *self.shape[1:])[:count]

    def measure(self):
        (a, b, back), _ = self.made(64, 1)
        found = {"PSNR back": psnr(a, back, 2).mean()}
        if self.data is None:
            found |= {
                "PSNR": psnr(night(a), b, 2).mean(),
                "PSNR as it is": psnr(night(a), a, 2).mean(),
            }
        return found

    def network(self):
        compiled = nn.compile(lambda x: self.turn(x, "ab"))
        compiled(nn.Variable((1, *self.shape)))
        return compiled


if __name__ == "__main__":
    main(CycleGAN)
