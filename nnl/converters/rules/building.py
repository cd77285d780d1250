# SPDX-License-Identifier: Apache-2.0
"""What rules are made of: constants, parts of arrays, matrices along an axis, batches."""

from __future__ import annotations

from typing import Any

import numpy as np

import nnl.functions as F
from nnl.core.graph.variable import Variable


def constant(value: Any) -> Variable:
    return Variable.from_numpy_array(np.asarray(value, np.float32))


def like(x: Any, value: float) -> Variable:
    """A number with the rank of x."""
    return constant(np.full((1,) * x.ndim, value))


def filled(x: Any, value: float) -> Any:
    return F.broadcast(like(x, value), x.shape)


def taken(x: Any, axis: int, index: Any) -> Any:
    """Elements of an axis at constant places."""
    return F.gather(x, Variable.from_numpy_array(np.asarray(index, np.int64)), axis=axis)


def part(x: Any, axis: int, start: int, stop: int) -> Any:
    """Elements of an axis that are beside each other."""
    begins, ends = [0] * x.ndim, list(x.shape)
    begins[axis], ends[axis] = start, stop
    return F.slice(x, tuple(begins), tuple(ends), (1,) * x.ndim)


def matrix(size: int, index: Any, weight: Any) -> Any:
    """(size, out) of the pixels (out, k) and their weights."""
    out = len(index)
    made = np.zeros((size, out))
    np.add.at(made, (index, np.arange(out)[:, None]), weight)
    return made


def along(x: Any, axis: int, by: Any) -> Any:
    """The product of an axis with a matrix (size, out)."""
    order = [k for k in range(x.ndim) if k != axis] + [axis]
    w = constant(np.ascontiguousarray(by))
    last = axis == x.ndim - 1
    y = F.affine(x if last else F.transpose(x, order), w, base_axis=x.ndim - 1)
    return y if last else F.transpose(y, [order.index(k) for k in range(x.ndim)])


def batches(x: Any, y: Any) -> tuple[tuple[int, ...], Any, Any]:
    """The axes before matrices that x and y have together, and both stretched to them."""
    batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    p, q = (v if v.shape[:-2] == batch else F.broadcast(v, (*batch, *v.shape[-2:])) for v in (x, y))
    return batch, p, q
