# SPDX-License-Identifier: Apache-2.0
"""Networks whose batch size stays open, made of graphs that are built for one batch size.

What a file computes from the batch size is a number or an array in such a graph, and nothing says
which. So the graph is built at two batch sizes: what differs between the two depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.nnp.network_reader import END
from nnl.core.context import using
from nnl.core.graph import Node, Value, capture
from nnl.core.variable import Variable

Key = tuple[int, int]
Array = np.ndarray[Any, Any]

SIZES = 2, 9  # neither 1, at which much looks alike, nor a common size
_SHAPED = (
    *("Reshape", "Broadcast", "Constant", "Rand", "Randint", "Randn"),
    *("RandBinomial", "RandBeta", "RandGamma"),
)


def at_two_sizes(model: Any, inference: bool = False) -> tuple[Any, Any]:
    """The networks of a model at both SIZES, alike in all but sizes.

    Arrays that hold the batch size, as indices of the samples do, are computed in them.

    Args:
        model: What `network(batch_size)` builds, and `where`, the file.
        inference: Whether the networks will not be trained.
    Raises:
        ValueError: The batch size is fixed, or something depends on it in another way.
    """
    first, second = (model.network(n, inference=inference) for n in SIZES)
    pairs = zip(first.inputs.values(), second.inputs.values(), strict=True)
    if all(a.shape == b.shape for a, b in pairs):
        raise ValueError(f"{model.where}: the batch size is fixed, so -1 cannot leave it open")
    before, after = _nodes(first), _nodes(second)
    names = zip_longest((n.op.name for n in before), (n.op.name for n in after), fillvalue="none")
    for i, (at_first, at_second) in enumerate(names):
        if at_first != at_second:
            which = f"function {i} ({at_first} at {SIZES[0]}, {at_second} at {SIZES[1]})"
            raise _depends(model, which)
    known = {v.edge.key for v in first.inputs.values()}
    made: dict[Key, tuple[Value, Value]] = {}
    with using(auto_forward=False):
        for a, b in zip(before, after, strict=True):
            _compute_constants(a, b, known, made, model)
    return first, second


def _nodes(network: Any) -> list[Node]:
    return capture([v.edge for v in network.outputs.values()])


def _depends(model: Any, what: str) -> ValueError:
    return ValueError(
        f"{model.where}: {what} depends on the batch size, so -1 cannot leave it open"
    )


def _compute_constants(
    a: Node, b: Node, inputs: set[Key], made: dict[Key, tuple[Value, Value]], model: Any
) -> None:
    """Replace arrays that differ between two nodes by functions of the batch size."""
    for i, (u, v) in enumerate(zip(a.inputs, b.inputs, strict=True)):
        if u is None or v is None or u.key in inputs or (a.op.takes_rng and i == len(a.inputs) - 1):
            continue
        if u.node is None and v.node is None and u.key not in made:
            x, y = u.array.read("host"), v.array.read("host")
            if x.shape == y.shape and np.array_equal(x, y, equal_nan=x.dtype.kind == "f"):
                continue
            found = _rows(x, y)
            if found is None:
                name = a.op.inputs[min(i, len(a.op.inputs) - 1)]
                raise _depends(model, f"the input {name!r} of {a.op.name} is an array that")
            made[u.key] = tuple(_computed(*found, n, seq=a.seq) for n in SIZES)  # type: ignore[assignment]
        if u.key in made:
            for node, value in zip((a, b), made[u.key], strict=True):
                node.inputs = (*node.inputs[:i], value, *node.inputs[i + 1 :])


def _rows(x: Array, y: Array) -> tuple[Array, Array, int] | None:
    """(base, step, axis) if entry n along an axis is base + n step in both arrays."""
    if x.ndim != y.ndim or x.dtype.kind not in "fiub":
        return None
    axes = [i for i, sizes in enumerate(zip(x.shape, y.shape, strict=True)) if sizes == SIZES]
    for axis in axes:
        base = x.take([0], axis)
        step = x.take([1], axis).astype(x.dtype if x.dtype.kind == "f" else np.int64) - base
        if step.any() and (x.dtype.kind == "f" or np.abs(y).max() >= 1 << 24):
            continue  # steps of floats are not exact, nor are large integers in float32
        for z in (x, y):
            count = np.arange(z.shape[axis]).reshape(
                [-1 if i == axis else 1 for i in range(z.ndim)]
            )
            want = base + step * count if step.any() else np.broadcast_to(base, z.shape)
            if want.shape != z.shape or not np.array_equal(want, z):
                break
        else:
            return base, step, axis
    return None


def _computed(base: Array, step: Array, axis: int, batch: int, seq: int) -> Value:
    """base + n step for the samples n."""

    def leaf(value: Array) -> Variable:
        return Variable.from_numpy_array(value.astype(np.float32))

    shape = [batch if i == axis else n for i, n in enumerate(base.shape)]
    if not step.any():
        y = F.broadcast(leaf(base), shape)
    else:
        ones = np.ones([1] * base.ndim)
        one_each = F.broadcast(leaf(ones), [n if i == axis else 1 for i, n in enumerate(shape)])
        y = leaf(step) * F.cumsum(one_each, axis=axis, exclusive=True) + leaf(base)
    for node in capture([y.edge]):
        node.seq -= 1 << 40  # before all that the file has
    return y.edge


# ---- NNabla's messages ----


def merged(proto: Any, other: Any, where: str) -> Any:
    """`proto` with the batch size as -1.

    Args:
        proto, other: Messages of one network at both SIZES.
    Raises:
        ValueError: Something depends on the batch size in a way that such messages cannot say.
    """
    (a,), (b,) = proto.network, other.network
    a.batch_size = 1
    sizes: dict[str, tuple[int, ...]] = {}
    for u, v in zip(a.variable, b.variable, strict=True):
        sizes[u.name] = tuple(u.shape.dim)
        u.shape.dim[:] = [_open(m, n) for m, n in zip(u.shape.dim, v.shape.dim, strict=True)]
    for f, g in zip(a.function, b.function, strict=True):
        if f.SerializeToString(deterministic=True) == g.SerializeToString(deterministic=True):
            continue
        if not _merge_arguments(f, g, sizes[f.input[0]] if f.input else ()):
            raise ValueError(
                f"{where}: function {f.name!r} ({f.type}): its arguments depend on the batch size, "
                "and .nnp has no form of that"
            )
    return proto


def _open(now: int, other: int) -> int:
    """A size of a variable; what is merged with the batch size is written for a batch of 1."""
    if (now, other) == SIZES:
        return -1
    return now + (now - other) * (SIZES[0] - 1) // (SIZES[1] - SIZES[0])


def _merge_arguments(f: Any, g: Any, size: Sequence[int]) -> bool:
    """Write arguments that differ for an open batch size, if there is a way."""
    name = next((d.name for d, _ in f.ListFields() if d.name.endswith("_param")), None)
    if name is None:
        return False
    p, q = getattr(f, name), getattr(g, name)
    if f.type in _SHAPED:
        pairs = list(zip(p.shape.dim, q.shape.dim, strict=True))
        differ = [pair for pair in pairs if pair[0] != pair[1]]
        # of a Reshape -1 is what the others leave
        if len(differ) != 1 if f.type == "Reshape" else any(d != SIZES for d in differ):
            return False
        p.shape.dim[:] = q.shape.dim[:] = [m if m == n else -1 for m, n in pairs]
    if f.type == "Slice":
        lead = len(size) - len(p.stop)
        for i, (m, n) in enumerate(zip(p.stop, q.stop, strict=True)):
            if m != n and m >= size[lead + i]:
                p.stop[i] = q.stop[i] = END
    return bool(p == q)
