# SPDX-License-Identifier: Apache-2.0
"""Which pictures are in which batch: decided by seed, epoch and rank alone."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

Indexes = np.ndarray[Any, Any]

NONE = -1  # in a batch of indexes: no picture here


class Order:
    """The batches of one rank.

    Training: each epoch is a new order of all pictures, dealt out to the ranks; every rank has as
    many, and whole batches only. Otherwise the order is that of the source, and the last batches
    are filled with NONE so that all ranks have as many.

    Args:
        total: Number of pictures of the source.
    """

    def __init__(
        self, total: int, batch_size: int, training: bool, rank: int, ranks: int, seed: int
    ) -> None:
        self.total, self.batch_size, self.training = total, batch_size, training
        self.rank, self.ranks, self.seed = rank, ranks, seed
        if training:
            self.size = total // ranks
            self.batches = self.size // batch_size
        else:
            self.size = len(range(rank, total, ranks))
            self.batches = -(-total // (ranks * batch_size))
        self._of_epoch = lru_cache(2)(self._shuffled)  # one ends while the next begins

    def _shuffled(self, epoch: int) -> Indexes:
        rng = np.random.Generator(np.random.Philox(key=[self.seed, epoch]))
        return rng.permutation(self.total)[self.rank :: self.ranks]

    def batch(self, epoch: int, number: int) -> Indexes:
        """Indexes of the pictures of a batch of this rank."""
        begin = number * self.batch_size
        if self.training:
            return self._of_epoch(epoch)[begin : begin + self.batch_size]
        first = self.rank + begin * self.ranks
        found = first + self.ranks * np.arange(self.batch_size)
        found[found >= self.total] = NONE
        return found
