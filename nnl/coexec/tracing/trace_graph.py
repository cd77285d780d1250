# SPDX-License-Identifier: Apache-2.0
"""TraceGraph: all traces of a step in one acyclic graph.

A trace is what one run of the step has called, in order. Two calls are the same node if operation,
attributes, location and loop counters are equal (Terra's supplement, section A). It leaves open how
traces merge, what becomes of operands, and how loops fold.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from nnl.coexec.tracing.dag import Attributes, Dag, Earlier, Node
from nnl.coexec.tracing.loops import Location, Loop, advance, move, trips

Wanted = Callable[[Node], bool]


class Item(NamedTuple):
    """One call of a trace.

    Attributes:
        op: Its name.
        attrs: Its attributes.
        location: Where it was called.
        operands: For each operand (p, i), output i of item p of the trace, or (None, k), a value
            from outside: k says which one, and should be the same in every step.
        joined: Whether it stands for several calls, as many as the rounds of loops before say. Then
            it has each of its operands once, and rounds do not tell them apart.
    """

    op: str
    attrs: Attributes
    location: Location
    operands: tuple[tuple[int | None, Hashable], ...] = ()
    joined: bool = False


def both_floats(op: str, name: str, old: Any, new: Any) -> bool:
    """Whether an attribute with these two values becomes an input: sizes and axes never do."""
    return type(old) is float and type(new) is float


def no_input(op: str, name: str) -> bool:
    """No attribute is an input before it has changed."""
    return False


class TraceGraph:
    """What a step may do, as far as it was traced.

    A loop is one node. One round of it is a Dag of its own, with the paths of all rounds that were
    traced, so it does not matter how often a loop runs, or whether it runs at all. Where an edge to
    the node of a call would close a cycle, the call gets another node.

    Args:
        promotable: Told (op, attribute, old value, new value): whether the attribute may be an
            input. It becomes one with its second value at a node; a third one is nothing new.
        inputs: Told (op, attribute): whether it is one from the first value on, as sizes are that
            follow from those of operands: these tell no call from another either.
        unroll: Leave a loop unrolled, its counter part of what makes calls equal, until it has run
            for a second number of rounds. Then a program with fixed loops is a chain.
    Attributes:
        body: Nodes and edges of the whole step.
        version: Grows with every trace that has added something.
        traces: How many traces were merged.
        folded: The loops that are nodes; None: all are.
    """

    def __init__(
        self,
        promotable: Callable[[str, str, Any, Any], bool] = both_floats,
        inputs: Callable[[str, str], bool] = no_input,
        unroll: bool = False,
    ) -> None:
        self.promotable, self.inputs = promotable, inputs
        self.folded: set[Loop] | None = set() if unroll else None
        self.version = self.traces = 0
        self.body = Dag()
        self._trips: dict[Loop, int] = {}
        self._merged: list[Sequence[Item]] = []  # to start again with when a loop is folded
        self._grown = False

    def merge(self, trace: Sequence[Item]) -> bool:
        """Add a trace; whether it has added something. If not, it was contained before."""
        self.traces += 1
        self._grown = False
        folded = self.folded
        if folded is not None and not self._walk(trace, grow=False) and self._fold(trace, folded):
            self.body = Dag()
            for old in self._merged:
                self._walk(old, grow=True)
            self._grown = True
        self._walk(trace, grow=True)
        if self._grown:
            self.version += 1
            if folded is not None:
                self._merged.append(trace)
        return self._grown

    def _fold(self, trace: Sequence[Item], folded: set[Loop]) -> bool:
        """Whether a loop that is unrolled has not run as often as before; it is folded then."""
        before = len(folded)
        for loop, rounds in trips(item.location for item in trace):
            if self._trips.setdefault(loop, rounds) != rounds:
                folded.add(loop)
        return len(folded) > before

    def _walk(self, trace: Sequence[Item], grow: bool) -> bool:
        """Whether a trace is contained.

        Args:
            grow: Make what is missing, and count.
        """
        at = self.body.start
        path: list[Node] = []
        last: dict[Node, int] = {}
        for position, item in enumerate(trace):
            before, node = at, self._next(at, item.op, item.attrs, item.location, grow)
            if node is None:
                return False
            at = node
            operands = tuple(
                (None, k) if p is None
                else (path[p], k) if last[path[p]] == p
                else (None, Earlier(path[p], k))
                for p, k in item.operands
            )  # fmt: skip
            if item.joined:
                operands = tuple(dict.fromkeys(operands))
            if operands not in at.variants:
                if not grow:
                    return False
                at.variants[operands] = len(at.variants)
                at.operands = operands
                self._grown = True
            for n in (*before.via.get(at, ()), at):
                n.count += grow
            last[at] = position
            path.append(at)
        return self.ends(at, grow)

    # ---- from call to call ----

    def follow(self, at: Node, op: str, attrs: Attributes, location: Location) -> Node | None:
        """The node of a call after the one of node `at`; None if it was never traced."""
        return self._next(at, op, attrs, location, grow=False)

    def ends(self, at: Node, grow: bool = False) -> bool:
        """Whether the step may end after node `at`.

        Args:
            grow: Let it end there.
        """
        way = _Way(self, at, grow)
        return way.leave(0) and way.end()

    def _next(
        self, at: Node, op: str, attrs: Attributes, location: Location, grow: bool
    ) -> Node | None:
        for node in at.next.get(location, ()):
            if node.op == op and not node.differs(attrs):
                return node
        kept, again = (0, False) if at.location is None else move(at.location, location)
        counters = advance(at.rounds, at.location, location)
        loops = location.loops
        is_node = [self.folded is None or loop in self.folded for loop in loops]
        rounds = tuple([0 if f else n for f, n in zip(is_node, counters, strict=True)])
        depth = sum(is_node[:kept])  # of the loop nodes around both
        way = _Way(self, at, grow)
        if not way.leave(depth + (again and is_node[kept])):
            return None
        if again and is_node[kept]:
            if not way.end():
                return None
            way.start(way.here.dag)
            kept += 1
        for i in range(kept, len(loops)):
            if is_node[i] and not way.enter(loops[i], rounds[:i]):
                return None
        if not way.call(op, attrs, location, rounds):
            return None
        node, via = way.here, tuple(way.nodes[:-1])
        if node not in at.next.setdefault(location, []):
            at.next[location].append(node)
            if via:
                at.via[node] = via
        return node

    def alike(self, node: Node, attrs: Attributes) -> bool:
        """Whether all that tells a node from a call with other attributes may be inputs."""
        names, values = list(node.attrs.as_dict()), attrs.values
        return len(names) == len(values) and all(
            self.promotable(node.op, names[i], node.attrs.values[i], values[i])
            for i in node.differs(attrs)
        )

    def grown(self) -> None:
        """Something was added."""
        self._grown = True


class _Way:
    """From one call to the next: out of rounds of loops, and into others.

    Attributes:
        here: The node that was reached.
        nodes: All on the way.
    """

    def __init__(self, graph: TraceGraph, here: Node, grow: bool) -> None:
        self.graph, self.here, self.grow = graph, here, grow
        self.nodes: list[Node] = []

    def end(self) -> bool:
        """To the end of what `here` is in."""
        end = self.here.dag.end
        return self._to(lambda n: n is end, lambda: end)

    def leave(self, depth: int) -> bool:
        """Out of the innermost loops, until `here` is in only so many."""
        while self.here.dag.depth > depth:
            owner = self.here.dag.owner
            if owner is None or not self.end():
                return False
            self.here = owner
        return True

    def start(self, dag: Dag) -> None:
        """To the start of a round."""
        self.here = dag.start
        self.nodes.append(self.here)

    def enter(self, loop: Loop, rounds: tuple[int, ...]) -> bool:
        """To a loop, and to the start of its body."""

        def make() -> Node:
            node = self._unused((loop, rounds), lambda n: True)
            if node is None:
                node = self.here.dag.add((loop, rounds), Node(self.here.dag, loop=loop))
                node.rounds, node.body = rounds, Dag(node)
            return node

        found = self._to(lambda n: n.loop is loop and n.rounds == rounds, make)
        if found and self.here.body is not None:
            self.start(self.here.body)
        return found

    def call(self, op: str, attrs: Attributes, location: Location, rounds: tuple[int, ...]) -> bool:
        """To the node of a call."""
        key = op, location, rounds

        def equal(n: Node) -> bool:
            return not n.differs(attrs)

        def alike(n: Node) -> bool:
            return self.graph.alike(n, attrs)

        def after(same: Wanted) -> Wanted:
            return lambda n: (n.op, n.location, n.rounds) == key and same(n)

        def make() -> Node:
            node = self._unused(key, equal) or self._unused(key, alike)
            if node is None:
                node = Node(self.here.dag, op, attrs, location, rounds)
                names, inputs = attrs.as_dict(), self.graph.inputs
                node.fixed = tuple([i for i, name in enumerate(names) if not inputs(op, name)])
                self.here.dag.add(key, node)
            return node

        known = self.here.dag.route(self.here, after(equal)) is not None
        found = self._to(after(equal if known or not self.grow else alike), make)
        if found and (changed := self.here.differs(attrs)):
            self.here.fixed = tuple([i for i in self.here.fixed if i not in changed])
            self.graph.grown()
        return found

    def _unused(self, key: Hashable, same: Wanted) -> Node | None:
        """A node of a key that an edge from here may lead to."""
        for n in self.here.dag.versions(key):
            if same(n) and not n.dag.reaches(n, self.here):
                return n
        return None

    def _to(self, wanted: Wanted, make: Callable[[], Node]) -> bool:
        found = self.here.dag.route(self.here, wanted)
        if found is None:
            if not self.grow:
                return False
            found = (make(),)
            self.here.dag.link(self.here, found[0])
            self.graph.grown()
        self.nodes += found
        self.here = found[-1]
        return True
