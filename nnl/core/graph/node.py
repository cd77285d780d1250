# SPDX-License-Identifier: Apache-2.0
"""Node and Value: the graph that functions record. References point from outputs to inputs only,
so there are no cycles, and a graph is freed with the last handle on it."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import ref

from nnl.core.arguments.origin import Origin, at
from nnl.core.arrays.array import NdArray
from nnl.core.arrays.bulk import BULK
from nnl.core.arrays.memory_record import FREED
from nnl.core.arrays.spec import Spec
from nnl.core.settings.context import STATE, Target

if TYPE_CHECKING:
    from nnl.core.ops.op import Op

slotted = dataclass(slots=True, init=False, repr=False, eq=False)  # fields only, by identity


@slotted
class Node:
    """One application of an op.

    Attributes:
        inputs: Edges, None for an optional input left out.
        outs: Static mode: the output arrays, written by forward(). Dynamic mode: None.
        live: Dynamic mode: weak references to the output arrays, which somebody may still hold.
        saved: Dynamic mode: the arrays that vjp names, inputs before outputs. Static mode: None.
        grads: Gradients by output index, as far as anybody asked for them.
        seq: Creation number; inputs have smaller ones until rewire_on changes an edge.
        origin: Where the function was called. Dynamic mode: None, the traceback says it.
    """

    op: Op
    attrs: Any
    inputs: tuple[Value | None, ...]
    out_specs: tuple[Spec, ...]
    target: Target
    need_grad: bool | None  # None: recorded under no_grad, so never
    outs: tuple[NdArray, ...] | None
    live: tuple[ref[NdArray], ...] | None
    saved: tuple[Any, ...] | None
    grads: dict[int, NdArray] | None
    seq: int
    info: dict[str, Any] | None  # tags and hooks set by the user
    origin: Origin | None
    number: ClassVar[Callable[[], int]] = itertools.count(1).__next__  # a new one, for `seq`
    rewired = False  # whether any edge of the process was ever changed

    @property
    def label(self) -> str:
        """What messages call it: "embed in tok (train.py:12)"."""
        return at(getattr(self.attrs, "type_name", self.op.name), self.origin)

    def input_label(self, i: int) -> str:
        """What messages call its input i: "w of embed in tok (train.py:12)"."""
        names = self.op.inputs
        return f"{names[min(i, len(names) - 1)]} of {self.label}"

    def array(self, i: int) -> NdArray:
        """The array of an output of a dynamic graph; a cleared one where nobody holds it."""
        nd = self.live[i]() if self.live is not None else None
        if nd is None:
            nd = NdArray.unwritten(self.out_specs[i])
            nd.hold(FREED)
        return nd

    def kept(self) -> list[tuple[str, Any]]:
        """(name, array) of everything vjp names except specs."""
        op = self.op
        if self.saved is not None:
            return list(zip(op.kept_names, self.saved, strict=True))
        if self.outs is None:
            raise ValueError(
                f"backward: what {self.label} kept for its gradient was freed by an earlier "
                "backward(clear_buffer=True): run forward again"
            )
        kept = [(n, self.kept_input(i)) for n, i in op.kept_inputs]
        return kept + [
            (n, self.outs if op.variadic_out else self.outs[i]) for n, i in op.kept_outputs
        ]

    def kept_input(self, i: int) -> Any:
        """Data of input i; of all inputs from i on for a variadic op."""
        if self.op.variadic and i == len(self.op.inputs) - 1:
            return tuple([None if v is None else v.array for v in self.inputs[i:]])
        value = self.inputs[i]
        return None if value is None else value.array

    def input_specs(self) -> list[tuple[str, Any]]:
        """(name, spec) of the specs vjp names."""
        specs: list[Any] = [v and (v.spec if v.data is None else v.data.spec) for v in self.inputs]
        if self.op.variadic:
            n = len(self.op.inputs) - 1
            specs = [*specs[:n], tuple([s for s in specs[n:] if s is not None])]
        return [(name, specs[i]) for name, i in self.op.spec_names]


@slotted
class Value:
    """An edge: output `index` of `node`, or a leaf (node is None).

    Attributes:
        data: A leaf's array; of an output, its array in static mode, else None.
        own_grad: A leaf's gradient, made when first asked for.
    """

    node: Node | None
    index: int
    spec: Spec
    need_grad: bool
    data: NdArray | None
    own_grad: NdArray | None
    persistent: bool
    recompute: bool
    name: str

    @staticmethod
    def leaf(data: NdArray, need_grad: bool = False) -> Value:
        return Value.of(None, 0, data.spec, need_grad, data, STATE.recompute)

    @staticmethod
    def of(
        node: Node | None, index: int, spec: Spec, need: bool, data: Any, again: bool = False
    ) -> Value:
        v = Value()
        v.node, v.index, v.spec = node, index, spec  # up to three at once make no tuple
        v.need_grad, v.data, v.recompute = need, data, again
        v.own_grad, v.persistent, v.name = None, False, ""
        return v

    def cut_off(self, data: NdArray) -> None:
        """Make a leaf of this edge, with the array that holds its data and its gradient so far."""
        self.own_grad, self.node, self.index, self.data = self.grad, None, 0, data

    def become(self, other: Value) -> None:
        """Let everything that was computed from this edge be computed from another."""
        self.node, self.index, self.spec = other.node, other.index, other.spec
        self.need_grad, self.persistent = other.need_grad, other.persistent
        self.data, self.own_grad = other.data, other.own_grad
        Node.rewired = True

    @property
    def key(self) -> tuple[int, int]:
        """Equal for two edges that are the same output, or leaves of the same array."""
        return (id(self.data), -1) if self.node is None else (id(self.node), self.index)

    @property
    def label(self) -> str:
        """What messages call it: "Variable 'h', output of relu in block1 (train.py:12)"."""
        name = f"Variable {self.name!r}" if self.name else "Variable"
        return name if self.node is None else f"{name}, output of {self.node.label}"

    @property
    def array(self) -> NdArray:
        """The array behind the edge: a leaf's, or an output's; a dynamic one may be freed."""
        if self.data is not None:
            return self.data
        node = self.node
        if node is None:
            return NdArray.unwritten(self.spec)
        return node.array(self.index) if node.outs is None else node.outs[self.index]

    @property
    def current_spec(self) -> Spec:
        """Spec of the array; a leaf's may have changed since the edge was made."""
        return self.spec if self.data is None else self.data.spec

    @property
    def grad(self) -> NdArray:
        """The gradient's array, lazily zero until backward writes it."""
        node = self.node
        if node is None:
            if self.own_grad is None:
                self.own_grad = NdArray(self.current_spec.shape)
            return self.own_grad
        if node.grads is None:
            node.grads = {}
        if self.index not in node.grads:
            node.grads[self.index] = NdArray(self.current_spec.shape)
        return node.grads[self.index]


