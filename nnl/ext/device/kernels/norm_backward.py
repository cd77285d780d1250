# SPDX-License-Identifier: Apache-2.0
"""Gradients of normalizations, as programs; see norm.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nnl.core.ops.elementwise import Writer
from nnl.ext.device.kernels.chain import At
from nnl.ext.device.kernels.module import Ins, Outs, is_real, register, same_size
from nnl.ext.device.kernels.norm import Part, Stages, inverse_of, others
from nnl.ext.device.kernels.patterns import Space
from nnl.ext.device.registry import Kernel, Operand


def given_in(s: Stages, ins: Sequence[Operand | None]) -> list[Part | None]:
    return [s.part(x, At("in", i)) for i, x in enumerate(ins)]


def needed_out(s: Stages, outs: Sequence[Operand]) -> list[Part]:
    parts = [s.part(x, At("out", i)) for i, x in enumerate(outs)]
    return [p for p in parts if p is not None]


def alike(x: Operand, *others: Operand | None) -> bool:
    """Whether all that are given have the shape of x and lie like it."""
    space = Space.of(x.shape, x.channels_last)
    return all(o is None or Space.of(o.shape, o.channels_last) == space for o in others)


def add_inverse(s: Stages, variance: Part | None, eps: float) -> Part:
    """The stage for 1 / sqrt(variance + eps)."""
    inverse = s.scratch()
    s.add(
        [variance],
        lambda w, v: (inverse_of(w, v, eps),),
        [(inverse, None, 1.0)],
        small=True,
    )
    return inverse


@register("normalization_backward")
def normalization_backward(attrs: dict[str, Any], ins: Ins, outs: Outs) -> Kernel | None:
    """(gy, gmean, gvariance, x, mean, variance, gamma?) -> gx, and gbeta and ggamma."""
    ins = [*ins, *[None] * (7 - len(ins))]
    x = ins[3]
    if x is None or not is_real(*ins, *outs) or not x.size or not alike(x, ins[0], outs[0]):
        return None
    axes, c, groups = attrs["axes"], attrs.get("channel_axis", 1), attrs.get("groups", 0)
    if groups:
        s = Stages(x, (*(a + (a > c) for a in axes), c + 1), c, groups)
    else:
        s = Stages(x, axes)
    gy, gmean, gvariance, px, mean, variance, gamma = given_in(s, ins)
    gx, *parameters = needed_out(s, outs)
    inverse = add_inverse(s, variance, float(attrs["eps"]))
    first, second = s.scratch(), s.scratch()
    # Does gamma vary like the means (batch), or within what is reduced (layer)?
    shape = attrs.get("parameter")
    shape = shape and s.fold_shape(shape)
    own = shape is not None and tuple(shape) == s.statistic.shape

    def products(w: Writer, g: int, x: int, m: int, i: int, k: int | None) -> Sequence[int]:
        xhat = w("multiply", w("subtract", x, m), i)
        if k is not None:
            g = w("multiply", g, k)
        return g, w("multiply", g, xhat)

    scaled = [(first, "sum", 1.0 / s.count), (second, "sum", 1.0 / s.count)]
    totals = [(p, "sum", 1.0) for p in parameters]
    arrays = [gy, px, mean, inverse]
    if own:
        s.add(
            [*arrays, None],
            lambda w, *v: (*products(w, *v),) * 2,
            [*scaled, *totals],
            s.axes,
        )
    else:
        s.add([*arrays, gamma], products, scaled, s.axes)
        if shape is not None:
            axes = [a for a, n in enumerate(shape) if n == 1 and s.shape[a] != 1]
            if axes:
                s.add([*arrays, None], products, totals, axes)
            else:  # no two elements share a gamma
                s.add([*arrays, None], products, [(p, None, 1.0) for p in parameters])

    def apply(
        w: Writer, g: int, x: int, m: int, i: int, a: int, b: int,
        gm: int | None, gv: int | None, k: int | None,
    ) -> Sequence[int]:  # fmt: skip
        d = w("subtract", x, m)
        xhat = w("multiply", d, i)
        if own and k is not None:  # gamma times (g - sum of g - xhat times sum of g xhat)
            i = w("multiply", i, k)
        elif k is not None:
            g = w("multiply", g, k)
        rest = w("subtract", w("subtract", g, a), w("multiply", xhat, b))
        more = gm
        if gv is not None:
            more = w("multiply", w("multiply", gv, d), w.number(2.0))
            more = more if gm is None else w("add", more, gm)
        if more is None:
            return (w("multiply", rest, i),)
        return (w("multiply_add", rest, i, w("multiply", more, w.number(1.0 / s.count))),)

    s.add(
        [*arrays, first, second, gmean, gvariance, gamma],
        apply,
        [(gx, None, 1.0)],
    )
    return s.finish([(0, i) for i in (0, 3) if same_size(ins[i], outs[0])])


@register("batch_normalization_backward_fused")
def batch_normalization_backward_fused(
    attrs: dict[str, Any], ins: Ins, outs: Outs
) -> Kernel | None:
    """(gy, gy2?, x, y?, mean, variance, gamma?, beta?) -> gx, gbeta, ggamma, gz?."""
    ins = [*ins, *[None] * (8 - len(ins))]
    x = ins[2]
    gz_out = outs[3] if len(outs) > 3 else None
    if x is None or not x.size or not is_real(*ins, *outs):
        return None
    if not alike(x, ins[0], ins[1], ins[3], outs[0], gz_out):
        return None
    s = Stages(x, others(len(x.shape), attrs["axes"]))
    gy, gy2, px, y, mean, variance, gamma, beta = given_in(s, ins)
    gx, gbeta, ggamma, *gz = needed_out(s, outs)
    inverse = add_inverse(s, variance, float(attrs["eps"]))
    relu = attrs["activation"] == "relu"
    # what the mask is made of: y, or gamma and beta to compute it again
    mask = [y, None, None] if y is not None else [None, gamma, beta]
    if not relu:
        mask = [None, None, None]
    first, second = s.scratch(), s.scratch()

    def arriving(
        w: Writer, g: int, g2: int | None, y: int | None, xhat: int, k: int | None, b: int | None
    ) -> int:
        if g2 is not None:
            g = w("add", g, g2)
        if not relu:
            return g
        if y is None:
            y = xhat if k is None else w("multiply", xhat, k)
            y = y if b is None else w("add", y, b)
        return w("gate_greater", g, y, w.number(0.0))

    def products(
        w: Writer, x: int, m: int, i: int, g: int, g2: int | None, y: int | None, k: int | None,
        b: int | None,
    ) -> Sequence[int]:  # fmt: skip
        xhat = w("multiply", w("subtract", x, m), i)
        g = arriving(w, g, g2, y, xhat, k, b)
        product = w("multiply", g, xhat)
        return (g, product, g, product, g)[: 4 + len(gz)]

    scale = 1.0 / s.count
    s.add(
        [px, mean, inverse, gy, gy2, *mask],
        products,
        [
            (first, "sum", scale),
            (second, "sum", scale),
            (gbeta, "sum", 1.0),
            (ggamma, "sum", 1.0),
            *((p, None, 1.0) for p in gz),
        ],
        s.axes,
    )
    batch_stat = bool(attrs["batch_stat"])

    def apply(
        w: Writer, x: int, m: int, i: int, a: int, b: int, k: int | None, g: int, g2: int | None,
        y: int | None, mask_k: int | None, mask_b: int | None,
    ) -> Sequence[int]:  # fmt: skip
        xhat = w("multiply", w("subtract", x, m), i)
        if not gz:
            g = arriving(w, g, g2, y, xhat, mask_k, mask_b)
        if batch_stat:
            g = w("subtract", w("subtract", g, a), w("multiply", xhat, b))
        g = w("multiply", g, i)
        return (g if k is None else w("multiply", g, k),)

    source = [gz[0], None, None, None, None] if gz else [gy, gy2, *mask]
    s.add([px, mean, inverse, first, second, gamma, *source], apply, [(gx, None, 1.0)])
    free = (0, 1, 2, 3) if gz else (0, 1, 2)
    pairs = [(0, i) for i in free if same_size(ins[i], outs[0])]
    return s.finish(pairs + [(3, i) for i in (0, 1, 3) if same_size(ins[i], gz_out)])
