# SPDX-License-Identifier: Apache-2.0
"""Ops that move data: changes of order, parts, joints, padding, conversions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from nnl.ext.device.kernels.chain import At, Chain
from nnl.ext.device.kernels.module import (
    MOST_ELEMENTS,
    Code,
    Dims,
    Ins,
    Launch,
    Launched,
    Outs,
    blocks_for,
    divisor,
    geometry,
    lanes,
    line,
    register,
    supported,
    typed,
    words,
)
from nnl.ext.device.kernels.patterns import Pattern, Space, pattern_of, strides_of
from nnl.ext.device.registry import Kernel, Operand

FILES = ("copies",)


def axes_words(p: Pattern) -> bytes:
    """The axes of a pattern; one of size 1 for a number."""
    pairs = zip(p.sizes or (1,), p.strides or (0,), strict=True)
    return b"".join(words(divisor(n), stride) for n, stride in pairs)


class Copy(Launched):
    """y[its pattern] = x[its pattern], converted, for every element of a space."""

    def __init__(self, x: Operand, y: Operand, n: int, source: Pattern, target: Pattern) -> None:
        self.source, self.target = source, target
        self.same_size = x.dtype.itemsize == y.dtype.itemsize
        width = lanes(x, y)
        while width > 1 and not self._takes(width, n):
            width //= 2
        ranks = ("RX", max(1, len(source.sizes))), ("RY", max(1, len(target.sizes)))
        rest = words(n, source.offset, target.offset) + axes_words(source) + axes_words(target)
        self.launches = {}
        for fits, w in ((True, width), (False, 1)):
            macros = (("COPY_RUNS", ""), ("V", w), *typed(X=x, Y=y), *ranks)
            arrays = ("const X x", "Y y")
            code = Code("copy", "copy_runs(x, y, p)", arrays, "CopyP", FILES, macros)
            grid = (blocks_for(-(-n // w)), 1, 1)
            self.launches[fits] = Launch(code, grid, line(), rest)

    def _takes(self, width: int, n: int) -> bool:
        sides = (self.source, self.target)
        return n % width == 0 and all(
            p.takes(width) and p.strides and p.strides[-1] == 1 for p in sides
        )

    def may_overwrite(self, out: int, input: int) -> bool:
        return self.source.is_full and self.target.is_full and self.same_size


class Fill(Launched):
    """y = a number everywhere."""

    def __init__(self, y: Operand, value: float) -> None:
        self.launches = {}
        for fits, v in ((True, lanes(y)), (False, 1)):
            macros = (("FILL_ALL", ""), ("V", v), *typed(Y=y))
            code = Code("fill", "fill_all(y, p)", ("Y y",), "FillP", FILES, macros)
            grid = (blocks_for(-(-y.size // v)), 1, 1)
            rest = words(y.size, float(value))
            self.launches[fits] = Launch(code, grid, line(), rest)


class Transpose(Launched):
    """A copy whose fastest axis in the source is the second fastest in the result."""

    def __init__(self, x: Operand, y: Operand, source: Pattern) -> None:
        *lead, rows, columns = source.sizes
        batch = Pattern(tuple(lead), source.strides[:-2], source.offset)
        code = Code(
            "transposed", "transpose(x, y, tile, p)", ("const X x", "Y y"), "TransposeP", FILES,
            (("TRANSPOSE", ""), ("RX", max(1, len(lead))), *typed(X=x, Y=y)), ("Y tile[32 * 33]",),
        )  # fmt: skip
        tiles = -(-rows // 32), -(-columns // 32)
        rest = words(rows, columns, source.strides[-1], *tiles, source.offset) + axes_words(batch)
        grid: Dims = (tiles[0] * tiles[1] * math.prod(lead), 1, 1)
        self.launch_always(Launch(code, grid, (32, geometry().threads // 32, 1), rest))


def copy(x: Operand, y: Operand, n: int, source: Pattern, target: Pattern) -> Kernel | None:
    """The kernel for n elements found at `source` in x and at `target` in y."""
    if not n or max(x.size, y.size) >= MOST_ELEMENTS or not supported(x, y):
        return None
    worth = len(source.sizes) > 1 and min(source.sizes[-2:]) >= 8
    if target.is_full and worth and source.strides[-2] == 1 and source.strides[-1] > 1:
        return Transpose(x, y, source)
    return Copy(x, y, n, source, target)


def gathered(x: Operand, y: Operand, strides: Sequence[int], offset: int = 0) -> Kernel | None:
    """y, in its own order, from x at these strides along the axes of y."""
    space = Space.of(y.shape, y.channels_last)
    full = pattern_of(space, strides_of(y.shape, y.channels_last))
    return copy(x, y, y.size, pattern_of(space, strides, offset), full)


def plain(*operands: Operand | None) -> bool:
    """Whether all are given and lie in the order of their shape."""
    return all(x is not None and not (x.channels_last and len(x.shape) > 2) for x in operands)


@register("store", "assign")
def store(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    """Writes its second input into the first, and returns a copy."""
    target, x = ins
    if x is None or target is None or not plain(target, x, outs[0]):
        return None
    chain = Chain()
    for y, at in ((target, At("in", 0)), (outs[0], At("out", 0))):
        part = gathered(x, y, strides_of(x.shape))
        if part is None:
            return None
        chain.add(part, [At("in", 1)], [at])
    return chain.finish()


@register("to_layout", "cast", "reshape")
def to_layout(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    """The same values in another order, of another type, or (plain) in another shape."""
    x, y = ins[0], outs[0]
    if x is None:
        return None
    if x.shape != y.shape:
        if x.size != y.size or not plain(x, y):
            return None
        x = Operand(y.shape, x.dtype)
    return gathered(x, y, strides_of(x.shape, x.channels_last))


@register("transpose")
def transpose(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    (x,), y = ins, outs[0]
    if x is None or not plain(x, y):
        return None
    own = strides_of(x.shape)
    return gathered(x, y, [own[a] for a in attrs["axes"]])


def region(
    shape: Sequence[int], start: Sequence[int], stop: Sequence[int], step: Sequence[int]
) -> tuple[list[int], int, list[int]]:
    """(sizes, offset, strides) of the part that Python slices of the last axes name."""
    own, lead = strides_of(shape), len(shape) - len(start)
    sizes, strides, offset = list(shape[:lead]), list(own[:lead]), 0
    for n, distance, *bounds in zip(shape[lead:], own[lead:], start, stop, step, strict=True):
        part = range(*slice(*bounds).indices(n))
        sizes.append(len(part))
        strides.append(distance * part.step)
        offset += distance * part.start
    return sizes, offset, strides


@register("slice")
def slice_(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    (x,), y = ins, outs[0]
    if x is None or not plain(x, y):
        return None
    _, offset, strides = region(x.shape, attrs["start"], attrs["stop"], attrs["step"])
    return gathered(x, y, strides, offset)


def scattered(x: Operand, y: Operand, strides: Sequence[int], offset: int) -> Kernel | None:
    """x, in its own order, to these places of y; the rest of y stays as it is."""
    space = Space.of(x.shape, x.channels_last)
    full = pattern_of(space, strides_of(x.shape, x.channels_last))
    return copy(x, y, x.size, full, pattern_of(space, strides, offset))


def filled(
    x: Operand | None, y: Operand, strides: Sequence[int], offset: int, value: float
) -> Kernel | None:
    """y full of a number, and then x at these places."""
    if x is None or not plain(x, y) or not y.size or y.size >= MOST_ELEMENTS:
        return None
    put = scattered(x, y, strides, offset)
    if put is None:
        return None
    chain = Chain()
    if x.size != y.size:
        chain.add(Fill(y, value), [], [At("out", 0)])
    chain.add(put, [At("in", 0)], [At("out", 0)])
    return chain.finish()


@register("slice_backward")
def slice_backward(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    y = outs[0]
    _, offset, strides = region(y.shape, attrs["start"], attrs["stop"], attrs["step"])
    return filled(ins[0], y, strides, offset, 0.0)


@register("pad")
def pad(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    """Padding by a constant; the other modes are declined."""
    if attrs["mode"] != "constant":
        return None
    y, before = outs[0], attrs["pad_width"][::2]
    own = strides_of(y.shape)
    lead = len(y.shape) - len(before)
    offset = sum(b * s for b, s in zip(before, own[lead:], strict=True))
    return filled(ins[0], y, own, offset, float(attrs["constant_value"]))


@register("pad_backward")
def pad_backward(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    (g,), y = ins, outs[0]
    if attrs["mode"] != "constant" or g is None or not plain(g, y):
        return None
    own, before = strides_of(g.shape), attrs["pad_width"][::2]
    lead = len(g.shape) - len(before)
    offset = sum(b * s for b, s in zip(before, own[lead:], strict=True))
    return gathered(g, y, own, offset)


@register("flip")
def flip(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    (x,), y = ins, outs[0]
    if x is None or not plain(x, y):
        return None
    strides, axes = list(strides_of(x.shape)), set(attrs["axes"])
    offset = sum(strides[a] * (x.shape[a] - 1) for a in axes)
    return gathered(x, y, [-s if a in axes else s for a, s in enumerate(strides)], offset)


@register("tile")
def tile(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    (x,), y = ins, outs[0]
    if x is None or not plain(x, y):
        return None
    rank = len(y.shape)
    shape = (1,) * (rank - len(x.shape)) + x.shape
    # every axis of y split into which copy and where in it
    pairs = [v for n, m in zip(y.shape, shape, strict=True) for v in (n // m if m else 0, m)]
    strides = [v for s in strides_of(shape) for v in (0, s)]
    return gathered(x, Operand(tuple(pairs), y.dtype), strides)


def channels_alike(operands: Sequence[Operand | None]) -> bool:
    """Whether all are given, of one rank and one order in memory."""
    first = operands[0]
    return all(
        x is not None
        and first is not None
        and len(x.shape) == len(first.shape)
        and x.channels_last == first.channels_last
        for x in operands
    )


@register("concatenate")
def concatenate(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    y = outs[0]
    if not channels_alike([*ins, y]) or not y.size:
        return None
    strides, axis = strides_of(y.shape, y.channels_last), attrs["axis"]
    chain, start = Chain(), 0
    for i, x in enumerate(ins):
        if x is not None and x.size:
            part = scattered(x, y, strides, start * strides[axis])
            if part is None:
                return None
            chain.add(part, [At("in", i)], [At("out", 0)])
            start += x.shape[axis]
    return chain.finish()


@register("stack")
def stack(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    y = outs[0]
    if not plain(*ins, y) or not y.size:
        return None
    strides, axis = list(strides_of(y.shape)), attrs["axis"]
    step = strides.pop(axis)
    chain = Chain()
    for i, x in enumerate(ins):
        part = None if x is None else scattered(x, y, strides, i * step)
        if part is None:
            return None
        chain.add(part, [At("in", i)], [At("out", 0)])
    return chain.finish()


@register("split")
def split(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    x = ins[0]
    if x is None or not plain(x, *outs) or not x.size:
        return None
    strides = list(strides_of(x.shape))
    step = strides.pop(attrs["axis"])
    chain = Chain()
    for o, y in enumerate(outs):
        part = gathered(x, y, strides, o * step)
        if part is None:
            return None
        chain.add(part, [At("in", 0)], [At("out", o)])
    return chain.finish()
