# SPDX-License-Identifier: Apache-2.0
"""Edits of networks that a structure search tries: thirteen rules, and properties that are varied.

An edit is a rule with two numbers from 0 to 1, which choose the place and the option among those
that the network offers. So any three values make an edit, which is what samplers want.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nnl.console.documents.analysis import analyse
from nnl.console.documents.document import Document, Edge, Node, place
from nnl.console.palette.palette import layers

Shape = tuple[int, ...]
Done = tuple[str, str] | None  # the name of a node, and what was done to it
ACTIVATIONS = ("F.relu", "F.tanh", "F.sigmoid", "F.elu", "F.leaky_relu", "F.swish")
POOLINGS = ("F.max_pooling", "F.average_pooling", "F.sum_pooling")
BASIC = (
    "PF.affine",
    "PF.convolution",
    "PF.depthwise_convolution",
    "PF.deconvolution",
)
JOINS = ("F.add2", "F.mul2", "F.maximum2", "F.concatenate")
SEARCHED = ("outmaps", "n_outmaps", "kernel", "p")


@dataclass(frozen=True)
class Edit:
    """A rule, and where and how it is applied, from 0 to 1."""

    rule: str
    place: float = 0.0
    option: float = 0.0


class _Network:
    """A network that is edited, with the shapes of its nodes' outputs."""

    def __init__(self, document: Document, columns: Mapping[str, Shape] | None) -> None:
        self.document, self.net = document, document.main
        found = analyse(document, columns)
        nodes = found["networks"][self.net.name]["nodes"]
        self.shapes = {
            key: tuple(e["outputs"][0]["shape"]) if e["outputs"] else () for key, e in nodes.items()
        }
        self.losses = set(found["loss"])
        self.labels = {
            e.source
            for e in self.net.edges
            if e.target in self.losses
            and e.name != layers()[self.net.nodes[e.target].type].inputs[0].name
        }
        self.last = self._last()

    def _last(self) -> set[str]:
        """What decides the shape of the answer: the first layer with weights before each end."""
        into = self.net.into()
        read = {e.source for e in self.net.edges}
        stack = [k for k in self.net.nodes if k not in read or k in self.losses]
        found: set[str] = set()
        seen: set[str] = set()
        while stack:
            key = stack.pop()
            if key in seen or key in self.labels:
                continue
            seen.add(key)
            if self.net.nodes[key].type in BASIC:
                found.add(key)
            else:
                stack += [e.source for e in into[key]]
        return found

    def of_type(self, *types: str) -> list[Node]:
        return [n for n in self.net.nodes.values() if n.type in types]

    def inner_edges(self, *ranks: int) -> list[Edge]:
        """Edges into which a layer may be put: they carry data of these ranks, not the answer."""
        known = layers()
        found = []
        for e in self.net.edges:
            layer = known.get(self.net.nodes[e.target].type)
            takes_data = layer is None or layer.inputs[0].name == e.name or len(layer.inputs) == 1
            shape = self.shapes[e.source]
            if len(shape) in ranks and e.out == 0 and takes_data and e.target not in self.losses:
                if self.net.nodes[e.source].type != "Parameter" and e.source not in self.labels:
                    found.append(e)
        return found

    # ---- changes ----

    def remove(self, node: Node) -> None:
        """Take a node out; what read it reads what it read."""
        source = next((e for e in self.net.edges if e.target == node.id), None)
        kept = []
        for e in self.net.edges:
            if e.source == node.id and source is not None:
                e = Edge(e.id, source.source, source.out, e.target, e.name)
            if e.target != node.id and e.source != node.id:
                kept.append(e)
        self.net.edges = kept
        del self.net.nodes[node.id]

    def insert(self, e: Edge, kind: str, name: str, properties: dict[str, Any]) -> Node:
        """Put a node into an edge."""
        node = self.net.add(kind, self.net.unused_name(name), properties)
        source = self.net.nodes[e.source]
        at = self.net.edges.index(e)
        new = self.net.connect(source, node, layers()[kind].inputs[0].name, e.out)
        self.net.edges[at] = Edge(e.id, node.id, 0, e.target, e.name)
        assert new in self.net.edges
        return node

    def drop_unread(self, key: str) -> None:
        """Remove a node that nothing reads any more, and what was only there for it."""
        stack = [key]
        while stack:
            key = stack.pop()
            if key in self.net.nodes and not any(e.source == key for e in self.net.edges):
                if self.net.nodes[key].type == "Input":
                    continue
                stack += [e.source for e in self.net.edges if e.target == key]
                self.net.edges = [e for e in self.net.edges if e.target != key]
                del self.net.nodes[key]


