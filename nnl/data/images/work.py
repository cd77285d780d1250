# SPDX-License-Identifier: Apache-2.0
"""What turns pieces of files into samples: the same in this process and in workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnl.data.images.jitter import jitter
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
    jitter: float
    seed: int


def _rng(recipe: Recipe, epoch: int, index: int, use: int) -> np.random.Generator:
    """What is random about a sample, for its view (0) and for its colours (1)."""
    key = [recipe.seed, epoch << 40 | index]
    return np.random.Generator(np.random.Philox(key=key, counter=use << 64))


def view_of(recipe: Recipe, epoch: int, index: int) -> Callable[[int, int], View]:
    """What chooses the view of a picture from its height and width."""
    if not recipe.training:
        return lambda height, width: validation_view(height, width, recipe.size, recipe.resize)
    return lambda height, width: training_view(height, width, _rng(recipe, epoch, index, 0))


def recolour(recipe: Recipe, epoch: int, index: int, out: Array) -> None:
    """Change the colours of a sample, if the recipe asks for it."""
    if recipe.training and recipe.jitter:
        jitter(out, recipe.jitter, _rng(recipe, epoch, index, 1))


def make_samples(recipe: Recipe, epoch: int, items: Iterable[Item], out: Array) -> Damage:
    """Write samples into rows of `out`, uint8 (batch, size, size, 3); return what is damaged."""
    damage = []
    for row, index, piece in items:
        try:
            data = read_piece(Piece(*piece))
            render(data, view_of(recipe, epoch, index), recipe.exact, out[row])
            recolour(recipe, epoch, index, out[row])
        except (OSError, ValueError) as error:
            damage.append((row, str(error)[:200]))
    return damage
