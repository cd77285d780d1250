# SPDX-License-Identifier: Apache-2.0
"""A document: networks of nodes and edges with a configuration, as plain data that JSON holds."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nnl.graph.printing.layout import placed

FORMAT = 1
MAX_NODES = 20_000
MAX_TEXT = 400  # characters of an id, a name or a type
LARGEST = 2**63  # of numbers
MAX_DEPTH = 16  # of units in units, and of lists in configurations

DEFAULT_CONFIG: dict[str, Any] = {
    "batch_size": 64,
    "max_epoch": 10,
    "seed": 0,
    "context": "cpu",
    "dataset": {"train": None, "valid": None, "shuffle": True},
    "optimizer": {
        "type": "Adam",
        "properties": {},
        "weight_decay": 0.0,
        "schedule": {"type": "none"},
    },
    "save_best": True,
    "early_stop": {"epochs": 0},
}


class Invalid(ValueError):
    """A document is not what one is; `where` says the place in it."""

    def __init__(self, message: str, where: str = "") -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.where = where


@dataclass(slots=True)
class Node:
    """A layer: `type` is an entry of the palette, `name` its parameter scope."""

    id: str
    type: str
    name: str
    properties: dict[str, Any] = field(default_factory=dict)
    x: float = 0.0
    y: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": self.type,
            "name": self.name,
            "x": self.x,
            "y": self.y,
            "properties": self.properties,
        }


@dataclass(slots=True)
class Edge:
    """Output `out` of the node `source` is the input `name` of the node `target`."""

    id: str
    source: str
    out: int
    target: str
    name: str

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "source": self.source,
            "out": self.out,
            "target": self.target,
            "in": self.name,
        }


@dataclass(slots=True)
class Net:
    """A network: nodes by id, and edges in their order."""

    name: str
    nodes: dict[str, Node] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)

    def add(self, kind: str, name: str, properties: Mapping[str, Any] | None = None) -> Node:
        """A new node with an id of its own."""
        number = len(self.nodes) + 1
        while (key := f"n{number}") in self.nodes:
            number += 1
        node = self.nodes[key] = Node(key, kind, name, dict(properties or {}))
        return node

    def connect(self, source: Node, target: Node, name: str, out: int = 0) -> Edge:
        """A new edge with an id of its own."""
        taken = {e.id for e in self.edges}
        number = len(self.edges) + 1
        while (key := f"e{number}") in taken:
            number += 1
        self.edges.append(edge := Edge(key, source.id, out, target.id, name))
        return edge

    def into(self) -> dict[str, list[Edge]]:
        """The edges into each node."""
        found: dict[str, list[Edge]] = {key: [] for key in self.nodes}
        for e in self.edges:
            found[e.target].append(e)
        return found

    def out_of(self) -> dict[str, list[Edge]]:
        """The edges out of each node."""
        found: dict[str, list[Edge]] = {key: [] for key in self.nodes}
        for e in self.edges:
            found[e.source].append(e)
        return found

    def reaches(self, start: str, goal: str) -> bool:
        """Whether edges lead from one node to another, or round to itself."""
        users = self.out_of()
        seen: set[str] = set()
        stack = [e.target for e in users[start]]
        while stack:
            key = stack.pop()
            if key == goal:
                return True
            if key not in seen:
                seen.add(key)
                stack += [e.target for e in users[key]]
        return False

    def unused_name(self, wanted: str) -> str:
        """The name, with a number behind it if a node has it."""
        names = {n.name for n in self.nodes.values()}
        number, name = 1, wanted
        while name in names:
            number += 1
            name = f"{wanted}_{number}"
        return name

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "nodes": [n.to_json() for n in self.nodes.values()],
            "edges": [e.to_json() for e in self.edges],
        }


@dataclass(slots=True)
class Document:
    """Networks by name, the first one is the main one; and the configuration of a training.

    Attributes:
        weights_from: What parameters begin with where they fit: {"trial": id}, of an imported file
            {"blob": id}, or None for first values.
    """

    networks: dict[str, Net] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=lambda: merged(DEFAULT_CONFIG, {}))
    weights_from: dict[str, str] | None = None

    @property
    def main(self) -> Net:
        """The network that is trained."""
        return next(iter(self.networks.values()))

    def to_json(self) -> dict[str, Any]:
        networks = [n.to_json() for n in self.networks.values()]
        found = {"format": FORMAT, "networks": networks, "config": self.config}
        return found if self.weights_from is None else {**found, "weights_from": self.weights_from}

    def key(self) -> str:
        """A name of the content: equal documents have equal ones."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def copy(self) -> Document:
        return parse(json.loads(json.dumps(self.to_json())))


