# SPDX-License-Identifier: Apache-2.0
"""An ONNX file as plain Python objects: model, graphs in topological order, typed nodes.

The nodes' classes are in `nnl.converters.onnx.file.operators`. This is the first level of Deep500's
ONNX library (Ben-Nun et al., A Modular Benchmarking Infrastructure for High-Performance and
Reproducible Deep Learning, IPDPS 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nnl.converters.onnx.file.errors import OnnxError, UnsupportedOperator
from nnl.converters.onnx.file.operators import Node, UnknownNode

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class ValueInfo:
    """Name and type of a graph's input or output.

    Attributes:
        kind: "tensor", "sequence", "optional" or "other".
        dtype: numpy's dtype of the elements, None if unknown.
        shape: Sizes; a str is a symbolic one, None an unknown one. None for an unknown rank.
        inside: Kinds inside of this one down to the tensors: ("sequence",) for an optional
            sequence of tensors.
    """

    name: str
    kind: str = "tensor"
    dtype: Any = None
    shape: tuple[int | str | None, ...] | None = None
    inside: tuple[str, ...] = ()


@dataclass
class Function:
    """A function of the model's own: nodes that replace one node of its name.

    Attributes:
        body: Its serialized FunctionProto; the nodes are read where it is called, because their
            attributes come from the call.
    """

    name: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    opsets: dict[str, int]
    body: bytes = field(repr=False)


@dataclass
class Graph:
    """Nodes in topological order, initializers by name, inputs and outputs."""

    name: str
    nodes: list[Node]
    inputs: list[ValueInfo]
    outputs: list[ValueInfo]
    initializers: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def needed_inputs(self) -> list[ValueInfo]:
        """Inputs that no initializer gives a value; before IR 4 initializers are inputs too."""
        return [v for v in self.inputs if v.name not in self.initializers]

    def walk(self) -> Iterator[Node]:
        """Every node, those of subgraphs after the node that has them."""
        for node in self.nodes:
            yield node
            for graph in subgraphs(node):
                yield from graph.walk()

    def sort(self) -> None:
        """Put the nodes in topological order, keeping the order they have where it is one.

        Raises:
            OnnxError: Two nodes make one value, or the graph has a cycle.
        """
        maker: dict[str, int] = {}
        for i, node in enumerate(self.nodes):
            for name in node.outputs:
                if name and maker.setdefault(name, i) != i:
                    other = self.nodes[maker[name]].label
                    raise node.error(f"makes the value {name!r}, which {other} makes already")
        sources = [
            {maker[n] for n in (*node.inputs, *node.captured) if n in maker} for node in self.nodes
        ]
        if all(max(s, default=-1) < i for i, s in enumerate(sources)):
            return
        self.nodes = [self.nodes[i] for i in _sorted(sources, self.nodes)]


def _sorted(sources: list[set[int]], nodes: Sequence[Node]) -> list[int]:
    import heapq

    users: list[list[int]] = [[] for _ in sources]
    missing = [len(s) for s in sources]
    for i, before in enumerate(sources):
        for j in before:
            users[j].append(i)
    ready = [i for i, n in enumerate(missing) if n == 0]  # ascending, hence a heap
    order = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for user in users[i]:
            missing[user] -= 1
            if missing[user] == 0:
                heapq.heappush(ready, user)
    if len(order) < len(nodes):
        stuck = next(i for i, n in enumerate(missing) if n)
        raise nodes[stuck].error(
            f"is part of a cycle, or behind one: {len(nodes) - len(order)} nodes wait for each "
            "other's outputs"
        )
    return order


def subgraphs(node: Node) -> list[Graph]:
    """The graphs among a node's attributes."""
    found = []
    for value in node.attributes.values():
        if isinstance(value, Graph):
            found.append(value)
        elif isinstance(value, tuple):
            found += [v for v in value if isinstance(v, Graph)]
    return found


@dataclass
class Model:
    """A model: its graph, its functions, and what the file says about itself.

    Attributes:
        opsets: Version of every operator domain; "" is ONNX's own.
        file: Where it came from, for messages.
        tables: What importers make of the attributes of a node, once for all runs.
    """

    graph: Graph
    opsets: dict[str, int]
    functions: dict[tuple[str, str], Function] = field(default_factory=dict)
    ir_version: int = 0
    producer: str = ""
    doc: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    file: str = ""
    tables: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def walk(self) -> Iterator[Node]:
        """Every node of the graph and its subgraphs."""
        return self.graph.walk()

    def accept(self, visitor: Visitor, *context: Any) -> None:
        """Let a visitor see inputs, initializers, nodes and outputs, in this order."""
        for info in self.graph.inputs:
            visitor.visit_input(info, *context)
        for name, value in self.graph.initializers.items():
            visitor.visit_initializer(name, value, *context)
        for node in self.walk():
            node.accept(visitor, *context)
        for info in self.graph.outputs:
            visitor.visit_output(info, *context)


class Visitor:
    """Calls the method visit_OPERATOR for every node; this one ignores nodes without a method.

    Methods for operators of other domains are named visit_DOMAIN_OPERATOR with dots as
    underscores. `context` is whatever the caller gives: methods get it after the node.
    """

    def visit(self, model: Model, *context: Any) -> None:
        """Visit inputs, initializers, nodes in topological order, and outputs.

        Subgraphs come after the node that has them.
        """
        model.accept(self, *context)

    def visit_input(self, info: ValueInfo, *context: Any) -> None:
        """Called for every input of the graph."""

    def visit_initializer(self, name: str, value: Any, *context: Any) -> None:
        """Called for every initializer of the graph, before any node."""

    def visit_output(self, info: ValueInfo, *context: Any) -> None:
        """Called for every output of the graph, after all nodes."""

    def method(self, node: Node) -> Callable[..., Any] | None:
        """The method for this node's operator; None if there is none."""
        parts = [node.domain.replace(".", "_")] if node.domain else []
        name = "_".join(["visit", *parts, node.op_type])
        return None if hasattr(Visitor, name) else getattr(self, name, None)  # "node" is none

    def visit_node(self, node: Node, *context: Any) -> Any:
        """Call the method of this node's operator."""
        method = self.method(node)
        return self.missing(node, *context) if method is None else method(node, *context)

    def missing(self, node: Node, *context: Any) -> Any:
        """Called for a node that has no method."""
        return None


EmptyVisitor = Visitor


class StrictVisitor(Visitor):
    """A visitor for which a node without a method is an error."""

    def missing(self, node: Node, *context: Any) -> Any:
        raise UnsupportedOperator(
            f"{type(self).__name__} knows no operator {node.op_type!r} of the domain "
            f"{node.domain or 'ai.onnx'!r}",
            node=node.label,
        )


__all__ = [
    "EmptyVisitor",
    "Function",
    "Graph",
    "Model",
    "Node",
    "OnnxError",
    "StrictVisitor",
    "UnknownNode",
    "ValueInfo",
    "Visitor",
    "subgraphs",
]
