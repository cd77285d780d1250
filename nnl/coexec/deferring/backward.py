# SPDX-License-Identifier: Apache-2.0
"""Backward passes that were seen before: one call instead of the rules of every function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nnl.coexec.plans.calls import NONE
from nnl.coexec.plans.paths import PathNode
from nnl.core.arrays.array import NdArray
from nnl.core.arrays.bulk import BULK
from nnl.core.arrays.memory_record import MemoryRecord
from nnl.core.arrays.spec import Spec
from nnl.core.graph.autodiff import accumulate, start_gradient
from nnl.core.graph.node import Node, Value, capture
from nnl.core.settings.context import EPOCH
from nnl.graph.execution.eager import backward_now
from nnl.graph.program.program import SPACE

if TYPE_CHECKING:
    from nnl.coexec.deferring.deferred_step import DeferredStep


@dataclass(slots=True)
class Pass:
    """What backward() of an output did when it was first called at some place of a path.

    Attributes:
        place: Its calls, as one.
        given: Arrays that it reads and the path has not read before: the start gradient and
            constants, and positions of those of the graph.
        specs: Of the arrays that its calls make.
        sums: (position among the leaves of the graph, number of the gradient), in order.
        ends: (position among the leaves, number of the sum) of each gradient, where leaves had none
            before; the calls have all of it then.
        shares: See shares_of.
        nodes: (position of a node, {output: its gradient}), of those that it has gone through.
        attrs: Of the nodes; see Graph.key.
    """

    place: PathNode
    given: list[NdArray | int]
    specs: list[Spec]
    sums: list[tuple[int, int]]
    ends: list[tuple[int, int]] | None
    shares: list[int]
    nodes: list[tuple[int, dict[int, int]]]
    attrs: list[Any]

    def fits(self, leaves: list[Value]) -> bool:
        """Whether the gradients of another graph's leaves are in such a state."""
        if self.shares != shares_of(leaves):
            return False
        return self.ends is None or all([is_fresh(leaves[i].grad) for i, _ in self.ends])


class Graph:
    """What a pass goes through.

    Attributes:
        nodes: Inputs first. leaves: Edges without a node.
        arrays: What the nodes keep, each memory once; left out where the path knows it.
    """

    def __init__(self, nodes: list[Node], leaves: list[Value]) -> None:
        self.nodes, self.leaves = nodes, leaves
        self.arrays: list[NdArray] = []

    def key(self, deferred: DeferredStep) -> Any:
        """What the pass depends on, where not all of the nodes are of the path that goes on.

        It has the ids of attributes, which a Pass keeps alive.
        """
        position = {n: i for i, n in enumerate(self.nodes)}
        leaf_at: dict[int, int] = {}
        array_at: dict[int, int] = {}
        key = []
        for node in self.nodes:
            edges: list[Any] = []
            for v in node.inputs:
                if v is None or not v.need_grad:
                    edges.append(None)
                elif v.node is not None:
                    edges.append((position[v.node], v.index))
                else:
                    if leaf_at.setdefault(id(v), len(self.leaves)) == len(self.leaves):
                        self.leaves.append(v)
                    edges.append(leaf_at[id(v)])
            kept: list[Any] = []
            for x in node.saved or ():
                for nd in x if isinstance(x, tuple) else (x,):
                    if nd is None:
                        kept.append(None)
                        continue
                    at = array_at.setdefault(id(nd.bufs), len(self.arrays))
                    if at == len(self.arrays):
                        self.arrays.append(nd)
                    mine = nd.record.work is deferred
                    kept.append((at, nd.spec, nd.record.number if mine else None))
            specs = tuple([None if v is None else v.spec for v in node.inputs])
            whole = node.op, id(node.attrs), node.target, specs, node.out_specs
            key.append((*whole, tuple(edges), tuple(kept)))
        return tuple(key)


