# SPDX-License-Identifier: Apache-2.0
"""Backward passes that were seen before: one call instead of the rules of every function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nnl.coexec.paths import Place
from nnl.core.array import NdArray
from nnl.core.autodiff import accumulate, start_gradient
from nnl.core.context import EPOCH
from nnl.core.graph import Node, Value, capture
from nnl.core.spec import Spec
from nnl.graph.eager import backward_now

if TYPE_CHECKING:
    from nnl.coexec.skeleton import Skeleton


@dataclass
class Pass:
    """What backward() of an output did when it was first called at some place of a path.

    Attributes:
        place: Its calls, as one.
        given: Arrays that it reads besides those of the functions: the start gradient, constants.
        specs: Of the arrays that its calls make.
        sums: (position among the leaves of the path, number of the gradient), in order.
        nodes: (position of a node, {output: its gradient}), of those that it has gone through.
    """

    place: Place
    given: list[NdArray]
    specs: list[Spec]
    sums: list[tuple[int, int]]
    nodes: list[tuple[int, dict[int, int]]]


class Sums:
    """The gradients that leaves get in a pass that is being noted.

    Attributes:
        found: See Pass.sums.
        at: How many places and given arrays there were before the first of them.
        plain: Whether all of them go to leaves of the path.
    """

    def __init__(self, skeleton: Skeleton) -> None:
        self.skeleton = skeleton
        self.found: list[tuple[int, int]] = []
        self.at: tuple[int, int] | None = None
        self.plain = True

    def add(self, into: NdArray, g: NdArray) -> None:
        """A leaf gets a gradient."""
        skeleton = self.skeleton
        self.at = self.at or (len(skeleton.path), len(skeleton.given))
        leaves = skeleton.edges.leaves
        leaf = next((i for i, v in enumerate(leaves) if v.own_grad is into), -1)
        self.plain = self.plain and leaf >= 0 and g.record.work is skeleton
        self.found.append((leaf, g.record.place))


class Edges:
    """How gradients flow between the calls of a path, as far as its keys have to tell.

    Attributes:
        plain: Whether all gradients stay between calls of the path and leaves.
        epoch: EPOCH.now at the first call with a gradient; None before that.
        leaves: Edges without a node that functions with a gradient read.
        positions: Theirs, by id.
        makers: {number of an array: creation number of the node that makes it}.
    """

    __slots__ = ("plain", "epoch", "leaves", "positions", "makers")

    def __init__(self) -> None:
        self.plain = True
        self.epoch: int | None = None
        self.leaves: list[Value] = []
        self.positions: dict[int, int] = {}
        self.makers: dict[int, int] = {}

    def made(self, number: int, node: Node) -> None:
        """A node makes the array of this number."""
        self.makers[number] = node.seq

    def key(self, edges: Any, numbers: tuple[int, ...]) -> tuple[int, ...]:
        """For each input of a call: 0 without gradient, 1 for an output of the path, or a leaf."""
        if self.epoch is None:
            self.epoch = EPOCH.now
        key = []
        for edge, number in zip(edges, numbers, strict=True):
            if edge is None or not edge.need_grad:
                key.append(0)
            elif edge.node is None:
                key.append(2 + self._leaf(edge))
            elif self.makers.get(number) == edge.node.seq:
                key.append(1)
            else:
                self.plain = False  # it comes from before the path
                key.append(-1)
        return tuple(key)

    def _leaf(self, edge: Value) -> int:
        at = self.positions.get(id(edge))
        if at is None:
            at = self.positions[id(edge)] = len(self.leaves)
            self.leaves.append(edge)
        return at

    def of_path(self, node: Node, number: int) -> bool:
        """Whether this node has made the array of this number on the path."""
        return self.makers.get(number) == node.seq


def backward(skeleton: Skeleton, output: Value, grad: Any, clear: bool) -> None:
    """Go backward from an output. The second time at a place of a path, no rule has to be asked."""
    node, edges = output.node, skeleton.edges
    assert node is not None and node.live is not None
    nd = node.live[output.index]()
    nodes = capture([output])
    special = (
        nd is None
        or nd.record.work is not skeleton
        or not edges.of_path(node, nd.record.place)
        or not edges.plain
        or edges.epoch != EPOCH.now
        or type(grad) not in (int, float)
        or any([v is not None and v.persistent for n in nodes for v in n.inputs])
        or any([n.attrs.shows_inputs for n in nodes])
    )
    key = None if nd is None or special else (nd.record.place, grad, clear)
    known = skeleton.at.passes.get(key)
    if known is not None:
        _again(skeleton, known, nodes, clear)
        return
    before = skeleton.at
    gy = start_gradient(output, output.spec.shape, grad)
    found = _now(skeleton, output, nodes, gy, clear, notes=key is not None)
    if found is not None:
        before.passes[key] = found


def _now(
    skeleton: Skeleton, output: Value, nodes: list[Node], gy: NdArray, clear: bool, notes: bool
) -> Pass | None:
    """Go backward, and note what that was; None where it may be something else the next time.

    With and without notes from the same place, by which numbers that vary are known.
    """
    path, before = skeleton.path, skeleton.at
    begin, given = len(path), len(skeleton.given)
    visited: list[tuple[int, dict[int, int]]] = []

    def note(node: Node) -> None:
        grads = {} if clear else node.grads or {}
        visited.append((nodes.index(node), {i: g.record.place for i, g in grads.items()}))

    sums = Sums(skeleton)
    skeleton.sums = sums if notes else None
    try:
        backward_now(output, gy, clear, post=note if notes else None)
    finally:
        skeleton.sums = None
    if not notes:
        return None
    end, last = sums.at or (len(path), len(skeleton.given))
    if skeleton.path is not path or end == begin or not (sums.plain and skeleton.edges.plain):
        return None
    constants = skeleton.given[given:last]
    if any([nd is not gy and nd.record.fill is None for nd in constants]):
        return None  # it may hold something else the next time
    place = skeleton.join(before, begin, end)
    specs = [s for c in place.calls for s in c.bound.out_specs]
    return Pass(place, constants, specs, sums.found, visited)


def _again(skeleton: Skeleton, known: Pass, nodes: list[Node], clear: bool) -> None:
    """Do what a pass has done, to the nodes of this step."""
    first = len(skeleton.made)
    for nd in known.given:
        skeleton.number(nd)
    skeleton.go(known.place, len(known.specs))
    leaves = skeleton.edges.leaves
    sums = []
    for leaf, number in known.sums:
        into = leaves[leaf].grad
        if number < first or not skeleton.becomes(into, number, known.specs[number - first]):
            sums.append((into, number))
    asked = {n for _, gs in known.nodes for n in gs.values()} | {n for _, n in sums}
    # all at once: what follows may run what was put off
    arrays = {n: skeleton.array(n, known.specs[n - first] if n >= first else None) for n in asked}
    for position, grads in known.nodes:
        node = nodes[position]
        if clear:
            node.saved = None
            if node is not nodes[-1]:
                node.grads = None
            continue
        mine = node.grads = node.grads or {}
        for i, number in grads.items():
            g = arrays[number]
            if mine.setdefault(i, g) is not g:
                mine[i].become(g)
    for into, number in sums:
        accumulate(into, arrays[number], False)
