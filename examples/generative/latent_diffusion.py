# SPDX-License-Identifier: Apache-2.0
"""Latent diffusion: coloured digits from words, in the latent maps of an autoencoder.

    python examples/generative/latent_diffusion.py train
    python examples/generative/latent_diffusion.py sample --text "red seven" --guidance 2

First a variational autoencoder learns to make a quarter of the numbers of images and back; then a
U-Net takes noise out of its latent maps. It attends to what a small transformer, which learns with
it, makes of the words. --size paper are the networks of Stable Diffusion 1 (860 and 84 million
parameters), whose folders `from_diffusers` reads, for a folder of pictures (--data).
Source: Rombach et al., arXiv:2112.10752. Expected (how many digits and colours are the ones that
were asked for, at a guidance of 2; features.py knows digits, colours are the brightest channels;
2,600 of the steps took 4 minutes of processor time):

    {"steps": 3000, "FID": 15.33, "recall": 0.54, "recognised": 1.0, "colours": 1.0}
"""

import re

import numpy as np
from common import adams, average_over, learn, main, pixels
from features import scores
from pictures import digits, folder

import nnl as nn
import nnl.functions as F
from nnl.models.generative import Autoencoder, DiffusionUNet, decode, diffusion_unet, encode
from nnl.models.generative.layers import attention, embedding, layer_norm, linear
from nnl.training.generative import NoiseSchedule, guided

NUMBERS = "zero one two three four five six seven eight nine".split()
COLORS = {"red": (1, 0, 0), "green": (0, 1, 0), "blue": (0, 0, 1), "white": (1, 1, 1)}
WORDS = ["", *COLORS, *NUMBERS]
LENGTH = 2  # words of a text
CODER = Autoencoder((16, 32), 1, latent=3, groups=8, attention=False)
UNET = DiffusionUNet(
    (32, 64), ("cross", "cross"), "cross", 1, (2, 4), 3, 3, context=32, groups=8, asymmetric=False
)
STABLE = DiffusionUNet(
    (320, 640, 1280, 1280), ("cross", "cross", "cross", ""), "cross", heads=(8,) * 4, inputs=4,
    outputs=4, context=768, eps=1e-5, cosine_first=True, shift=0, asymmetric=False,
)  # fmt: skip


