# SPDX-License-Identifier: Apache-2.0
"""ReenactGAN: the face of one picture moves as that of another does.

    python examples/generative/reenactgan.py train
    python examples/generative/reenactgan.py sample    a face, its boundary, the other face's, moved

Faces meet in the space of their boundaries. An encoder makes the boundary of an image; transformers
turn boundaries of one face into those of the other (CycleGAN, and what a regressor says of the pose
should stay); a decoder paints the other face, with the losses of pix2pix. Crops that move about the
face of a person and of a cat stand for videos: the pose is how far the crop has moved, boundaries
are edges, and no frame of one has a partner of the other in training.
Source: Wu et al., arXiv:1807.11079. Expected (PSNR against the other face at the same pose, which
training never saw beside the first, and of the other face where it does not move; on a machine that
had much else to do):

    {"steps": 600, "seconds": 1231, "PSNR": 17.3114, "PSNR at rest": 16.7088}
"""

import numpy as np
from common import adams, learn, main, pixels
from pictures import edges, photographs, resized

import nnl as nn
import nnl.functions as F
from nnl.metrics import psnr
from nnl.models.generative import patch_discriminator, resnet_generator
from nnl.models.generative.layers import convolution, linear
from nnl.training.generative import adversarial_losses

# picture, top and left of a crop at rest, and its side, in pixels
FACES = ((0, 40, 150, 150), (1, 40, 110, 180))
FARTHEST = 40  # pixels that a crop moves each way
WAYS = ("ab", "ba")


