# SPDX-License-Identifier: Apache-2.0
"""A cursor that follows a running step in a TraceGraph, call by call."""

from __future__ import annotations

from nnl.coexec.causes import Cause, cause_of_call, cause_of_end
from nnl.coexec.dag import Attributes, Earlier, Node, Operands, Source
from nnl.coexec.loops import Location
from nnl.coexec.trace_graph import Item, TraceGraph


class Cursor:
    """Where a run of the step is.

    A call that is what it was the last time costs a few comparisons of identity; another known one
    a look-up. After a mismatch the cursor stays where it is.

    Attributes:
        at: The node of the last call.
        path: The nodes of all calls, in order.
        taken: The operands of each, one of its node's `variants`.
    """

    __slots__ = ("graph", "at", "path", "taken", "_last", "_counted")

    def __init__(self, graph: TraceGraph) -> None:
        self.graph = graph
        self.at = graph.body.start
        self.path: list[Node] = []
        self.taken: list[Operands] = []
        self._last: dict[Node, int] = {}  # positions of the last runs, for part of the path
        self._counted = 0

    def next(
        self, op: str, attrs: Attributes, location: Location, operands: Operands
    ) -> Node | None:
        """Go on to the node of a call; None where no trace has it, which `cause` explains.

        Args:
            operands: As in `Node.variants`; `source` gives those that the path has made.
        """
        at = self.at
        node = at.usual
        if (
            node is None
            or node.location is not location
            or node.attrs is not attrs
            or node.op != op
        ):
            node = self.graph.follow(at, op, attrs, location)
            if node is None:
                return None
            at.usual = node
        if operands != node.operands:
            if operands not in node.variants:
                return None
            node.operands = operands
        self.at = node
        self.path.append(node)
        self.taken.append(operands)
        return node

    def ends(self) -> bool:
        """Whether the step may end here."""
        return self.graph.ends(self.at)

    def source(self, position: int, output: int) -> Source:
        """What an output of a call of the path is as an operand of the next one.

        Outside of loops it is always (node, output).
        """
        for i in range(self._counted, len(self.path)):
            self._last[self.path[i]] = i
        self._counted = len(self.path)
        node = self.path[position]
        return (node, output) if self._last[node] == position else (None, Earlier(node, output))

    def cause(self, op: str, attrs: Attributes, location: Location, operands: Operands) -> Cause:
        """Why `next` has not found a call."""
        return cause_of_call(self.graph, self.at, op, attrs, location, operands)

    def cause_of_end(self) -> Cause:
        """Why the step may not end here."""
        return cause_of_end(self.at)

    def trace(self) -> list[Item]:
        """The calls so far, to merge them with those that follow a mismatch.

        Attributes that are inputs have the values of the first trace.
        """
        items: list[Item] = []
        runs: dict[Node, list[int]] = {}

        def position(source: Source) -> tuple[int | None, object]:
            node, k = source
            if node is not None:
                return runs[node][-1], k
            return (runs[k.node][-2], k.output) if isinstance(k, Earlier) else (None, k)

        for i, (node, operands) in enumerate(zip(self.path, self.taken, strict=True)):
            assert node.location is not None
            sources = tuple([position(s) for s in operands])
            items.append(Item(node.op, node.attrs, node.location, sources))
            runs.setdefault(node, []).append(i)
        return items
