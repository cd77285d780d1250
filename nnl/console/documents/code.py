# SPDX-License-Identifier: Apache-2.0
"""A document as Python code that makes the same network: a function for each network."""

from __future__ import annotations

import keyword
from collections.abc import Mapping
from typing import Any

from nnl.console.documents.analysis import ends
from nnl.console.documents.building import _TRAINING_ONLY, build, unit_ends
from nnl.console.documents.document import Document, Net, Node, in_order
from nnl.console.documents.training import solvers
from nnl.console.palette.palette import layers

Shape = tuple[int, ...]
_TAKEN = {"nn", "F", "PF", "S", "np", "test", "initial", "get_parameter_or_create"}


def code(
    document: Document, columns: Mapping[str, Shape] | None = None
) -> tuple[str, dict[str, dict[str, int]]]:
    """The text, and the line of each node by networks, counted from 1."""
    writer = _Writer(document, columns or {})
    return writer.text()


class _Writer:
    def __init__(self, document: Document, columns: Mapping[str, Shape]) -> None:
        self.document, self.columns = document, columns
        self.lines: list[str] = []
        self.places: dict[str, dict[str, int]] = {}
        self.functions = _names(document.networks, _TAKEN)

    def text(self) -> tuple[str, dict[str, dict[str, int]]]:
        main = self.document.main
        used = _used(self.document)
        kinds = {n.type for net in used for n in net.nodes.values()}
        self.lines += ["import nnl as nn"]
        if any(k.startswith("F.") for k in kinds):
            self.lines += ["import nnl.functions as F"]
        if any(k.startswith("PF.") for k in kinds):
            self.lines += ["import nnl.parametric_functions as PF"]
        if "Parameter" in kinds:
            self.lines += [
                "from nnl.initializer import ConstantInitializer, NormalInitializer, "
                "UniformInitializer"
            ]
        if self.document.config["optimizer"]["type"] in solvers():
            self.lines += ["import nnl.solvers as S"]
        for net in reversed(used):
            self._function(net)
        self._use(main)
        return "\n".join(self.lines) + "\n", self.places

    def _function(self, net: Net) -> None:
        order, stuck = in_order(net)
        inputs = [net.nodes[k] for k in order if net.nodes[k].type == "Input"]
        rest = [net.nodes[k] for k in (*order, *stuck) if net.nodes[k].type != "Input"]
        names = _names((k for n in (*inputs, *rest) for k in [n.id]), _TAKEN, net)
        self.places[net.name] = {}
        arguments = ", ".join([*(names[n.id] for n in inputs), "test=False"])
        self.lines += ["", "", f"def {self.functions[net.name]}({arguments}):"]
        for n in inputs:
            self.places[net.name][n.id] = len(self.lines)
        into = net.into()
        for n in rest:
            edges: dict[str, list[str]] = {}
            for e in into[n.id]:
                source = names[e.source]
                count = self._outputs(net, e.source)
                edges.setdefault(e.name, []).append(f"{source}[{e.out}]" if count else source)
            before = len(self.lines)
            self._call(n, names[n.id], edges)
            self.places[net.name][n.id] = before + 1
        self.lines += [f"    return {self._returned(net, names)}"]

    def _outputs(self, net: Net, key: str) -> bool:
        """Whether a node gives a tuple."""
        node = net.nodes[key]
        if node.type == "Unit":
            unit = self.document.networks.get(str(node.properties.get("network")))
            return unit is not None and len(unit_ends(unit)) > 1
        several = any(e.out for e in net.edges if e.source == key)
        layer = layers().get(node.type)
        return several or (layer is not None and any(p.variadic for p in layer.outputs))

    def _call(self, node: Node, name: str, edges: Mapping[str, list[str]]) -> None:
        layer = layers().get(node.type)
        given = [v for vs in edges.values() for v in vs]
        if node.type == "Output":
            self.lines += [f"    {name} = {given[0] if given else 'None'}"]
        elif node.type == "Unit":
            unit = self.document.networks.get(str(node.properties.get("network")))
            ports = [n.name for n in unit.nodes.values() if n.type == "Input"] if unit else []
            called = self.functions.get(str(node.properties.get("network")), "None")
            arguments = ", ".join([*(edges.get(p, ["None"])[0] for p in ports), "test=test"])
            self.lines += [
                f"    with nn.parameter_scope({node.name!r}):",
                f"        {name} = {called}({arguments})",
            ]
        elif node.type == "Parameter":
            shape = tuple(node.properties.get("shape") or ())
            initial = {
                "ones": "ConstantInitializer(1)",
                "normal": "NormalInitializer(0.01)",
                "uniform": "UniformInitializer((-0.1, 0.1))",
            }.get(str(node.properties.get("initial")), "ConstantInitializer(0)")
            trained = "" if node.properties.get("trained", True) else ", need_grad=False"
            self.lines += [
                f"    {name} = nn.parameter.get_parameter_or_create("
                f"{node.name!r}, {shape}, {initial}{trained})"
            ]
        elif layer is None:
            what = node.properties.get("function") or node.type
            self.lines += [f"    {name} = None  # {what!r} is unknown to nnl"]
        else:
            self.lines += [f"    {name} = {self._expression(node, edges)}"]

    def _expression(self, node: Node, edges: Mapping[str, list[str]]) -> str:
        layer = layers()[node.type]
        arguments: list[str] = []
        by_name = False
        for port in layer.inputs:
            values = edges.get(port.name, [])
            if port.variadic:
                arguments += values
            elif not values:
                by_name = True
                arguments += [] if port.optional else [f"{port.name}=None"]
            else:
                arguments += [f"{port.name}={values[0]}" if by_name else values[0]]
        properties = dict(node.properties)
        scope = properties.pop("scope", None) or node.name
        for known in layer.properties:
            value = properties.get(known.name)
            if known.name in ("batch_stat", "training") and value in (None, True):
                arguments += [f"{known.name}=not test"]
            elif value is not None and value != known.default and known.name != "scope":
                value = tuple(value) if isinstance(value, list) else value
                arguments += [f"{known.name}={value!r}"]
        if node.type.startswith("PF."):
            arguments += [f"name={scope!r}"]
        called = f"{node.type}({', '.join(arguments)})"
        if _TRAINING_ONLY.match(node.type) and arguments:
            return f"{arguments[0]} if test else {called}"
        return called

    def _returned(self, net: Net, names: Mapping[str, str]) -> str:
        if net is not self.document.main:
            keys = [names[k] for k in unit_ends(net)]
            return ", ".join(keys) or "None"
        graph = build(self.document, columns=self.columns)
        losses, outputs = ends(self.document, graph)
        keys = list(dict.fromkeys((*outputs, *losses)))
        entries = ", ".join(f"{net.nodes[k].name!r}: {names[k]}" for k in keys)
        return f"{{{entries}}}"

    def _use(self, net: Net) -> None:
        config = self.document.config
        batch = config["batch_size"]
        order, _ = in_order(net)
        inputs = [net.nodes[k] for k in order if net.nodes[k].type == "Input"]
        names = _names((n.id for n in inputs), _TAKEN, net)
        self.lines += ["", ""]
        for n in inputs:
            shape = n.properties.get("shape") or self.columns.get(n.name) or ()
            self.lines += [f"{names[n.id]} = nn.Variable({(batch, *shape)})"]
        arguments = ", ".join(names[n.id] for n in inputs)
        seed = config.get("seed")
        if isinstance(seed, int) and 0 <= seed < 2**32:  # the first weights of a training here
            self.lines += [f"nn.seed({seed})"]
        self.lines += [f"results = {self.functions[net.name]}({arguments})"]
        optimizer = config["optimizer"]
        kind, properties = optimizer["type"], optimizer["properties"].items()
        if kind in solvers():  # what stands here is run: nothing but names and values
            given = ", ".join(f"{k}={v!r}" for k, v in properties if k.isidentifier())
            self.lines += [
                f"solver = S.{kind}({given})",
                "solver.set_parameters(nn.get_parameters())",
            ]


def _used(document: Document) -> list[Net]:
    """The main network and the units that it uses, each before those that it holds."""
    found: dict[str, Net] = {}

    def visit(net: Net, inside: tuple[str, ...]) -> None:
        found.pop(net.name, None)  # again after the one that holds it
        found[net.name] = net
        for n in net.nodes.values():
            unit = document.networks.get(str(n.properties.get("network")))
            if n.type == "Unit" and unit is not None and unit.name not in (*inside, net.name):
                visit(unit, (*inside, net.name))

    visit(document.main, ())
    return list(found.values())


def _names(keys: Any, taken: set[str], net: Net | None = None) -> dict[str, str]:
    """Python names for networks, or for the nodes of one."""
    found: dict[str, str] = {}
    used = set(taken)
    for key in keys:
        wanted = net.nodes[key].name if net is not None else key
        name = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in wanted)
        if not name or name[0].isdigit() or keyword.iskeyword(name):
            name = f"_{name}"
        number, unique = 1, name
        while unique in used:
            number += 1
            unique = f"{name}_{number}"
        used.add(unique)
        found[key] = unique
    return found
