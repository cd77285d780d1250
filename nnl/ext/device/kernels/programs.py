# SPDX-License-Identifier: Apache-2.0
"""Ops that are programs: element-wise ones alone and fused, and reductions over axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from nnl.core.ops.elementwise import ARITY, NAMES, NUMBER
from nnl.ext.device.kernels.elementwise import Sources, make
from nnl.ext.device.kernels.generator import Output
from nnl.ext.device.kernels.module import Ins, Outs, is_real, register
from nnl.ext.device.kernels.patterns import Pattern, Space, stretched
from nnl.ext.device.registry import Kernel, Operand

REDUCTIONS = (None, "sum", "largest", "smallest")  # by the numbers of fused_elementwise


def space_of(x: Operand) -> Space:
    """The elements of an array in the order in which they lie in memory."""
    return Space.of(x.shape, x.channels_last)


def read_by(inputs: int, code: Sequence[int]) -> set[int]:
    """Numbers of the values that instructions read."""
    steps = [(ARITY[NAMES[code[k]]], code[k + 1 : k + 4]) for k in range(0, len(code), 4)]
    return {v for n, operands in steps for v in operands[:n] if v >= 0}


def sources_of(
    space: Space,
    ins: Sequence[Operand | None],
    shapes: Sequence[Sequence[int]],
    used: set[int],
) -> Sources | None:
    """The inputs with their patterns; None if one that is used does not stretch to the space."""
    sources = []
    for i, (x, shape) in enumerate(zip(ins, shapes, strict=True)):
        if x is None:
            return None
        pattern = stretched(space, x, shape)
        if pattern is None:
            if i in used:
                return None
            pattern = Pattern((), ())
        sources.append((x, pattern))
    return sources


def _shapes(attrs: dict[str, Any], ins: Ins) -> list[tuple[int, ...]]:
    """The shapes in which the inputs are seen."""
    flat = attrs.get("shapes")
    if not flat:
        return [x.shape if x else () for x in ins]
    rank = len(flat) // len(ins)
    return [tuple(flat[i * rank : (i + 1) * rank]) for i in range(len(ins))]


@register("fused_elementwise")
def fused_elementwise(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    """A program that a pass put together; attributes are those of cpp/src/kernels's."""
    code, constants = attrs["code"], attrs["constants"]
    numbers = attrs["outputs"]
    if attrs.get("reductions"):
        space = Space.of(tuple(attrs["shape"]), bool(attrs.get("channels_last", False)))
        kinds = [REDUCTIONS[r] for r in attrs["reductions"]]
        scales = attrs.get("scales") or (1.0,) * len(outs)
    else:
        space, kinds, scales = space_of(outs[0]), [None] * len(outs), (1.0,) * len(outs)
    stored = [y for y, kind in zip(outs, kinds, strict=True) if kind is None]
    if any(space_of(y) != space for y in stored):
        return None
    used = read_by(len(ins), code) | set(numbers)
    sources = sources_of(space, ins, _shapes(attrs, ins), used)
    if sources is None:
        return None
    outputs = [
        Output(n, y, kind, float(scale))
        for n, y, kind, scale in zip(numbers, outs, kinds, scales, strict=True)
    ]
    return make(space, sources, code, constants, outputs, attrs.get("axes", ()))


COPY = (NUMBER["copy"], 0, 0, 0)


def reduced(
    kind: str, axes: Sequence[int], scale: float, x: Operand | None, y: Operand
) -> Kernel | None:
    """One reduction of x itself."""
    if x is None:
        return None
    space = space_of(x)
    sources = sources_of(space, [x], [x.shape], {0})
    assert sources is not None
    return make(space, sources, COPY, (), [Output(1, y, kind, scale)], axes)


def _reduction(kind: str, mean: bool, attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    x = ins[0]
    if x is None or len(outs) != 1 or attrs.get("only_index") or not is_real(x, outs[0]):
        return None
    if outs[0].channels_last and len(outs[0].shape) > 2:
        return None
    axes = attrs.get("axes")
    axes = tuple(range(len(x.shape))) if axes is None else axes
    n = math.prod(x.shape[a] for a in axes)
    return reduced(kind, axes, 1.0 / n if mean and n else 1.0, x, outs[0])


register("sum", "reduce_sum")(partial(_reduction, "sum", False))
register("mean", "reduce_mean")(partial(_reduction, "sum", True))
register("prod")(partial(_reduction, "product", False))
register("max")(partial(_reduction, "largest", False))
register("min")(partial(_reduction, "smallest", False))


@register("global_average_pooling")
def global_average_pooling(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    """Means of all pixels of each map."""
    x = ins[0]
    if x is None or len(x.shape) < 3:
        return None
    axes = tuple(range(2, len(x.shape)))
    return reduced("sum", axes, 1.0 / max(1, math.prod(x.shape[2:])), x, outs[0])
