#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A small set of real pictures, made without a network: cuttings of photographs that scikit-image
and scikit-learn bring along, a class for each photograph.

    python examples/imagenet/photographs.py FOLDER

writes FOLDER/train/CLASS/*.jpg, FOLDER/val/CLASS/*.jpg and FOLDER/LICENSE.txt. What validation
sees, training never saw: two of five squares of each photograph are kept for it. One picture of
the training set is grey and one is damaged, as in any large set.
"""

from __future__ import annotations

import argparse
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

# class: (package, file, whose it is)
PHOTOGRAPHS = {
    "astronaut": ("skimage.data", "astronaut.png", "NASA, public domain"),
    "cat": ("skimage.data", "chelsea.png", "Stefan van der Walt, CC0"),
    "coffee": ("skimage.data", "coffee.png", "Rachel Michetti, CC0"),
    "flower": ("sklearn.datasets.images", "flower.jpg", "vultilion, CC BY 2.0"),
    "galaxies": ("skimage.data", "hubble_deep_field.jpg", "NASA, public domain"),
    "grass": ("skimage.data", "grass.png", "linolafett, CC0"),
    "retina": ("skimage.data", "retina.jpg", "Mikael Häggström, CC0"),
    "rocket": ("skimage.data", "rocket.jpg", "SpaceX, CC0"),
    "temple": ("sklearn.datasets.images", "china.jpg", "danielbuechele, CC BY 2.0"),
    "tissue": ("skimage.data", "ihc.png", "no known restrictions"),
}
TRAINING, VALIDATION = 96, 16  # pictures of a class
COLUMNS = 5  # of squares that a photograph is divided into


def squares(photograph: Any, part: str) -> list[tuple[int, int]]:
    """The squares of a photograph for training, or the two of five in every row for validation.

    Each of these has neighbours on all sides that training sees, which itself it never does.
    """
    rows = range(photograph.height * COLUMNS // photograph.width)
    every = [(column, row) for row in rows for column in range(COLUMNS)]
    return [(c, r) for c, r in every if ((c + 2 * r) % COLUMNS in (1, 3)) == (part == "val")]


def cutting(photograph: Any, square: tuple[int, int], rng: np.random.Generator) -> Any:
    """A part of a square of a photograph, made some odd size."""
    whole = photograph.width / COLUMNS
    side = int(whole * rng.uniform(0.7, 1.0))
    left, top = (int(rng.uniform(n * whole, (n + 1) * whole - side)) for n in square)
    part = photograph.crop((left, top, left + side, top + side))
    return part.resize(tuple(rng.integers(80, 200, 2).tolist()), Image.Resampling.BICUBIC)


def make(folder: str | Path, seed: int = 0) -> None:
    """Write the pictures into a folder; the same ones for the same seed."""
    rng = np.random.default_rng(seed)
    for name, (package, file, _) in PHOTOGRAPHS.items():
        with (files(package) / file).open("rb") as opened:
            photograph = Image.open(opened).convert("RGB")
        for part, number in (("train", TRAINING), ("val", VALIDATION)):
            into, places = Path(folder) / part / name, squares(photograph, part)
            into.mkdir(parents=True, exist_ok=True)
            for i in range(number):
                picture = cutting(photograph, places[i % len(places)], rng)
                grey = (part, name, i) == ("train", "temple", 0)
                (picture.convert("L") if grey else picture).save(into / f"{i:03d}.jpg", quality=90)
    whole = Path(folder) / "train" / "cat" / "000.jpg"
    (whole.parent / "damaged.jpg").write_bytes(whole.read_bytes()[:1500])
    lines = [f"{name}: {file} of {p}: {whose}" for name, (p, file, whose) in PHOTOGRAPHS.items()]
    head = "Cuttings of photographs that come with scikit-image and scikit-learn.\n\n"
    (Path(folder) / "LICENSE.txt").write_text(head + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make a small set of real pictures.")
    parser.add_argument("folder")
    make(parser.parse_args().folder)