def parse(data: Any) -> Document:
    """A document from what JSON gave.

    Raises:
        Invalid: It is no document; the text says which part and what is wanted.
    """
    _want(data, dict, "document")
    if data.get("format", FORMAT) != FORMAT:
        raise Invalid(f"its format is {data['format']!r}, this version knows {FORMAT}", "document")
    networks: dict[str, Net] = {}
    for i, entry in enumerate(_want(data.get("networks"), list, "networks")):
        net = _network(entry, f"networks[{i}]")
        if net.name in networks:
            raise Invalid(f"two networks have the name {net.name!r}", "networks")
        networks[net.name] = net
    if not networks:
        raise Invalid("there is no network, wanted at least one", "networks")
    if sum(len(n.nodes) for n in networks.values()) > MAX_NODES:
        raise Invalid(f"there are more than {MAX_NODES} nodes", "networks")
    given = data.get("config")
    _plain(given, "config")
    given = {} if given is None else given
    _shaped(given, DEFAULT_CONFIG, "config")
    weights = data.get("weights_from")
    if weights is not None:
        for key, value in _want(weights, dict, "weights_from").items():
            _text(value, f"weights_from.{_text(key, 'weights_from')}")
    return Document(networks, merged(DEFAULT_CONFIG, given), weights or None)


def _shaped(given: Any, usual: Mapping[str, Any], where: str) -> None:
    """Raise unless there are objects where the usual configuration has some."""
    _want(given, dict, where)
    for key, value in usual.items():
        if isinstance(value, dict) and key in given:
            _shaped(given[key], value, f"{where}.{key}")


def _network(entry: Any, where: str) -> Net:
    _want(entry, dict, where)
    net = Net(_text(entry.get("name"), f"{where}.name"))
    for i, n in enumerate(_want(entry.get("nodes", []), list, f"{where}.nodes")):
        at = f"{where}.nodes[{i}]"
        _want(n, dict, at)
        properties = _want(n.get("properties", {}), dict, f"{at}.properties")
        _plain(properties, f"{at}.properties")
        node = Node(
            _text(n.get("id"), f"{at}.id"),
            _text(n.get("type"), f"{at}.type"),
            _text(n.get("name"), f"{at}.name"),
            dict(properties),
            _number(n.get("x", 0), f"{at}.x"),
            _number(n.get("y", 0), f"{at}.y"),
        )
        if net.nodes.setdefault(node.id, node) is not node:
            raise Invalid(f"two nodes have the id {node.id!r}", at)
    seen: set[str] = set()
    for i, e in enumerate(_want(entry.get("edges", []), list, f"{where}.edges")):
        at = f"{where}.edges[{i}]"
        _want(e, dict, at)
        ends = [_text(e.get(k), f"{at}.{k}") for k in ("id", "source", "target", "in")]
        out = e.get("out", 0)
        if type(out) is not int or out < 0:
            raise Invalid(f"it is {out!r}, wanted a number of an output", f"{at}.out")
        for end in ends[1:3]:
            if end not in net.nodes:
                raise Invalid(f"there is no node {end!r}", at)
        if ends[0] in seen:
            raise Invalid(f"two edges have the id {ends[0]!r}", at)
        seen.add(ends[0])
        net.edges.append(Edge(ends[0], ends[1], out, ends[2], ends[3]))
    return net


