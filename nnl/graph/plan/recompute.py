# SPDX-License-Identifier: Apache-2.0
"""Compute edges again in backward instead of keeping them: those marked, or as memory asks for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager

from nnl.core.arrays.array import NdArray
from nnl.core.graph.node import Node, Value
from nnl.core.settings.context import using

Key = tuple[int, int]
MOST_FLOPS = 32  # per element of a result; what costs more is kept rather than computed again


@contextmanager
def memory_budget(nbytes: int) -> Iterator[None]:
    """Let training plans made inside the with block stay below a size, by computing again.

    A plan is made at the first forward(clear_no_need_grad=True) of a graph; what it keeps between
    forward and backward, and its temporary arrays, then count. Cheap results are dropped first, the
    largest first; convolutions and products of matrices are never computed twice. If that is not
    enough, the smallest plan found is used and a warning is logged.

    Args:
        nbytes: Bytes for all that a plan computes: intermediate arrays and gradients, but not
            parameters and solver states.
    Raises:
        ValueError: nbytes is negative.
    Example:
        >>> x = nn.Variable((64, 64))
        >>> loss = F.sum(F.exp(F.tanh(PF.affine(x, 64, name="ex_budget"))))
        >>> with nn.memory_budget(100_000):
        ...     loss.forward(clear_no_need_grad=True)
        ...     loss.backward(clear_buffer=True)
    """
    if nbytes < 0:
        raise ValueError(f"memory_budget: nbytes is {nbytes}, wanted a number >= 0")
    with using(memory_budget=int(nbytes)):
        yield


def cheap_edges(forward: Sequence[Node], backward: Sequence[Node]) -> list[Key]:
    """Edges that backward reads and that cost little to compute again, the largest first."""
    read = {v.key: v for n in backward for v in n.inputs if v is not None and v.node is not None}
    ours = set(forward)
    found = []
    for key, v in read.items():
        node = v.node
        if node is None or node not in ours or n_writes(node):
            continue
        spec = node.out_specs[v.index]
        cost = getattr(node.attrs, "cost", None)
        specs = [None if i is None else i.current_spec for i in node.inputs]
        if cost is not None and cost(*specs).flops <= MOST_FLOPS * max(spec.size, 1):
            found.append((spec.nbytes, key))
    return [key for _, key in sorted(found, key=lambda f: -f[0])]


def insert_recomputation(
    forward: Sequence[Node], backward: Sequence[Node], also: Set[Key] = frozenset()
) -> list[Node]:
    """The backward nodes, with copies of forward nodes inserted before their first use.

    Only edges with `recompute` set, and those of `also`, are computed again, from the nearest edges
    that are not. A node that writes state (running statistics, random streams) is never run twice;
    its outputs are kept, as is what was computed from an array that is written before backward
    reads it.

    Source: Chen, Xu, Zhang and Guestrin, Training Deep Nets with Sublinear Memory Cost,
        arXiv:1604.06174.
    """
    marked = also | {
        v.key
        for n in forward
        for v in n.inputs
        if v is not None and v.recompute and v.node is not None and not n_writes(v.node)
    }
    if not marked:
        return list(backward)
    copies: dict[Node, Node] = {}
    order: list[Node] = []
    written: set[int] = set()

    def write(node: Node) -> None:
        written.update([id(node.inputs[p].array.bufs) for p in node.op.written(node.attrs)])  # type: ignore[union-attr]

    for node in forward:
        write(node)

    def changed(node: Node) -> bool:
        """Whether it reads an array, itself or through views, that now holds something else."""
        for v in node.inputs:
            if v is None:
                continue
            if v.node is None:
                if id(v.array.bufs) in written:
                    return True
            elif v.node.op.view and changed(v.node):
                return True
        return False

    def again(value: Value | None) -> Value | None:
        if value is None or value.node is None or value.key not in marked:
            return value
        stack = [value.node]
        while stack:
            node = stack[-1]
            if node in copies or changed(node):
                stack.pop()
                continue
            todo = [
                v.node
                for v in node.inputs
                if v is not None
                and v.key in marked
                and v.node not in copies
                and v.node is not None
                and not changed(v.node)
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
        write(node)
    return order


def n_writes(node: Node) -> bool:
    """Whether running the node changes anything but its outputs."""
    return bool(node.op.written(node.attrs))


def _copy(node: Node, inputs: tuple[Value | None, ...]) -> Node:
    new = Node.__new__(Node)
    for field in ("op", "attrs", "out_specs", "target", "need_grad", "origin"):
        setattr(new, field, getattr(node, field))
    new.inputs, new.live, new.saved, new.grads, new.info = inputs, None, None, None, None
    new.outs = tuple([NdArray.unwritten(s) for s in node.out_specs])
    new.seq = Node.number()
    return new
