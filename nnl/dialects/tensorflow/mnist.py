# SPDX-License-Identifier: Apache-2.0
"""tensorflow.examples.tutorials.mnist.input_data: the digits that tutorials read."""

from __future__ import annotations

import gzip
import os
from typing import Any, NamedTuple

import numpy as np

from nnl.dialects.tensorflow.operation import as_dtype

_FILES = {
    "train": ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    "test": ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
}
_DIGITS = 10


class Datasets(NamedTuple):
    """The three parts."""

    train: Any
    validation: Any
    test: Any


class DataSet:
    """Pictures and their labels.

    Args:
        images: (n, height, width, 1), from 0 to 255.
        reshape: Whether each becomes a row.
    """

    def __init__(self, images, labels, fake_data=False, one_hot=False, dtype=np.float32,
                 reshape=True, seed=None):  # fmt: skip
        if reshape:
            images = images.reshape(len(images), int(np.prod(images.shape[1:])))
        if as_dtype(dtype) == np.float32:
            images = images.astype(np.float32) / np.float32(255)
        self.images, self.labels = images, labels
        self.epochs_completed, self._at = 0, 0
        self._rng = np.random if seed is None else np.random.RandomState(seed)

    @property
    def num_examples(self):
        """How many there are."""
        return len(self.images)

    def next_batch(self, batch_size, fake_data=False, shuffle=True):
        """(images, labels): the next ones, in another order in each epoch."""
        found, n = [], self.num_examples
        if batch_size > n:
            raise ValueError(f"next_batch: batch_size {batch_size} is more than the {n} examples")
        if self._at == 0 and self.epochs_completed == 0 and shuffle:
            self._mix()
        found.append(slice(self._at, min(n, self._at + batch_size)))
        parts = [(self.images[found[0]], self.labels[found[0]])]
        self._at += batch_size
        if self._at > n:
            self._at -= n
            self.epochs_completed += 1
            if shuffle:
                self._mix()
            parts.append((self.images[: self._at], self.labels[: self._at]))
        return tuple([np.concatenate(columns) for columns in zip(*parts, strict=True)])

    def _mix(self):
        order = self._rng.permutation(self.num_examples)
        self.images, self.labels = self.images[order], self.labels[order]


def read_data_sets(train_dir, fake_data=False, one_hot=False, dtype=np.float32, reshape=True,
                   validation_size=5000, seed=None, source_url=None):  # fmt: skip
    """MNIST, or what has its files: training without the first `validation_size`, those, testing.

    Raises:
        FileNotFoundError: One of the four files is not in the folder; nothing is downloaded.
        ValueError: A file is damaged, or there are fewer examples than are to validate.
    """
    arrays = {}
    for part, names in _FILES.items():
        images, labels = (_read(os.path.join(train_dir, name)) for name in names)
        if len(images) != len(labels):
            raise ValueError(f"{train_dir}: {names[0]} has {len(images)} pictures and {names[1]} "
                             f"{len(labels)} labels")  # fmt: skip
        if one_hot:
            labels = np.eye(_DIGITS)[labels]
        arrays[part] = images[..., None], labels
    images, labels = arrays["train"]
    if not 0 <= validation_size <= len(images):
        raise ValueError(
            f"Validation size should be between 0 and {len(images)}. Received: {validation_size}."
        )
    n = validation_size
    how = {"dtype": dtype, "reshape": reshape, "seed": seed}
    parts = (images[n:], labels[n:]), (images[:n], labels[:n]), arrays["test"]
    return Datasets(*[DataSet(*part, **how) for part in parts])


def _read(path):
    """An array of bytes in the format IDX.

    Source: the description of the format on the page of MNIST (Y. LeCun, C. Cortes, C. Burges).
    """
    if not os.path.exists(path):
        raise FileNotFoundError(f"{path}: there is no such file, and nothing is downloaded")
    try:
        with gzip.open(path) as file:
            data = file.read()
    except (EOFError, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: {error}") from None
    rank = data[3] if len(data) > 3 else 0
    sizes = np.frombuffer(data[4 : 4 + 4 * rank], ">i4").tolist()
    if data[:3] != b"\0\0\x08" or rank not in (1, 3) or len(sizes) != rank:
        raise ValueError(f"{path}: it is no IDX file of bytes")
    if min(sizes) < 0 or len(data) != 4 + 4 * rank + int(np.prod(sizes, dtype=object)):
        raise ValueError(f"{path}: it has {len(data)} bytes, which do not fit the sizes {sizes}")
    return np.frombuffer(data, np.uint8, offset=4 + 4 * rank).reshape(sizes)
