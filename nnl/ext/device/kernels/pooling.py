# SPDX-License-Identifier: Apache-2.0
"""Pooling over up to three axes, its gradients, and unpooling.

max_pooling_arg and its gradient exist for plans only, see cpp/src/kernels/pooling.cpp: arg is int16
and holds the place of the first maximum within its window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from nnl.ext.device.kernels.chain import At, Chain
from nnl.ext.device.kernels.copies import gathered
from nnl.ext.device.kernels.module import (
    Code,
    Ins,
    Launch,
    Launched,
    Outs,
    blocks_for,
    divisor,
    is_real,
    line,
    register,
    typed,
    vector,
    words,
)
from nnl.ext.device.registry import Kernel, Operand

FILES = ("pooling",)
MOST_PLACES = 1 << 15  # of a window that an int16 can name


class Form(NamedTuple):
    """An array as it lies in memory: (outer, *size, channels)."""

    outer: int
    size: tuple[int, ...]
    channels: int


def form_of(x: Operand, axes: int, channel_last: bool) -> Form | None:
    """The array with `axes` pooled ones; None if they do not lie next to each other."""
    shape, rank = x.shape, len(x.shape)
    if x.channels_last and rank > 2:
        if channel_last or axes != rank - 2:
            return None
        return Form(shape[0], shape[2:], shape[1])
    end = rank - channel_last
    return Form(math.prod(shape[: end - axes]), shape[end - axes : end], math.prod(shape[end:]))


class Pool(Launched):
    """One launch; `arg` says whether places of maxima are written or read.

    Attributes:
        backward: Whether it goes from windows (x) to pixels (y).
    """

    def __init__(
        self, mode: str, attrs: dict[str, Any], x: Operand, y: Operand, source: Form, target: Form,
        backward: bool = False,
    ) -> None:  # fmt: skip
        pixels, windows = (target, source) if backward else (source, target)
        lead = (1,) * (3 - len(pixels.size))
        zeros = (0,) * len(lead)
        table = zip(
            lead + pixels.size, lead + windows.size, lead + tuple(attrs["kernel"]),
            zeros + tuple(attrs["pad"]), lead + tuple(attrs["stride"]), strict=True,
        )  # fmt: skip
        axes = [words(*row, divisor(stride)) for *row, stride in table]
        wide = vector(x, y)
        wide = wide if source.channels % wide == 0 else 1
        step = "pool_backward" if backward else "pool"
        arrays = ("const X x", "Y y", "const short arg" if backward else "short arg")
        self.launches = {}
        for fits, v in ((True, wide), (False, 1)):
            macros = (("MODE", mode), ("V", v), ("RANK", 3 - len(lead)), *typed(X=x, Y=y))
            code = Code(f"{step}_windows", f"{step}(x, y, arg, p)", arrays, "PoolP", FILES, macros)
            n = y.size // v
            sizes = [divisor(s) for s in (lead + target.size)[::-1]]
            rest = words(n, divisor(source.channels // v), *sizes) + b"".join(axes)
            self.launches[fits] = Launch(code, (blocks_for(n), 1, 1), line(), rest)

    def run(
        self, ins: Sequence[int | None], outs: Sequence[int], workspace: int, stream: Any
    ) -> None:
        """ins: x, and the places if they are read; outs: y (0 for none), and places."""
        arg = ins[1] if len(ins) > 1 else outs[1] if len(outs) > 1 else 0
        super().run([ins[0], outs[0], arg], [], workspace, stream)


class WithoutY(Kernel):
    """Max pooling that writes the places alone."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def run(
        self, ins: Sequence[int | None], outs: Sequence[int], workspace: int, stream: Any
    ) -> None:
        self.pool.run(ins, [0, outs[0]], workspace, stream)


def _forms(attrs: dict[str, Any], x: Operand | None, y: Operand) -> tuple[Form, Form] | None:
    """How x and y lie; None for what there is no kernel for."""
    if x is None or not x.size or not y.size or not is_real(x, y):
        return None
    axes = len(attrs["kernel"])
    found = [form_of(v, axes, bool(attrs.get("channel_last"))) for v in (x, y)]
    if axes > 3 or found[0] is None or found[1] is None:
        return None
    return (found[0], found[1]) if found[0].channels == found[1].channels else None


def _mode(attrs: dict[str, Any], mode: str) -> str:
    return "AVERAGE_WITH_PAD" if mode == "AVERAGE" and attrs["including_pad"] else mode


def _forward(mode: str, attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    forms, x = _forms(attrs, ins[0], outs[0]), ins[0]
    if forms is None or x is None:
        return None
    return Pool(_mode(attrs, mode), attrs, x, outs[0], *forms)


register("max_pooling")(partial(_forward, "MAX"))
register("sum_pooling")(partial(_forward, "SUM"))
register("average_pooling")(partial(_forward, "AVERAGE"))


def _backward(mode: str, attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    forms, gy = _forms(attrs, ins[0], outs[0]), ins[0]
    if forms is None or gy is None:
        return None
    return Pool(_mode(attrs, mode), attrs, gy, outs[0], *forms, backward=True)


register("sum_pooling_backward")(partial(_backward, "SUM"))
register("average_pooling_backward")(partial(_backward, "AVERAGE"))


@register("max_pooling_arg")
def max_pooling_arg(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    """x -> y, arg."""
    if math.prod(attrs["kernel"]) > MOST_PLACES or outs[1].channels_last != outs[0].channels_last:
        return None
    return _forward("MAX", attrs, ins, outs)


@register("max_pooling_arg_backward")
def max_pooling_arg_backward(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    """dy, arg -> dx."""
    dy, arg = ins
    if dy is None or arg is None or arg.channels_last != dy.channels_last:
        return None
    return _backward("MAX", attrs, ins, outs)


@register("max_pooling_backward")
def max_pooling_backward(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    """dy, x -> dx: finds the places first."""
    dy, x = ins
    if dy is None or x is None or math.prod(attrs["kernel"]) > MOST_PLACES:
        return None
    forms = _forms(attrs, x, dy)
    back = _forms(attrs, dy, outs[0])
    if forms is None or back is None:
        return None
    chain = Chain()
    arg = chain.scratch(2 * dy.size)
    find = Pool("MAX", attrs, x, Operand(dy.shape, x.dtype, dy.channels_last), *forms)
    chain.add(WithoutY(find), [At("in", 1)], [arg])
    put = Pool("MAX", attrs, dy, outs[0], *back, backward=True)
    chain.add(put, [At("in", 0), arg], [At("out", 0)])
    return chain.finish()


@register("unpooling")
def unpooling(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    """A copy in which every pixel is read several times."""
    x, y, kernel = ins[0], outs[0], attrs["kernel"]
    if x is None or not x.size:
        return None
    forms = [form_of(v, len(kernel), bool(attrs.get("channel_last"))) for v in (x, y)]
    if forms[0] is None or forms[1] is None or forms[0].channels != forms[1].channels:
        return None
    outer, size, channels = forms[0]
    shape, strides, step = [channels], [1], channels
    for n, k in zip(reversed(size), reversed(kernel), strict=True):
        shape[:0], strides[:0] = [n, k], [step, 0]
        step *= n
    return gathered(x, Operand((outer, *shape), y.dtype), [step, *strides])
