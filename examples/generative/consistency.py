# SPDX-License-Identifier: Apache-2.0
"""Consistency model: one step from noise to digits, without a teacher.

    python examples/generative/consistency.py train
    python examples/generative/consistency.py sample --jumps 2     two steps are better

f(x, s) should give the same image at all noises s along a path: two neighbouring noises of one
image are compared, the one with less noise without a gradient. There are more and more of them
between 0.002 and 80. f(x, s) = c_skip(s) x + c_out(s) F(c_in(s) x, s) is x where there is no noise.
Source: Song et al., arXiv:2303.01469; Song and Dhariwal, arXiv:2310.14189. Expected (a step takes
0.09 s of processor time; --size tiny --steps 500 does not yet follow classes):

    {"steps": 2000, "FID": 3.63, "precision": 0.84, "recall": 0.88, "recognised": 0.93}
"""

from math import erf, sqrt

import numpy as np
from common import main
from diffusion import Diffusion

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl.models.generative import diffusion_unet

LEAST, MOST, SPREAD, RHO = 0.002, 80.0, 0.5, 7.0
LEVELS = (10, 160)  # how many noises there are, at the beginning and at the end


class Consistency(Diffusion):
    """One step, by neighbours along paths."""

    OPTIONS = {"class": int, "jumps": int}

    def __init__(self, size, data=None):
        super().__init__(size, data)
        solver = self.solvers["adam"]
        c = 0.00054 * np.sqrt(np.prod(self.shape))  # where the loss turns from squares to lengths

        @nn.compile
        def step(x, more, less, labels, weight):
            noisy, cleaner = x
            gap = self.image(noisy, more, labels) - F.unlink(self.image(cleaner, less, labels))
            squares = F.sum(gap**2, axis=(1, 2, 3))
            loss = F.mean(weight * (F.pow_scalar(squares + c * c, 0.5) - c))
            solver.zero_grad()
            loss.backward(clear_buffer=True)
            S.clip_grad_norm(solver.get_parameters(), 1.0)
            solver.update()
            return loss

        self._step, self._image = step, nn.compile(self.image)

    def image(self, x, s, labels):
        """f; s (B,) are standard deviations of the noise."""
        wide = F.reshape(s, (x.shape[0], 1, 1, 1))
        total = wide**2 + SPREAD**2
        skip = SPREAD**2 / ((wide - LEAST) ** 2 + SPREAD**2)
        out = SPREAD * (wide - LEAST) * F.pow_scalar(total, -0.5)
        with nn.parameter_scope("network"):
            times = F.log(s) * 250.0
            made = diffusion_unet(x * F.pow_scalar(total, -0.5), times, self.config, labels)
        return skip * x + out * made

    def noises(self):
        """Standard deviations from LEAST to MOST: more of them as training goes on."""
        double = self.size["steps"] / (np.log2(LEVELS[1] / LEVELS[0]) + 1)
        n = min(LEVELS[0] * 2 ** int(self.done / double), LEVELS[1])
        at = np.linspace(LEAST ** (1 / RHO), MOST ** (1 / RHO), n + 1)
        return at**RHO

    def batch(self, rng):
        n, noises = self.size["batch"], self.noises()
        rows = rng.integers(len(self.images), size=n)
        # noises that matter are drawn more often: their logarithm is about N(-1.1, 2)
        likely = np.diff([erf((np.log(v) + 1.1) / (2 * sqrt(2))) for v in noises])
        at = rng.choice(len(likely), n, p=likely / likely.sum())
        more, less = noises[at + 1], noises[at]
        noise = rng.normal(size=(n, *self.shape))
        x = [self.images[rows] + s[:, None, None, None] * noise for s in (more, less)]
        labels = self.labels[rows]
        found = [np.stack(x), more, less, labels, 1 / (more - less)]
        return [a.astype(np.float32) if a.dtype.kind == "f" else a for a in found]

    def step(self, *arrays):
        return {"loss": self._step(*map(nn.Variable.from_numpy_array, arrays))}

    def run(self, x, s, labels):
        arrays = x.astype(np.float32), s.astype(np.float32), labels
        return self._image(*map(nn.Variable.from_numpy_array, arrays)).d.copy()

    def sample(self, count, seed, jumps=1, guidance=0.0, **chosen):
        return super().sample(count, seed, 0.0, steps=jumps, **chosen)

    def denoise(self, predict, noise, steps):
        """One step; with more, noise is added to the image and taken away again."""
        x = predict(MOST * noise, np.full(len(noise), MOST))
        for i in range(1, steps):
            s = 0.8 * 0.5 ** (i - 1)
            again = np.random.default_rng(i).normal(size=x.shape).astype(np.float32)
            x = predict(x + s * again, np.full(len(x), s))
        return x

    def network(self):
        arrays = [np.zeros((1, *self.shape)), np.full(1, MOST), np.zeros(1)]
        arrays = [a.astype(t) for a, t in zip(arrays, ("f4", "f4", "i8"), strict=True)]
        compiled = nn.compile(self.image)
        compiled(*map(nn.Variable.from_numpy_array, arrays))
        return compiled


if __name__ == "__main__":
    main(Consistency)
