# SPDX-License-Identifier: Apache-2.0
"""A cursor that follows a running step in a TraceGraph, call by call."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from nnl.coexec.tracing.causes import Cause, cause_of_call, cause_of_end
from nnl.coexec.tracing.dag import Attributes, Earlier, Node, Operands, Source
from nnl.coexec.tracing.loops import Location
from nnl.coexec.tracing.trace_graph import Item, TraceGraph


class Cursor:
    """Where a run of the step is.

    A call that is what it was the last time costs a few comparisons of identity; another known one
    a look-up. After a mismatch the cursor stays where it is.

    Attributes:
        at: The node of the last call.
        path: The nodes of all calls, in order.
    """

    __slots__ = ("graph", "at", "path", "_last", "_counted")

    def __init__(self, graph: TraceGraph) -> None:
        self.graph = graph
        self.at = graph.body.start
        self.path: list[Node] = []
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
        return node

    def ends(self) -> bool:
        """Whether the step may end here."""
        return self.graph.ends(self.at)

    def source(self, position: int, output: Hashable) -> Source:
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


def mismatch(graph: TraceGraph, trace: Sequence[Item]) -> Cause | None:
    """Why a trace is none of the graph's; None where it is one."""
    cursor = Cursor(graph)
    for op, attrs, location, operands, joined in trace:
        sources = tuple([(None, k) if p is None else cursor.source(p, k) for p, k in operands])
        if joined:
            sources = tuple(dict.fromkeys(sources))
        if cursor.next(op, attrs, location, sources) is None:
            return cursor.cause(op, attrs, location, sources)
    return None if cursor.ends() else cursor.cause_of_end()
