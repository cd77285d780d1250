# SPDX-License-Identifier: Apache-2.0
"""The tile of the product kernel by the kind of device and the size of the product: a table."""

from __future__ import annotations

from typing import NamedTuple

from nnl.ext.device.kernels.module import geometry

MANY = 1 << 16


class Tile(NamedTuple):
    """How a block makes its part of a product.

    Attributes:
        rows, width: Of c that a thread makes; block: threads along n and m; step: of k that go
            through local memory at a time.
    """

    rows: int
    width: int
    block: tuple[int, int]
    step: int

    @property
    def m(self) -> int:
        return self.rows * self.block[1]

    @property
    def n(self) -> int:
        return self.width * self.block[0]

    @property
    def macros(self) -> tuple[tuple[str, object], ...]:
        return (
            ("RM", self.rows), ("W", self.width), ("LX", self.block[0]), ("LY", self.block[1]),
            ("KB", self.step),
        )  # fmt: skip


def tile_for(m: int, n: int, k: int, patches: bool = False) -> Tile:
    """The tile for an m x n product of k steps on the device that kernels are laid out for.

    Args:
        patches: Whether rows of b are gathered from images, once for every tile along m.
    """
    g = geometry()
    if g.pack > 16:  # a processor: few threads, long vectors
        rows = min(8, m)
        narrow = n <= 16 and m * k >= MANY  # each width is a kernel to compile, and each height
        most = 16 if patches and m >= 128 and not narrow else 8
        height = 1 << (-(-m // rows) - 1).bit_length()
        return Tile(rows, 16, (1 if narrow else 4, min(most, height)), 64)
    side = 16 if g.threads >= 256 else 8
    return Tile(4, 4, (side, side), 16)
