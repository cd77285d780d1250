# SPDX-License-Identifier: Apache-2.0
"""Pose: where the joints of a figure are, before photographs.

A network paints a map for each of eleven joints, and the joint is where the map's mass lies (its
soft maximum). Figures are drawn, in any colour; the photographs of the held out ones are others.
Beside: the mean pose. Source: Sun et al., Integral Human Pose Regression, arXiv:1711.08229.
Expected (share of joints at most 2 of 48 pixels away, PCK; mean distance in pixels):

    {"PCK": 0.8627, "PCK of the mean": 0.1409, "distance": 1.2505, "seconds": 365}
"""

import numpy as np
from common import answers, fit, main, some
from scenes import crop

import nnl as nn
import nnl.functions as F
from nnl.models import unet

SIZE = 48
LIMBS = ((0, 1), (1, 2), (1, 3), (3, 4), (1, 5), (5, 6), (2, 7), (7, 8), (2, 9), (9, 10))
JOINTS = 11  # head, neck, hip, elbow and hand at the left and right, knee and foot at both


def joints(rng):
    """(JOINTS, 2): x and y in pixels."""

    def beside(a, length, low, high, side=1):
        angle = side * rng.uniform(low, high)
        return a + length * np.array([np.sin(angle), np.cos(angle)])  # 0 is down

    neck = np.array([rng.uniform(18, 30), rng.uniform(14, 20)])
    lean, scale = rng.uniform(-0.3, 0.3), rng.uniform(0.8, 1.1)
    hip = beside(neck, 12 * scale, lean, lean)
    found = [beside(neck, 6 * scale, np.pi + lean, np.pi + lean), neck, hip]
    for side in (-1, 1):
        elbow = beside(neck, 7 * scale, 0.3, 2.4, side)
        found += [elbow, beside(elbow, 7 * scale, 0.0, 2.8, side)]
    for side in (-1, 1):
        knee = beside(hip, 8 * scale, 0.1, 1.0, side)
        found += [knee, beside(knee, 8 * scale, -0.3, 0.8, side)]
    return np.array(found).clip(1, SIZE - 2)


def figure(rng, held_out=False):
    """A picture (3, SIZE, SIZE) and its joints."""
    image, at = crop(rng, SIZE, held_out), joints(rng)
    y, x = np.mgrid[:SIZE, :SIZE]
    colour = rng.uniform(0, 1, (3, 1))
    for a, b in LIMBS:
        start, way = at[a], at[b] - at[a]
        along = ((x - start[0]) * way[0] + (y - start[1]) * way[1]) / (way @ way + 1e-6)
        along = along.clip(0, 1)
        far = np.hypot(x - start[0] - along * way[0], y - start[1] - along * way[1])
        mask = far < 1.3
        image[:, mask] = colour + 0.08 * rng.normal(size=(3, mask.sum()))
    head = np.hypot(x - at[0, 0], y - at[0, 1]) < 3
    image[:, head] = 1 - colour
    return image.clip(0, 1), at.astype(np.float32)


def pictures(count, held_out=False):
    rng = np.random.default_rng(held_out)
    return list(map(np.stack, zip(*(figure(rng, held_out) for _ in range(count)), strict=True)))


def network(image, test=True):
    """(B, 3, SIZE, SIZE) -> (B, JOINTS, 2)."""
    with nn.parameter_scope("pose"):
        maps = unet(image, num_classes=JOINTS, channels=8, depth=3, test=test)
    b = maps.shape[0]
    mass = F.softmax(F.reshape(maps, (b, JOINTS, SIZE * SIZE)), axis=2)
    y, x = np.mgrid[:SIZE, :SIZE].astype(np.float32).reshape(2, -1)
    places = nn.Variable.from_numpy_array(np.stack([x, y], 1))
    flat = F.reshape(mass, (b * JOINTS, SIZE * SIZE))
    return F.reshape(F.affine(flat, places), (b, JOINTS, 2))


def loss_of(image, at):
    return F.mean(F.huber_loss(network(image, test=False), at))


def run(steps=1000):
    known, (x, truth) = pictures(2000), pictures(100, held_out=True)
    fit(loss_of, some(16, *known), steps, rate=4e-3, scope="pose")

    def far(at):
        return np.linalg.norm(at - truth, axis=2)

    ours, mean = far(answers(network, x)), far(known[1].mean(0))
    return {
        "PCK": (ours <= 2).mean(),
        "PCK of the mean": (mean <= 2).mean(),
        "distance": ours.mean(),
    }


if __name__ == "__main__":
    main(run)
