# SPDX-License-Identifier: Apache-2.0
"""What turns pieces of files into samples: the same in this process and in workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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


def view_of(recipe: Recipe, epoch: int, index: int) -> Callable[[int, int], View]:
    """What chooses the view of a picture from its height and width."""
    if not recipe.training:
        return lambda height, width: validation_view(height, width, recipe.size, recipe.resize)
    rng = np.random.Generator(np.random.Philox(key=[recipe.seed, epoch << 40 | index]))
    return lambda height, width: training_view(height, width, rng)


def make_samples(recipe: Recipe, epoch: int, items: Iterable[Item], out: Array) -> Damage:
    """Write samples into rows of `out`, uint8 (batch, size, size, 3); return what is damaged."""
    damage = []
    for row, index, piece in items:
        try:
            data = read_piece(Piece(*piece))
            render(data, view_of(recipe, epoch, index), recipe.exact, out[row])
        except (OSError, ValueError) as error:
            damage.append((row, str(error)[:200]))
    return damage
