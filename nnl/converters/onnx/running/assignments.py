# SPDX-License-Identifier: Apache-2.0
"""x[:, a:b] = v of files whose a and b only a run knows, as Paddle's exporter spells it.

    old = Slice(x, a, b, axis); new = Expand(v, Shape(old))
    y = ScatterElements(x, Tile(Reshape(Range(a, b, 1), (1, -1)), Shape(old), but 1), new, axis)

Sizes of `old` are values of a run, which a static graph must know. Where v has one entry along the
axis, the same is a choice between v and x, entry by entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.onnx.file.model import Graph
from nnl.converters.onnx.file.operators import Node
from nnl.converters.onnx.values.values import (
    axis_of,
    broadcast,
    dtype_of,
    known,
    reshape,
    shape_of,
    tagged,
    var,
    with_rank,
)


class Assign(Node):
    """Inputs x, a, v, b, and the nodes that it stands for."""

    op_type = "ScatterElements"
    type_names = ("T", "I", "T", "I"), ("T",)

    def __init__(self, nodes: Sequence[Node], given: Sequence[str], axis: int) -> None:
        super().__init__(*given, outputs=nodes[-1].outputs, name=nodes[-1].name)
        self.nodes, self.axis = nodes, axis
        made = {o for n in nodes for o in n.outputs}
        used = dict.fromkeys(i for n in nodes for i in n.inputs)
        self.captured = tuple(i for i in used if i and i not in made and i not in given)

    def fits(self, values: Sequence[Any]) -> bool:
        """Whether it is what its nodes compute, and these need numbers that are not known."""
        x, start, value, stop = values
        if known(start) and known(stop) or np.prod(shape_of(start)) * np.prod(shape_of(stop)) != 1:
            return False
        sizes, wide = shape_of(x), shape_of(with_rank(value, len(shape_of(x))))
        axis = axis_of(self.axis, len(sizes))
        return len(wide) == len(sizes) and all(
            n == 1 or i != axis and n == m for i, (n, m) in enumerate(zip(wide, sizes, strict=True))
        )

    def run(self, ctx: Any, node: Any, x: Any, start: Any, value: Any, stop: Any) -> Any:
        """x with v from a to b."""
        sizes = shape_of(x)
        axis = axis_of(self.axis, len(sizes))
        along = [n if i == axis else 1 for i, n in enumerate(sizes)]
        row = var(np.arange(sizes[axis], dtype=np.float32).reshape(along))

        def from_front(at: Any) -> Any:
            at = reshape(F.add_scalar(var(at), 0.0), [1] * len(sizes))
            return at + F.mul_scalar(F.less_scalar(at, 0.0), float(sizes[axis]))

        there = F.logical_and(
            F.greater_equal(row, from_front(start)), F.less(row, from_front(stop))
        )
        y = F.where(F.broadcast(there, sizes), var(broadcast(value, sizes)), var(x))
        return tagged(y, dtype_of(x))


def with_assignments(graph: Graph, around: Sequence[Graph]) -> list[Node]:
    """The nodes of a graph, those of an assignment as one where the last one stands.

    Args:
        around: The graph and those that it stands in, the innermost first.
    """
    if not any(n.op_type == "Range" for n in graph.nodes):
        return graph.nodes
    makers = {o: n for n in graph.nodes for o in n.outputs}
    uses: dict[str, list[Node]] = {}
    for n in graph.nodes:
        for i in (*n.inputs, *n.captured):
            uses.setdefault(i, []).append(n)
    for v in graph.outputs:
        uses.setdefault(v.name, []).append(Node())
    found: dict[int, Assign] = {}
    for node in graph.nodes:
        if node.op_type == "ScatterElements" and getattr(node, "reduction", "none") == "none":
            made = _matched(node, graph, around, makers, uses)
            if made is not None:
                found[id(node)] = made
    gone = {id(n) for a in found.values() for n in a.nodes}
    return [found.get(id(n), n) for n in graph.nodes if id(n) in found or id(n) not in gone]


def _matched(
    last: Any, graph: Graph, around: Sequence[Graph], makers: Any, uses: Any
) -> Assign | None:
    def above(name: str, *kinds: str) -> Any:
        """The node that is `kinds` above a value, each by its first input; None if it is not."""
        node = None
        for kind in kinds:
            node = makers.get(name)
            if node is None or node.op_type != kind:
                return None
            name = node.inputs[0] if node.inputs else ""
        return node

    def constant(name: str) -> Any:
        for g in around:
            if any(v.name == name for v in g.inputs):
                return None
            if name in g.initializers:
                return np.asarray(g.initializers[name])
            for node in g.nodes:
                if name in node.outputs:
                    return _value_of(node)
        return None

    def number(name: str) -> str:
        """The value behind Squeeze and Reshape, which leave one number what it is."""
        while above(name, "Squeeze") is not None or above(name, "Reshape") is not None:
            name = makers[name].inputs[0]
        return name

    x, places, new = last.inputs
    expand, to_places = above(new, "Expand"), above(places, "Tile", "Reshape")
    span = above(places, "Tile", "Reshape", "Range")
    old = above(expand.inputs[1], "Shape", "Slice") if expand is not None else None
    if span is None or old is None or len(old.inputs) < 4 or old.inputs[0] != x:
        return None
    axes, step, shape = constant(old.inputs[3]), constant(span.inputs[2]), None
    steps = constant(old.inputs[4]) if len(old.inputs) > 4 else np.ones(1)
    shape = constant(to_places.inputs[1])
    if step is None:
        step = constant(number(span.inputs[2]))
    if any(v is None for v in (axes, step, steps, shape)):
        return None
    if axes.size != 1 or step.size != 1 or steps.size != 1 or step != 1 or steps != 1:
        return None
    axis = int(axes.reshape(-1)[0])
    want = [1] * shape.size
    if axis != last.axis or not -shape.size <= axis < shape.size:
        return None
    want[axis] = -1
    ends = [number(n) for n in (*old.inputs[1:3], *span.inputs[:2])]
    if shape.tolist() != want or ends[:2] != ends[2:]:
        return None
    inside = _between([old, span], last, graph, uses)
    if inside is None:
        return None
    return Assign(inside, (x, old.inputs[1], expand.inputs[0], old.inputs[2]), axis)


def _value_of(node: Any) -> Any:
    """What a Constant node gives, of those kinds that sizes and axes are."""
    if node.op_type != "Constant":
        return None
    kinds = (node.attributes.get(k) for k in ("value", "value_int", "value_ints"))
    return next((np.asarray(v) for v in kinds if v is not None), None)


def _between(first: Sequence[Node], last: Node, graph: Graph, uses: Any) -> list[Node] | None:
    """The nodes that follow from the first ones up to the last; None if others read one of them."""
    chosen = {id(last)}
    todo = list(first)
    while todo:
        node = todo.pop()
        if id(node) in chosen:
            continue
        chosen.add(id(node))
        if len(chosen) > 24 or not node.outputs:
            return None
        todo += [u for o in node.outputs for u in uses.get(o, ())]
    return [n for n in graph.nodes if id(n) in chosen]
