# SPDX-License-Identifier: Apache-2.0
"""TecoGAN: videos of four times the size that do not flicker.

    python examples/generative/tecogan.py train
    python examples/generative/tecogan.py sample    small frames, what is made, true ones

A small network says how pixels moved since the last frame; the generator sees the frame and what it
made of the last one, moved so. A video is made there and back (ping-pong), and both ways should be
the same. In the last quarter of the steps a discriminator joins in that sees three frames, as they
are and moved onto the middle one. Videos are crops that move over photographs.
Source: Chu et al., arXiv:1811.09393; without its distances of features, for want of a network.
Expected of parts that training never saw, where bicubic interpolation flickers by 0.0011 (flicker
is the squared difference of frames that are moved onto each other by the true movement):

    {"seconds": 37, "PSNR": 25.0837, "PSNR bicubic": 25.0502, "flicker": 0.0009}
"""

import numpy as np
from common import adams, learn, main, pixels
from pictures import moving, resized, smaller

import nnl as nn
import nnl.functions as F
from nnl.metrics import warping_error
from nnl.models.generative import patch_discriminator
from nnl.models.generative.layers import convolution, doubled
from nnl.parametric_functions.initializer import NormalInitializer
from nnl.training.generative import adversarial_losses

FRAMES = 3
FARTHEST = 2.0  # small pixels that anything may move
ORDER = [*range(FRAMES), *reversed(range(FRAMES - 1))]  # there and back


