# SPDX-License-Identifier: Apache-2.0
"""Softmax, its logarithm, their gradients, and the cross entropies of labels.

softmax_fused and softmax_fused_backward exist for plans only; they are described in
cpp/src/kernels/softmax.cpp. A label that is too large gives
NaN: a device cannot raise an error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from nnl.ext.device.kernels.copies import axes_words, plain
from nnl.ext.device.kernels.elementwise import power_of_two
from nnl.ext.device.kernels.module import (
    FLOATS,
    MOST_ELEMENTS,
    Code,
    Dims,
    Ins,
    Launch,
    Launched,
    Outs,
    aligned,
    blocks_for,
    divisor,
    geometry,
    is_real,
    lanes,
    line,
    name_of,
    register,
    typed,
    words,
)
from nnl.ext.device.kernels.patterns import Pattern, Space, stretched
from nnl.ext.device.registry import Kernel, Operand

SHARED = ("f32 shared[THREADS]",)
PACKS = (1, 2, 4, 8)  # of a thread in registers
BYTES = frozenset(["bool", "int8", "uint8"])


def team_for(n: int, width: int, outer: int) -> tuple[Dims, Dims]:
    """(grid, block) with one team of threads for each of `outer` rows of n elements."""
    threads, g = -(-n // width), geometry()
    team = g.threads if threads > 8 * g.team else power_of_two(threads, g.team)
    rows = g.threads // team
    return (-(-outer // rows), 1, 1), (team, rows, 1)


class Along(Launched):
    """A kind of softmax along an axis; b is the second input or None."""

    def __init__(
        self, kind: str, a: Operand, b: Operand | None, y: Operand, axis: int, scale: float,
        mask: Pattern | None = None,
    ) -> None:  # fmt: skip
        n, inner = a.shape[axis], math.prod(a.shape[axis + 1 :])
        outer = a.size // (n * inner)
        rank = 0 if mask is None else max(1, len(mask.sizes))
        flags = int(b is not None and b.dtype.name in BYTES)
        types = (("KIND", kind), ("MASK", rank), ("FLAGS", flags), *typed(A=a, B=b or a, Y=y))
        arrays = ("const A a", "const B b", "Y y")
        rest = words(outer, n, inner, scale) + axes_words(mask or Pattern((), ()))
        self.second = b is not None
        wide = lanes(a, y, *([b] if b and mask is None else []))
        self.same = [x is not None and x.dtype.itemsize == y.dtype.itemsize for x in (a, b)]
        if mask is not None:
            self.same[1] = False
        wide = wide if inner == 1 and n % wide == 0 else 1
        local: tuple[str, ...] = ()
        self.launches = {}
        for fits, width in ((True, wide), (False, 1)):
            if inner > 1:
                grid: Dims = (blocks_for(outer * inner), 1, 1)
                block: Dims = line()
                call, local, packs = "along_columns(a, b, y, p)", (), 0
            else:
                grid, block = team_for(n, width, outer)
                each = -(-n // (width * block[0]))
                packs = next((k for k in PACKS if k >= each), 0)
                call, local = "along_rows(a, b, y, shared, p)", SHARED
            macros = (("V", width), ("K", packs), *types)
            code = Code("softmax_along", call, arrays, "AlongP", ("softmax",), macros, local)
            self.launches[fits] = Launch(code, grid, block, rest)

    def may_overwrite(self, out: int, input: int) -> bool:
        return self.same[input]

    def run(
        self, ins: Sequence[int | None], outs: Sequence[int], workspace: int, stream: Any
    ) -> None:
        super().run([ins[0], ins[1] if self.second else 0], outs, workspace, stream)


def _usable(*operands: Operand | None) -> bool:
    return is_real(*operands) and plain(*operands) and all(x is None or x.size for x in operands)


def _forward(kind: str, attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    x, y = ins[0], outs[0]
    if x is None or not _usable(x, y):
        return None
    return Along(kind, x, None, y, attrs["axis"], 1.0)


def _backward(kind: str, attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    gy, y = ins
    if gy is None or y is None or not _usable(gy, y, outs[0]):
        return None
    axis = attrs.get("axis", len(y.shape) - 1)
    return Along(kind, gy, y, outs[0], axis, float(attrs.get("scale", 1.0)))


register("softmax")(partial(_forward, "SOFTMAX"))
register("log_softmax")(partial(_forward, "LOG_SOFTMAX"))
register("softmax_backward", "softmax_fused_backward")(partial(_backward, "SOFTMAX_BACKWARD"))
register("log_softmax_backward")(partial(_backward, "LOG_SOFTMAX_BACKWARD"))


@register("softmax_fused")
def softmax_fused(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    """softmax(scale x + mask) along the last axis."""
    x, y = ins[0], outs[0]
    mask = ins[1] if len(ins) > 1 else None
    if x is None or not x.shape or not _usable(x, y):
        return None
    scale, axis = float(attrs["scale"]), len(x.shape) - 1
    if mask is None:
        return Along("SOFTMAX", x, None, y, axis, scale)
    pattern = stretched(Space.of(x.shape), mask)
    kind = mask.dtype.name
    if pattern is None or not plain(mask) or (kind not in FLOATS and kind not in BYTES):
        return None
    return Along("SOFTMAX", x, mask, y, axis, scale, pattern)


def cross_launches(
    x: Operand,
    axis: int,
    packed: Sequence[Operand],
    rest: str,
    arrays: tuple[str, ...],
    macros: tuple[tuple[str, object], ...],
    more: bytes = b"",
) -> dict[bool, Launch]:
    """The launches for scores x: of the loss, or with more words than three of its gradient.

    Args:
        packed: What is read and written in packs.
        rest, arrays, macros: Those of the code.
        more: Words after outer, n and inner.
    """
    name = "cross_backward" if more else "cross"
    n, inner = x.shape[axis], math.prod(x.shape[axis + 1 :])
    outer = x.size // (n * inner)
    numbers = words(outer, n, inner) + more
    given = ", ".join(name_of(a) for a in arrays)

    def code(form: str, v: int, more: str = "", local: tuple[str, ...] = ()) -> Code:
        call = f"{name}_{form}({given}, {more}p)"
        files = ("cross_entropy",)
        return Code(f"{name}_entropy", call, arrays, rest, files, (("V", v), *macros), local)

    if inner > 1:
        grid = (blocks_for(x.size if more else outer * inner), 1, 1)
        return dict.fromkeys((True, False), Launch(code("columns", 1), grid, line(), numbers))
    extra = () if more else ("shared, ", SHARED)
    return {
        fits: Launch(code("rows", v, *extra), *team_for(n, v, outer), numbers)
        for fits, v in ((True, lanes(*packed)), (False, 1))
    }


class CrossEntropy(Launched):
    """Losses, and the maxima and sums of exponentials if they are asked for."""

    def __init__(self, x: Operand, label: Operand, y: Operand, axis: int) -> None:
        arrays = ("const X x", "const L label", "Y y", "Y largest", "Y totals")
        macros = typed(X=x, L=label, Y=y)
        self.launches = cross_launches(x, axis, (x,), "CrossP", arrays, macros)

    def run(
        self, ins: Sequence[int | None], outs: Sequence[int], workspace: int, stream: Any
    ) -> None:
        addresses = [*ins, *outs, *[0] * (3 - len(outs))]
        self.launches[aligned(addresses[:1])].run(addresses, stream)


def _is_label(x: Operand | None) -> bool:
    return x is not None and plain(x) and x.dtype.kind in "iu"


@register("softmax_cross_entropy")
def softmax_cross_entropy(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    x, label = ins
    same = all(o.dtype == outs[0].dtype for o in outs)
    if x is None or label is None or not _is_label(label) or not _usable(x, *outs) or not same:
        return None
    return CrossEntropy(x, label, outs[0], attrs["axis"])


class CrossEntropyBackward(Launched):
    """Every element by itself, from the maximum and the sum of its line."""

    def __init__(self, ins: Sequence[Operand], gx: Operand, axis: int) -> None:
        gy, x, label, largest, _ = ins
        n, inner = x.shape[axis], math.prod(x.shape[axis + 1 :])
        arrays = ("const G gy", "const X x", "const L label", "const S largest",
                  "const S totals", "Z gx")  # fmt: skip
        macros = (("GRADIENT", ""), *typed(G=gy, X=x, L=label, S=largest, Z=gx))
        more = words(divisor(n), divisor(inner))
        self.launches = cross_launches(x, axis, (x, gx), "CrossBackwardP", arrays, macros, more)
        self.same = x.dtype.itemsize == gx.dtype.itemsize

    def may_overwrite(self, out: int, input: int) -> bool:
        return input == 1 and self.same


@register("softmax_cross_entropy_backward")
def softmax_cross_entropy_backward(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    given = [x for x in ins if x is not None]
    if len(given) < 5 or not _is_label(given[2]) or given[3].dtype != given[4].dtype:
        return None
    if not _usable(given[0], given[1], *given[3:], outs[0]) or given[1].size >= MOST_ELEMENTS:
        return None
    return CrossEntropyBackward(given, outs[0], attrs["axis"])
