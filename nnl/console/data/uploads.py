# SPDX-License-Identifier: Apache-2.0
"""Uploaded data sets: unpacked, checked and described. All of it happens apart from the server."""

from __future__ import annotations

import csv
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nnl.console.data.archives import unpack
from nnl.console.data.tables import IMAGES, described, is_number
from nnl.console.errors import Refused


@dataclass(frozen=True)
class BuildOptions:
    """How data sets are made of folders of pictures.

    Attributes:
        width, height, channels: Of the pictures; those of the first one where they are 0.
        split: Share of the pictures that are for validation.
        classes, anchors, grid: Of the boxes of object_detection.
    """

    kind: str = "image_classification"
    width: int = 0
    height: int = 0
    channels: int = 0
    mode: str = "trimming"
    split: float = 0.0
    seed: int = 0
    classes: int = 1
    anchors: int = 5
    grid: int = 16


def _shape(source: Path, options: BuildOptions) -> Any:
    """What all pictures become."""
    from nnl.datasets import Shape

    width, height, channels = options.width, options.height, options.channels
    if not (width and height and channels):
        found = (p for p in sorted(source.rglob("*")) if p.suffix.lower() in IMAGES)
        picture = next((image for path in found if (image := _opened(path)) is not None), None)
        if picture is None:
            text = "the archive has no pictures that can be read"
            raise Refused("unreadable", text, "one folder for each class")
        colours = 3 if picture.ndim == 3 and picture.shape[2] >= 3 else 1
        width, height = width or picture.shape[1], height or picture.shape[0]
        channels = channels or colours
    return Shape(width, height, options.mode, channels)


def _opened(path: Path) -> Any:
    """A picture; None where it cannot be read, as those that are left out later."""
    from nnl.data.image import imread

    try:
        return imread(str(path))
    except (OSError, ValueError):
        return None


def tables(path: str, folder: str, name: str) -> dict[str, Any]:
    """The data sets of a .csv, or of a .zip with some and the files that they name.

    Args:
        folder: Where they are put; entries have "csv", their place in it.
    """
    root, title, kind = Path(folder), titled(name), os.path.splitext(name)[1].lower()
    if kind == ".zip":
        files = unpack(Path(path), root)
        found = [p for p in sorted(files) if p.suffix.lower() == ".csv" and _is_table(p)]
        if not found:
            hint = "the archive needs a .csv file whose first line names columns"
            if any(p.suffix.lower() in IMAGES for p in files):
                hint += "; of pictures alone, choose Bring, Pictures"
            raise Refused("unreadable", f"{name} has no table", hint, name)
    elif kind == ".csv":
        found = [root / "data.csv"]
        shutil.copyfile(path, found[0])
    else:
        text = f"the extension is {kind[:20]!r}, wanted .zip or .csv"
        raise Refused("unreadable", text, None, name)
    names = [title if len(found) == 1 else f"{title} {p.stem}" for p in found]
    sets = [
        described(p, n) | {"csv": str(p.relative_to(root))}
        for p, n in zip(found, names, strict=True)
    ]
    return {"datasets": sets}


def pictures(path: str, folder: str, name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Data sets of an archive with a folder of pictures for every class, or with boxes, and the
    names of the pictures that could not be read."""
    from nnl import datasets

    wanted, root, title = BuildOptions(**options), Path(folder), titled(name)
    files = ["train.csv", "valid.csv"] if wanted.split > 0 else ["train.csv"]
    parts = {"files": files, "share": wanted.split, "seed": wanted.seed}
    with tempfile.TemporaryDirectory(dir=root.parent) as scratch:
        unpack(Path(path), Path(scratch))
        source = Path(scratch)
        while (entries := list(source.iterdir())) and all(p.is_dir() for p in entries):
            if len(entries) > 1 or not any(p.is_dir() for p in entries[0].iterdir()):
                break
            source = entries[0]  # a folder around all of it
        shape = _shape(source, wanted)
        try:
            if wanted.kind == "object_detection":
                counts = wanted.classes, wanted.anchors, wanted.grid
                built = datasets.object_detection(source, root, shape, *counts, **parts)
            else:
                built = datasets.image_classification(source, root, shape, **parts)
        except ValueError as error:
            text = str(error).replace(str(source), name)
            raise Refused("unreadable", text, None, name) from None
    names = [f"{title} {f[:-4]}" if wanted.split > 0 else title for f in files]
    found = [described(root / f, n) | {"csv": f} for f, n in zip(files, names, strict=True)]
    left_out = [os.path.relpath(path, scratch) for path in built.skipped]
    return {"datasets": found, "left_out": left_out}


def titled(name: str) -> str:
    """What the data set of a file is called."""
    return os.path.splitext(os.path.basename(name))[0].strip()[:150] or "data"


def _is_table(path: Path) -> bool:
    """Whether a .csv file is a table of samples, and not one of numbers."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            header = next(csv.reader(file), [])
    except (UnicodeDecodeError, csv.Error):
        return False
    return any(cell and not is_number(cell) for cell in header)
