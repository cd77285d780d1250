# SPDX-License-Identifier: Apache-2.0
"""Random arrays and dropout: the numbers that the CPU draws from the same key and counter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnl.ext.device.kernels.copies import plain
from nnl.ext.device.kernels.module import (
    FLOATS,
    MOST_ELEMENTS,
    Code,
    Ins,
    Launch,
    Launched,
    Outs,
    blocks_for,
    geometry,
    is_real,
    line,
    register,
    typed,
    words,
)
from nnl.ext.device.registry import Kernel, Operand

FILES = ("random",)


def advance(words_drawn: int) -> Launch:
    """The launch that moves a state on by what was drawn."""
    code = Code("advance", "advance_random(state, p)", ("u64 state",), "AdvanceP", FILES)
    return Launch(code, (1, 1, 1), (32, 1, 1), words(-(-words_drawn // 4)))


class Draw(Launched):
    """An array of random numbers, from the state that is the only input."""

    def __init__(self, name: str, y: Operand, numbers: Sequence[float], drawn: int, each: int):
        wanted = "DRAW_UNIFORM" if name == "draw_uniform" else "NEEDS_DOUBLE"
        code = Code(
            f"{name}_array", f"{name}(state, y, p)", ("const u64 state", "Y y"), "DrawP", FILES,
            ((wanted, ""), *typed(Y=y)),
        )  # fmt: skip
        grid = (blocks_for(-(-y.size // each)), 1, 1)
        rest = words(y.size, [float(v) for v in numbers])
        self.launch_always(Launch(code, grid, line(), rest))
        self.advance = advance(drawn)

    def run(
        self, ins: Sequence[int | None], outs: Sequence[int], workspace: int, stream: Any
    ) -> None:
        super().run(ins, outs, workspace, stream)
        self.advance.run([ins[0]], stream)


def _drawn(outs: list[Operand]) -> Operand | None:
    y = outs[0]
    return y if plain(y) and 0 < y.size < MOST_ELEMENTS else None


@register("rand")
def rand(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    y = _drawn(outs)
    if y is None or y.dtype.name not in FLOATS:
        return None
    low, high = float(attrs["low"]), float(attrs["high"])
    most = float(np.nextafter(y.dtype.type(high), y.dtype.type(low)))
    return Draw("draw_uniform", y, (low, high - low, most), -(-y.size // 2), 8)


@register("randint")
def randint(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    y = _drawn(outs)
    if y is None or y.dtype != np.int32 or not geometry().double:
        return None
    low, high = int(attrs["low"]), int(attrs["high"])
    return Draw("draw_integers", y, (low, high - low, 0.0), y.size, 4)


@register("randn")
def randn(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    y = _drawn(outs)
    if y is None or y.dtype.name not in FLOATS or not geometry().double:
        return None
    half = -(-y.size // 2)
    return Draw("draw_normal", y, (attrs["mu"], attrs["sigma"], 0.0), 2 * half, 2)


class Dropout(Launched):
    """Elements in eights, each eight from one block of the generator."""

    def __init__(self, x: Operand, y: Operand, p: float) -> None:
        self.same = x.dtype == y.dtype
        arrays = ("const X x", "const u64 state", "Y y", "u8 mask")
        grid = (blocks_for(-(-x.size // 8)), 1, 1)
        least = int(min(p * 2.0**32, 2.0**32 - 1))
        self.launches = {
            fits: Launch(
                Code(
                    "drop_out", "dropout(x, state, y, mask, p)", arrays, "DropoutP", FILES,
                    (("DROPOUT", ""), ("ALIGNED", int(fits)), *typed(X=x, Y=y)),
                ),
                grid, line(), words(x.size, least, 1.0 / (1.0 - p)),
            )
            for fits in (False, True)
        }  # fmt: skip
        self.advance = advance(-(-x.size // 2))

    def may_overwrite(self, out: int, input: int) -> bool:
        return out == 0 and input == 0 and self.same

    def run(
        self, ins: Sequence[int | None], outs: Sequence[int], workspace: int, stream: Any
    ) -> None:
        super().run(ins, outs, workspace, stream)
        self.advance.run([ins[1]], stream)


@register("dropout")
def dropout(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    x, (y, mask) = ins[0], outs
    if x is None or not x.size or not is_real(x, y) or not plain(x, y, mask):
        return None
    return Dropout(x, y, float(attrs["p"]))
