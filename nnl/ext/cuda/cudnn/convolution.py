# SPDX-License-Identifier: Apache-2.0
"""Graphs for convolution in all directions, with what plans fuse behind it, and deconvolution.

Channels-last throughout where the data lies so; weights, which plans keep in the plain order and
in float32, are brought into the order and type of the data before. 16-bit convolutions of one group
get zeros for channels up to a multiple of 8, which tensor cores want: a first layer's 3 channels
become 8 in the workspace, and gradients of such weights are cropped.
"""

from __future__ import annotations

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
from nnl.ext.cuda.cudnn.spec import FIRST, Array, Dims, Draft, Work, channels_last, rows
from nnl.ext.cuda.registry import Operand

__all__ = ["backward_data", "backward_weight", "deconvolution", "forward", "forward_statistics"]

CHANNELS = 8  # of 16 bits: one access of 16 bytes
IN, OUT = FIRST["in"], FIRST["out"]
Attrs = dict[str, Any]
Operands = list[Operand | None]


class Geometry:
    """The three arrays of a convolution as its graphs see them.

    Args:
        x, w, y: Data, weights and result as they lie in memory.
        dtype: The element type of the graph.
    """

    def __init__(self, attrs: Attrs, x: Array, w: Array, y: Array, dtype: str) -> None:
        self.last = order_of(x, y)
        group = attrs["group"]
        rank = len(x.dim)
        if rank > 5:
            raise Declined(f"{rank - 2} spatial axes")
        pad = tuple(attrs["pad"])
        n = len(attrs["stride"])
        pads = (pad, pad) if len(pad) == n else (pad[::2], pad[1::2])
        self.window = {
            "pre_padding": window(pads[0], rank, 0),
            "post_padding": window(pads[1], rank, 0),
            "stride": window(attrs["stride"], rank, 1),
            "dilation": window(attrs["dilation"], rank, 1),
        }
        extra = -x.dim[1] % CHANNELS if dtype != "float32" and group == 1 and self.last else 0
        self.dtype = dtype
        self.x = self.seen(x, x.dim[1] + extra)
        self.w = self.seen(w, w.dim[1] + extra)
        self.y = self.seen(y, y.dim[1])

    def seen(self, a: Array, channels: int) -> Array:
        dim = (a.dim[0], channels, *a.dim[2:])
        stride = channels_last(dim) if self.last else rows(dim)
        return replace(a, dim=dim, stride=stride, dtype=self.dtype)


def forward(attrs: Attrs, ins: Operands, outs: list[Operand]) -> list[Work]:
    """convolution (x, w, b?) and convolution_fused (x, w, b?, z?, scale?) -> y.

    y = activation(scale * convolution(x, w) + b + z), in one graph, or else a graph for the
    convolution and one for the rest.
    """
    x, w, b, z, scale = (*ins, None, None, None)[:5]
    if x is None or w is None:
        raise Declined("x or w is left out")
    if attrs.get("packed"):
        raise Declined("the weights are packed for another engine")
    check_types(*ins, *outs)
    base, last = attrs["base_axis"], attrs["channel_last"]
    x_, y_ = image(IN, x, base, last), image(OUT, outs[0], base, last)
    at = Geometry(attrs, x_, weight(IN + 1, w, last), y_, half_of(x, outs[0]))
    rank = len(x_.dim)
    tail = [(op, i, v) for op, i, v in (("mul", 4, scale), ("add", 2, b), ("add", 3, z)) if v]

    def assemble(fused: bool) -> Work:
        steps = Assembly()
        draft = Draft(bool(attrs.get("tf32")))
        arrays = steps.read(x_, at.x), steps.read(weight(IN + 1, w, last), at.w)
        image_, weight_ = map(draft.add, arrays)
        target = steps.write(y_, at.y)
        plain = not tail and attrs.get("activation", "identity") == "identity"
        if plain:
            out: int | Dims = draft.add(target)
        else:
            out = at.y.dim if fused else draft.add(steps.scratch(at.y.dim, at.y.stride, at.dtype))
        t = draft.node(
            "conv_fprop", {"image": image_, "weight": weight_}, {"Y": out}, **at.window
        )  # fmt: skip
        if plain:
            steps.graph(draft)
            return steps.work()
        if not fused:
            between = draft.arrays[t]
            steps.graph(draft)
            draft = Draft()
            t = draft.add(between)
        others = []
        for op, i, v in tail:
            a = vector(IN + i, v, rank)
            if i == 3:
                z_ = image(IN + 3, v, base, last)
                a = steps.read(z_, replace(at.y, dtype=z_.dtype))
            others.append((op, a))
        epilogue(draft, attrs, t, others, target)
        steps.graph(draft)
        return steps.work(*([(0, 3)] if z is not None and fused else []))

    return [assemble(True), assemble(False)]


