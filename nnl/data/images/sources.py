# SPDX-License-Identifier: Apache-2.0
"""Where pictures lie: what all sources have in common, and folders of class folders."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

Labels = np.ndarray[Any, Any]
Piece = tuple[Any, ...]  # what a worker is told: (path,) or (path, offset, bytes), JSON can hold it

PICTURES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


class Source(Protocol):
    """Labelled pictures, by number."""

    classes: list[str]
    labels: Labels  # int32, one per picture

    def piece(self, index: int) -> Piece:
        """Where the bytes of a picture are."""

    def name(self, index: int) -> str:
        """What messages call a picture."""


class Folder:
    """A folder of class folders of pictures; classes and pictures in the order of their names.

    Raises:
        FileNotFoundError: There is no such folder.
        ValueError: There are no class folders in it, or no pictures in one of them.
    """

    def __init__(self, path: str) -> None:
        if not os.path.isdir(path):
            raise FileNotFoundError(f"open_images: path={path!r}: there is no such folder")
        self._path = path
        with os.scandir(path) as entries:
            found = sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))
        if not found:
            raise ValueError(
                f"open_images: path={path!r} has no folders in it, wanted one for each class, or "
                "shards (.tar, .tfrecord), or the files of a cache"
            )
        self.classes = found
        self._files: list[str] = []
        labels = []
        for label, name in enumerate(found):
            with os.scandir(os.path.join(path, name)) as entries:
                files = sorted(e.name for e in entries if e.name.lower().endswith(PICTURES))
            if not files:
                raise ValueError(
                    f"open_images: path={path!r}: the class {name!r} has no pictures, "
                    f"files ending in {', '.join(PICTURES)}"
                )
            self._files += files
            labels.append(np.full(len(files), label, np.int32))
        self.labels = np.concatenate(labels)

    def piece(self, index: int) -> Piece:
        return (self.name(index),)

    def name(self, index: int) -> str:
        folder = self.classes[self.labels[index]]
        return os.path.join(self._path, folder, self._files[index])


def check_classes(path: str, found: Sequence[str], wanted: Sequence[str]) -> None:
    """Compare the classes of a source with those of the training data.

    Raises:
        ValueError: They are not the same.
    """
    if list(found) == list(wanted):
        return
    missing = [name for name in wanted if name not in set(found)]
    more = [name for name in found if name not in set(wanted)]
    what = [
        f"{text} {_some(names)}" for text, names in (("lacks", missing), ("has", more)) if names
    ]
    raise ValueError(
        f"open_images: path={path!r} has other classes than the training data: it "
        f"{' and '.join(what) or 'has them in another order'}"
    )


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
