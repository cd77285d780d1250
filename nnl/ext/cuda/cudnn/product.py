# SPDX-License-Identifier: Apache-2.0
"""Graphs for matrix products with what plans fuse after them; transposes are strides.

In float32 cuDNN has engines for tensor cores only, which round. Without tf32 a product is a graph
of its own there, which cuBLAS computes, and what follows it another one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nnl.ext.cuda.cudnn.assemble import Assembly, Declined, check_types, half_of
from nnl.ext.cuda.cudnn.convolution import epilogue
from nnl.ext.cuda.cudnn.spec import FIRST, Array, Draft, Work, dtype_name, rows
from nnl.ext.device.registry import Operand

__all__ = ["affine", "affine_weight", "batch_matmul"]

IN, OUT = FIRST["in"], FIRST["out"]
Attrs = dict[str, Any]
Operands = list[Operand | None]
Others = Sequence[tuple[str, Array]]  # operations after a product, with their second operands


def matrix(uid: int, x: Operand, n_rows: int, n_columns: int) -> Array:
    """(1, rows, columns) of memory in rows."""
    if x.channels_last and len(x.shape) > 2:
        raise Declined("channels-last")
    return Array(uid, (1, n_rows, n_columns), (x.size, n_columns, 1), dtype_name(x.dtype))


def transposed(a: Array) -> Array:
    swap = (*range(len(a.dim) - 2), len(a.dim) - 1, len(a.dim) - 2)
    return replace(
        a, dim=tuple(a.dim[i] for i in swap), stride=tuple(a.stride[i] for i in swap)
    )  # fmt: skip


def product(
    steps: Assembly, attrs: Attrs, a: Array, b: Array, c: Array, others: Others = ()
) -> None:
    """Add c = activation(a b + others), as one graph or two."""
    tf32 = bool(attrs.get("tf32"))
    draft = Draft(tf32)
    factors = {"A": draft.add(a), "B": draft.add(b)}
    if not others and attrs.get("activation", "identity") == "identity":
        draft.node("matmul", factors, {"C": draft.add(c)})
    elif a.dtype != "float32" or tf32:
        epilogue(draft, attrs, draft.node("matmul", factors, {"C": c.dim}), list(others), c)
    else:
        between = steps.scratch(c.dim, c.stride, c.dtype)
        t = draft.node("matmul", factors, {"C": draft.add(between)})
        steps.graph(draft)
        draft = Draft()
        draft.add(image_of(between))
        epilogue(draft, attrs, t, [(op, image_of(x)) for op, x in others], image_of(c))
    steps.graph(draft)


def image_of(a: Array) -> Array:
    """Matrices in rows as (rows, columns, 1, 1), with the columns as channels."""
    m, n = a.dim[1:]
    return replace(a, dim=(m, n, 1, 1), stride=(n, 1, n, n))


def as_type(steps: Assembly, a: Array, dtype: str) -> Array:
    """The array in the type of the graph, copied where it has another."""
    return steps.read(a, replace(a, dtype=dtype))


def sizes(attrs: Attrs, x: Operand, w: Operand) -> tuple[int, int, int]:
    """Rows, inner size, columns of an affine map."""
    return math.prod(x.shape[: attrs["base_axis"]]), w.shape[0], math.prod(w.shape[1:])


def affine(attrs: Attrs, ins: Operands, outs: list[Operand]) -> list[Work]:
    """affine and affine_fused: (x, w, b?, z?) -> activation(x w + b + z)."""
    x, w, b, z = (*ins, None, None)[:4]
    if x is None or w is None:
        raise Declined("x or w is left out")
    check_types(*ins, *outs)
    m, k, n = sizes(attrs, x, w)
    dtype = half_of(x, outs[0])
    steps = Assembly()
    a = as_type(steps, matrix(IN, x, m, k), dtype)
    w_ = as_type(steps, matrix(IN + 1, w, k, n), dtype)
    c = matrix(OUT, outs[0], m, n)

    others = []
    if b is not None:
        others.append(("add", matrix(IN + 2, b, 1, n)))
    if z is not None:
        others.append(("add", matrix(IN + 3, z, m, n)))
    product(steps, attrs, a, w_, c, others)
    return [steps.work()]


def affine_weight(attrs: Attrs, ins: Operands, outs: list[Operand]) -> list[Work]:
    """(x, gy) -> x^T gy, in float32."""
    x, gy = ins[:2]
    if x is None or gy is None:
        raise Declined("x or gy is left out")
    check_types(*ins, *outs)
    dtype = half_of(x, gy)
    steps = Assembly()
    (m, k), n = x.shape, gy.shape[1]
    a = as_type(steps, matrix(IN, x, m, k), dtype)
    b = as_type(steps, matrix(IN + 1, gy, m, n), dtype)
    product(steps, attrs, transposed(a), b, matrix(OUT, outs[0], k, n))
    return [steps.work()]


def batch_matmul(attrs: Attrs, ins: Operands, outs: list[Operand]) -> list[Work]:
    """(a, b) -> a b for every index of the leading axes; sizes of 1 there stretch."""
    a, b = ins[:2]
    if a is None or b is None:
        raise Declined("a or b is left out")
    check_types(*ins, *outs)
    if any(x.channels_last for x in (a, b, outs[0])):
        raise Declined("channels-last")
    dtype = half_of(a, b, outs[0])
    steps = Assembly()
    same = a.shape[:-2] == b.shape[:-2]
    a_, b_, c = (
        stack(uid, x, same) for uid, x in ((IN, a), (IN + 1, b), (OUT, outs[0]))
    )  # fmt: skip
    if len(c.dim) > 4:
        raise Declined(f"{len(c.dim) - 2} batch axes that differ")
    a_, b_ = as_type(steps, a_, dtype), as_type(steps, b_, dtype)
    a_ = transposed(a_) if attrs["transpose_a"] else a_
    b_ = transposed(b_) if attrs["transpose_b"] else b_
    draft = Draft(bool(attrs.get("tf32")))
    draft.node("matmul", {"A": draft.add(a_), "B": draft.add(b_)}, {"C": draft.add(c)})
    steps.graph(draft)
    return [steps.work()]


def batch_matmul_bias(attrs: Attrs, ins: Operands, outs: list[Operand]) -> list[Work]:
    """(a, b, bias) -> a b + bias of single matrices; bias has a number for each column."""
    a, b, bias = ins[:3]
    if a is None or b is None or bias is None:
        raise Declined("an input is left out")
    check_types(*ins, *outs)
    a_, b_ = stack(IN, a, True), stack(IN + 1, b, True)
    if a_.dim[0] != 1 or b_.dim[0] != 1:
        raise Declined(f"{a_.dim[0]} and {b_.dim[0]} matrices")
    dtype = half_of(a, b, outs[0])
    steps = Assembly()
    a_, b_ = as_type(steps, a_, dtype), as_type(steps, b_, dtype)
    a_ = transposed(a_) if attrs["transpose_a"] else a_
    b_ = transposed(b_) if attrs["transpose_b"] else b_
    m, n = a_.dim[1], b_.dim[2]
    c = matrix(OUT, outs[0], m, n)
    product(steps, attrs, a_, b_, c, [("add", matrix(IN + 2, bias, 1, n))])
    return [steps.work()]


def stack(uid: int, x: Operand, merge: bool) -> Array:
    """Matrices with their batch axes, made one if they may be; at least one."""
    dim = x.shape
    if merge or len(dim) == 2:
        dim = (math.prod(dim[:-2]), *dim[-2:])
    return Array(uid, dim, rows(dim), dtype_name(x.dtype))