class Copy(Value):
    """The edge of an unlinked copy: a leaf that shares array and gradient with another edge.

    `nnl.grad` tells it from that one. Handles of one parameter are not copies of each other.
    """

    __slots__ = ()


def capture(outputs: Iterable[Value | None]) -> list[Node]:
    """Nodes that the outputs depend on, inputs first, otherwise in the order of the program."""
    order = BULK.captured(list(outputs))
    return _reorder(order) if Node.rewired else order


def readable(nodes: Iterable[Node], outputs: Iterable[Value]) -> set[tuple[int, int]]:
    """Keys of the edges that stay readable whatever is cleared: value and gradient.

    These are the outputs of the run, edges marked persistent, and what a function shows that only
    collects its inputs for the user (sink).
    """
    keys = {v.key for v in outputs}
    for node in nodes:
        every = node.attrs.shows_inputs
        keys.update([v.key for v in node.inputs if v is not None and (every or v.persistent)])
    return keys


def _reorder(nodes: Sequence[Node]) -> list[Node]:
    """Topological order with the smallest seq first: after rewiring, seq alone is not enough."""
    users: dict[Node, list[Node]] = {n: [] for n in nodes}
    missing: dict[Node, int] = {}
    for n in nodes:
        sources = {v.node for v in n.inputs if v is not None and v.node is not None}
        missing[n] = len(sources)
        for m in sources:
            users[m].append(n)
    heap = [(n.seq, id(n), n) for n in nodes if not missing[n]]
    heapq.heapify(heap)
    order = []
    while heap:
        node = heapq.heappop(heap)[2]
        order.append(node)
        for user in users[node]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(heap, (user.seq, id(user), user))
    if len(order) != len(nodes):
        raise ValueError("forward: the graph has a cycle, made by rewire_on")
    return order
