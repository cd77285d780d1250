# SPDX-License-Identifier: Apache-2.0
"""Graphs for convolution in all directions, with what plans fuse after it, and deconvolution.

Channels-last throughout where the data lies so; weights, which plans keep in the plain order and
in float32, are brought into the order and type of the data before. 16-bit convolutions of one group
get zeros for channels up to a multiple of 8, which tensor cores want: a first layer's 3 channels
become 8 in the workspace, and gradients of such weights are cropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from nnl.ext.cuda.cudnn.assemble import (
    Assembly,
    Declined,
    check_types,
    half_of,
    image,
    order_of,
    vector,
    weight,
    window,
)
from nnl.ext.cuda.cudnn.spec import FIRST, Array, Draft, Work, channels_last, rows
from nnl.ext.device.registry import Operand

__all__ = ["backward_data", "backward_weight", "deconvolution", "forward"]

CHANNELS = 8  # of 16 bits: one access of 16 bytes
IN, OUT = FIRST["in"], FIRST["out"]
Attrs = dict[str, Any]
Operands = list[Operand | None]


class Geometry:
    """The three arrays of a convolution as its graphs see them.

    Args:
        x, w, y: Data, weights and result as they lie in memory.
        dtype: The element type of the graph.
        padded: Whether all channels get zeros up to a multiple of 8, and lie last, whatever the
            order of the operands: engines that fuse want that.
    """

    def __init__(
        self, attrs: Attrs, x: Array, w: Array, y: Array, dtype: str, padded: bool = False
    ) -> None:
        self.last = padded or order_of(x, y)
        rank = len(x.dim)
        if rank > 5:
            raise Declined(f"{rank - 2} spatial axes")
        pad = tuple(attrs["pad"])
        n = len(attrs["stride"])
        pads = (pad, pad) if len(pad) == n else (pad[::2], pad[1::2])
        self.window: dict[str, Any] = {
            "pre_padding": window(pads[0], rank, 0),
            "post_padding": window(pads[1], rank, 0),
            "stride": window(attrs["stride"], rank, 1),
            "dilation": window(attrs["dilation"], rank, 1),
        }
        self.dtype = dtype
        wide = attrs["group"] == 1 and (padded or (self.last and dtype != "float32"))
        channels = to_multiple(x.dim[1]) if wide else x.dim[1]
        maps = to_multiple(y.dim[1]) if padded else y.dim[1]
        self.x = self.seen(x, x.dim[0], channels)
        self.w = self.seen(w, maps, w.dim[1] - x.dim[1] + channels if wide else w.dim[1])
        self.y = self.seen(y, y.dim[0], maps)

    def seen(self, a: Array, first: int, channels: int) -> Array:
        dim = (first, channels, *a.dim[2:])
        stride = channels_last(dim) if self.last else rows(dim)
        return replace(a, dim=dim, stride=stride, dtype=self.dtype)


def to_multiple(channels: int) -> int:
    return channels + -channels % CHANNELS


def geometries(
    attrs: Attrs, x: Array, w: Array, y: Array, dtype: str, fuses: bool
) -> list[Geometry]:
    """How to see a convolution: as it is; and padded, if something is to be fused."""
    found = [Geometry(attrs, x, w, y, dtype)]
    if fuses and attrs["group"] == 1:
        found.append(Geometry(attrs, x, w, y, dtype, padded=True))
    return found


def distinct(works: Iterable[Work]) -> list[Work]:
    """All ways, each once."""
    return list(dict.fromkeys(works))


def forward(attrs: Attrs, ins: Operands, outs: list[Operand]) -> list[Work]:
    """convolution (x, w, b?) and convolution_fused (x, w, b?, z?, scale?) -> y.

    y = activation(scale * convolution(x, w) + b + z), in one graph, or else a graph for the
    convolution and one for the rest; or so with padded channels.
    """
    x, w, b, z, scale = (*ins, None, None, None)[:5]
    if x is None or w is None:
        raise Declined("x or w is left out")
    if attrs.get("packed"):
        raise Declined("the weights are packed for another engine")
    check_types(*ins, *outs)
    base, last = attrs["base_axis"], attrs["channel_last"]
    x_, y_ = image(IN, x, base, last), image(OUT, outs[0], base, last)
    w_ = weight(IN + 1, w, last)
    tail = [(op, i, v) for op, i, v in (("mul", 4, scale), ("add", 2, b), ("add", 3, z)) if v]
    plain = not tail and attrs.get("activation", "identity") == "identity"

    def assemble(at: Geometry, fused: bool) -> Work:
        steps = Assembly()
        draft = Draft(bool(attrs.get("tf32")))
        factors = {
            "image": draft.add(steps.read(x_, at.x)),
            "weight": draft.add(steps.read(w_, at.w)),
        }
        target = steps.write(y_, at.y)
        if plain:
            draft.node("conv_fprop", factors, {"Y": draft.add(target)}, **at.window)
            steps.graph(draft)
            return steps.work()
        out = at.y.dim if fused else draft.add(steps.scratch(at.y.dim, at.y.stride, at.dtype))
        t = draft.node("conv_fprop", factors, {"Y": out}, **at.window)
        draft = draft if fused else steps.cut(draft, t)
        others = []
        for op, i, v in tail:
            if i == 3:
                have = image(IN + 3, v, base, last)
                a = steps.read(have, replace(at.y, dtype=have.dtype))
            else:
                a = steps.read(vector(IN + i, v, len(x_.dim)), per_map(v, at.y))
            others.append((op, a))
        epilogue(draft, attrs, t, others, target)
        steps.graph(draft)
        return steps.work()

    seen = geometries(attrs, x_, w_, y_, half_of(x, outs[0]), not plain)
    return distinct(assemble(at, fused) for at in seen for fused in (True, False))


def per_map(v: Operand, y: Array) -> Array:
    """A vector for as many channels as y has."""
    c, rest = y.dim[1], len(y.dim) - 2
    have = vector(0, v, len(y.dim))
    return replace(have, dim=(1, c, *(1,) * rest), stride=(c, 1, *(c,) * rest))


def epilogue(draft: Draft, attrs: Attrs, t: int, others: list[tuple[str, Array]], y: Array) -> None:
    """y = activation(t op other op other...)."""
    name = attrs.get("activation", "identity")
    plain = name == "identity"
    for n, (op, other) in enumerate(others):
        last = plain and n + 1 == len(others)
        t = draft.pointwise(op, t, draft.add(other), out=draft.add(y) if last else None)
    if not plain:
        activation(draft, attrs, name, t, draft.add(y))


def activation(draft: Draft, attrs: Attrs, name: str, t: int, out: int) -> int:
    """out = activation(t), by the name that plans give it."""
    rank = len(draft.arrays[t].dim)
    if name in ("hard_sigmoid", "hard_swish"):
        slope = 0.2 if name == "hard_sigmoid" else 1.0 / 6.0
        s = draft.pointwise("mul", t, draft.constant(slope, rank))
        s = draft.pointwise("add", s, draft.constant(0.5, rank))
        if name == "hard_sigmoid":
            return draft.pointwise("relu", s, out=out, upper_clip=1.0)
        return draft.pointwise("mul", draft.pointwise("relu", s, upper_clip=1.0), t, out=out)
    if name == "leaky_relu":
        return draft.pointwise(name, t, out=out, negative_slope=float(attrs["alpha"]))
    if name == "elu" and attrs["alpha"] != 1.0:
        raise Declined(f"elu with alpha {attrs['alpha']}")
    if name == "relu6":
        return draft.pointwise("relu", t, out=out, upper_clip=6.0)
    if name not in ("relu", "elu", "sigmoid", "tanh", "swish", "gelu"):
        raise Declined(f"the activation {name}")
    return draft.pointwise("gelu_approx_tanh" if name == "gelu" else name, t, out=out)


def backward_data(attrs: Attrs, ins: Operands, outs: list[Operand]) -> list[Work]:
    """convolution_data (gy, w) -> gx: the gradient by the data."""
    return _data(attrs, ins, outs, None)


def deconvolution(attrs: Attrs, ins: Operands, outs: list[Operand]) -> list[Work]:
    """deconvolution (x, w, b?) -> y: the same, plus a bias."""
    return _data(attrs, ins[:2], outs, ins[2] if len(ins) > 2 else None)


def _data(attrs: Attrs, ins: Operands, outs: list[Operand], b: Operand | None) -> list[Work]:
    gy, w = ins[:2]
    if gy is None or w is None:
        raise Declined("gy or w is left out")
    check_types(gy, w, b, *outs)
    base, last = attrs["base_axis"], attrs["channel_last"]
    gy_, gx_ = image(IN, gy, base, last), image(OUT, outs[0], base, last)
    w_ = weight(IN + 1, w, last)

    def assemble(at: Geometry, fused: bool) -> Work:
        steps, draft = Assembly(), Draft(bool(attrs.get("tf32")))
        factors = {
            "loss": draft.add(steps.read(gy_, at.y)),
            "filter": draft.add(steps.read(w_, at.w)),
        }
        target = steps.write(gx_, at.x)
        if b is None:
            draft.node("conv_dgrad", factors, {"DX": draft.add(target)}, **at.window)
            steps.graph(draft)
            return steps.work()
        out = at.x.dim if fused else draft.add(steps.scratch(at.x.dim, at.x.stride, at.dtype))
        t = draft.node("conv_dgrad", factors, {"DX": out}, **at.window)
        draft = draft if fused else steps.cut(draft, t)
        bias = steps.read(vector(IN + 2, b, len(at.x.dim)), per_map(b, at.x))
        draft.pointwise("add", t, draft.add(bias), out=draft.add(target))
        steps.graph(draft)
        return steps.work()

    seen = geometries(attrs, gx_, w_, gy_, half_of(gy, outs[0]), b is not None)
    return distinct(assemble(at, fused) for at in seen for fused in (True, False))


def backward_weight(attrs: Attrs, ins: Operands, outs: list[Operand]) -> list[Work]:
    """convolution_weight (x, gy) -> gw; convolution_weight_bias (x, gy) -> gw, gb.

    gw is computed in the type of the data, with sums in float32: cuDNN 9.19 has no engine that
    writes float32 from 16-bit data.
    """
    x, gy = ins[:2]
    if x is None or gy is None:
        raise Declined("x or gy is left out")
    check_types(x, gy, *outs)
    base, last = attrs["base_axis"], attrs["channel_last"]
    x_, gy_ = image(IN, x, base, last), image(IN + 1, gy, base, last)
    gw_ = weight(OUT, outs[0], last)
    at = Geometry(attrs, x_, gw_, gy_, half_of(x, gy))
    steps, draft = Assembly(), Draft(bool(attrs.get("tf32")))
    loss = steps.read(gy_, at.y)
    draft.node(
        "conv_wgrad",
        {"image": draft.add(steps.read(x_, at.x)), "loss": draft.add(loss)},
        {"DW": draft.add(steps.write(gw_, at.w))},
        **at.window,
    )
    steps.graph(draft)
    if len(outs) > 1:
        draft = Draft()
        total = draft.add(vector(OUT + 1, outs[1], len(gy_.dim)))
        draft.node("reduction", {"input": draft.add(loss)}, {"out": total}, mode="ADD")
        steps.graph(draft)
    return [steps.work()]