def _want(value: Any, kind: type, where: str) -> Any:
    if not isinstance(value, kind):
        names = {dict: "an object", list: "a list"}
        raise Invalid(f"it is {_shown(value)}, wanted {names[kind]}", where)
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT:
        wanted = f"a text of 1 to {MAX_TEXT} characters"
        raise Invalid(f"it is {_shown(value)}, wanted {wanted}", where)
    return value


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < LARGEST:
        raise Invalid(f"it is {_shown(value)}, wanted a number", where)
    return value


def _plain(value: Any, where: str, depth: int = 0) -> None:
    """Raise unless a value is one that JSON holds, nested not too deep."""
    if depth > MAX_DEPTH:
        raise Invalid(f"it is nested more than {MAX_DEPTH} deep", where)
    if isinstance(value, dict):
        for key, entry in value.items():
            _text(key, where)
            _plain(entry, f"{where}.{key}", depth + 1)
    elif isinstance(value, (list, tuple)):
        for i, entry in enumerate(value):
            _plain(entry, f"{where}[{i}]", depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise Invalid(f"it is {value}, wanted a finite number", where)
    elif isinstance(value, int) and abs(value) >= LARGEST:
        raise Invalid("it is too large a number", where)
    elif value is not None and not isinstance(value, (str, int, float)):
        raise Invalid(f"it is {_shown(value)}, wanted plain data", where)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else type(value).__name__


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with changes: nested ones are merged, everything else replaced.

    Of what has a "type", as an optimizer, the properties of another type are not kept.
    """
    other = "type" in changes and changes["type"] != base.get("type")
    found = {} if other else {k: _copied(v) for k, v in base.items()}
    if other and "weight_decay" in base:
        found = {k: _copied(base[k]) for k in ("weight_decay", "schedule") if k in base}
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(found.get(key), dict):
            found[key] = merged(found[key], value)
        else:
            found[key] = _copied(value)
    return found


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _copied(v) for k, v in value.items()}
    return [_copied(v) for v in value] if isinstance(value, (list, tuple)) else value


def in_order(net: Net) -> tuple[list[str], list[str]]:
    """(ids of nodes, every one after those it reads, else in the document's order; those that
    are in a cycle or after one)."""
    into, waiting = net.into(), {}
    users: dict[str, list[str]] = {key: [] for key in net.nodes}
    for key, edges in into.items():
        before = {e.source for e in edges}
        waiting[key] = len(before)
        for source in before:
            users[source].append(key)
    ready = [key for key in net.nodes if not waiting[key]]
    order: list[str] = []
    for key in ready:  # grows while it is read
        order.append(key)
        for user in users[key]:
            waiting[user] -= 1
            if not waiting[user]:
                ready.append(user)
    done = set(order)
    return order, [key for key in net.nodes if key not in done]


def walk(document: Document) -> Iterator[tuple[Net, Node]]:
    """All nodes of all networks."""
    for net in document.networks.values():
        for node in net.nodes.values():
            yield net, node


# ---- where nodes stand: rows from top to bottom, each node below those that it reads ----

ROW, COLUMN = 80.0, 220.0


def arrange(net: Net) -> dict[str, tuple[float, float]]:
    """A place for each node."""
    order, stuck = in_order(net)
    into = net.into()
    above = {key: [e.source for e in into[key]] for key in net.nodes}
    found = placed((*order, *stuck), above)
    return {key: (found[key][0] * COLUMN, found[key][1] * ROW) for key in net.nodes}


def place(net: Net) -> None:
    """Let the nodes stand there."""
    for key, (x, y) in arrange(net).items():
        net.nodes[key].x, net.nodes[key].y = x, y