class ReenactGAN:
    """An encoder, transformers both ways, a regressor of poses, and a decoder."""

    SIZES = {
        "tiny": {"pixels": 16, "batch": 4, "g": 6, "blocks": 1, "d": 8, "steps": 40},
        "small": {
            "pixels": 32, "batch": 8, "g": 16, "blocks": 1, "d": 16, "steps": 600,
        },
        "paper": {
            "pixels": 128, "batch": 8, "g": 64, "blocks": 6, "d": 64, "steps": 100_000,
        },
    }  # fmt: skip
    averaged = ("encode", "transform", "decode")

    def __init__(self, size, data=None):
        if data is not None:
            raise ValueError("reenactgan moves over two photographs: --data is of no use")
        self.size, n = size, size["pixels"]
        x = nn.Variable((size["batch"], 3, n, n))
        edge = self.encode(x)
        for way in WAYS:
            self.judge(self.transform(edge, way), way[1])
        self.pose(edge)
        self.criticise(F.concatenate(edge, self.decode(edge), axis=1))
        adam = {"alpha": 2e-4 if n == 128 else 1e-3, "beta1": 0.5}
        scopes = ("encode", "pose", "transform", "decode", "judge", "critic")
        self.solvers = adams(**dict.fromkeys(scopes, adam))

        @nn.compile
        def describe(x, edge, pose):
            """The encoder and the regressor learn what is known of each face by itself."""
            found = F.mean((self.encode(x) - edge) ** 2)
            learn(self.solvers["encode"], found)
            learn(self.solvers["pose"], F.mean((self.pose(edge) - pose) ** 2))
            return found

        @nn.compile
        def exchange(a, b):
            """The transformers learn from boundaries of both faces, without pairs."""
            made = self.transform(a, "ab"), self.transform(b, "ba")
            again = self.transform(made[0], "ba"), self.transform(made[1], "ab")
            loss = 0.0
            for x, y, z, way in zip((a, b), made, again, WAYS, strict=True):
                fooled = adversarial_losses("least_squares", self.judge(y, way[1]))
                moved = F.mean((self.pose(y) - F.unlink(self.pose(x))) ** 2)
                loss = loss + fooled + 10.0 * F.mean(F.abs(z - x)) + 10.0 * moved
            learn(self.solvers["transform"], loss)
            judged = 0.0
            for x, y, side in ((a, made[1], "a"), (b, made[0], "b")):
                both = self.judge(F.unlink(y), side), self.judge(x, side)
                judged = judged + 0.5 * adversarial_losses("least_squares", *both)
            learn(self.solvers["judge"], judged)
            return loss

        @nn.compile
        def paint(b, edge):
            """The decoder learns the second face of its boundaries."""
            made = self.decode(edge)
            fake = F.concatenate(edge, made, axis=1)
            fooled = adversarial_losses("logistic", self.criticise(fake))
            error = F.mean(F.abs(made - b))
            learn(self.solvers["decode"], fooled + 100.0 * error)
            real = self.criticise(F.concatenate(edge, b, axis=1))
            fake = self.criticise(F.unlink(fake))
            learn(self.solvers["critic"], 0.5 * adversarial_losses("logistic", fake, real))
            return error

        self._describe, self._exchange, self._paint = describe, exchange, paint
        self._whole = nn.compile(self.whole)

    def encode(self, x):
        """The boundary (B, 1, H, W) of images."""
        with nn.parameter_scope("encode"):
            h = x
            for i in range(3):
                h = F.relu(convolution(h, self.size["g"], 5 if i == 0 else 3, f"layer{i}"))
            return F.tanh(convolution(h, 1, 3, "last"))

    def transform(self, edge, way):
        """The boundary of the other face."""
        with nn.parameter_scope(f"transform/{way}"):
            return resnet_generator(edge, 1, self.size["g"], self.size["blocks"])

    def pose(self, edge):
        """How far the crop has moved, right and down, (B, 2) from -1 to 1."""
        with nn.parameter_scope("pose"):
            h = edge
            for i in range(3):
                h = F.relu(convolution(h, self.size["g"] * 2**i, 4, f"layer{i}", 2, 1))
            return linear(F.reshape(h, (h.shape[0], -1)), 2, "last")

    def decode(self, edge):
        with nn.parameter_scope("decode"):
            return resnet_generator(edge, 3, self.size["g"], self.size["blocks"])

    def judge(self, edge, side):
        with nn.parameter_scope(f"judge/{side}"):
            return patch_discriminator(edge, self.size["d"], 1, "instance")

    def criticise(self, both):
        """Scores of boundaries with images."""
        with nn.parameter_scope("critic"):
            return patch_discriminator(both, self.size["d"], 1, "instance")

    def whole(self, x):
        """The boundary of the first face, that of the second, and the second face."""
        edge = self.encode(x)
        other = self.transform(edge, "ab")
        return edge, other, self.decode(other)

    def batch(self, rng):
        n = self.size["batch"]
        poses = rng.uniform(-1, 1, (2, n, 2)).astype(np.float32)
        return [*(self.faces(k, poses[k]) for k in (0, 1)), *poses]

    def faces(self, which, poses):
        """Crops of a face that have moved: (N, 3, size, size) in [-1, 1]."""
        number, top, left, side = FACES[which]
        image = photographs()[number]
        found = []
        for right, down in (poses * FARTHEST).round().astype(int):
            found.append(image[:, top + down :, left + right :][:, :side, :side])
        return (resized(np.stack(found), self.size["pixels"]) * 2 - 1).astype(np.float32)

    def step(self, a, b, *poses):
        sides = [edges(x) for x in (a, b)]
        x, edge, pose = (pixels(np.concatenate(v)) for v in ((a, b), sides, poses))
        found = self._describe(x, edge, pose)
        sides = [pixels(e) for e in sides]
        painted = self._paint(pixels(b), sides[1])
        return {"edges": found, "exchange": self._exchange(*sides), "L1": painted}

    def made(self, count, seed):
        """First faces, both boundaries, what is made, and the second face at the same pose."""
        poses = np.random.default_rng(seed).uniform(-1, 1, (count, 2))
        a, b = (self.faces(k, poses) for k in (0, 1))
        return a, *(y.d.copy() for y in self._whole(pixels(a))), b

    def sample(self, count, seed):
        parts = self.made(-(-count // 5), seed)
        parts = [np.broadcast_to(p, parts[0].shape) for p in parts]
        return np.stack(parts, 1).reshape(-1, *parts[0].shape[1:])[:count]

    def measure(self):
        *_, made, b = self.made(64, 1)
        rest = np.broadcast_to(self.faces(1, np.zeros((1, 2))), b.shape)
        return {"PSNR": psnr(b, made, 2).mean(), "PSNR at rest": psnr(b, rest, 2).mean()}

    def network(self):
        compiled = nn.compile(lambda x: self.whole(x)[2])
        compiled(nn.Variable((1, 3, self.size["pixels"], self.size["pixels"])))
        return compiled


if __name__ == "__main__":
    main(ReenactGAN)
