# SPDX-License-Identifier: Apache-2.0
"""Pass: compute edges marked `recompute` again in backward instead of keeping them from forward."""

from __future__ import annotations

from collections.abc import Sequence

from nnl.core.array import NdArray
from nnl.core.graph import Node, Value


def insert_recomputation(forward: Sequence[Node], backward: Sequence[Node]) -> list[Node]:
    """The backward nodes, with copies of forward nodes inserted before their first use.

    Only edges with `recompute` set are computed again, from the nearest edges that are not. A node
    that writes state (running statistics, random streams) is never run twice; its outputs are kept.

    Source: Chen, Xu, Zhang and Guestrin, Training Deep Nets with Sublinear Memory Cost,
        arXiv:1604.06174.
    """
    marked = {
        v.key
        for n in forward
        for v in n.inputs
        if v is not None and v.recompute and v.node is not None and not n_writes(v.node)
    }
    if not marked:
        return list(backward)
    copies: dict[Node, Node] = {}
    order: list[Node] = []

    def again(value: Value | None) -> Value | None:
        if value is None or value.node is None or value.key not in marked:
            return value
        stack = [value.node]
        while stack:
            node = stack[-1]
            if node in copies:
                stack.pop()
                continue
            todo = [
                v.node
                for v in node.inputs
                if v is not None and v.key in marked and v.node not in copies and v.node is not None
            ]
            if todo:
                stack += todo
                continue
            copies[stack.pop()] = _copy(node, tuple([_renamed(v) for v in node.inputs]))
            order.append(copies[node])
        return _renamed(value)

    def _renamed(v: Value | None) -> Value | None:
        if v is None or v.node not in copies or v.key not in marked or v.node is None:
            return v
        copy = copies[v.node]
        assert copy.outs is not None
        return Value.of(copy, v.index, v.spec, v.need_grad, copy.outs[v.index])

    produced = set(forward)
    for node in backward:
        if any(v is not None and v.node in produced for v in node.inputs):
            node.inputs = tuple([again(v) for v in node.inputs])
        order.append(node)
    return order


def n_writes(node: Node) -> bool:
    """Whether running the node changes anything but its outputs."""
    return bool(node.op.written(node.attrs))


def _copy(node: Node, inputs: tuple[Value | None, ...]) -> Node:
    new = Node.__new__(Node)
    for field in ("op", "attrs", "out_specs", "target", "need_grad"):
        setattr(new, field, getattr(node, field))
    new.inputs, new.saved, new.grads, new.info = inputs, None, None, None
    new.outs = tuple([NdArray.unwritten(s) for s in node.out_specs])
    Node.count = new.seq = Node.count + 1
    return new