class TecoGAN:
    """A generator that goes from frame to frame, with its flow, and a discriminator of three."""

    SIZES = {
        "tiny": {"pixels": 16, "batch": 2, "g": 8, "blocks": 1, "d": 8, "layers": 1, "steps": 40},
        "small": {
            "pixels": 32, "batch": 4, "g": 16, "blocks": 3, "d": 16, "layers": 2, "steps": 600,
        },
        "paper": {
            "pixels": 96, "batch": 4, "g": 64, "blocks": 16, "d": 64, "layers": 3,
            "steps": 900_000,
        },
    }  # fmt: skip
    averaged = ("generator",)

    def __init__(self, size, data=None):
        if data is not None:
            raise ValueError("tecogan moves over the photographs it has: --data is of no use")
        self.size, n = size, size["pixels"]
        small = nn.Variable((size["batch"], FRAMES, 3, n // 4, n // 4))
        made, flows, _ = self.video(small)
        self.judge(made, flows, small)
        rate = 5e-5 if size["blocks"] == 16 else 1e-3
        self.solvers = adams(generator={"alpha": rate}, discriminator={"alpha": rate / 4})

        def losses(small, large):
            """What is made, flows, and the losses without a discriminator."""
            made, flows, moved = self.video(small)
            error = F.mean(F.abs(F.stack(*made[:FRAMES], axis=1) - large))
            same = sum(F.mean(F.abs(made[i] - made[-1 - i])) for i in range(FRAMES - 1))
            return made, flows, error, error + moved + 0.5 * same

        @nn.compile
        def alone(small, large):
            *_, error, loss = losses(small, large)
            learn(self.solvers["generator"], loss)
            return error

        @nn.compile
        def against(small, large):
            made, flows, error, loss = losses(small, large)
            scores = self.judge(made, flows, small)
            fooled = adversarial_losses("logistic", scores)
            learn(self.solvers["generator"], loss + 5e-3 * fooled)
            flows = [F.unlink(f) for f in flows]
            real = self.judge([large[:, i] for i in range(FRAMES)], flows, small)
            made = self.judge([F.unlink(y) for y in made], flows, small)
            judged = adversarial_losses("logistic", made, real)
            learn(self.solvers["discriminator"], judged)
            return error, judged

        self._alone, self._against = alone, against
        self._video = nn.compile(lambda small: F.stack(*self.video(small)[0][:FRAMES], axis=1))

    def video(self, small):
        """Frames there and back, flows to each from the one before, and the loss of the flows."""
        b, _, _, h, w = small.shape
        last = [small[:, i] for i in ORDER]
        frame, flows, made, moved = last[0], [], [], 0.0
        before = nn.Variable.from_numpy_array(np.zeros((b, 3, 4 * h, 4 * w), np.float32))
        for i, frame in enumerate(last):
            if i:
                flow = self.flow(frame, last[i - 1])
                moved = moved + F.mean((F.warp_by_flow(last[i - 1], flow) - frame) ** 2)
                flows.append(4.0 * doubled(doubled(flow)))
                before = F.warp_by_flow(made[-1], flows[-1])
            made.append(self.enlarge(frame, before))
        return made, flows, moved

    def flow(self, frame, before):
        """From where each pixel of a frame comes in the one before: (B, 2, h, w)."""
        with nn.parameter_scope("generator/flow"):
            h = F.concatenate(frame, before, axis=1)
            for i in range(3):
                h = F.leaky_relu(convolution(h, 2 * self.size["g"], 3, f"layer{i}"), 0.2)
            return FARTHEST * F.tanh(convolution(h, 2, 3, "last"))

    def enlarge(self, frame, before):
        """A frame of four times the size, of a small one and the moved one before."""
        b, _, h, w = frame.shape
        g = self.size["g"]
        parts = F.reshape(before, (b, 3, h, 4, w, 4))
        parts = F.reshape(F.transpose(parts, (0, 1, 3, 5, 2, 4)), (b, 48, h, w))
        with nn.parameter_scope("generator/images"):
            y = convolution(F.concatenate(frame, parts, axis=1), g, 3, "first")
            for i in range(self.size["blocks"]):
                z = F.relu(convolution(y, g, 3, f"block{i}/first"))
                y = y + convolution(z, g, 3, f"block{i}/second")
            for i in range(2):
                # units that are never on would end at what is even
                y = F.leaky_relu(convolution(doubled(y), g, 3, f"double{i}"), 0.2)
            even = F.interpolate(frame, scale=(4, 4), mode="linear", half_pixel=True)
            return even + convolution(y, 3, 3, "last", init=NormalInitializer(0.01))

    def judge(self, made, flows, small):
        """Scores of three frames, also moved onto the middle one, beside the small ones."""
        b, _, c, h, w = small.shape
        moved = F.warp_by_flow(made[0], flows[0]), F.warp_by_flow(made[2], flows[2])
        seen = doubled(doubled(F.reshape(small, (b, FRAMES * c, h, w))))
        with nn.parameter_scope("discriminator"):
            both = F.concatenate(*made[:FRAMES], *moved, seen, axis=1)
            return patch_discriminator(both, self.size["d"], self.size["layers"], "instance")

    def batch(self, rng, held_out=False):
        large, _ = moving(self.size["batch"], FRAMES, self.size["pixels"], rng, held_out)
        return [smaller(large), large]

    def step(self, *arrays):
        given = [pixels(a) for a in arrays]
        if self.done < self.size["steps"] * 3 // 4:
            return {"L1": self._alone(*given)}
        return dict(zip(("L1", "judge"), self._against(*given), strict=True))

    def made(self, count, seed):
        """Small videos, what is made of them, true ones, and how they move."""
        rng, found = np.random.default_rng(seed), []
        for _ in range(-(-count // self.size["batch"])):
            large, speed = moving(self.size["batch"], FRAMES, self.size["pixels"], rng, True)
            small = smaller(large)
            found.append((small, self._video(pixels(small)).d.clip(-1, 1), large, speed))
        return [np.concatenate(parts)[:count] for parts in zip(*found, strict=True)]

    def sample(self, count, seed):
        small, made, large, _ = self.made(-(-count // (3 * FRAMES)), seed)
        small = small.repeat(4, 3).repeat(4, 4)
        return np.stack([small, made, large], 1).reshape(-1, *large.shape[2:])[:count]

    def measure(self):
        small, made, large, speed = self.made(32, 1)
        n = self.size["pixels"]
        bicubic = (
            resized((small.reshape(-1, *small.shape[2:]) + 1) / 2, n).reshape(large.shape) * 2 - 1
        )
        videos = {"": made, " bicubic": bicubic}
        found = {
            f"PSNR{k}": 10 * np.log10(4 / ((v - large) ** 2).mean()) for k, v in videos.items()
        }
        for name, video in (*videos.items(), (" of true ones", large)):
            flicker = [
                warping_error(v, np.broadcast_to(s[:, None, None], (FRAMES - 1, 2, n, n)))
                for v, s in zip(video, speed, strict=True)
            ]
            found[f"flicker{name}"] = np.mean(flicker)
        return found

    def network(self):
        n = self.size["pixels"] // 4
        compiled = nn.compile(self.enlarge)
        compiled(nn.Variable((1, 3, n, n)), nn.Variable((1, 3, 4 * n, 4 * n)))
        return compiled


if __name__ == "__main__":
    main(TecoGAN)