def epilogue(draft: Draft, attrs: Attrs, t: int, others: list[tuple[str, Array]], y: Array) -> None:
    """y = activation(t op other op other...)."""
    name = attrs.get("activation", "identity")
    plain = name in ("identity", "none")
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
    at = Geometry(attrs, gx_, w_, gy_, half_of(gy, outs[0]))

    def assemble(fused: bool) -> Work:
        steps, draft = Assembly(), Draft(bool(attrs.get("tf32")))
        loss, filter_ = draft.add(steps.read(gy_, at.y)), draft.add(steps.read(w_, at.w))
        target = steps.write(gx_, at.x)
        out: int | Dims = at.x.dim
        if b is None:
            out = draft.add(target)
        elif not fused:
            out = draft.add(steps.scratch(at.x.dim, at.x.stride, at.dtype))
        t = draft.node("conv_dgrad", {"loss": loss, "filter": filter_}, {"DX": out}, **at.window)
        if b is not None:
            if not fused:
                made = draft.arrays[t]
                steps.graph(draft)
                draft = Draft()
                t = draft.add(made)
            bias = steps.read(vector(IN + 2, b, len(at.x.dim)), padded_vector(b, at.x))
            draft.pointwise("add", t, draft.add(bias), out=draft.add(target))
        steps.graph(draft)
        return steps.work()

    return [assemble(True)] if b is None else [assemble(True), assemble(False)]


def padded_vector(b: Operand, x: Array) -> Array:
    """A bias for as many channels as x has."""
    have = vector(0, b, len(x.dim))
    c, rest = x.dim[1], len(x.dim) - 2
    return replace(have, dim=(1, c, *(1,) * rest), stride=(c, 1, *(c,) * rest))


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


def forward_statistics(attrs: Attrs, ins: Operands, outs: list[Operand]) -> list[Work]:
    """convolution_statistics (x, w) -> y, sum, sum of squares, the last two by channel.

    One graph where cuDNN has an engine, which is float16 only: what batch normalization would read
    y again for. No pass emits the op; it is here to be measured.
    """
    x, w = ins[:2]
    if x is None or w is None:
        raise Declined("x or w is left out")
    check_types(x, w, *outs)
    base, last = attrs["base_axis"], attrs["channel_last"]
    x_, y_ = image(IN, x, base, last), image(OUT, outs[0], base, last)
    w_ = weight(IN + 1, w, last)
    at = Geometry(attrs, x_, w_, y_, half_of(x, outs[0]))
    if at.dtype != "float16":
        raise Declined(f"statistics of a convolution in {at.dtype}")
    steps, draft = Assembly(), Draft()
    image_, weight_ = draft.add(steps.read(x_, at.x)), draft.add(steps.read(w_, at.w))
    y = draft.add(steps.write(y_, at.y))
    draft.node("conv_fprop", {"image": image_, "weight": weight_}, {"Y": y}, **at.window)
    sums = {
        port: draft.add(vector(OUT + i, outs[i], len(x_.dim)))
        for i, port in ((1, "SUM"), (2, "SQ_SUM"))
    }
    draft.node("genstats", {"input": y}, sums)
    steps.graph(draft)
    return [steps.work()]