class Sums:
    """The gradients that leaves get in a pass that is being noted.

    Attributes:
        found: See Pass.sums.
        at: How many places and given arrays there were before the first of them.
        plain: Whether all of them go to leaves of the graph.
        first: {id of a leaf's gradient: position of the leaf}, the first that has it.
        fresh: Whether leaves had no gradient before.
        location: Where the program goes backward.
    """

    def __init__(self, deferred: DeferredStep, leaves: list[Value]) -> None:
        self.deferred, self.leaves = deferred, leaves
        self.found: list[tuple[int, int]] = []
        self.at: tuple[int, int] | None = None
        self.plain = self.fresh = True
        self.location = deferred.report.locations.now(deferred.outermost)
        self.first: dict[int, int] = {}

    def add(self, into: NdArray, g: NdArray) -> None:
        """A leaf gets a gradient."""
        deferred = self.deferred
        deferred.gradient_of = None
        self.at = self.at or (len(deferred.path), len(deferred.given))
        leaf = self.first.get(id(into), -1)
        if leaf < 0:
            leaf = next((i for i, v in enumerate(self.leaves) if v.own_grad is into), -1)
        self.plain = self.plain and leaf >= 0 and g.record.work is deferred
        if id(into) not in self.first:
            self.first[id(into)] = leaf
            self.fresh = self.fresh and is_fresh(into) and not g.spec.is_half
        self.found.append((leaf, g.record.number))

    def ends(self) -> list[tuple[int, int]] | None:
        """See Pass.ends."""
        if not (self.plain and self.fresh):
            return None
        into = {leaf: self.leaves[leaf].grad for leaf in self.first.values()}
        if any([nd.record.work is not self.deferred for nd in into.values()]):
            return None
        return [(leaf, nd.record.number) for leaf, nd in into.items()]


def shares_of(leaves: list[Value]) -> list[int]:
    """The first leaf that has the same gradient, of each: handles on one parameter do."""
    first: dict[int, int] = {}
    return [first.setdefault(id(v.grad), i) for i, v in enumerate(leaves)]


def is_fresh(into: NdArray) -> bool:
    """Whether a gradient is lazily zero, in memory that is its own."""
    return into.zeroing and into.record.own is None


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

    def of_path(self, node: Node, number: int, epoch: int) -> bool:
        """Whether this node has made the array of this number on the path, all in this epoch."""
        return self.makers.get(number) == node.seq and self.epoch == epoch


def sites_of(makers: Mapping[int, int], path: Sequence[PathNode]) -> dict[int, Any]:
    """{creation number of a node: what tells its call from those of other lines}.

    Args:
        makers: Of the path's arrays, see Edges.
    """
    sites, number = {}, 0
    for place in path:
        for call in place.calls:
            if number in makers:
                sites[makers[number]] = call.site
            number += len(call.bound.out_specs)
    return sites


def backward(deferred: DeferredStep, output: Value, grad: Any, clear: bool) -> None:
    """Go backward from an output. The second time at a place of a path, no rule has to be asked."""
    node, edges = output.node, deferred.edges
    assert node is not None and node.live is not None
    nodes = capture([output])
    if type(grad) not in (int, float) or not BULK.plain(nodes):
        backward_now(output, start_gradient(output, output.spec.shape, grad), clear)
        return
    nd = node.live[output.index]()
    of_path = nd is not None and nd.record.work is deferred and edges.plain
    if nd is not None and of_path and edges.of_path(node, nd.record.number, EPOCH.now):
        graph = Graph(nodes, edges.leaves)
        key: Any = nd.record.number
    else:
        graph = Graph(nodes, [])
        key = graph.key(deferred), output.index
    key = key, grad, clear, len(deferred.given)
    before = deferred.at
    for known in before.passes.get(key, ()):
        if known.fits(graph.leaves) and _again(deferred, known, graph, clear):
            return
    gy = start_gradient(output, output.spec.shape, grad)
    found = _first(deferred, output, graph, gy, clear)
    if found is not None:
        more = [p for p in before.passes.get(key, ()) if (p.ends is None) != (found.ends is None)]
        before.passes[key] = sorted([*more, found], key=lambda p: p.ends is None)


