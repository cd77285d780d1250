# SPDX-License-Identifier: Apache-2.0
"""An acyclic graph of operations between one start and one end, and its nodes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from nnl.coexec.tracing.loops import Location, Loop
from nnl.graph.program.program_text import same

# Where an operand comes from: (node, i) is output i of the last run of a node, (None, k) a value
# from outside of the step, and k says which one.
Source = tuple["Node | None", Hashable]
Operands = tuple[Source, ...]


class Earlier(NamedTuple):
    """The k of a value that a node in a loop made before its last run."""

    node: Node
    output: Hashable


class Attributes(Protocol):
    """Attribute values, of an operation; equal ones are best the same object."""

    @property
    def values(self) -> tuple[Any, ...]: ...

    def as_dict(self) -> dict[str, Any]:
        """The values by name, in their order."""


@dataclass(slots=True, eq=False, repr=False)
class Node:
    """An operation of the graph, a loop of it, or the start or end of a Dag.

    Attributes:
        dag: What it is in.
        op, attrs, location: What is called, and where from.
        rounds: Counters of the loops around it, 0 for those that are folded.
        loop, body: The loop that a node stands for, and one round of it.
        rank: Larger than those of the nodes before it.
        before, after: Its neighbours in the Dag; dicts are ordered sets here.
        variants: {operands: number} of the operands that it has been called with.
        count: How often it was in a trace.
        fixed: Positions of the attributes that tell it from others; the rest are promoted.
        next: {location: nodes} of the operations that have followed it, in or out of loops.
        via: {one of these: the nodes on the way there} where that is not an edge.
        usual, operands: The operation that followed it last, and its own last operands.
    """

    dag: Dag
    op: str = ""
    attrs: Any = None
    location: Location | None = None
    rounds: tuple[int, ...] = ()
    loop: Loop | None = None
    body: Dag | None = None
    rank: float = 0
    before: dict[Node, None] = field(default_factory=dict)
    after: dict[Node, None] = field(default_factory=dict)
    variants: dict[Operands, int] = field(default_factory=dict)
    count: int = 0
    fixed: tuple[int, ...] = ()
    next: dict[Location, list[Node]] = field(default_factory=dict)
    via: dict[Node, tuple[Node, ...]] = field(default_factory=dict)
    usual: Node | None = None
    operands: Operands = ()

    def differs(self, attrs: Attributes) -> list[int]:
        """Positions of the attributes that tell this node from a call with these."""
        if attrs is self.attrs:
            return []
        mine, theirs = self.attrs.values, attrs.values
        if len(mine) != len(theirs):
            return list(range(max(len(mine), len(theirs))))
        return [i for i in self.fixed if not same(mine[i], theirs[i])]

    @property
    def promoted(self) -> tuple[str, ...]:
        """Names of the attributes that are inputs: they have had more than one value."""
        names = [] if self.attrs is None else list(self.attrs.as_dict())
        return tuple([name for i, name in enumerate(names) if i not in self.fixed])

    def __repr__(self) -> str:
        if self.loop is not None:
            return f"loop ({self.loop})"
        if self.location is not None:
            return f"{self.op} ({self.location})"
        return "start" if self is self.dag.start else "end"


class Dag:
    """Nodes between a start and an end: Definition 1 of Terra's supplement, section B.

    Ranks are kept so that a node has a larger one than those before it. A new edge against that
    order moves only nodes whose ranks lie between its ends (Pearce and Kelly, A Dynamic Topological
    Sort Algorithm for Directed Acyclic Graphs, JEA 11, 2006).

    Attributes:
        owner: The loop node that this is one round of; None for the whole step.
        depth: How many loops it is in.
        nodes: All but start and end, in the order they were added in.
    """

    def __init__(self, owner: Node | None = None) -> None:
        self.owner = owner
        self.depth: int = 0 if owner is None else owner.dag.depth + 1
        self.nodes: list[Node] = []
        self.start, self.end = Node(self), Node(self, rank=math.inf)
        self._by_key: dict[Any, list[Node]] = {}

    def add(self, key: Hashable, node: Node) -> Node:
        """Put a node in, found under a key by `versions`."""
        node.rank = len(self.nodes) + 1
        self.nodes.append(node)
        self._by_key.setdefault(key, []).append(node)
        return node

    def versions(self, key: Hashable) -> Iterable[Node]:
        """The nodes that were added under a key."""
        return self._by_key.get(key, ())

    def calls(self) -> Iterator[Node]:
        """The nodes that are operations, also those in loops."""
        for node in self.nodes:
            if node.body is None:
                yield node
            else:
                yield from node.body.calls()

    def lines(self) -> Iterator[str]:
        """For people: each call as `affine (net.py:12) x8, 2 operand variants, inputs: p`, with how
        often it came, on how many choices of operands, and which attributes are inputs."""
        for node in sorted(self.nodes, key=lambda n: n.rank):
            if node.body is not None:
                yield f"{node!r}, {node.body.start.count} rounds"
                yield from (f"  {line}" for line in node.body.lines())
                continue
            variants = f", {len(node.variants)} operand variants" if len(node.variants) > 1 else ""
            inputs = f", inputs: {', '.join(node.promoted)}" if node.promoted else ""
            yield f"{node!r} x{node.count}{variants}{inputs}"

    def link(self, u: Node, v: Node) -> None:
        """Add an edge.

        Raises:
            ValueError: It would close a cycle.
        """
        if v.rank <= u.rank:
            self._reorder(u, v)
        u.after[v] = v.before[u] = None

    def reaches(self, u: Node, v: Node) -> bool:
        """Whether a path leads from u to v; there is one from a node to itself."""
        return v in _between(u, lambda n: n.after, lambda n: n.rank <= v.rank)

    def _reorder(self, u: Node, v: Node) -> None:
        later = _between(v, lambda n: n.after, lambda n: n.rank <= u.rank)
        if u in later:
            raise ValueError(f"Dag: an edge from {u!r} to {v!r} closes a cycle")
        earlier = _between(u, lambda n: n.before, lambda n: n.rank >= v.rank)
        order = sorted(earlier, key=lambda n: n.rank) + sorted(later, key=lambda n: n.rank)
        for node, rank in zip(order, sorted(n.rank for n in order), strict=True):
            node.rank = rank

    def route(self, u: Node, wanted: Callable[[Node], bool]) -> tuple[Node, ...] | None:
        """The nodes after u up to the next one that is wanted; those between are loops.

        A loop may run no round at all, so what follows it may follow what is before it.
        """
        waiting: deque[tuple[Node, tuple[Node, ...]]] = deque([(u, ())])
        seen = {u}
        while waiting:
            node, way = waiting.popleft()
            for n in node.after:
                if wanted(n):
                    return (*way, n)
            for n in node.after:
                if n.body is not None and n not in seen:
                    seen.add(n)
                    waiting.append((n, (*way, n)))
        return None


def _between(
    start: Node, neighbours: Callable[[Node], Iterable[Node]], inside: Callable[[Node], bool]
) -> set[Node]:
    """What neighbours lead to from a node, without leaving what is inside."""
    if not inside(start):
        return set()
    found, waiting = {start}, [start]
    while waiting:
        for n in neighbours(waiting.pop()):
            if n not in found and inside(n):
                found.add(n)
                waiting.append(n)
    return found
