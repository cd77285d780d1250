# SPDX-License-Identifier: Apache-2.0
"""What turns pieces of files into samples: the same in this process and in workers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnl.data.images.pixels import read_piece, render
from nnl.data.images.sources import Piece
from nnl.data.images.views import View, training_view, validation_view

Array = np.ndarray[Any, Any]
Item = tuple[int, int, Piece]  # row of the batch, index of the picture, where it lies
Damage = list[tuple[int, str]]  # row of the batch, what is wrong


@dataclass(frozen=True)
class Recipe:
    """How samples are made. `seed` and the index of a picture decide all that is random."""

    size: int
    training: bool
    resize: int
    exact: bool
    seed: int


def make_samples(recipe: Recipe, epoch: int, items: Iterable[Item], out: Array) -> Damage:
    """Write samples into rows of `out`, uint8 (batch, size, size, 3); return what is damaged."""
    damage = []
    for row, index, piece in items:
        rng = np.random.Generator(np.random.Philox(key=[recipe.seed, epoch << 40 | index]))

        def view_of(height: int, width: int, rng: np.random.Generator = rng) -> View:
            if recipe.training:
                return training_view(height, width, rng)
            return validation_view(height, width, recipe.size, recipe.resize)

        try:
            render(read_piece(Piece(*piece)), view_of, recipe.exact, out[row])
        except (OSError, ValueError) as error:
            damage.append((row, str(error)[:200]))
    return damage
