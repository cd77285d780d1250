# SPDX-License-Identifier: Apache-2.0
"""Data sets: inputs by name, lists or arrays, in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass
class Input:
    """What one input of the network gets: a list or an array with one entry per sample."""

    name: str
    data: Sequence[Any]


class DataSet:
    """Samples of several inputs.

    Args:
        inputs: Inputs, or a dictionary {name: data}.
        batch_size: Samples per batch.
        label: Which input holds what is wanted; None if there is none.
        shuffle: Whether shuffle() has an effect.
        seed: Of the order.
    Raises:
        ValueError: The inputs have different lengths, or there is no such label.
    """

    def __init__(
        self,
        inputs: Sequence[Input] | dict[str, Any],
        batch_size: int,
        label: str | None = "label",
        shuffle: bool = False,
        seed: int = 0,
    ) -> None:
        given = inputs.items() if isinstance(inputs, dict) else [(i.name, i.data) for i in inputs]
        self.data = dict(given)
        lengths = {n: len(d) for n, d in self.data.items()}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"DataSet: inputs have different or no lengths: {lengths}")
        if label is not None and label not in self.data:
            raise ValueError(f"DataSet: there is no input {label!r}, known are {sorted(self.data)}")
        if batch_size < 1:
            raise ValueError(f"DataSet: batch_size is {batch_size}, wanted at least 1")
        self.batch_size, self.label = batch_size, label
        self.size = next(iter(lengths.values()))
        self._mixed, self._random = shuffle, np.random.default_rng(seed)
        self.order = np.arange(self.size)

    def __len__(self) -> int:
        """Number of batches; samples that do not fill one are left out."""
        return self.size // self.batch_size

    def shuffle(self) -> None:
        """Draw another order, if the data set was made to be shuffled."""
        if self._mixed:
            self._random.shuffle(self.order)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for i in range(len(self)):
            at = self.order[i * self.batch_size : (i + 1) * self.batch_size]
            yield {
                n: d[at] if isinstance(d, np.ndarray) else np.asarray([d[int(k)] for k in at])
                for n, d in self.data.items()
            }

    def part(self, rank: int, size: int) -> DataSet:
        """The samples of one of several ranks: every size-th batch, beginning with the rank-th."""
        keep = len(self) // size * size * self.batch_size
        at = np.arange(keep).reshape(-1, size, self.batch_size)[:, rank].ravel()
        data = {
            n: d[at] if isinstance(d, np.ndarray) else [d[int(k)] for k in at]
            for n, d in self.data.items()
        }
        return DataSet(data, self.batch_size, self.label, self._mixed)
