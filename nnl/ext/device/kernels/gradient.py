# SPDX-License-Identifier: Apache-2.0
"""What solvers do to gradients before an update, and norms: programs with one number in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from nnl.core.ops.elementwise import Writer
from nnl.ext.device.kernels.chain import At, Chain
from nnl.ext.device.kernels.elementwise import make
from nnl.ext.device.kernels.generator import Output
from nnl.ext.device.kernels.module import Ins, Outs, is_real, register
from nnl.ext.device.kernels.patterns import Space, stretched
from nnl.ext.device.kernels.programs import space_of
from nnl.ext.device.registry import Kernel, Operand


def program(
    space: Space,
    ins: Sequence[Operand],
    write: Callable[..., int],
    y: Operand,
    reduction: str | None = None,
    axes: Sequence[int] = (),
) -> Kernel | None:
    """The kernel of one value that `write` makes of a Writer and the numbers of the inputs."""
    w = Writer([()] * len(ins))
    value = write(w, *range(len(ins)))
    sources = []
    for x in ins:
        pattern = stretched(space, x)
        if pattern is None:
            return None
        sources.append((x, pattern))
    return make(space, sources, w.code, w.constants, [Output(value, y, reduction)], axes)


def _scaled(
    write: Callable[..., int], attrs: dict[str, Any], ins: Ins, outs: Outs
) -> Kernel | None:
    """An element-wise change of a gradient by the attributes."""
    given, y = [x for x in ins if x is not None], outs[0]
    if not is_real(*given, y) or any(space_of(x) != space_of(y) for x in given):
        return None
    return program(space_of(y), given, partial(write, attrs), y)


def _decay(attrs: dict[str, Any], w: Writer, g: int, weight: int) -> int:
    return w("multiply_add", weight, w.number(attrs["rate"]), g)


def _scale(attrs: dict[str, Any], w: Writer, g: int) -> int:
    return w("multiply", g, w.number(attrs["scale"]))


register("decay_gradient")(partial(_scaled, _decay))
register("scale_gradient")(partial(_scaled, _scale))


@register("clip_gradient")
def clip_gradient(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    """g times clip_norm / its norm, where that is less than 1; the norm stays on the device."""
    g, y, most = ins[0], outs[0], float(attrs["clip_norm"])
    if g is None or not is_real(g, y) or space_of(g) != space_of(y):
        return None
    if most <= 0.0:
        return program(space_of(y), [g], lambda w, g: w("copy", g), y)
    total = Operand((), np.dtype(np.float32))
    axes = range(len(g.shape))
    first = program(space_of(g), [g], lambda w, g: w("square", g), total, "sum", axes)

    def clipped(w: Writer, g: int, t: int) -> int:
        length, c, one = w("root", t), w.number(most), w.number(1.0)
        factor = w("where", w("greater", length, c), w("divide", c, length), one)
        return w("multiply", g, factor)

    second = program(space_of(y), [g, total], clipped, y)
    if first is None or second is None:
        return None
    chain = Chain()
    at = chain.scratch(total.nbytes)
    chain.add(first, [At("in", 0)], [at])
    chain.add(second, [At("in", 0), at], [At("out", 0)])
    if g.dtype.itemsize == y.dtype.itemsize:
        chain.overwrite = {(0, 0)}
    return chain.finish()


@register("norm")
def norm(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    """(sum of |x|^p)^(1/p) over axes."""
    x, y, p = ins[0], outs[0], float(attrs["p"])
    if x is None or not is_real(x, y):
        return None
    axes = attrs.get("axes")
    axes = tuple(range(len(x.shape))) if axes is None else axes

    def power(w: Writer, x: int) -> int:
        if p == 2.0:
            return w("square", x)
        x = w("absolute", x)
        return x if p == 1.0 else w("power", x, w.number(p))

    def root(w: Writer, t: int) -> int:
        if p == 1.0:
            return w("copy", t)
        return w("root", t) if p == 2.0 else w("power", t, w.number(1.0 / p))

    total = Operand(y.shape, np.dtype(np.float32), y.channels_last)
    first = program(space_of(x), [x], power, total, "sum", axes)
    second = program(space_of(y), [total], root, y)
    if first is None or second is None:
        return None
    chain = Chain()
    at = chain.scratch(total.nbytes)
    chain.add(first, [At("in", 0)], [at])
    chain.add(second, [at], [At("out", 0)])
    return chain.finish()
