# SPDX-License-Identifier: Apache-2.0
"""DDPM and DDIM: a U-Net takes the noise out of digits, guided by their class.

    python examples/generative/diffusion.py train
    python examples/generative/diffusion.py sample --guidance 2 --interpolate 1

The network learns the noise of images at 1000 times; samples take 50 of them (DDIM). One label in
ten is hidden in training, so that it also knows images of no class: guidance goes away from those.
--interpolate shows what lies between two noises. --size paper is the network of Ho et al. for
CIFAR-10, 35.7 million parameters, for a folder of pictures (--data).
Source: arXiv:2006.11239, arXiv:2010.02502, arXiv:2207.12598. Expected (as many training
digits have an FID of 0.71, a precision and a recall of 0.92, and 0.99 of them are recognised):

    {"seconds": 456, "FID": 1.05, "precision": 0.96, "recall": 0.86, "recognised": 1.0}
"""

import numpy as np
from common import average_over, main
from features import scores
from pictures import digits, folder

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl.models.generative import DiffusionUNet, diffusion_unet
from nnl.training.generative import NoiseSchedule, guided

SMALL = DiffusionUNet(
    (32, 64, 64), ("", "self", ""), heads=(1, 2, 2), inputs=1, outputs=1, groups=8, blocks=1,
    classes=11, asymmetric=False,
)  # fmt: skip
PAPER = DiffusionUNet(heads=(1, 1, 1, 1), dropout=0.1, classes=2)
SAMPLES = 32  # images that are made at once


class Diffusion:
    """DDPM of classes, the last of which stands for none."""

    SIZES = {
        "tiny": {"network": SMALL, "pixels": 8, "batch": 16, "rate": 2e-3, "steps": 60},
        "small": {"network": SMALL, "pixels": 8, "batch": 64, "rate": 1e-3, "steps": 2000},
        "paper": {"network": PAPER, "pixels": 32, "batch": 128, "rate": 2e-4, "steps": 800_000},
    }
    OPTIONS = {"guidance": float, "interpolate": int, "class": int}
    averaged = ("network",)

    def __init__(self, size, data=None):
        self.size, c = size, size["network"]
        self.config, pixels = c, size["pixels"]
        if c.inputs == 1:
            self.images, self.labels = digits(pixels)
        elif data is None:
            raise ValueError("--size paper wants --data, a folder of pictures")
        else:
            self.images = folder(data, pixels, c.inputs)
            self.labels = np.zeros(len(self.images), int)
        self.none = c.classes - 1
        self.schedule = NoiseSchedule("cosine" if c.inputs == 1 else "linear")
        self.shape = c.inputs, pixels, pixels
        x, t, labels = nn.Variable((1, *self.shape)), nn.Variable((1,)), nn.Variable((1,))
        self.predict(x, t, labels)
        solver = S.Adam(size["rate"])
        solver.set_parameters(nn.get_parameters())
        self.solvers = {"adam": solver}

        @nn.compile
        def step(x, t, labels, target):
            loss = F.mean((self.predict(x, t, labels) - target) ** 2)
            solver.zero_grad()
            loss.backward(clear_buffer=True)
            S.clip_grad_norm(solver.get_parameters(), 1.0)
            solver.update()
            return loss

        self._step, self._predict = step, nn.compile(self.predict)

    def predict(self, x, t, labels):
        with nn.parameter_scope("network"):
            return diffusion_unet(x, t, self.config, labels)

    def batch(self, rng):
        n = self.size["batch"]
        rows = rng.integers(len(self.images), size=n)
        labels = np.where(rng.random(n) < 0.1, self.none, self.labels[rows])
        noise = rng.normal(size=(n, *self.shape)).astype(np.float32)
        return self.noised(self.images[rows], noise, rng.random(n), labels)

    def noised(self, images, noise, when, labels):
        """Inputs and target of the network; `when` is in [0, 1)."""
        t = (when * self.schedule.steps).astype(int)
        x, target = (f(images, noise, t) for f in (self.schedule.noisy, self.schedule.target))
        return x, t.astype(np.float32), labels, target

    def step(self, *arrays):
        return {"loss": self._step(*map(nn.Variable.from_numpy_array, arrays))}

    def run(self, x, t, labels):
        arrays = x, t.astype(np.float32), labels
        return self._predict(*map(nn.Variable.from_numpy_array, arrays)).d.copy()

    def sample(self, count, seed, guidance=1.0, interpolate=0, steps=50, **chosen):
        rng = np.random.default_rng(seed)
        noise = rng.normal(size=(count, *self.shape)).astype(np.float32)
        labels = np.arange(count) % max(self.none, 1)
        if "class" in chosen:
            labels = np.full(count, chosen["class"])
        if interpolate:  # along the great circle, so that what lies between is noise as well
            angle = np.linspace(0, np.pi / 2, count)[:, None, None, None]
            noise = (np.cos(angle) * noise[:1] + np.sin(angle) * noise[1:2]).astype(np.float32)
            labels = np.full(count, labels[0])
        both = np.arange(count)

        def of(rows):
            predict = guided(self.run, labels[rows], self.none, guidance)
            return self.denoise(predict, noise[rows], steps)

        return average_over(both, min(SAMPLES, count), of)

    def denoise(self, predict, noise, steps):
        return self.schedule.sample(predict, noise, steps)

    def measure(self):
        if self.config.inputs != 1:
            return {}
        made = self.sample(320, 1, guidance=0.5)
        return scores(made, np.arange(320) % self.none)

    def network(self):
        inputs = np.zeros((1, *self.shape), np.float32), np.zeros(1, np.float32), np.zeros(1, int)
        compiled = nn.compile(self.predict)
        compiled(*map(nn.Variable.from_numpy_array, inputs))
        return compiled


if __name__ == "__main__":
    main(Diffusion)