def _first(
    deferred: DeferredStep, output: Value, graph: Graph, gy: NdArray, clear: bool
) -> Pass | None:
    """Go backward, and note what that was; None where it may be something else the next time."""
    path, before = deferred.path, deferred.at
    begin, given = len(path), len(deferred.given)
    visited: list[tuple[int, dict[int, Any]]] = []
    kept = True

    def note(node: Node) -> None:
        nonlocal kept
        grads = {} if clear else node.grads or {}
        numbers = {i: deferred.number(g) for i, g in grads.items()}
        kept = kept and None not in numbers.values()
        visited.append((position[node], numbers))

    where: dict[int, Any] = {}
    for makers, piece in (*deferred.pieces, (deferred.edges.makers, path)):
        where |= sites_of(makers, piece)

    def enter(node: Node) -> None:
        site = where.get(node.seq, node.op)
        deferred.gradient_of = getattr(site, "gradient", None) or (site, "gradient")

    position = {n: i for i, n in enumerate(graph.nodes)}
    memory = {id(nd.bufs): i for i, nd in enumerate(graph.arrays)}
    deferred.sums = sums = Sums(deferred, graph.leaves)
    try:
        backward_now(output, gy, clear, pre=enter, post=note, shows=False)
    finally:
        deferred.sums = deferred.gradient_of = None
    ends = sums.ends()
    end, last = len(path), len(deferred.given)
    if ends is None and sums.at is not None:
        end, last = sums.at
    if deferred.path is not path or end == begin or not (sums.plain and kept):
        return None
    read: list[NdArray | int] = []
    for i, nd in enumerate(deferred.given[given:last], given):
        at = memory.get(id(deferred.copied.get(i, nd).bufs))
        if at is None and nd is not gy and nd.record.fill is None:
            return None  # it may hold something else the next time
        read.append(_copy(nd) if at is None else at)
    place = deferred.join(before, begin, end)
    specs = [s for c in place.calls for s in c.bound.out_specs]
    attrs, shares = [n.attrs for n in graph.nodes], shares_of(graph.leaves)
    return Pass(place, read, specs, sums.found, ends, shares, visited, attrs)


def _copy(nd: NdArray) -> NdArray:
    """A constant that nobody else has: gradients may be it, and be changed."""
    new = NdArray.unwritten(nd.spec)
    if nd.record.fill is None:
        new.bufs = {SPACE: nd.read(SPACE).copy()}
    else:
        new.record = MemoryRecord(fill=nd.record.fill)
    return new


def become(
    deferred: DeferredStep, leaves: list[Value], sums: list[tuple[int, int]], specs: list[Spec]
) -> list[tuple[NdArray, int]]:
    """Let lazily zero gradients of leaves become what a pass will make; the others, with numbers.

    Args:
        sums, specs: Of the pass, whose results are the latest ones on the path.
    """
    first, rest = len(deferred.made) - len(specs), []
    for leaf, number in sums:
        into = leaves[leaf].grad
        if number < first or not deferred.becomes(into, number, specs[number - first]):
            rest.append((into, number))
    return rest


def _again(deferred: DeferredStep, known: Pass, graph: Graph, clear: bool) -> bool:
    """Do what a pass has done, to another graph like it; False where it cannot be done."""
    first, given = len(deferred.made), len(deferred.given)
    for which in known.given:
        nd = graph.arrays[which] if isinstance(which, int) else which
        new = -2 - len(deferred.given)
        if deferred.number(nd) != new:
            deferred.forget(given)
            return False
    deferred.go(known.place, len(known.specs))
    found = known.sums if known.ends is None else known.ends
    sums = become(deferred, graph.leaves, found, known.specs)
    asked = {n for _, gs in known.nodes for n in gs.values()} | {n for _, n in sums}
    # all at once: what follows may run what was put off
    arrays = {n: deferred.array(n, known.specs[n - first] if n >= first else None) for n in asked}
    for n, nd in arrays.items():
        if n < NONE:  # the pass has it for other steps, too
            arrays[n] = _copy(nd)
    for position, grads in known.nodes:
        node = graph.nodes[position]
        if clear:
            node.saved = None
            if node is not graph.nodes[-1]:
                node.grads = None
            continue
        mine = node.grads = node.grads or {}
        for i, number in grads.items():
            g = arrays[number]
            if mine.setdefault(i, g) is not g:
                mine[i].become(g)
    for into, number in sums:
        accumulate(into, arrays[number], False)
    return True
