# SPDX-License-Identifier: Apache-2.0
"""load: a graph of TensorFlow as a function of Variables."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nnl.converters.onnx.values.values import is_var, tagged
from nnl.converters.tensorflow import import_arithmetic as _a  # noqa: F401  registers importers
from nnl.converters.tensorflow import import_control as _c  # noqa: F401
from nnl.converters.tensorflow import import_image as _i  # noqa: F401
from nnl.converters.tensorflow import import_loops as _l  # noqa: F401
from nnl.converters.tensorflow import import_shape as _s  # noqa: F401
from nnl.converters.tensorflow.graph import Edge, Graph, Library, Node, edge_of, graph_of
from nnl.converters.tensorflow.interpreter import HANDLERS, Interpreter, Scope, Unsupported
from nnl.converters.tensorflow.messages import (
    RESOURCE,
    TensorFlowError,
    dtype_of_code,
    parse,
    sizes_of,
)
from nnl.core.parameters.parameter import parameter_scope

_INPUTS = ("Placeholder", "PlaceholderV2", "PlaceholderWithDefault")
_ENDS = ("NoOp", "Assert", "Const", "Print", "PrintV2", *_INPUTS)  # read by nobody, no outputs


@dataclass(frozen=True)
class Input:
    """What a graph is given.

    Attributes:
        shape: None for unknown sizes; itself None if not even their number is known.
    """

    name: str
    shape: tuple[int | None, ...] | None
    dtype: Any
    kind: str = "tensor"


class TensorFlowModel:
    """A graph, read: call it with Variables.

    Args:
        graph, library: Of the file.
        ends: Names of inputs and outputs, and the edges of the graph that they are.
        state: Values of variables.
        where: The file, for messages.
    Attributes:
        inputs, outputs: Names, in order.
        open: Whether sizes are open: what they decide is not unrolled.
        states: After a call, what those parameters begin with that a run leaves for the next one.
    """

    def __init__(
        self,
        graph: Graph,
        library: Library,
        ends: tuple[Mapping[str, Edge], Mapping[str, Edge]],
        state: Mapping[str, Any],
        where: str,
        files: Callable[[str], Any] | None = None,
    ) -> None:
        self.graph, self.library, self.state, self.where = graph, library, state, where
        self.files = files
        self._ins, self._outs = dict(ends[0]), dict(ends[1])
        self.name = "network"
        self.inputs, self.outputs = list(self._ins), list(self._outs)
        self.states: dict[str, Any] = {}
        self.open = False
        self._assigns = self._is_assigning()

    @cached_property
    def infos(self) -> list[Input]:
        """What it is given.

        Raises:
            Unsupported: There are operators that cannot be imported; all of them are named.
        """
        self._check_operators()
        return [self._info(name, edge) for name, edge in self._ins.items()]

    def _info(self, name: str, edge: Edge) -> Input:
        node = self.graph.nodes[edge[0]]
        code = node.attr("dtype", node.attr("T", 1))
        shapes = node.attr("_output_shapes") or [node.attr("shape")]
        shape = None if shapes[-1] is None else sizes_of(shapes[-1])
        if node.op not in _INPUTS and shape is None:
            raise TensorFlowError(
                f"{self.where}: the input {name!r} is computed by {node.label}, and the file does "
                "not say its shape: begin at a Placeholder"
            )
        sizes = None if shape is None else tuple([n if n >= 0 else None for n in shape])
        return Input(name, sizes, dtype_of_code(code))

    def between(
        self, inputs: Sequence[str] | None, outputs: Sequence[str] | None
    ) -> TensorFlowModel:
        """The same with other inputs or outputs: names of tensors, ":0" may be left out.

        Raises:
            TensorFlowError: There is no such tensor.
        """
        ins = self._ins if inputs is None else self._edges(inputs)
        outs = self._outs if outputs is None else self._edges(outputs)
        if inputs is None:
            names = {edge: name for name, edge in self._ins.items()}
            ins = {names.get(e, n): e for n, e in placeholders_of(self.graph, outs).items()}
        ends = ins, outs
        return TensorFlowModel(self.graph, self.library, ends, self.state, self.where, self.files)

    def _edges(self, names: Sequence[str]) -> dict[str, Edge]:
        known = {**self._ins, **self._outs}
        found = {n.removesuffix(":0"): known.get(n, edge_of(n)) for n in names}
        for name, edge in found.items():
            if edge[0] not in self.graph.nodes:
                raise TensorFlowError(f"{self.where}: the graph has no tensor {name!r}")
        return found

    def __call__(self, **given: Any) -> Any:
        """The output, or a tuple of outputs, for Variables by the names of the inputs."""
        if not self.outputs:
            raise TensorFlowError(f"{self.where}: it has no outputs: name them with --outputs")
        ctx = self._interpreter()
        if not self._assigns:
            return self._run(given, ctx)
        with parameter_scope("", OrderedDict()):  # what is made only to see what is assigned
            self._run(given, ctx)
        kept = self._interpreter()
        kept.kept = ctx.assigned & self.state.keys()
        outs = self._run(given, kept)
        first, *more = outs if isinstance(outs, tuple) else (outs,)
        first = kept.keep(first) if is_var(first) else first
        self.states = {f"states/{name}": self.state[name] for name in kept.leaves}
        return (first, *more) if more else first

    def _interpreter(self) -> Interpreter:
        ctx = Interpreter(self.library, dict(self.state), self.files)
        ctx.following, ctx.open = self._assigns, self.open
        return ctx

    def _run(self, given: Mapping[str, Any], ctx: Interpreter) -> Any:
        scope = Scope(self.graph)
        by_edge = {}
        for info in self.infos:
            edge = self._ins[info.name]
            x = given[info.name]
            by_edge[edge] = tagged(x, info.dtype) if is_var(x) else x
        for (name, index), x in by_edge.items():
            values = list(scope.values.get(name, ()))
            values += [None] * (index + 1 - len(values))
            values[index] = x
            scope.values[name] = values
        try:
            ctx.run(scope, [name for name, _ in self._outs.values()])
            outs = [scope.value(edge) for edge in self._outs.values()]
        except TensorFlowError as error:
            if str(error).startswith(self.where):
                raise
            raise type(error)(f"{self.where}: {error}") from error.__cause__
        return outs[0] if len(outs) == 1 else tuple(outs)

    def _reached(self, effects: bool) -> Iterator[tuple[str, Node]]:
        """The nodes that outputs need, of functions too, each with the name of its function; with
        effects also those that run though nobody reads them."""
        stop = {edge: True for edge in self._ins.values()}
        names = [name for name, _ in self._outs.values()]
        todo = [("", self.graph, names)]
        seen: set[str] = set()
        while todo:
            prefix, graph, names = todo.pop()
            for node in graph.reached(names, stop if not prefix else {}, effects):
                if (node.name, 0) in stop and not prefix:
                    continue
                yield prefix, node
                for name in _called(node):
                    if name in self.library and name not in seen:
                        seen.add(name)
                        inner = self.library.graph(name)
                        ends = [n for n, _ in inner.results] + inner.effects * effects
                        todo.append((f"{name}: ", inner, ends))

    def _is_assigning(self) -> bool:
        return any(node.op.startswith("Assign") for _, node in self._reached(effects=True))

    def _check_operators(self) -> None:
        missing: dict[str, str] = {}
        for prefix, node in self._reached(self._assigns):
            if node.op not in HANDLERS and node.op not in self.library and node.op != "_Arg":
                missing.setdefault(f"{node.op} ({prefix}{node.name})", node.op)
        if missing:
            listed = ", ".join(sorted(missing))
            raise Unsupported(f"{self.where}: operators without an importer: {listed}")


def _called(node: Node) -> list[str]:
    """Names of the functions that a node may run."""
    found = [node.op]
    for value in node.proto.attr.values() if hasattr(node.proto, "op") else ():
        if value.WhichOneof("value") == "func":
            found.append(value.func.name)
        found += [f.name for f in value.list.func]
    return found


def load(path: str | os.PathLike[str]) -> TensorFlowModel:
    """Load a frozen graph: its inputs are its placeholders, its outputs what no node reads.

    Raises:
        TensorFlowError: The file is damaged, or no such graph.
    """
    where = os.fspath(path)
    with open(path, "rb") as file:
        proto = parse("GraphDef", file.read(), where)
    try:
        graph, library = graph_of(proto), Library(proto.library)
        if not graph.nodes:
            raise TensorFlowError("it has no nodes")
        outs = outputs_of(graph)
        return TensorFlowModel(graph, library, (placeholders_of(graph, outs), outs), {}, where)
    except TensorFlowError as error:
        if str(error).startswith(where):
            raise
        raise type(error)(f"{where}: {error}") from None


def outputs_of(graph: Graph) -> dict[str, Edge]:
    """What no node reads, and depends on a placeholder."""
    readers: dict[str, list[str]] = {}
    read = set()
    for node in graph.nodes.values():
        read.update(node.controls)
        for name in _sources(node):
            readers.setdefault(name, []).append(node.name)
    depends: set[str] = set()
    todo = [n.name for n in graph.nodes.values() if n.op in _INPUTS[:2]]
    while todo:
        name = todo.pop()
        if name not in depends:
            depends.add(name)
            todo += readers.get(name, ())
    return {
        n.name: (n.name, 0)
        for n in graph.nodes.values()
        if n.name in depends and n.name not in (readers.keys() | read) and n.op not in _ENDS
    }


def _sources(node: Node) -> list[str]:
    return [name for name, _ in node.inputs]


def placeholders_of(graph: Graph, outputs: Mapping[str, Edge]) -> dict[str, Edge]:
    """The inputs that outputs need, in the order of the file."""
    needed = {n.name for n in graph.reached([name for name, _ in outputs.values()], {})}
    return {
        n.name: (n.name, 0)
        for n in graph.nodes.values()
        if n.name in needed and n.op in _INPUTS[:2] and n.attr("dtype") != RESOURCE
    }
