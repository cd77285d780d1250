# SPDX-License-Identifier: Apache-2.0
"""The pictures of NNabla's cache files, read one by one from where they lie."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnl.data.cache_files import FORMATS, INDEX, read_index, read_variables
from nnl.data.damage import naming, numbers, read_npy, skip_npy
from nnl.data.images.sources import Piece, numbered_classes

PICTURE, LABEL = "x", "y"  # the variables' names; else the first two


def is_cache(path: str) -> bool:
    """Whether a folder is one of cache files."""
    return os.path.isdir(path) and any(name.endswith(FORMATS) for name in os.listdir(path))


class Cached:
    """The pictures of a cache, uint8 (channels, height, width), and their labels.

    Raises:
        ValueError: The cache is damaged, or holds something else.
    """

    def __init__(self, path: str, classes: Sequence[str] | None) -> None:
        self._path = path
        index = os.path.join(path, INDEX)
        if os.path.exists(index):
            names = [name for name, _ in read_index(index)]
        else:
            names = sorted(name for name in os.listdir(path) if name.endswith(FORMATS))
        variables = read_variables(path, names[0])
        if len(variables) < 2:
            raise ValueError(
                f"open_images: the cache {path}: wanted a picture and a label, it has {variables}"
            )
        named = {PICTURE, LABEL} <= set(variables)
        picture, label = (PICTURE, LABEL) if named else variables[:2]
        self._files: list[tuple[str, int, tuple[int, ...]]] = []  # name, offset, shape
        labels = []
        for name in names:
            with naming(f"open_images: the cache file {os.path.join(path, name)}"):
                read = _of_hdf5 if name.endswith(".h5") else _of_npy
                offset, dtype, shape, values = read(
                    os.path.join(path, name), variables, picture, label
                )
                if dtype != np.uint8 or len(shape) != 4 or shape[1] not in (1, 3):
                    raise ValueError(
                        f"{picture!r} is {dtype} {list(shape)}, wanted pictures: uint8 (samples, "
                        "1 or 3 channels, height, width)"
                    )
                if values.dtype.kind not in "iu" or values.size != shape[0]:
                    raise ValueError(
                        f"{label!r} is {values.dtype} {list(values.shape)}, wanted a class number "
                        f"for each of {shape[0]} pictures"
                    )
            self._files.append((name, offset, shape[1:]))
            labels.append(values.ravel())
        self._begins = np.cumsum([0] + [len(values) for values in labels])
        joined = np.concatenate(labels).astype(np.int64)
        self.classes = numbered_classes(path, joined, classes)
        self.labels = joined.astype(np.int32)

    def _place(self, index: int) -> tuple[str, int, int, tuple[int, ...]]:
        file = int(np.searchsorted(self._begins, index, "right")) - 1
        name, offset, shape = self._files[file]
        return os.path.join(self._path, name), index - int(self._begins[file]), offset, shape

    def piece(self, index: int) -> Piece:
        path, row, offset, shape = self._place(index)
        length = int(np.prod(shape))
        return Piece(path, offset + row * length, length, shape=shape)

    def name(self, index: int) -> str:
        path, row, _, _ = self._place(index)
        return f"{path}, sample {row}"


Found = tuple[int, Any, tuple[int, ...], Any]  # offset, dtype and shape of pictures; labels


def _of_npy(path: str, variables: Sequence[str], picture: str, label: str) -> Found:
    place: Any = None
    labels: Any = None
    with open(path, "rb") as file:
        for name in variables:
            if name == label:
                labels = read_npy(file)
            else:
                found = skip_npy(file)
                place = found if name == picture else place
    return (*place, labels)


def _of_hdf5(path: str, variables: Sequence[str], picture: str, label: str) -> Found:
    import h5py

    with h5py.File(path, "r") as h5:
        labels = numbers(h5[label], repr(label))
        pictures = h5[picture]
        offset = pictures.id.get_offset() if hasattr(pictures, "is_virtual") else None
        if offset is None or pictures.is_virtual:
            raise ValueError(f"{picture!r} is in pieces or compressed; write it again as .npy")
        if offset + pictures.size * pictures.dtype.itemsize > os.path.getsize(path):
            raise ValueError(f"{picture!r} is larger than the file")
        return offset, pictures.dtype, pictures.shape, labels
