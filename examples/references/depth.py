# SPDX-License-Identifier: Apache-2.0
"""Depth from one picture: balls on a floor, seen by a camera that is tilted by an unknown angle.

Floors and balls wear pieces of photographs, so only sizes, heights and what hides what tell how far
a pixel is. The loss does not mind a common factor half as much as the rest. Beside: the mean depth
at each place of the picture. Source: Eigen et al., arXiv:1406.2283. Expected (mean relative error,
and the share of pixels within a quarter of the truth, before photographs it never saw):

    {"error": 0.0918, "within a quarter": 0.9026, "error of the mean": 0.1818, "seconds": 521}
"""

import numpy as np
from common import answers, fit, main, some
from scenes import crop

import nnl as nn
import nnl.functions as F
from nnl.models import unet

SIZE, FAR = 48, 12.0


def seen(rng, held_out=False):
    """A picture (3, H, W) and its depths (H, W), by rays from a camera 1.5 above the floor."""
    tilt = rng.uniform(0.15, 0.5)
    y, x = (np.mgrid[:SIZE, :SIZE] - SIZE / 2 + 0.5) / (0.8 * SIZE)
    # right, up and ahead of each ray, of which ahead is 1 before the camera is tilted
    rays = np.stack([x, -y * np.cos(tilt) - np.sin(tilt), np.cos(tilt) - y * np.sin(tilt)])
    far = np.where(rays[1] < 0, -1.5 / np.minimum(rays[1], -1e-6), np.inf)
    image, depth = crop(rng, SIZE, held_out), np.minimum(far, FAR)
    image[:, far > FAR] = rng.uniform(0.5, 1)  # the sky
    for _ in range(rng.integers(2, 6)):
        radius, ahead = 0.5, rng.uniform(2, 9)  # all are of one size
        centre = np.array([rng.uniform(-0.5, 0.5) * ahead, radius - 1.5, ahead])
        b = np.tensordot(centre, rays, 1) / (a := (rays**2).sum(0))
        root = b**2 - (centre @ centre - radius**2) / a
        at = np.where(root > 0, b - np.sqrt(np.maximum(root, 0)), np.inf)
        front = at < depth
        normal = (rays * at - centre[:, None, None])[1] / radius
        wear = 0.6 * crop(rng, SIZE, held_out) + 0.4 * rng.random((3, 1, 1))
        light = np.where(front, 0.75 + 0.25 * normal, 0).astype(np.float32)
        image, depth = np.where(front, wear * light, image), np.where(front, at, depth)
    image = image + 0.02 * rng.normal(size=image.shape)
    return image.astype(np.float32), depth.astype(np.float32)


def pictures(count, held_out=False):
    rng = np.random.default_rng(held_out)
    return tuple(map(np.stack, zip(*(seen(rng, held_out) for _ in range(count)), strict=True)))


def network(x, test=True):
    """Logarithms of depths, (B, 1, H, W)."""
    with nn.parameter_scope("depth"):
        return unet(x, num_classes=1, channels=8, depth=4, test=test) + 1.3


def loss_of(x, depth):
    d = network(x, test=False) - F.log(F.reshape(depth, (depth.shape[0], 1, *depth.shape[1:])))
    return F.mean(d**2) - 0.5 * F.mean(F.mean(d, axis=(1, 2, 3)) ** 2)


def errors(depth, truth):
    ratio = np.maximum(depth / truth, truth / depth)
    return (np.abs(depth - truth) / truth).mean(), (ratio < 1.25).mean()


def run(steps=400):
    (x, depth), (held_out, truth) = pictures(1000), pictures(100, held_out=True)
    fit(loss_of, some(16, x, depth), steps, rate=3e-3, scope="depth")
    error, near = errors(np.exp(answers(network, held_out)[:, 0]), truth)
    plain, _ = errors(np.exp(np.log(depth).mean(0)), truth)
    return {"error": error, "within a quarter": near, "error of the mean": plain}


if __name__ == "__main__":
    main(run)
