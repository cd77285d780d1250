# SPDX-License-Identifier: Apache-2.0
"""Graphs for scaled dot product attention and its gradients, in 16 bits."""

from __future__ import annotations

import math
from typing import Any

from nnl.ext.cuda.cudnn.assemble import Declined, check_types
from nnl.ext.cuda.cudnn.spec import FIRST, PARTS, Array, Draft, Work, dtype_name, rows
from nnl.ext.device.registry import Operand

__all__ = ["backward", "forward", "packed", "packed_backward"]

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


def by_position(uid: int, x: Operand) -> Array:
    """(batch, heads, positions, depth) in memory of the order (batch, positions, heads, depth)."""
    b, t, h, d = x.shape
    return Array(uid, (b, h, t, d), (t * h * d, d, h * d, 1), dtype_name(x.dtype))


def thirds(uid: int, x: Operand) -> list[Array]:
    """Queries, keys and values in x of (batch, positions, 3, heads, depth)."""
    b, t, three, h, d = x.shape
    if three != 3:
        raise Declined(f"the shape {x.shape}")
    stride = (t * 3 * h * d, d, 3 * h * d, 1)
    return [
        Array(
            uid + part * PARTS, (b, h, t, d), stride, dtype_name(x.dtype),
            start=part * h * d * x.dtype.itemsize,
        )
        for part in range(3)
    ]  # fmt: skip


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
    for name in ("window", "soft_cap"):
        if attrs.get(name):
            raise Declined(f"{name} {attrs[name]}")
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


def declined_unless_plain(others: Operands) -> None:
    """No lengths, offsets, segments, nor a gradient of lse."""
    if any(x is not None for x in others):
        raise Declined("keys that depend on the sample")


def forward(attrs: Attrs, ins: Operands, outs: list[Operand]) -> list[Work]:
    """attention: (q, k, v, mask?) -> y, lse?."""
    q, k, v, mask = (*ins, None)[:4]
    declined_unless_plain(ins[4:])
    if q is None or k is None or v is None:
        raise Declined("q, k or v is left out")
    check_types(*ins, *outs)
    first = int(attrs.get("heads", 1))
    arrays = [heads(IN + i, x, first) for i, x in enumerate((q, k, v))]
    y, m = heads(OUT, outs[0], first), bias(IN + 3, mask, len(q.shape), first)
    return _forward(attrs, arrays, m, y, len(outs) > 1)


def packed(attrs: Attrs, ins: Operands, outs: list[Operand]) -> list[Work]:
    """attention_packed: (x, mask?) -> y, lse?, with x of (batch, positions, 3, heads, depth) and y
    of (batch, positions, heads, depth)."""
    x, mask = (*ins, None)[:2]
    if x is None:
        raise Declined("x is left out")
    check_types(*ins, *outs)
    m, y = bias(IN + 1, mask, 4, 1), by_position(OUT, outs[0])
    return _forward(attrs, thirds(IN, x), m, y, len(outs) > 1)


def _forward(
    attrs: Attrs, arrays: list[Array], mask: Array | None, y: Array, with_lse: bool
) -> list[Work]:
    q, k, v = arrays
    same_type(q, k, v, y)
    draft = Draft()
    given = {"q": draft.add(q), "k": draft.add(k), "v": draft.add(v)}
    if mask is not None:
        given["bias"] = draft.add(mask)
    made: dict[str, Any] = {"O": draft.add(y)}
    if with_lse:
        made["Stats"] = draft.add(logarithms(OUT + 1, q))
    draft.node("sdpa", given, made, **settings(attrs, q, k, v))
    return [Work((draft.graph(),))]


def same_type(*arrays: Array) -> None:
    """Decline data of several types."""
    if len({a.dtype for a in arrays}) > 1:
        raise Declined("q, k, v, y and their gradients differ in type")


def logarithms(uid: int, q: Array) -> Array:
    """The logarithm of the sum of exponentials for every query."""
    dim = (*q.dim[:3], 1)
    return Array(uid, dim, rows(dim), "float32")


def backward(attrs: Attrs, ins: Operands, outs: list[Operand]) -> list[Work]:
    """attention_backward: (gy, q, k, v, y, lse, mask?) -> gq, gk, gv."""
    gy, q, k, v, y, lse, mask = (*ins, None)[:7]
    declined_unless_plain(ins[7:])
    if gy is None or q is None or k is None or v is None or y is None or lse is None:
        raise Declined("an input is left out")
    check_types(*ins, *outs)
    first = int(attrs.get("heads", 1))
    arrays = [heads(IN + i, x, first) for i, x in enumerate((gy, q, k, v, y))]
    made = [heads(OUT + i, x, first) for i, x in enumerate(outs)]
    m = bias(IN + 6, mask, len(q.shape), first)
    return _backward(attrs, arrays, IN + 5, lse, m, made)


def packed_backward(attrs: Attrs, ins: Operands, outs: list[Operand]) -> list[Work]:
    """attention_packed_backward: (gy, x, y, lse, mask?) -> gx."""
    gy, x, y, lse, mask = (*ins, None)[:5]
    if gy is None or x is None or y is None or lse is None:
        raise Declined("an input is left out")
    check_types(*ins, *outs)
    arrays = [by_position(IN, gy), *thirds(IN + 1, x), by_position(IN + 2, y)]
    m = bias(IN + 4, mask, 4, 1)
    return _backward(attrs, arrays, IN + 3, lse, m, thirds(OUT, outs[0]))


def _backward(
    attrs: Attrs,
    arrays: list[Array],
    lse_uid: int,
    lse: Operand,
    mask: Array | None,
    gradients: list[Array],
) -> list[Work]:
    gy, q, k, v, y = arrays
    same_type(*arrays, *gradients)
    if math.prod(lse.shape) != math.prod(q.dim[:3]):
        raise Declined(f"lse has the shape {lse.shape}")
    draft = Draft()
    ports = {"q": q, "k": k, "v": v, "o": y, "dO": gy, "stats": logarithms(lse_uid, q)}
    if mask is not None:
        ports["bias"] = mask
    given = {port: draft.add(a) for port, a in ports.items()}
    made = {
        port: draft.add(a) for port, a in zip(("dQ", "dK", "dV"), gradients, strict=True)
    }  # fmt: skip
    draft.node("sdpa_backward", given, made, **settings(attrs, q, k, v))
    return [Work((draft.graph(),))]
