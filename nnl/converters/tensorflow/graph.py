# SPDX-License-Identifier: Apache-2.0
"""GraphDef and FunctionDef as one kind of graph: nodes by name, and which outputs they read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nnl.converters.tensorflow.messages import TensorFlowError

Edge = tuple[str, int]  # a node and which of its outputs
_UNIQUE = ("y", "idx", "count")
# Outputs by name, of operators that have several: functions name what they read.
_OUTPUTS: dict[str, tuple[str, ...]] = {
    "Switch": ("output_false", "output_true"),
    "Merge": ("output", "value_index"),
    "TopK": ("values", "indices"),
    "TopKV2": ("values", "indices"),
    "Unique": _UNIQUE,
    "UniqueV2": _UNIQUE,
    "UniqueWithCounts": _UNIQUE,
    "FusedBatchNorm": ("y", "batch_mean", "batch_variance"),
    "FusedBatchNormV2": ("y", "batch_mean", "batch_variance"),
    "FusedBatchNormV3": ("y", "batch_mean", "batch_variance"),
    "TensorArrayV3": ("handle", "flow"),
    "TensorListPopBack": ("output_handle", "tensor"),
    "MaxPoolWithArgmax": ("output", "argmax"),
    "SoftmaxCrossEntropyWithLogits": ("loss", "backprop"),
    "SparseSoftmaxCrossEntropyWithLogits": ("loss", "backprop"),
    "BroadcastGradientArgs": ("r0", "r1"),
    "TensorArrayConcatV3": ("value", "lengths"),
}


@dataclass
class Node:
    """One operator.

    Attributes:
        inputs: What it reads.
        controls: Nodes that run before it.
    """

    name: str
    op: str
    inputs: list[Edge]
    controls: list[str]
    proto: Any

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"{self.name} ({self.op})"

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute: a number, bool, text, message, or list of them."""
        if name not in self.proto.attr:
            return default
        value = self.proto.attr[name]
        kind = value.WhichOneof("value")
        if kind is None:
            return default
        if kind == "list":
            found = (getattr(value.list, f) for f in ("i", "f", "b", "type", "s", "shape", "func"))
            return next((list(v) for v in found if len(v)), [])
        found = getattr(value, kind)
        return found.decode("utf-8", "replace") if kind == "s" else found


@dataclass
class Graph:
    """Attributes:
    nodes: By name; arguments of a function are nodes of the operator "_Arg".
    args: Names of those, in order.
    results: What a function gives, in order.
    effects: What a function runs, if nothing reads it.
    """

    nodes: dict[str, Node]
    args: list[str] = field(default_factory=list)
    results: list[Edge] = field(default_factory=list)
    effects: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for node in self.nodes.values():
            for name in (*[name for name, _ in node.inputs], *node.controls):
                if name not in self.nodes:
                    raise TensorFlowError(f"{node.label} reads {name!r}, which there is not")

    def reached(
        self, names: Iterable[str], stop: Mapping[Any, Any], controls: bool = False
    ) -> Iterator[Node]:
        """The nodes that others need, without what is behind the edges `stop`; with controls also
        those that must run before them."""
        todo, seen = list(names), set()
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            node = self.nodes[name]
            yield node
            todo += [edge[0] for edge in node.inputs if edge not in stop]
            todo += node.controls * controls


def edge_of(text: str) -> Edge:
    """The output that "name" or "name:1" means."""
    name, colon, number = text.rpartition(":")
    return (name, int(number)) if colon and number.isdecimal() and len(number) < 6 else (text, 0)


def graph_of(proto: Any) -> Graph:
    """The graph of a GraphDef.

    Raises:
        TensorFlowError: Two nodes have one name, or one reads what there is not.
    """
    return Graph(_nodes(proto.node, edge_of))


def _nodes(protos: Any, edge: Any) -> dict[str, Node]:
    nodes: dict[str, Node] = {}
    for p in protos:
        if p.name in nodes:
            raise TensorFlowError(f"there are two nodes {p.name!r}")
        inputs = [edge(t) for t in p.input if not t.startswith("^")]
        controls = [t[1:] for t in p.input if t.startswith("^")]
        nodes[p.name] = Node(p.name, p.op, inputs, controls, p)
    return nodes


class Library:
    """The functions of a graph by name; each is read when it is asked for."""

    def __init__(self, proto: Any) -> None:
        self.protos = {f.signature.name: f for f in proto.function}
        self._graphs: dict[str, Graph] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.protos

    def graph(self, name: str) -> Graph:
        """The body of a function.

        Raises:
            TensorFlowError: There is none, or it is damaged.
        """
        if name not in self.protos:
            raise TensorFlowError(f"there is no function {name!r}")
        if name not in self._graphs:
            self._graphs[name] = self._read(self.protos[name])
        return self._graphs[name]

    def _read(self, proto: Any) -> Graph:
        args = [a.name for a in proto.signature.input_arg]
        ops = {p.name: p.op for p in proto.node_def}

        def edge(text: str) -> Edge:
            """An argument "a", or output 1 of a group of a node: "node:group:1"."""
            name, *rest = text.split(":")
            if len(rest) < 2:
                return name, int(rest[0]) if rest and rest[0].isdecimal() else 0
            names = self._outputs(ops.get(name, ""))
            first = names.index(rest[0]) if rest[0] in names else 0
            return name, first + (int(rest[1]) if rest[1].isdecimal() else 0)

        nodes = _nodes(proto.node_def, edge)
        for name in args:
            nodes[name] = Node(name, "_Arg", [], [], proto)
        missing = [a.name for a in proto.signature.output_arg if a.name not in proto.ret]
        if missing:
            raise TensorFlowError(f"the function {proto.signature.name!r} lacks {missing}")
        results = [edge(proto.ret[a.name]) for a in proto.signature.output_arg]
        effects = list(proto.control_ret.values())
        if not all(n in nodes for n in (*[n for n, _ in results], *effects)):
            raise TensorFlowError(f"the function {proto.signature.name!r} gives what there is not")
        return Graph(nodes, args, results, effects)

    def _outputs(self, op: str) -> tuple[str, ...]:
        if op in self.protos:
            return tuple([a.name for a in self.protos[op].signature.output_arg])
        return _OUTPUTS.get(op, ())
