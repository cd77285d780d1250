# SPDX-License-Identifier: Apache-2.0
"""A document as nnl's own graph: every node calls the function that it names.

What a function says of its inputs and arguments is what is wrong with the node. All nodes are
tried: one that cannot be called leaves out those that read it, and nothing else.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import nnl as nn
from nnl.console.documents.document import MAX_DEPTH, MAX_NODES, ROW, Document, Edge, Net, in_order
from nnl.console.documents.document import Node as DocumentNode
from nnl.console.palette.palette import Layer, Port, layers
from nnl.console.palette.problems import Problem, feeds, said, set_property, wanted
from nnl.console.palette.repairs import repair
from nnl.core.arguments.suggest import did_you_mean
from nnl.core.graph.node import Node
from nnl.core.graph.variable import Variable
from nnl.core.parameters.parameter import get_parameter_or_create, without_values
from nnl.core.settings.context import using
from nnl.parametric_functions.initializer import NormalInitializer, UniformInitializer

Shape = tuple[int, ...]
# What functions raise for arguments that they do not accept, some of them far inside.
REFUSALS = (
    ValueError,
    TypeError,
    NotImplementedError,
    ArithmeticError,
    LookupError,
    AttributeError,
    MemoryError,
)
_INITIAL = {
    "zeros": 0.0,
    "ones": 1.0,
    "normal": NormalInitializer(0.01),
    "uniform": UniformInitializer((-0.1, 0.1)),
}
# Layers that change what is trained with and do nothing else.
_TRAINING_ONLY = re.compile(r"F\.(dropout|random_\w+|image_augmentation|vat_noise)")


@dataclass
class Placed:
    """A node in a graph; a unit is placed for each node that stands for it.

    Attributes:
        path: Ids of the nodes of units that it is in.
        outputs: Its Variables; none if it could not be called.
        made: The functions that it has called.
        sampled: Whether the first axis of its outputs is the batch.
    """

    path: tuple[str, ...]
    net: Net
    node: DocumentNode
    outputs: list[Variable] = field(default_factory=list)
    made: list[Node] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    sampled: bool = False


@dataclass
class Graph:
    """What a document becomes.

    Attributes:
        placed: Every node, by the path to it and its id.
        scope: The registry of its parameters.
        inputs: Inputs of the main network by name.
    """

    placed: dict[tuple[str, ...], Placed] = field(default_factory=dict)
    scope: OrderedDict[str, Any] = field(default_factory=OrderedDict)
    inputs: dict[str, Variable] = field(default_factory=dict)

    def problems(self) -> list[Problem]:
        """All that is wrong; of a unit that is there several times, once."""
        found: dict[tuple[str, str | None, str], Problem] = {}
        for placed in self.placed.values():
            for p in placed.problems:
                found.setdefault((p.network, p.node, p.message), p)
        return list(found.values())

    def parameters(self) -> dict[str, Variable]:
        with nn.parameter_scope("", self.scope):
            return nn.get_parameters(grad_only=False)


def build(
    document: Document,
    batch: int = 1,
    test: bool = False,
    columns: Mapping[str, Shape] | None = None,
    values: bool = False,
    scope: OrderedDict[str, Any] | None = None,
) -> Graph:
    """The graph of the main network, in static mode.

    Args:
        batch: The batch size.
        test: As it is used: without dropout, with the running statistics.
        columns: Shapes of the data set's columns, for inputs that have no shape of their own.
        values: Whether new parameters get initial values.
        scope: Parameters that are there already.
    """
    builder = Builder(document, batch, test, columns or {}, scope)
    with (
        using(auto_forward=False),
        nn.parameter_scope("", builder.graph.scope),
        nullcontext() if values else without_values(),
    ):
        builder.network(document.main, (), None)
    return builder.graph


class Builder:
    """Builds the networks of a document."""

    def __init__(
        self,
        document: Document,
        batch: int = 1,
        test: bool = False,
        columns: Mapping[str, Shape] | None = None,
        scope: OrderedDict[str, Any] | None = None,
    ) -> None:
        self.document, self.batch, self.test = document, batch, test
        self.columns: Mapping[str, Shape] = columns or {}
        self.graph = Graph() if scope is None else Graph(scope=scope)
        self.seen: set[Node] = set()
        self.repairs = 20  # how many nodes a repair is looked for

    def network(
        self, net: Net, path: tuple[str, ...], given: list[Placed | None] | None
    ) -> list[Placed]:
        """Place the nodes of a network; returns them in their order.

        Args:
            given: Of a unit: what its inputs are; None for one that nothing is connected to.
        """
        order, stuck = in_order(net)
        into = net.into()
        placed = {
            key: Placed(path, net, net.nodes[key]) for key in (*order, *stuck)
        }  # in this order
        for key, p in placed.items():
            self.graph.placed[*path, key] = p
        self._check_names(net, placed)
        inputs = iter(given or ())
        for key in order:
            p = placed[key]
            if p.node.type == "Input" and given is not None:
                source = next(inputs, None)
                if source is not None:
                    p.outputs, p.sampled = source.outputs, source.sampled
                    continue
            self._place(p, into[key], placed)
        for key in stuck:
            self._in_cycle(placed[key], into[key], placed, set(stuck))
        return list(placed.values())

    def _check_names(self, net: Net, placed: Mapping[str, Placed]) -> None:
        first: dict[str, str] = {}
        for key, node in net.nodes.items():
            if first.setdefault(node.name, key) != key:
                new = net.unused_name(node.name)
                edit = {"op": "rename", "network": net.name, "node": key, "value": new}
                self._report(
                    placed[key],
                    "name",
                    f"another node has the name {node.name!r} too",
                    fix={"label": f"Call it {new}", "edits": [edit]},
                )

    def _report(self, p: Placed, code: str, message: str, **more: Any) -> None:
        p.problems.append(Problem(code, message, p.net.name, p.node.id, **more))

    def _set(self, p: Placed, changes: Mapping[str, Any], label: str) -> dict[str, Any]:
        return set_property(p.net.name, p.node.id, changes, label)

    def _in_cycle(
        self, p: Placed, edges: list[Edge], placed: Mapping[str, Placed], stuck: set[str]
    ) -> None:
        if not p.net.reaches(p.node.id, p.node.id):
            self._report(p, "upstream", "an input of it is part of a cycle")
            return
        edge = next(e for e in edges if p.net.reaches(p.node.id, e.source))
        source = placed[edge.source].node.name
        edit = {"op": "delete_edge", "network": p.net.name, "edge": edge.id}
        self._report(
            p,
            "cycle",
            f"its input {edge.name!r} depends on its own output, by way of {source!r}",
            input=edge.name,
            fix={"label": f"Disconnect {source}", "edits": [edit]},
        )

    def _place(self, p: Placed, edges: list[Edge], placed: Mapping[str, Placed]) -> None:
        node, layer = p.node, layers().get(p.node.type)
        if layer is None:
            if node.type == "Unknown":
                what = f"nnl has no function {node.properties.get('function')!r}"
            else:
                what = f"there is no layer {node.type!r}{did_you_mean(node.type, layers())}"
            edit = {"op": "delete_node", "network": p.net.name, "node": node.id}
            fix = {"label": f"Delete {node.name}", "edits": [edit]}
            return self._report(p, "unknown_layer", what, fix=fix)
        if node.type == "Unit":
            return self._unit(p, edges, placed)
        found = self._inputs(p, layer, edges, placed)
        if found is None:
            return None
        properties = self._properties(p, layer)
        if properties is None:
            return None
        for edge in edges:
            p.sampled = p.sampled or placed[edge.source].sampled
        try:
            with using(origin=node.name):
                if node.type == "Input":
                    y: Any = self._input(p, properties.get("shape"))
                elif node.type == "Parameter":
                    y = self._parameter(node.name, properties)
                elif node.type == "Output" or (self.test and _TRAINING_ONLY.match(node.type)):
                    y = found[layer.inputs[0].name]
                else:
                    y = self._call(layer, node, found, properties)
        except REFUSALS as error:
            return self._refused(p, layer, found, properties, error)
        if y is None:
            return None
        p.outputs = list(y) if isinstance(y, (tuple, list)) else [y]
        p.made = self._new(p.outputs)
        return None

    def _new(self, outputs: list[Variable]) -> list[Node]:
        """The functions below these that no other node has called."""
        found, stack = [], [v.edge.node for v in outputs]
        while stack:
            n = stack.pop()
            if n is not None and n not in self.seen:
                self.seen.add(n)
                found.append(n)
                stack += [v.node for v in n.inputs if v is not None]
        return found[::-1]

    # ---- inputs ----

    def _inputs(
        self, p: Placed, layer: Layer, edges: list[Edge], placed: Mapping[str, Placed]
    ) -> dict[str, Any] | None:
        """Variables by the names of inputs, a list for a variadic one; None if some lack."""
        ports = {port.name: port for port in layer.inputs}
        found: dict[str, Any] = {}
        whole, upstream = True, False
        for edge in edges:
            v, problem = self._source(p, edge, placed)
            if edge.name not in ports:
                problem = (
                    f"it has no input {edge.name!r}{did_you_mean(edge.name, ports)}"
                    if ports
                    else "it has no inputs"
                )
            elif edge.name in found and not ports[edge.name].variadic:
                problem = f"its input {edge.name!r} is connected twice"
            if problem:
                edit = {"op": "delete_edge", "network": p.net.name, "edge": edge.id}
                fix = {"label": "Disconnect it", "edits": [edit]}
                self._report(p, "input", problem, input=edge.name, fix=fix)
                whole = False
            elif v is None:
                upstream = True
            if ports.get(edge.name) and ports[edge.name].variadic:
                found.setdefault(edge.name, []).append(v)
            else:
                found.setdefault(edge.name, v)
        for port in layer.inputs:
            if port.name not in found and not port.optional:
                fix = self._connection(p, port.name, placed)
                what = f"its input {port.name!r} is not connected"
                self._report(p, "missing_input", what, input=port.name, fix=fix)
                whole = False
        if whole and upstream:
            self._report(p, "upstream", "an input of it has an error")
        return found if whole and not upstream else None

    def _source(
        self, p: Placed, edge: Edge, placed: Mapping[str, Placed]
    ) -> tuple[Variable | None, str]:
        source = placed[edge.source]
        if not source.outputs:
            return None, ""
        if edge.out >= len(source.outputs):
            n = len(source.outputs)
            return None, f"{source.node.name!r} has {n} outputs, not one of number {edge.out}"
        return source.outputs[edge.out], ""

    def _connection(self, p: Placed, name: str, placed: Mapping[str, Placed]) -> Any:
        """What connects an input: the only free end before it, a new Input for labels, or None."""
        net = p.net
        if name in ("target", "label", "y") or (name, p.node.type) == ("x1", "F.squared_error"):
            new = Net(net.name, dict(net.nodes)).add("Input", net.unused_name("y"), {"shape": [1]})
            new.x, new.y = p.node.x, p.node.y - ROW
            edge = Edge(f"{new.id}-{p.node.id}", new.id, 0, p.node.id, name)
            return {
                "label": "Add an Input for the labels",
                "edits": [
                    {"op": "add_node", "network": net.name, "value": new.to_json()},
                    {"op": "add_edge", "network": net.name, "value": edge.to_json()},
                ],
            }
        read = {e.source for e in net.edges}
        free = [
            q.node
            for q in placed.values()
            if q.node.id not in read
            and q is not p
            and q.node.type != "Output"
            and not net.reaches(p.node.id, q.node.id)
        ]
        if len(free) != 1:
            return None
        edge = Edge(f"{free[0].id}-{p.node.id}-{name}", free[0].id, 0, p.node.id, name)
        edit = {"op": "add_edge", "network": net.name, "value": edge.to_json()}
        return {"label": f"Connect {free[0].name}", "edits": [edit]}

    # ---- properties ----

    def _properties(self, p: Placed, layer: Layer) -> dict[str, Any] | None:
        """The arguments of the call; None if one is missing, unknown or of another kind."""
        given = p.node.properties
        whole = True
        for name, value in given.items():
            known = layer.by_name.get(name)
            if known is None:
                hint = did_you_mean(name, layer.by_name)
                self._report(p, "property", f"it has no property {name!r}{hint}", property=name)
            elif expected := wanted(known, value):
                new = layer.initial().get(name) if known.required else known.default
                new = list(new) if isinstance(new, tuple) else new
                fix = self._set(p, {name: new}, f"Set {name} to {said(new)}")
                what = f"{name} is {said(value)}, wanted {expected}"
                self._report(p, "property", what, property=name, fix=fix)
            else:
                continue
            whole = False
        for known in layer.properties:
            if known.required and given.get(known.name) is None:
                new = layer.initial()[known.name]
                fix = None
                if known.kind != "network":
                    fix = self._set(p, {known.name: new}, f"Set {known.name} to {said(new)}")
                what = f"{known.name} is not set"
                self._report(p, "missing_property", what, property=known.name, fix=fix)
                whole = False
        return dict(given) if whole else None

    # ---- calls ----

    def _input(self, p: Placed, shape: list[int] | None) -> Variable | None:
        found = self.columns.get(p.node.name)
        if shape is None:
            if found is None:
                fix = self._set(p, {"shape": [1, 28, 28]}, "Set shape to [1, 28, 28]")
                what = "its shape is not set, and no data set gives it"
                self._report(p, "missing_property", what, property="shape", fix=fix)
                return None
            shape = list(found)
        elif found is not None and not feeds(found, shape):
            column = "a single number" if found == (1,) else " x ".join(map(str, found))
            fix = self._set(p, {"shape": None}, "Take the shape of the data set")
            what = f"its shape is {said(shape)}, the data set has {column} in the column"
            self._report(p, "shape", f"{what} {p.node.name!r}", property="shape", fix=fix)
        x = Variable((self.batch, *shape))
        p.sampled = True
        if not p.path:
            self.graph.inputs[p.node.name] = x
        return x

    def _parameter(self, name: str, properties: Mapping[str, Any]) -> Variable:
        initial = _INITIAL[properties.get("initial") or "zeros"]
        shape = tuple(properties["shape"])
        value = np.full(shape, initial, np.float32) if isinstance(initial, float) else initial
        return get_parameter_or_create(name, shape, value, properties.get("trained", True))

    def _call(
        self, layer: Layer, node: DocumentNode, inputs: dict[str, Any], given: dict[str, Any]
    ) -> Any:
        properties = {k: v for k, v in given.items() if v is not None or k in layer.by_name}
        if self.test:
            properties.update((k, False) for k in ("batch_stat", "training") if k in layer.by_name)
        if layer.type.startswith("PF."):
            properties["name"] = properties.pop("scope", None) or node.name
        call: Any = layer.call
        if any(port.variadic for port in layer.inputs):
            args = [inputs.get(p.name) for p in layer.inputs if not p.variadic]
            return call(*args, *inputs.get(layer.inputs[-1].name, ()), **properties)
        return call(**inputs, **properties)

    def _refused(
        self,
        p: Placed,
        layer: Layer,
        found: dict[str, Any],
        properties: dict[str, Any],
        error: BaseException,
    ) -> None:
        text = str(error) or type(error).__name__
        text = re.sub(r"^(\w+) in [^:()]*(?: \([^)]*\))?: ", r"\1: ", text)
        named = [n for n in layer.by_name if re.search(rf"\b{re.escape(n)}\b", text)]
        inputs = [n.name for n in layer.inputs if re.search(rf"\b{re.escape(n.name)} ", text)]

        def accepted(changed: Mapping[str, Any]) -> bool:
            try:
                with nn.parameter_scope("", OrderedDict()), without_values():
                    self._call(layer, p.node, found, dict(changed))
            except REFUSALS:
                return False
            return True

        change = None
        if layer.call is not None and self.repairs:
            self.repairs -= 1
            given = [v for v in found.values() if isinstance(v, Variable)]
            change = repair(accepted, layer, [v.shape for v in given], properties, named)
        fix = None
        if change:
            new = [f"{name} {'automatic' if v is None else said(v)}" for name, v in change.items()]
            fix = self._set(p, change, f"Set {', '.join(new)}")
        first = next(iter(change), None) if change else None
        self._report(
            p,
            "type" if isinstance(error, TypeError) else "shape",
            text,
            property=first or next((n for n in named if n in properties), None),
            input=inputs[0] if inputs else None,
            fix=fix,
        )

    # ---- units ----

    def _unit(self, p: Placed, edges: list[Edge], placed: Mapping[str, Placed]) -> None:
        name = p.node.properties.get("network")
        net = self.document.networks.get(name) if isinstance(name, str) else None
        if net is None or net is self.document.main:
            others = [n for n in self.document.networks if n != self.document.main.name]
            hint = f", there is {', '.join(others)}" if others else ", this project has no units"
            what = f"network is {said(name)}, wanted the name of a unit{hint}"
            return self._report(p, "unit", what, property="network")
        inside = [self.graph.placed[p.path[:i]].node for i in range(1, len(p.path) + 1)]
        if net.name in [n.properties["network"] for n in inside] or len(p.path) >= MAX_DEPTH:
            return self._report(
                p, "unit", f"the unit {net.name!r} holds itself", property="network"
            )
        if len(self.graph.placed) + len(net.nodes) > MAX_NODES:  # units in units multiply
            what = f"with the unit {net.name!r} there are more than {MAX_NODES} nodes"
            return self._report(p, "unit", what, property="network")
        ports = [n for n in net.nodes.values() if n.type == "Input"]
        layer = Layer("Unit", "", "", tuple(Port(n.name) for n in ports))
        found = self._inputs(p, layer, edges, placed)
        if found is None:
            return None
        given: list[Placed | None] = []
        for n in (net.nodes[k] for k in in_order(net)[0]):
            if n.type == "Input":
                edge = next(e for e in edges if e.name == n.name)
                source = Placed(p.path, p.net, p.node, [found[n.name]])
                source.sampled = placed[edge.source].sampled
                p.sampled = p.sampled or source.sampled
                given.append(source)
        with nn.parameter_scope(p.node.name):
            content = self.network(net, (*p.path, p.node.id), given)
        wrong = [q for q in content if any(e.severity == "error" for e in q.problems)]
        if wrong:
            names = ", ".join(q.node.name for q in wrong[:3])
            return self._report(p, "unit", f"the unit {net.name!r} has errors: {names}")
        ends = unit_ends(net)
        by_id = {q.node.id: q for q in content}
        p.outputs = [v for key in ends for v in by_id[key].outputs]
        return None


def unit_ends(net: Net) -> list[str]:
    """The nodes that give the outputs of a unit: its Output nodes, else all ends."""
    outputs = [n.id for n in net.nodes.values() if n.type == "Output"]
    read = {e.source for e in net.edges}
    return outputs or [k for k in net.nodes if k not in read and net.nodes[k].type != "Input"]