class LatentDiffusion:
    """An autoencoder, then a diffusion model of what it makes."""

    SIZES = {
        "tiny": {"coder": CODER, "unet": UNET, "pixels": 16, "batch": 8, "steps": 40},
        "small": {"coder": CODER, "unet": UNET, "pixels": 16, "batch": 32, "steps": 3000},
        "paper": {
            "coder": Autoencoder(), "unet": STABLE, "pixels": 512, "batch": 32, "steps": 1_000_000,
        },
    }  # fmt: skip
    OPTIONS = {"text": str, "guidance": float}
    averaged = ("coder", "unet", "text")

    def __init__(self, size, data=None):
        self.size, self.coder, self.unet = size, size["coder"], size["unet"]
        n = size["pixels"]
        if data is None and n > 16:
            raise ValueError("--size paper wants --data, a folder of pictures")
        self.images = None if data is None else folder(data, n)
        self.schedule = NoiseSchedule("scaled_linear", first=8.5e-4, last=0.012, clip=None)
        self.scale = nn.parametric_functions.get_parameter_or_create(
            "scale", (1,), np.ones(1, np.float32), need_grad=False
        )
        x, words = nn.Variable((1, 3, n, n)), nn.Variable((1, LENGTH))
        z = self.encode(x)[0]
        self.shape = z.shape[1:]
        self.decode(z)
        self.predict(z, nn.Variable((1,)), words)
        rate = 1e-3 if n == 16 else 1e-4
        self.solvers = adams(coder={"alpha": 2 * rate}, unet={"alpha": rate}, text={"alpha": rate})

        @nn.compile
        def compress(x):
            mean, log_variance = self.encode(x)
            z = mean + F.exp(0.5 * log_variance) * F.randn(shape=mean.shape)
            error = F.mean(F.abs(self.decode(z) - x))
            spread = F.mean(mean**2 + F.exp(log_variance) - 1.0 - log_variance)
            learn(self.solvers["coder"], error + 1e-3 * spread)
            return error

        @nn.compile
        def denoise(z, t, words, noise):
            loss = F.mean((self.predict(z, t, words) - noise) ** 2)
            for name in ("unet", "text"):
                self.solvers[name].zero_grad()
            loss.backward(clear_buffer=True)
            for name in ("unet", "text"):
                self.solvers[name].update()
            return loss

        self._compress, self._denoise = compress, denoise
        self._encode, self._decode = (
            nn.compile(lambda x: self.encode(x)[0]),
            nn.compile(self.decode),
        )
        self._predict = nn.compile(self.predict)

    def encode(self, x):
        with nn.parameter_scope("coder"):
            return encode(x, self.coder)

    def decode(self, z):
        with nn.parameter_scope("coder"):
            return decode(z, self.coder)

    def predict(self, z, t, words):
        """The noise of latent maps; words (B, LENGTH) are numbers in WORDS."""
        width = self.unet.context
        with nn.parameter_scope("text"):
            h = embedding(F.reshape(words, (words.size,)), len(WORDS), width, "words")
            h = F.reshape(h, (*words.shape, width))
            h = h + F.reshape(
                embedding(F.arange(0, LENGTH), LENGTH, width, "places"), (1, LENGTH, width)
            )
            h = h + attention(layer_norm(h, "norm1"), 4, "attention")
            h = h + linear(F.gelu(linear(layer_norm(h, "norm2"), 4 * width, "up")), width, "down")
            context = layer_norm(h, "norm3")
        with nn.parameter_scope("unet"):
            return diffusion_unet(z, t, self.unet, None, context)

    def batch(self, rng):
        n = self.size["batch"]
        if self.images is None:
            images, kinds = digits(self.size["pixels"])
            rows, colors = rng.integers(len(images), size=n), rng.integers(len(COLORS), size=n)
            tint = np.array([*COLORS.values()])[colors][:, :, None, None]
            x = (images[rows] + 1) * tint - 1
            words = np.stack([1 + colors, 1 + len(COLORS) + kinds[rows]], 1)
        else:
            x = self.images[rng.integers(len(self.images), size=n)]
            words = np.zeros((n, LENGTH), int)
        words[rng.random(n) < 0.1] = 0
        t = rng.integers(self.schedule.steps, size=n)
        noise = rng.normal(size=(n, *self.shape)).astype(np.float32)
        return [x.astype(np.float32), words, t, noise]

    def step(self, x, words, t, noise):
        if self.done < self.size["steps"] // 4:
            return {"error": self._compress(pixels(x))}
        z = self._encode(pixels(x)).d
        if self.done == self.size["steps"] // 4:  # latent maps of a spread of 1
            self.scale.d = 1 / z.std()
        noisy = self.schedule.noisy(z * self.scale.d, noise, t)
        arrays = noisy, t.astype(np.float32), words, noise
        return {"loss": self._denoise(*map(pixels, arrays))}

    def sample(self, count, seed, text="", guidance=2.0, words=None):
        if words is None:
            i = np.arange(count)
            words = np.stack([1 + i // 10 % len(COLORS), 1 + len(COLORS) + i % 10], 1)
        if text:
            words = np.tile(numbers(text), (count, 1))
        noise = np.random.default_rng(seed).normal(size=(count, *self.shape)).astype(np.float32)
        n = min(self.size["batch"], count)

        def run(z, t, w):
            arrays = z, t.astype(np.float32), words[w] * (w >= 0)[:, None]
            return self._predict(*map(pixels, arrays)).d.copy()

        def of(rows):
            z = self.schedule.sample(guided(run, rows, -1, guidance), noise[rows])
            return self._decode(pixels(z / self.scale.d)).d.copy()

        return average_over(np.arange(count), n, of)

    def measure(self):
        if self.images is not None:
            return {}
        i = np.arange(160)
        words = np.stack([1 + i // 10 % len(COLORS), 1 + len(COLORS) + i % 10], 1)
        made = self.sample(160, 1, words=words)
        tint = np.array([*COLORS.values()])
        ink = (made + 1).mean((2, 3))
        ink = ink / np.linalg.norm(ink, axis=1, keepdims=True)
        guess = (ink @ (tint / np.linalg.norm(tint, axis=1, keepdims=True)).T).argmax(1)
        grey = made.max(1, keepdims=True)
        return scores(grey, i % 10) | {"colours": (guess == words[:, 0] - 1).mean()}

    def network(self):
        compiled = nn.compile(self.predict)
        words = pixels(np.zeros((1, LENGTH), int))
        compiled(nn.Variable((1, *self.shape)), nn.Variable((1,)), words)
        return compiled


def numbers(text):
    """Words of a text as numbers in WORDS."""
    found = re.findall(r"\w+", text.lower())
    unknown = [w for w in found if w not in WORDS]
    if unknown or len(found) > LENGTH:
        raise ValueError(f"--text is {text!r}, wanted up to {LENGTH} of: {' '.join(WORDS[1:])}")
    return np.array([WORDS.index(w) for w in found] + [0] * (LENGTH - len(found)))


if __name__ == "__main__":
    main(LatentDiffusion)
