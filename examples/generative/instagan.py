# SPDX-License-Identifier: Apache-2.0
"""InstaGAN: objects of photographs change their shape, and what lies behind them stays.

    python examples/generative/instagan.py train
    python examples/generative/instagan.py sample    an image, changed, and back; then the reverse

CycleGAN of images together with masks of their objects. Each mask is encoded by itself, and the
image sees their sum, so that the number and the order of objects do not matter; pixels that no
object covers before or after should stay. Domain a are photographs with two pasted discs cut of
other photographs, domain b those with squares. All objects are changed at once.
Source: Mo et al., arXiv:1812.10889; without its sequential mini-batches. Expected of --steps 700
(IoU of the changed masks with the squares of the discs' width, beside that of the discs, and PSNR
of what no object covers):

    {"steps": 700, "seconds": 339, "IoU": 0.9762, "IoU as it is": 0.7954, "PSNR behind": 20.3742}
"""

import numpy as np
from common import main
from cyclegan import CycleGAN
from pictures import scenes

import nnl as nn
import nnl.functions as F
from nnl.metrics import psnr, segmentation_scores
from nnl.models.generative import patch_discriminator
from nnl.models.generative.layers import convolution, deconvolution

OBJECTS = 2
ROUND, SQUARE = 2, np.inf  # norms whose balls are discs and squares


class InstaGAN(CycleGAN):
    """The same losses, of images with a mask for each object."""

    SIZES = {
        name: {**size, "batch": max(size["batch"], 2), "pixels": min(size["pixels"], 64)}
        for name, size in CycleGAN.SIZES.items()
    }
    channels = 3 + OBJECTS

    def domains(self):
        if self.data is not None:
            raise ValueError("instagan pastes its own objects: --data is of no use")

        def drawing(norm):
            return lambda *args: pasted(*args, self.size["pixels"], norm)

        return drawing(ROUND), drawing(SQUARE)

    def turn(self, x, way):
        """Images and masks (B, 3 + OBJECTS, H, W), changed."""
        b, _, h, w = x.shape
        with nn.parameter_scope(f"generator/{way}"):
            image = self.encode(x[:, :3], "image")
            masks = self.encode(F.reshape(x[:, 3:], (b * OBJECTS, 1, h, w)), "masks")
            size = masks.shape[1:]
            several = F.reshape(masks, (b, OBJECTS, *size))
            scene = F.concatenate(image, F.sum(several, axis=1), axis=1)
            each = F.broadcast(
                F.reshape(scene, (b, 1, *scene.shape[1:])), (b, OBJECTS, *scene.shape[1:])
            )
            each = F.reshape(F.concatenate(each, several, axis=2), (b * OBJECTS, -1, *size[1:]))
            image = self.decode(scene, 3, "image")
            masks = F.reshape(self.decode(each, 1, "masks"), (b, OBJECTS, h, w))
        return F.concatenate(image, masks, axis=1)

    def encode(self, x, name):
        """Maps of a half of the height and width."""
        g = self.size["g"]
        h = F.relu(normed(convolution(x, g, 5, f"{name}/first")))
        return F.relu(normed(convolution(h, 2 * g, 4, f"{name}/half", 2, 1)))

    def decode(self, h, outputs, name):
        """Residual blocks, and back to full size, in [-1, 1]."""
        g = self.size["g"]
        h = F.relu(normed(convolution(h, 2 * g, 3, f"{name}/in")))
        for i in range(self.size["blocks"]):
            y = F.relu(normed(convolution(h, 2 * g, 3, f"{name}/block{i}/first")))
            h = h + normed(convolution(y, 2 * g, 3, f"{name}/block{i}/second"))
        h = F.relu(normed(deconvolution(h, g, 4, f"{name}/double")))
        return F.tanh(convolution(h, outputs, 5, f"{name}/out"))

    def judge(self, x, side):
        """Sees the image and the sum of the masks."""
        masks = F.sum(x[:, 3:] + 1.0, axis=1, keepdims=True) - 1.0
        with nn.parameter_scope(f"judge/{side}"):
            both = F.concatenate(x[:, :3], masks, axis=1)
            return patch_discriminator(both, self.size["d"], self.size["layers"], "instance")

    def kept(self, x, y):
        """What no object covers, before or after, should stay (L1, 10 times)."""
        covered = [F.max((v[:, 3:] + 1.0) * 0.5, axis=1, keepdims=True) for v in (x, y)]
        behind = (1.0 - covered[0]) * (1.0 - covered[1])
        return 10.0 * F.mean(behind * F.abs(y[:, :3] - x[:, :3]))

    def measure(self):
        (a, b, _), _ = self.made(64, 1)
        discs, made = a[:, 3:] > 0, b[:, 3:] > 0
        squares = np.stack([boxed(m) for m in discs.reshape(-1, *discs.shape[2:])])
        squares = squares.reshape(discs.shape)
        behind = ~(discs | squares).any(1, keepdims=True)
        noise = psnr(np.where(behind, a[:, :3], 0), np.where(behind, b[:, :3], 0), 2)
        found = {"IoU": made, "IoU as it is": discs}
        found = {k: segmentation_scores(squares, v)["iou"][1] for k, v in found.items()}
        return found | {"PSNR behind": noise.mean()}


def normed(x):
    """Instance normalisation without parameters."""
    return F.instance_normalization(x, None, None)


def boxed(mask):
    """The box around a mask."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    box = np.zeros_like(mask)
    box[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] = True
    return box


def pasted(n, rng, held_out, size, norm):
    """Crops of photographs with pasted objects, and a mask of each: (n, 5, size, size)."""
    behind, cut = (scenes(n, size, rng, held_out) for _ in range(2))
    cut = (cut * 0.5 + np.sign(rng.random((n, 3, 1, 1)) - 0.5) * 0.5).astype(np.float32)
    row, column = np.mgrid[:size, :size]
    radius = rng.uniform(size / 8, size / 5, (n, OBJECTS, 1, 1))
    # the objects lie in halves of their own
    at = rng.uniform(size / 5, size * 4 / 5, (2, n, OBJECTS, 1, 1))
    at[1] = (
        (np.arange(OBJECTS)[:, None, None] + rng.uniform(0.4, 0.6, (n, OBJECTS, 1, 1))) * size / 2
    )
    away = np.stack([row - at[0], column - at[1]])
    masks = np.linalg.norm(away, ord=norm, axis=0) < radius
    image = np.where(masks.any(1, keepdims=True), cut, behind)
    return np.concatenate([image, masks * 2 - 1], axis=1).astype(np.float32)


if __name__ == "__main__":
    main(InstaGAN)