def _pick(choices: list[Any], at: float) -> Any:
    return choices[min(int(at * len(choices)), len(choices) - 1)] if choices else None


def _removal(*types: str, inner: bool = False) -> Callable[[_Network, Edit], Done]:
    def apply(n: _Network, edit: Edit) -> Done:
        choices = [x for x in n.of_type(*types) if not inner or x.id not in n.last]
        node = _pick(choices, edit.place)
        if node is None:
            return None
        n.remove(node)
        return node.name, f"{node.name} removed"

    return apply


def _insertion(
    ranks: tuple[int, ...], options: Callable[[Shape], list[tuple[str, str, dict[str, Any]]]]
) -> Callable[[_Network, Edit], Done]:
    def apply(n: _Network, edit: Edit) -> Done:
        e = _pick([e for e in n.inner_edges(*ranks) if options(n.shapes[e.source])], edit.place)
        if e is None:
            return None
        kind, name, properties = _pick(options(n.shapes[e.source]), edit.option)
        node = n.insert(e, kind, name, properties)
        return node.name, f"{node.name} after {n.net.nodes[e.source].name}"

    return apply


def _convolutions(shape: Shape) -> list[tuple[str, str, dict[str, Any]]]:
    if min(shape[2:]) < 3:
        return []
    same = {"outmaps": shape[1], "kernel": [3, 3], "pad": [1, 1]}
    return [
        ("PF.convolution", "conv", same),
        ("PF.convolution", "conv", {**same, "outmaps": shape[1] * 2}),
        ("PF.convolution", "conv", {**same, "kernel": [1, 1], "pad": [0, 0]}),
        ("PF.depthwise_convolution", "conv", {"kernel": [3, 3], "pad": [1, 1]}),
    ]


