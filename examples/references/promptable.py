# SPDX-License-Identifier: Apache-2.0
"""Segmentation by a prompt, as SAM does: one click on a picture gives the object under it.

Convolutions make features of the picture once; the click is a vector of its place, which looks at
them and they at it. The answer is the product of what the click became with features at half the
size. Beside: the best disc around the click, of one size for all. Source: Kirillov et al.,
arXiv:2304.02643. Expected (mean intersection over union, of photographs it never saw):

    {"IoU": 0.5703, "IoU of a disc": 0.3565, "seconds": 267}
"""

import numpy as np
from common import answers, fit, main
from scenes import scenes

import nnl as nn
import nnl.functions as F
import nnl.parametric_functions as PF
from nnl.models.convolution import conv_bn
from nnl.models.generative.layers import attention, layer_norm, linear

SIZE, WIDTH, SIDE = 48, 48, 12
WAVES = 2.0 ** np.arange(5) * np.pi


def placed(at):
    """Waves of places (..., 2) in [0, 1]: (..., 20)."""
    angles = at[..., None] * WAVES
    waves = np.concatenate([np.sin(angles), np.cos(angles)], -1)
    return waves.reshape(*at.shape[:-1], 20).astype(np.float32)


def crossed(h, other, name):
    with nn.parameter_scope(name):
        h = h + attention(layer_norm(h, "norm1"), 4, "look", context=other)
        return h + linear(F.relu(linear(layer_norm(h, "norm2"), 2 * WIDTH, "up")), WIDTH, "down")


def network(x, click, test=True):
    """Scores (B, H / 2, W / 2) of whether a pixel is of the object at `click`, (B, 20)."""
    b = x.shape[0]
    fine = conv_bn(conv_bn(x, 24, 3, "conv1", test, stride=2), 24, 3, "conv2", test)
    h = conv_bn(conv_bn(fine, WIDTH, 3, "conv3", test, stride=2), WIDTH, 3, "conv4", test)
    grid = np.stack(np.mgrid[:SIDE, :SIDE], -1).reshape(1, -1, 2) / SIDE + 0.5 / SIDE
    grid = nn.Variable.from_numpy_array(placed(grid))
    rows = F.transpose(F.reshape(h, (b, WIDTH, SIDE * SIDE)), (0, 2, 1)) + linear(grid, WIDTH, "at")
    token = linear(F.reshape(click, (b, 1, 20)), WIDTH, "at")
    for i in range(2):
        token = crossed(token, rows, f"token{i}")
        rows = crossed(rows, F.concatenate(token, token * 0, axis=1), f"rows{i}")
    h = F.reshape(F.transpose(rows, (0, 2, 1)), (b, WIDTH, SIDE, SIDE))
    h = conv_bn(F.concatenate(F.unpooling(h, (2, 2)), fine, axis=1), 24, 3, "conv5", test)
    h = PF.convolution(h, 24, (1, 1), name="pixels")
    n = SIZE // 2
    scores = F.batch_matmul(linear(token, 24, "wanted"), F.reshape(h, (b, 24, n * n)))
    return F.reshape(scores, (b, n, n))


def loss_of(x, click, mask):
    """Cross entropy and one less the overlap (Dice)."""
    scores = network(x, click, test=False)
    p = F.sigmoid(scores)
    both, sides = F.sum(p * mask, axis=(1, 2)), F.sum(p + mask, axis=(1, 2))
    return F.mean(F.sigmoid_cross_entropy(scores, mask)) + F.mean(1 - 2 * both / (sides + 1))


def clicked(some, rng):
    """Pictures, places of clicks (B, 2), and masks (B, H, W) of the objects there."""
    chosen = [s.masks[rng.integers(len(s.masks))] for s in some]
    at = [(p := np.argwhere(m))[rng.integers(len(p))] for m in chosen]
    return np.stack([s.image for s in some]), (np.stack(at) + 0.5) / SIZE, np.stack(chosen)


def overlap(a, b):
    return ((a & b).sum((1, 2)) / (a | b).sum((1, 2))).mean()


def run(steps=700):
    known = scenes(2000)

    def batch(rng):
        x, at, mask = clicked([known[i] for i in rng.integers(len(known), size=16)], rng)
        return [x, placed(at), mask[:, ::2, ::2].astype(np.float32)]

    fit(loss_of, batch, steps, rate=2e-3)
    x, at, truth = clicked(scenes(200, held_out=True), np.random.default_rng(2))
    found = answers(network, x, placed(at)).repeat(2, 1).repeat(2, 2) > 0
    pixels = (np.mgrid[:SIZE, :SIZE] + 0.5) / SIZE
    far = np.hypot(*(pixels[i] - at[:, i, None, None] for i in (0, 1)))
    discs = max(overlap(far < r, truth) for r in np.linspace(0.05, 0.4, 15))
    return {"IoU": overlap(found, truth), "IoU of a disc": discs}


if __name__ == "__main__":
    main(run)
