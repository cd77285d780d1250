# SPDX-License-Identifier: Apache-2.0
"""NNabla's messages with an open batch size, made of those of a network at several."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.nnp.function_messages import SHAPED
from nnl.converters.nnp.network_reader import END
from nnl.core.graph.node import Value, capture
from nnl.core.graph.variable import Variable
from nnl.core.settings.context import using
from nnl.graph.open_sizes.recording import ROOM, OpenGraphs
from nnl.graph.program.sizes import Vector


def count_by_sums(graphs: OpenGraphs) -> None:
    """Say numbers of places, which messages have no form of, as sums of ones; types of whole
    numbers go."""
    for outputs, _ in graphs.graphs:
        made: dict[tuple[int, int], Value] = {}
        nodes = capture([v.edge for v in outputs.values()])
        own = {id(n) for n in nodes if n.seq % ROOM == 0}  # of the file
        for node in nodes:
            node.seq *= 2
            for i, v in enumerate(node.inputs):
                if v is None or v.node is None or id(v.node) in own:
                    continue
                if v.node.op.name == "arange" and v.key not in made:
                    ones = Variable.from_numpy_array(np.ones(1, np.float32))
                    with using(auto_forward=False):
                        y = F.cumsum(F.broadcast(ones, v.spec.shape), axis=0, exclusive=True).edge
                    y.node.inputs[0].node.seq, y.node.seq = v.node.seq - 1, v.node.seq
                    made[v.key] = y
                elif v.node.op.name == "cast":
                    made[v.key] = v.node.inputs[0]  # type: ignore[assignment]
                if v.key in made:
                    node.inputs = (*node.inputs[:i], made[v.key], *node.inputs[i + 1 :])


def opened(protos: Sequence[Any], batch: Vector, where: str) -> Any:
    """The first message, with the batch size as -1.

    Args:
        batch: The batch size of each.
    Raises:
        ValueError: Something depends on the batch size in a way that such messages cannot say.
    """
    networks = [p.network[0] for p in protos]
    first = networks[0]
    first.batch_size = 1
    for same in zip_longest(*[n.function for n in networks]):
        kinds = list(dict.fromkeys([f.type if f is not None else "none" for f in same]))
        if len(kinds) > 1:
            name = next(f.name for f in same if f is not None)
            raise _depends(where, f"function {name!r} ({' or '.join(kinds)})")
    sizes: dict[str, list[tuple[int, ...]]] = {}
    for same in zip(*[n.variable for n in networks], strict=True):
        shapes = [tuple(v.shape.dim) for v in same]
        sizes[same[0].name] = shapes
        if len({len(s) for s in shapes}) > 1:
            raise _depends(where, f"the variable {same[0].name!r}")
        same[0].shape.dim[:] = [_size(v, batch) for v in zip(*shapes, strict=True)]
    for same in zip(*[n.function for n in networks], strict=True):
        f = same[0]
        _open_arguments(same, sizes[f.input[0]] if f.input else [], batch)
        own = f.SerializeToString(deterministic=True)
        if any(g.SerializeToString(deterministic=True) != own for g in same):
            raise _depends(where, f"function {f.name!r} ({f.type}): its arguments")
    return protos[0]


def _depends(where: str, what: str) -> ValueError:
    return ValueError(
        f"{where}: {what}: it depends on the batch size, and .nnp has no form of that"
    )


def _size(v: Vector, batch: Vector) -> int:
    """A size of a variable; what is merged with the batch size is written for a batch of 1."""
    return -1 if v == batch else v[0] + (v[0] - v[1]) * (batch[0] - 1) // (batch[1] - batch[0])


def _open_arguments(same: Sequence[Any], sizes: Sequence[tuple[int, ...]], batch: Vector) -> None:
    """Write arguments that differ for an open batch size, if there is a way."""
    name = next((d.name for d, _ in same[0].ListFields() if d.name.endswith("_param")), None)
    if name is None:
        return
    parameters = [getattr(f, name) for f in same]
    if same[0].type in (*SHAPED, "Reshape"):
        rows = list(zip(*[p.shape.dim for p in parameters], strict=True))
        differ = [k for k, r in enumerate(rows) if len(set(r)) > 1]
        whole = all(rows[k] == batch for k in differ)
        if len(differ) == 1 if same[0].type == "Reshape" else whole:  # there it is what is left
            for p in parameters:
                p.shape.dim[:] = [-1 if k in differ else r[0] for k, r in enumerate(rows)]
    if same[0].type == "Slice":
        ends = list(zip(*[p.stop for p in parameters], strict=True))
        for i, r in enumerate(ends):
            axis = i - len(ends)
            if len(set(r)) > 1 and all(n >= s[axis] for n, s in zip(r, sizes, strict=True)):
                for p in parameters:
                    p.stop[i] = END
