# SPDX-License-Identifier: Apache-2.0
"""Drawn pictures in the place of read ones: what training costs without input."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np

from nnl.data.images.sources import Piece
from nnl.data.images.work import Damage, Item

IMAGENET = 1_281_167, 1000  # pictures and classes


class Drawn:
    """A source of pictures that lie nowhere."""

    def __init__(self, samples: int, classes: Sequence[str], seed: int) -> None:
        self.classes = list(classes)
        rng = np.random.Generator(np.random.Philox(key=[seed, 1]))
        self.labels = rng.integers(0, len(self.classes), samples, np.int32)

    def piece(self, index: int) -> Piece:
        return Piece("")

    def name(self, index: int) -> str:
        return f"drawn picture {index}"


class Noise:
    """An engine whose samples are drawn once: every batch has the same pictures."""

    def __init__(self, shape: Sequence[int], seed: int) -> None:
        rng = np.random.Generator(np.random.Philox(key=[seed, 0]))
        once = rng.integers(0, 256, (1, *shape[1:]), np.uint8)
        self.slots = np.broadcast_to(once, tuple(shape))

    def submit(self, slot: int, epoch: int, items: Sequence[Item]) -> list[Future[Damage]]:
        return []

    def close(self) -> None:
        pass
