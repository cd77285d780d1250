# SPDX-License-Identifier: Apache-2.0
"""Small sets of real pictures without a download: digits, faces, photographs, and folders."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np

Array = np.ndarray
Draw = Callable[..., Array]  # of a number, a generator of random numbers, and whether held out
LARGEST = 128  # pixels a side, of crops that are held out
PHOTOGRAPHS = (  # free ones that scikit-image and scikit-learn bring along
    ("skimage.data", "astronaut.png"),
    ("skimage.data", "chelsea.png"),
    ("skimage.data", "coffee.png"),
    ("skimage.data", "rocket.jpg"),
    ("sklearn.datasets.images", "china.jpg"),
    ("sklearn.datasets.images", "flower.jpg"),
)
EXTENSIONS = (".png", ".jpg", ".jpeg", ".bmp", ".webp")


@cache
def digits(size: int = 16, held_out: bool = False) -> tuple[Array, Array]:
    """Handwritten digits of scikit-learn: images (N, 1, size, size) in [-1, 1], and classes (N,).

    Every fifth of each class is held out.
    """
    from sklearn.datasets import load_digits

    found = load_digits()
    rank = np.zeros(len(found.target), int)
    for c in range(10):
        rows = np.flatnonzero(found.target == c)
        rank[rows] = np.arange(len(rows))
    chosen = (rank % 5 == 4) == held_out
    images = resized(found.images[chosen, None] / 16, size)
    return (images * 2 - 1).astype(np.float32), found.target[chosen]


@cache
def faces(size: int = 32) -> Array:
    """The 100 faces of scikit-image, (100, 1, size, size) in [-1, 1], and their mirror images."""
    from skimage.data import lfw_subset

    images = resized(lfw_subset()[:100, None], size)
    images = np.concatenate([images, images[..., ::-1]])
    return (images * 2 - 1).astype(np.float32)


@cache
def photographs(held_out: bool = False) -> tuple[Array, ...]:
    """Photographs (3, H, W) in [0, 1]: three quarters of each, or the quarter at the right."""
    from PIL import Image

    found = []
    for package, name in PHOTOGRAPHS:
        with (files(package) / name).open("rb") as file:
            x = np.asarray(Image.open(file).convert("RGB"), np.float32).transpose(2, 0, 1) / 255
        edge = x.shape[2] * 3 // 4
        found.append(x[:, :, edge:] if held_out else x[:, :, :edge])
    return tuple(found)


def crops(n: int, size: int, rng: np.random.Generator, held_out: bool = False) -> Array:
    """Random squares of the photographs, half of them mirrored: (n, 3, size, size) in [-1, 1]."""
    sources = [x for x in photographs(held_out) if min(x.shape[1:]) >= size]
    found = np.empty((n, 3, size, size), np.float32)
    for i in range(n):
        x = sources[rng.integers(len(sources))]
        top, left = (rng.integers(0, s - size + 1) for s in x.shape[1:])
        part = x[:, top : top + size, left : left + size]
        found[i] = part[..., ::-1] if rng.random() < 0.5 else part
    return found * 2 - 1


def moving(
    n: int, frames: int, size: int, rng: np.random.Generator, held_out: bool = False
) -> tuple[Array, Array]:
    """Sequences of crops that move evenly: (n, frames, 3, size, size) in [-1, 1], and how far the
    crop moves with each frame, (n, 2) pixels to the right and down, at most 2 each."""
    wide = size + 2 * (frames - 1)
    speed = rng.integers(-2, 3, size=(n, 2))
    whole = crops(n, wide, rng, held_out)
    found = np.empty((n, frames, 3, size, size), np.float32)
    for i, (right, down) in enumerate(speed):
        for t in range(frames):
            left, top = (v * t + (wide - size if v < 0 else 0) for v in (right, down))
            found[i, t] = whole[i, :, top : top + size, left : left + size]
    return found, speed


def scenes(n: int, size: int, rng: np.random.Generator, held_out: bool = False) -> Array:
    """Crops that show as much as they can, in fewer pixels: for networks whose normalisation of
    each image leaves nothing of what is even."""
    by = max(LARGEST // size, 1)
    return smaller(crops(n, size * by, rng, held_out), by)


def smaller(images: Array, by: int = 4) -> Array:
    """Means of so many pixels each way: (..., H, W) -> (..., H / by, W / by)."""
    *lead, h, w = images.shape
    return images.reshape(*lead, h // by, by, w // by, by).mean((-3, -1))


def pictures(path: str | Path | None, size: int, crops: Draw = crops) -> Draw:
    """What draws from the pictures of a folder, every fifth of which is held out; without one,
    crops of photographs."""
    if path is None:
        if size > LARGEST:
            raise ValueError(f"photographs have no {size} x {size} pixels: --data wants a folder")
        return lambda n, rng, held_out=False: crops(n, size, rng, held_out)
    return drawing(folder(path, size))


def drawing(images: Array) -> Draw:
    """What draws from images (N, ...)."""
    every = min(len(images), 5)
    rows = [np.flatnonzero((np.arange(len(images)) % every == every - 1) == h) for h in (0, 1)]
    return lambda n, rng, held_out=False: images[rng.choice(rows[held_out], n)]


def edges(images: Array) -> Array:
    """Where brightness changes: (N, C, H, W) in [-1, 1] -> (N, 1, H, W), 1 at edges."""
    grey = images.mean(1)
    down, right = np.gradient(grey, axis=(1, 2))
    return (np.tanh(6 * np.hypot(down, right)) * 2 - 1)[:, None].astype(np.float32)


def resized(images: Array, size: int) -> Array:
    """(N, C, H, W) as (N, C, size, size), smoothly."""
    from skimage.transform import resize

    out = (*images.shape[:2], size, size)
    return resize(images, out, order=3, anti_aliasing=size < images.shape[-1]).clip(0, 1)


def folder(path: str | Path, size: int, colors: int = 3) -> Array:
    """The middle squares of all pictures of a folder: (N, colors, size, size) in [-1, 1].

    Raises:
        ValueError: There are less than two, they differ in size, or one is damaged or too small;
            the text names the file.
    """
    return opened(list(named(path).values()), size, colors)


def pairs(path: str | Path, size: int) -> Draw:
    """What draws pairs (n, 2, 3, size, size) of two folders, `a` and `b`, by their names.

    Raises:
        ValueError: A picture has no partner; and as of `folder`.
    """
    sides = [named(Path(path) / side) for side in "ab"]
    for name in sorted(sides[0].keys() ^ sides[1].keys()):
        side = "b" if name in sides[0] else "a"
        raise ValueError(f"{Path(path) / side} has no picture {name}, which is in the other folder")
    both = opened([side[name] for name in sorted(sides[0]) for side in sides], size)
    return drawing(both.reshape(-1, 2, *both.shape[1:]))


def named(path: str | Path) -> dict[str, Path]:
    """The pictures of a folder and of those in it, by names without extensions."""
    found = sorted(p for p in Path(path).glob("**/*") if p.suffix.lower() in EXTENSIONS)
    if len(found) < 2:
        raise ValueError(f"{path} has {len(found)} picture(s), wanted at least two")
    return {p.relative_to(path).with_suffix("").as_posix(): p for p in found}


def opened(names: list[Path], size: int, colors: int = 3) -> Array:
    """Pictures of files, as of `folder`."""
    from PIL import Image, UnidentifiedImageError

    found, first = [], None
    for name in names:
        try:
            image = Image.open(name).convert("RGB" if colors == 3 else "L")
        except (UnidentifiedImageError, OSError) as error:
            raise ValueError(f"{name} is no picture: {error}") from error
        first = first or image.size
        if image.size != first:
            raise ValueError(f"{name} has {image.size} pixels, wanted {first} as {names[0]} has")
        side = min(image.size)
        if side < size:
            raise ValueError(f"{name} has {image.size} pixels, wanted at least {size} a side")
        left, top = ((n - side) // 2 for n in image.size)
        image = image.crop((left, top, left + side, top + side)).resize((size, size))
        x = np.asarray(image, np.float32).reshape(size, size, colors).transpose(2, 0, 1)
        found.append(x / 127.5 - 1)
    return np.stack(found)
