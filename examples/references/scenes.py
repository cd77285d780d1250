# SPDX-License-Identifier: Apache-2.0
"""Pictures whose truth is known: discs, crosses and triangles before pieces of photographs."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

KINDS = ("disc", "cross", "triangle")


class Scene(NamedTuple):
    """A picture (3, H, W) in [0, 1] and its objects, those in front last.

    masks (N, H, W) are what is seen of each, boxes (N, 4) left, top, right and bottom of that in
    pixels, kinds (N,) rows of KINDS.
    """

    image: np.ndarray
    masks: np.ndarray
    boxes: np.ndarray
    kinds: np.ndarray

    @property
    def classes(self) -> np.ndarray:
        """(H, W): 0 for the photograph, 1 + the row of KINDS for objects."""
        return (self.masks * (1 + self.kinds[:, None, None])).sum(0)


@cache
def photographs(held_out: bool = False) -> tuple[np.ndarray, ...]:
    """Photographs (H, W, 3) in [0, 1] of scikit-image, or the held out ones, of scikit-learn."""
    if held_out:
        from sklearn.datasets import load_sample_images

        found = load_sample_images().images
    else:
        from skimage import data

        found = [data.astronaut(), data.chelsea(), data.coffee(), data.rocket()]
    return tuple((p[::2, ::2] / 255).astype(np.float32) for p in found)


def crop(rng: np.random.Generator, size: int, held_out: bool = False) -> np.ndarray:
    """A square piece of a photograph, (3, size, size)."""
    pictures = photographs(held_out)
    p = pictures[rng.integers(len(pictures))]
    y, x = rng.integers(0, np.array(p.shape[:2]) - size + 1)
    return p[y : y + size, x : x + size].transpose(2, 0, 1).copy()


def inside(kind: int, size: int, centre: np.ndarray, half: float, turn: float) -> np.ndarray:
    """(size, size): which pixels an object covers."""
    y, x = np.mgrid[:size, :size] - centre[:, None, None]
    if kind == 0:
        return np.hypot(x, y) < half
    if kind == 1:
        u, v = np.abs([x * np.cos(turn) + y * np.sin(turn), y * np.cos(turn) - x * np.sin(turn)])
        return (np.minimum(u, v) < 0.35 * half) & (np.maximum(u, v) < 1.1 * half)
    angles = turn + np.arange(3) * 2 * np.pi / 3
    return np.all([x * np.cos(a) + y * np.sin(a) < 0.65 * half for a in angles], axis=0)


def scene(rng: np.random.Generator, size: int = 48, most: int = 3, held_out: bool = False) -> Scene:
    """A picture with one object to `most`, each of a colour of its own, with noise."""
    image, masks, kinds = crop(rng, size, held_out), [], []
    for _ in range(rng.integers(1, most + 1)):
        half = rng.uniform(0.16, 0.28) * size
        centre = rng.uniform(half, size - half, 2)
        kind = int(rng.integers(len(KINDS)))
        mask = inside(kind, size, centre, half, rng.uniform(0, 2 * np.pi))
        colour = rng.uniform(0, 1, 3)[:, None] + 0.1 * rng.normal(size=(3, mask.sum()))
        image[:, mask] = colour.clip(0, 1)
        masks = [*(m & ~mask for m in masks), mask]
        kinds.append(kind)
    seen = [i for i, m in enumerate(masks) if m.sum() > 20]
    found = np.array([masks[i] for i in seen])
    rows, columns = found.any(2), found.any(1)
    low = columns.argmax(1), rows.argmax(1)
    high = size - columns[:, ::-1].argmax(1), size - rows[:, ::-1].argmax(1)
    boxes = np.stack([*low, *high], 1).astype(np.float32)
    return Scene(image, found, boxes, np.array([kinds[i] for i in seen]))


@cache
def scenes(count: int, size: int = 48, most: int = 3, held_out: bool = False) -> tuple[Scene, ...]:
    """So many of them; those that are held out are before other photographs."""
    rng = np.random.default_rng(held_out)
    return tuple(scene(rng, size, most, held_out) for _ in range(count))
