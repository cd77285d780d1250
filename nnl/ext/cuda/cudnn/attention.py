# SPDX-License-Identifier: Apache-2.0
"""Graphs for scaled dot product attention and its gradients, in 16 bits."""

from __future__ import annotations

import math
from typing import Any

from nnl.ext.cuda.cudnn.assemble import Declined, check_types, half_of
from nnl.ext.cuda.cudnn.spec import FIRST, Array, Draft, Work, dtype_name, rows
from nnl.ext.cuda.registry import Operand

__all__ = ["backward", "forward"]

IN, OUT = FIRST["in"], FIRST["out"]
MOST_DEPTH = 128  # of a head, and a multiple of 8
Attrs = dict[str, Any]
Operands = list[Operand | None]


def heads(uid: int, x: Operand, first: int) -> Array:
    """(batch, heads, positions, depth); of rank 3 the first axis is (batch, heads)."""
    shape = x.shape
    if len(shape) == 3:
        shape = (shape[0] // first, first, *shape[1:])
    if len(shape) != 4 or x.channels_last:
        raise Declined(f"the shape {x.shape}")
    return Array(uid, shape, rows(shape), dtype_name(x.dtype))


def bias(uid: int, mask: Operand | None, rank: int, first: int) -> Array | None:
    """The mask with four axes."""
    if mask is None:
        return None
    shape = mask.shape
    if len(shape) == 3 and rank == 3 and first == 1:
        shape = (shape[0], 1, *shape[1:])
    shape = (1,) * (4 - len(shape)) + shape
    if shape[3] == 1:
        raise Declined("the mask does not tell keys apart")
    return Array(uid, shape, rows(shape), dtype_name(mask.dtype))


def settings(attrs: Attrs, q: Array, k: Array, v: Array) -> dict[str, Any]:
    """Attributes of the operation; declines what no engine takes."""
    if attrs.get("transpose_k"):
        raise Declined("k is transposed")
    if q.dtype == "float32":
        raise Declined("attention in float32")
    for depth in (q.dim[3], v.dim[3]):
        if depth % 8 or depth > MOST_DEPTH:
            raise Declined(f"depth {depth}, wanted a multiple of 8 up to {MOST_DEPTH}")
    if q.dim[1] % k.dim[1]:
        raise Declined(f"{q.dim[1]} heads for {k.dim[1]}")
    causal, corner = None, "TOP_LEFT"
    if attrs.get("causal"):
        causal = int(attrs.get("causal_offset", 0))
        if causal:
            corner = "BOTTOM_RIGHT"
            if causal != k.dim[2] - q.dim[2]:
                raise Declined(f"causal_offset {causal}")
    return {"attn_scale": float(attrs["scale"]), "causal": causal, "corner": corner}


def forward(attrs: Attrs, ins: Operands, outs: list[Operand]) -> list[Work]:
    """attention: (q, k, v, mask?) -> y, lse?."""
    q, k, v, mask = (*ins, None)[:4]
    if q is None or k is None or v is None:
        raise Declined("q, k or v is left out")
    check_types(*ins, *outs)
    half_of(q, k, v, outs[0])
    if not q.dtype == k.dtype == v.dtype == outs[0].dtype:
        raise Declined("q, k, v and y differ in type")
    first = int(attrs.get("heads", 1))
    q_, k_, v_ = (heads(IN + i, x, first) for i, x in enumerate((q, k, v)))
    y_, m_ = heads(OUT, outs[0], first), bias(IN + 3, mask, len(q.shape), first)
    draft = Draft()
    given = {"q": draft.add(q_), "k": draft.add(k_), "v": draft.add(v_)}
    if m_ is not None:
        given["bias"] = draft.add(m_)
    made: dict[str, Any] = {"O": draft.add(y_)}
    if len(outs) > 1:
        made["Stats"] = draft.add(logarithms(OUT + 1, q_))
    draft.node("sdpa", given, made, **settings(attrs, q_, k_, v_))
    return [Work((draft.graph(),))]


def logarithms(uid: int, q: Array) -> Array:
    """The logarithm of the sum of exponentials for every query."""
    dim = (*q.dim[:3], 1)
    return Array(uid, dim, rows(dim), "float32")


def backward(attrs: Attrs, ins: Operands, outs: list[Operand]) -> list[Work]:
    """attention_backward: (gy, q, k, v, y, lse, mask?) -> gq, gk, gv."""
    gy, q, k, v, y, lse, mask = (*ins, None)[:7]
    if gy is None or q is None or k is None or v is None or y is None or lse is None:
        raise Declined("an input is left out")
    check_types(*ins, *outs)
    if not gy.dtype == q.dtype == k.dtype == v.dtype == y.dtype == outs[0].dtype:
        raise Declined("gy, q, k, v, y and the gradients differ in type")
    if math.prod(lse.shape) * q.shape[-1] != q.size:
        raise Declined(f"lse has the shape {lse.shape}")
    first = int(attrs.get("heads", 1))
    gy_, q_, k_, v_, y_ = (heads(IN + i, x, first) for i, x in enumerate((gy, q, k, v, y)))
    m_ = bias(IN + 6, mask, len(q.shape), first)
    draft = Draft()
    given = {
        "q": draft.add(q_),
        "k": draft.add(k_),
        "v": draft.add(v_),
        "o": draft.add(y_),
        "dO": draft.add(gy_),
        "stats": draft.add(logarithms(IN + 5, q_)),
    }
    if m_ is not None:
        given["bias"] = draft.add(m_)
    made = {
        name: draft.add(heads(OUT + i, x, first))
        for i, (name, x) in enumerate(zip(("dQ", "dK", "dV"), outs, strict=True))
    }
    draft.node("sdpa_backward", given, made, **settings(attrs, q_, k_, v_))
    return [Work((draft.graph(),))]
