# SPDX-License-Identifier: Apache-2.0
"""Where pictures lie: what all sources have in common, and folders of class folders."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

Labels = np.ndarray[Any, Any]

MOST_CLASSES = 1 << 20

PICTURES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def is_litter(name: str) -> bool:
    """Whether a system or a program has put a file or folder beside pictures that is none of them:
    ._1.png of macOS, __MACOSX of its archives, .ipynb_checkpoints."""
    return name.startswith(".") or name == "__MACOSX"


class Piece(NamedTuple):
    """Where the bytes of a picture lie, of which JSON makes a list."""

    path: str
    offset: int = 0
    length: int | None = None  # None: to the end of the file
    inside: Sequence[int] | None = None  # offset and length in a record that has a checksum
    shape: Sequence[int] | None = None  # of pixels: (channels, height, width)


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
        ValueError: There are no class folders in it, other ones than `classes`, or no pictures in
            one of them.
    """

    def __init__(self, path: str, classes: Sequence[str] | None = None) -> None:
        if not os.path.isdir(path):
            raise FileNotFoundError(f"open_images: path={path!r}: there is no such folder")
        self._path = path
        with os.scandir(path) as entries:
            found = sorted(e.name for e in entries if e.is_dir() and not is_litter(e.name))
        if not found:
            raise ValueError(
                f"open_images: path={path!r} has no folders in it, wanted one for each class, or "
                "shards (.tar, .tfrecord), or the files of a cache"
            )
        if classes is not None:
            _check_classes(path, found, classes)
        self.classes = found
        self._files: list[str] = []
        labels = []
        for label, name in enumerate(found):
            with os.scandir(os.path.join(path, name)) as entries:
                names = [e.name for e in entries if e.name.lower().endswith(PICTURES)]
            files = sorted(name for name in names if not is_litter(name))
            if not files:
                raise ValueError(
                    f"open_images: path={path!r}: the class {name!r} has no pictures, "
                    f"files ending in {', '.join(PICTURES)}"
                )
            self._files += files
            labels.append(np.full(len(files), label, np.int32))
        self.labels = np.concatenate(labels)

    def piece(self, index: int) -> Piece:
        return Piece(self.name(index))

    def name(self, index: int) -> str:
        folder = self.classes[self.labels[index]]
        return os.path.join(self._path, folder, self._files[index])


def _check_classes(path: str, found: Sequence[str], wanted: Sequence[str]) -> None:
    if list(found) == list(wanted):
        return
    missing = [name for name in wanted if name not in set(found)]
    more = [name for name in found if name not in set(wanted)]
    differences = (("lacks", missing), ("has", more))
    what = [f"{text} {_some(names)}" for text, names in differences if names]
    raise ValueError(
        f"open_images: path={path!r} has other classes than the training data: it "
        f"{' and '.join(what) or 'has them in another order'}"
    )


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def numbered_classes(path: str, labels: Labels, classes: Sequence[str] | None) -> list[str]:
    """The classes of labels that are numbers: those given, or "0", "1", ...

    Raises:
        ValueError: A label is below 0, or not below the number of classes.
    """
    low, high = int(labels.min()), int(labels.max())
    most = MOST_CLASSES if classes is None else len(classes)
    if low < 0 or high >= most:
        raise ValueError(
            f"open_images: path={path!r} has labels from {low} to {high}, wanted 0 to {most - 1}"
        )
    return [str(i) for i in range(high + 1)] if classes is None else list(classes)
