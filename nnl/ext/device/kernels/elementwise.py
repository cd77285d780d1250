# SPDX-License-Identifier: Apache-2.0
"""Element-wise programs and reductions: the kernels behind most functions.

One thread takes 4 or 8 neighbouring elements at a time, so that loads and stores are of 16 bytes.
Sums are taken in an order that the shapes alone fix: in registers, then over the block, then over
the blocks that share a group by a second, small launch. Nothing is atomic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nnl.core.ops.elementwise import NUMBER
from nnl.ext.device.kernels.generator import Generator, Output, kind_of
from nnl.ext.device.kernels.module import (
    MOST_ELEMENTS,
    MOST_PARAMETER_BYTES,
    Dims,
    Launch,
    aligned,
    blocks_for,
    divisor,
    geometry,
    line,
    vector,
    words,
)
from nnl.ext.device.kernels.patterns import (
    Pattern,
    Space,
    Split,
    kept_in_order,
    split,
)
from nnl.ext.device.registry import Kernel, Operand

Sources = Sequence[tuple[Operand, Pattern]]
ROUNDED = frozenset(["int32", "uint32", "int64", "uint64"])  # not all of them are float32 numbers
COMPARISONS = frozenset(
    NUMBER[name]
    for name in ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal")
)


def make(
    space: Space,
    sources: Sources,
    code: Sequence[int],
    constants: Sequence[float],
    outputs: Sequence[Output],
    axes: Sequence[int] = (),
) -> Kernel | None:
    """The kernel of a program over a space; None where there is none for it.

    Args:
        sources: Each input with where elements of the space find it.
        outputs: Those that are not reduced have the order of the space.
        axes: What the others are reduced over.
    """
    operands = [x for x, _ in sources] + [o.operand for o in outputs]
    if not space.size or space.size >= MOST_ELEMENTS:
        return None
    if any(x.dtype.name == "float64" or x.size >= MOST_ELEMENTS for x in operands):
        return None
    if COMPARISONS & set(code[::4]) and any(x.dtype.name in ROUNDED for x in operands):
        return None
    if not any(o.reduction for o in outputs):
        return _checked(Elementwise(space, sources, code, constants, outputs))
    groups = split(space, axes)
    if groups is None or any(
        not kept_in_order(space, axes, o.operand) for o in outputs if o.reduction
    ):
        return None
    return _checked(Reduction(space, groups, sources, code, constants, outputs))


def _checked(kernel: Elementwise) -> Kernel | None:
    return kernel if kernel.parameter_bytes <= MOST_PARAMETER_BYTES else None


class Elementwise(Kernel):
    """A program without reductions."""

    reduces = False

    def __init__(
        self,
        space: Space,
        sources: Sources,
        code: Sequence[int],
        constants: Sequence[float],
        outputs: Sequence[Output],
    ) -> None:
        self.space, self.outputs = space, outputs
        self.ins, self.patterns = [x for x, _ in sources], [p for _, p in sources]
        self.code, self.constants = list(code), list(constants)
        self.width = self._width()
        generator = self._generator(self.width)
        self.used = generator.used
        self._prepare(generator)

    def _width(self) -> int:
        """Elements of a thread at a time: as many as a pack of the widest large array holds."""
        large = [x for x, p in zip(self.ins, self.patterns, strict=True) if p.is_full]
        large += [o.operand for o in self.outputs if not o.reduction]
        return vector(*large) if large else vector(*[o.operand for o in self.outputs])

    def _generator(self, width: int) -> Generator:
        kinds = [kind_of(p, width) for p in self.patterns]
        return Generator(self.ins, kinds, self.code, len(self.constants), self.outputs, width)

    def _places(self) -> bytes:
        parts = []
        for i in self.used:
            p = self.patterns[i]
            if not p.is_number and not p.is_full:
                for n, stride in zip(p.sizes, p.strides, strict=True):
                    parts.append(words(divisor(n), stride))
            if not p.is_full:
                parts.append(words(p.offset))
        parts.append(words([float(c) for c in self.constants]))
        return b"".join(parts)

    @property
    def parameter_bytes(self) -> int:
        return 8 * (len(self.used) + len(self.outputs) + 12) + len(self._places())

    def _prepare(self, generator: Generator) -> None:
        n, vectors = self.space.size, self.space.size // self.width
        run = generator.code_of("run")
        self.launches: dict[bool, list[Launch]] = {}  # by whether arrays start at 16 bytes
        for fits, count in ((True, vectors), (False, 0 if self.width > 1 else n)):
            grid = (blocks_for(max(count, n - count * self.width)), 1, 1)
            rest = words(n, count) + self._places()
            self.launches[fits] = [Launch(run, grid, line(), rest)]

    def may_overwrite(self, out: int, input: int) -> bool:
        o = self.outputs[out]
        return (
            o.reduction is None
            and self.patterns[input].is_full
            and self.ins[input].dtype.itemsize == o.operand.dtype.itemsize
        )

    def run(
        self, ins: Sequence[int | None], outs: Sequence[int], workspace: int, stream: Any
    ) -> None:
        addresses = [*(ins[i] for i in self.used), *outs]
        launches = self.launches[aligned(addresses)]
        if self.reduces:
            addresses.append(workspace)
        for launch in launches:
            launch.run(addresses, stream)


class Reduction(Elementwise):
    """A program of which some outputs are reduced over the same axes."""

    reduces = True

    def __init__(self, space: Space, groups: Split, *rest: Any) -> None:
        self.groups = groups
        super().__init__(space, *rest)

    def _width(self) -> int:
        g = self.groups
        run = g.k2 if g.k2 > 1 else g.r1
        width = super()._width()
        return next((w for w in (width, 4) if w <= width and run % w == 0), 1)

    def _prepare(self, generator: Generator) -> None:
        many, splits = self._launches(generator, self.width)
        one, more = self._launches(self._generator(1), 1) if self.width > 1 else (many, splits)
        self.launches = {True: many, False: one}
        splits = max(splits, more)
        self.workspace = 4 * len(generator.sums) * self.groups.groups * splits if splits > 1 else 0

    def _launches(self, generator: Generator, width: int) -> tuple[list[Launch], int]:
        g = self.groups
        main = "columns" if g.k2 > 1 else "rows"
        grid, block, splits = (columns_of if g.k2 > 1 else rows_of)(g, width)
        scales = words([float(o.scale) for o in self.outputs if o.reduction])
        rest = (
            words(divisor(g.k1), divisor(g.r1), g.r0, g.k2, g.groups, g.reduced, splits)
            + self._places()
            + scales
        )
        launches = [Launch(generator.code_of(main), grid, block, rest)]
        if splits > 1:
            team = geometry().team
            rows = geometry().threads // team
            blocks = -(-g.groups // rows)
            finish = generator.code_of("finish")
            launches.append(Launch(finish, (blocks, 1, 1), (team, rows, 1), rest))
        return launches, splits


def power_of_two(n: int, most: int) -> int:
    """The smallest power of two that is not below n, or `most`."""
    return min(most, 1 << max(0, n - 1).bit_length())


def splits_for(blocks: int, steps: int) -> int:
    """Blocks that share a group: enough to fill the device, each with eight steps or more."""
    return max(1, min(-(-geometry().wave // (2 * blocks)), steps // 8, 1024))


def rows_of(g: Split, width: int) -> tuple[Dims, Dims, int]:
    """(grid, block, splits) where neighbours in memory are in one group: a team for each group."""
    threads, all_of, team = -(-g.reduced // width), geometry().threads, geometry().team
    team = all_of if threads > 4 * team else power_of_two(threads, team)
    blocks = -(-g.groups // (all_of // team))
    splits = splits_for(blocks, threads // team)
    return (blocks, splits, 1), (team, all_of // team, 1), splits


def columns_of(g: Split, width: int) -> tuple[Dims, Dims, int]:
    """(grid, block, splits) where neighbours in memory are in different groups."""
    x = power_of_two(-(-g.k2 // width), 32)
    y = geometry().threads // x
    blocks = -(-g.k2 // (x * width)) * g.k0 * g.k1
    splits = splits_for(blocks, g.reduced // y)
    return (blocks, splits, 1), (x, y, 1), splits
