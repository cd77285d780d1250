# SPDX-License-Identifier: Apache-2.0
"""Operators for any batch size, made of those for two: what differs between them depends on it."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnl.converters.tflite.graph import Op, Tensor


def opened(first: Any, second: Any, name: str) -> Any:
    """The operators of a network at two batch sizes, as one; its tensors have -1 where a size
    depends on the batch.

    Args:
        name: Of the format, for messages.
    Raises:
        ValueError: An operator needs to be told the batch size.
    """
    if [o.name for o in first.ops] != [o.name for o in second.ops]:
        raise ValueError(
            f"{name} cannot leave the batch size open: other sizes need other operators"
        )
    tensors: dict[int, tuple[Tensor, Tensor]] = {}
    for a, b in zip(first.inputs.values(), second.inputs.values(), strict=True):
        tensors[id(a)] = a, b
    for p, q in zip(first.ops, second.ops, strict=True):
        if p.name != "RESHAPE" and p.options != q.options:
            raise _told(name, p)
        for i, (u, v) in enumerate(zip(p.ins, q.ins, strict=True)):
            if u is not None and v is not None and u.value is not None:
                p.ins[i] = _constant(p, q, i, u, v)
                if p.ins[i] is None:
                    raise _told(name, p)
        tensors.update({id(u): (u, v) for u, v in zip(p.outs, q.outs, strict=True)})
    for u, v in tensors.values():
        u.shape = _open(u.shape, v.shape)
    return first


def _told(name: str, op: Op) -> ValueError:
    return ValueError(f"{name} cannot leave the batch size open: {op.name} has to be told it")


def _open(one: Any, other: Any) -> tuple[int, ...]:
    return tuple(n if n == m else -1 for n, m in zip(one, other, strict=True))


def _constant(p: Op, q: Op, i: int, u: Tensor, v: Tensor) -> Tensor | None:
    """What an operator is told for any batch size; None if there is no way."""
    if u.shape == v.shape and np.array_equal(u.value, v.value):
        return u
    if i == 0 or u.shape != v.shape or u.value.ndim != 1:
        return None
    sizes = _open(u.value.tolist(), v.value.tolist())
    if p.name == "RESHAPE" and sizes.count(-1) == 1:
        p.options["new_shape"] = list(sizes)
    elif p.name != "SLICE" or i != 2 or not _to_the_end(p) or not _to_the_end(q):
        return None
    return Tensor(u.shape, u.dtype, np.array(sizes, u.dtype), u.name)


def _to_the_end(op: Op) -> bool:
    """Whether a slice takes all of the first axis, where images and texts are."""
    x, start, size = op.ins
    return (
        x is not None
        and start is not None
        and size is not None
        and bool(start.value[0] == 0 and size.value[0] == x.shape[0])
    )
