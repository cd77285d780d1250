# SPDX-License-Identifier: Apache-2.0
"""What differs between two documents. Nodes are matched by name, wherever they stand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nnl.console.documents.document import Document, Edge, Net, Node


def diff(a: Document, b: Document) -> dict[str, Any]:
    """What was added, removed and changed from a to b."""
    added: list[Any] = []
    removed: list[Any] = []
    changed: list[Any] = []
    edges: dict[str, list[Any]] = {"added": [], "removed": []}
    names = _paired(a, b)
    for net_a, net_b in names:
        old = {n.name: n for n in net_a.nodes.values()} if net_a else {}
        new = {n.name: n for n in net_b.nodes.values()} if net_b else {}
        network = (net_b or net_a).name  # type: ignore[union-attr]
        added += [{"network": network, "node": n.to_json()} for k, n in new.items() if k not in old]
        removed += [
            {"network": network, "node": n.to_json()} for k, n in old.items() if k not in new
        ]
        for name in old.keys() & new.keys():
            found = _node(old[name], new[name])
            if found:
                changed.append({"network": network, "name": name, **found})
        before, after = _edges(net_a), _edges(net_b)
        edges["added"] += [{"network": network, **e} for k, e in after.items() if k not in before]
        edges["removed"] += [{"network": network, **e} for k, e in before.items() if k not in after]
    changed.sort(key=lambda c: (c["network"], c["name"]))
    nodes = {"added": added, "removed": removed, "changed": changed}
    return {"nodes": nodes, "edges": edges, "config": differing([a.config, b.config])}


def _paired(a: Document, b: Document) -> list[tuple[Net | None, Net | None]]:
    """Networks of one name; the main ones whatever they are called."""
    rest_a, rest_b = dict(a.networks), dict(b.networks)
    rest_a.pop(a.main.name)
    rest_b.pop(b.main.name)
    names = dict.fromkeys((*rest_a, *rest_b))
    return [(a.main, b.main), *((rest_a.get(n), rest_b.get(n)) for n in names)]


def _node(old: Node, new: Node) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if old.type != new.type:
        found["type"] = [old.type, new.type]
    properties = differing([old.properties, new.properties])
    if properties:
        found["properties"] = properties
    return {"type": None, "properties": {}, **found} if found else {}


def _edges(net: Net | None) -> dict[Any, dict[str, Any]]:
    if net is None:
        return {}

    def entry(e: Edge) -> dict[str, Any]:
        source, target = net.nodes[e.source].name, net.nodes[e.target].name
        return {"source": source, "out": e.out, "target": target, "in": e.name}

    found = [entry(e) for e in net.edges]
    return {tuple(e.values()): e for e in found}


def differing(settings: list[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Settings that are not the same everywhere, by their dotted names."""
    flat = [_flat(s) for s in settings]
    names = dict.fromkeys(name for f in flat for name in f)
    found = {name: [f.get(name) for f in flat] for name in names}
    return {name: values for name, values in found.items() if any(v != values[0] for v in values)}


def _flat(settings: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in settings.items():
        name = f"{path}.{key}" if path else key
        if isinstance(value, Mapping):
            found.update(_flat(value, name))
        else:
            found[name] = value
    return found