def _affines(shape: Shape) -> list[tuple[str, str, dict[str, Any]]]:
    size = 1
    for s in shape[1:]:
        size *= s
    sizes = dict.fromkeys(min(max(size // d, 4), 1024) for d in (1, 2, 4))
    return [("PF.affine", "affine", {"n_outmaps": [s]}) for s in sizes]


def _poolings(shape: Shape) -> list[tuple[str, str, dict[str, Any]]]:
    if min(shape[2:]) < 2:
        return []
    return [(kind, "pool", {"kernel": [2, 2]}) for kind in POOLINGS[:2]]


def _remove_branch(n: _Network, edit: Edit) -> Done:
    into = n.net.into()
    node = _pick([x for x in n.of_type(*JOINS) if len(into[x.id]) > 1], edit.place)
    if node is None:
        return None
    edges = into[node.id]
    gone = _pick(edges, edit.option)
    n.net.edges.remove(gone)
    if len(edges) == 2:
        n.remove(node)
    n.drop_unread(gone.source)
    return node.name, f"a branch of {node.name} removed"


def _branch(n: _Network, edit: Edit) -> Done:
    """A detour around an edge whose result is added, so that the shape stays."""
    e = _pick([e for e in n.inner_edges(4) if min(n.shapes[e.source][2:]) >= 3], edit.place)
    if e is None:
        return None
    source = n.net.nodes[e.source]
    channels = n.shapes[e.source][1]
    join = n.insert(e, "F.add2", "add", {})
    kernel = _pick([3, 1], edit.option)
    properties = {"outmaps": channels, "kernel": [kernel] * 2, "pad": [kernel // 2] * 2}
    conv = n.net.add("PF.convolution", n.net.unused_name("branch"), properties)
    act = n.net.add("F.relu", n.net.unused_name("branch_relu"))
    n.net.connect(source, conv, "inp", e.out)
    n.net.connect(conv, act, "x")
    n.net.connect(act, join, "x1")
    return join.name, f"a branch after {source.name}"


def _property(n: _Network, edit: Edit) -> Done:
    known = layers()
    choices = [
        (x, name)
        for x in n.net.nodes.values()
        for name in SEARCHED
        if name in x.properties and name in known[x.type].by_name
        if x.id not in n.last or name not in ("outmaps", "n_outmaps")
    ]
    found = _pick(choices, edit.place)
    if found is None:
        return None
    node, name = found
    value = node.properties[name]
    if name == "kernel":
        step = _pick([-2, 2], edit.option)
        new: Any = [max(v + step, 1) for v in value]
        pad = node.properties.get("pad")
        if pad:
            node.properties["pad"] = [max(p + step // 2, 0) for p in pad]
    elif name == "p":
        new = _pick([0.1, 0.25, 0.5, 0.75], edit.option)
    else:
        factor = _pick([0.5, 0.75, 1.5, 2.0], edit.option)
        many = isinstance(value, list)
        scaled = [max(round(v * factor), 1) for v in (value if many else [value])]
        new = scaled if many else scaled[0]
    node.properties[name] = new
    return node.name, f"{node.name}: {name} {value} -> {new}"


_ANY = (2, 3, 4, 5)
RULES: dict[str, tuple[str, Callable[[_Network, Edit], Done]]] = {
    "RemoveActivation": ("Take an activation out.", _removal(*ACTIVATIONS)),
    "RemovePooling": ("Take a pooling out.", _removal(*POOLINGS)),
    "RemoveDropout": ("Take a dropout out.", _removal("F.dropout")),
    "RemoveBatchNormalization": (
        "Take a batch normalization out.",
        _removal("PF.batch_normalization"),
    ),
    "RemoveBasicLayer": ("Take a layer with weights out.", _removal(*BASIC, inner=True)),
    "RemoveBranch": ("Take a branch out.", _remove_branch),
    "InsertActivation": (
        "Put an activation in.",
        _insertion(_ANY, lambda s: [(a, a[2:], {}) for a in ACTIVATIONS]),
    ),
    "InsertPooling": ("Put a pooling in.", _insertion((4,), _poolings)),
    "InsertDropout": (
        "Put a dropout in.",
        _insertion(_ANY, lambda s: [("F.dropout", "dropout", {"p": p}) for p in (0.25, 0.5)]),
    ),
    "InsertBatchNormalization": (
        "Put a batch normalization in.",
        _insertion(_ANY, lambda s: [("PF.batch_normalization", "bn", {})]),
    ),
    "InsertAffine": ("Put an affine layer in.", _insertion((2,), _affines)),
    "InsertConvolution": ("Put a convolution in.", _insertion((4,), _convolutions)),
    "Branch": ("Add a branch with a convolution.", _branch),
    "Property": ("Change the size or the kernel of a layer.", _property),
}


def mutate(
    document: Document, edits: list[Edit], columns: Mapping[str, Shape] | None = None
) -> tuple[Document, list[dict[str, str]]]:
    """A copy with these edits, one after the other, and what each one did.

    An edit that has no place in the network does nothing. Whether the result is a network says its
    analysis.
    """
    changed = document.copy()
    done = []
    for edit in edits:
        network = _Network(changed, columns)
        found = RULES[edit.rule][1](network, edit)
        if found is not None:
            done.append({"rule": edit.rule, "node": found[0], "text": found[1]})
    if done:
        place(changed.main)
    return changed, done
