# SPDX-License-Identifier: Apache-2.0
"""Methods of Variable that look at the graph around it; the engine uses none of them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from nnl.core.graph.node import Node, Value, capture
from nnl.core.settings.context import EPOCH, using
from nnl.core.settings.registry import OPS

if TYPE_CHECKING:
    from nnl.core.arrays.array import NdArray
    from nnl.core.graph.function import Function
    from nnl.core.graph.variable import Variable


class Handle:
    """An edge, and its array, in the user's hands."""

    __slots__ = ()
    if TYPE_CHECKING:
        edge: Value
        _data: NdArray

    def clear_all_graph_links(self) -> None:
        """Forget the functions that this variable was computed by; it becomes a leaf.

        So does every variable on the way: an LSTMCell's h and c, if this is a loss of them.
        """
        below = [self.edge.node]
        self.cut_off()
        for node in below:  # grows; what is cut off is met once
            for edge in node.inputs if node is not None else ():
                if edge is not None and edge.node is not None:
                    below.append(edge.node)
                    edge.cut_off(edge.array)
        EPOCH.advance()

    def cut_off(self) -> None:
        """Forget the function that this variable is an output of."""
        self.edge.cut_off(self._data)
        EPOCH.advance()

    @property
    def parent(self) -> Function | None:
        """The function that computes this variable, None for a leaf."""
        from nnl.core.graph.function import Function

        edge = self.edge
        return None if edge.node is None else Function(edge.node, {edge.key: edge})

    @parent.setter
    def parent(self, function: Function | None) -> None:
        if function is not None:
            raise ValueError(
                f"parent can only be set to None, got {type(function).__name__}: use rewire_on to "
                "connect a variable"
            )
        self.cut_off()

    @property
    def rank(self) -> int:
        """Length of the longest path from a leaf."""
        ranks: dict[Node, int] = {}
        for node in capture([self.edge]):
            sources = [v.node for v in node.inputs if v is not None and v.node is not None]
            ranks[node] = 1 + max([ranks[m] for m in sources], default=0)
        return ranks[self.edge.node] if self.edge.node is not None else 0

    def visit(self, f: Callable[[Function], Any]) -> None:
        """Call f on every function below, inputs first."""
        for function in self._functions():
            f(function)

    def visit_check(self, f: Callable[[Function], Any]) -> bool:
        """Call f on the functions below, inputs first, until it returns True; whether it did."""
        return any(f(function) for function in self._functions())

    def _functions(self) -> list[Function]:
        from nnl.core.graph.function import Function

        nodes = capture([self.edge])
        edges = {v.key: v for n in nodes for v in n.inputs if v is not None}
        edges[self.edge.key] = self.edge
        return [Function(n, edges) for n in nodes]

    # ---- who uses a variable: nodes do not know, the garbage collector does ----

    @property
    def function_references(self) -> list[Function]:
        """The functions that take this variable as an input and are still in use.

        For looking into graphs: every object of the process is searched.
        """
        from nnl.core.graph.function import Function

        edge = self.edge
        same = [edge]
        if edge.node is not None:  # handles made at different times have edges of their own
            same = [v for v in _holders(Value, edge.node) if v.key == edge.key]
        tuples = [t for v in same for t in _holders(tuple, v)]
        nodes = {n.seq: n for t in tuples for n in _holders(Node, t) if n.inputs is t}
        return [Function(nodes[seq]) for seq in sorted(nodes)]

    @property
    def get_number_of_references(self) -> int:
        """How many variables share this one's data: itself and its unlinked copies."""
        return len({id(v.edge) for v in _holders(Handle, self._data)})

    # ---- other graphs ----

    def reshape(self, shape: Sequence[int], unlink: bool = False) -> Variable:
        """The same memory under another shape.

        Args:
            shape: Sizes; one may be -1.
            unlink: Return a leaf, cut off from the graph, instead of a function's output.
        Raises:
            ShapeError: The sizes do not multiply to this variable's.
        """
        if not unlink:
            y: Variable = OPS["reshape"](self, shape=shape)
            return y
        from nnl.core.graph.variable import Variable

        nd = self._data.view(shape)
        edge = Value.leaf(nd, self.edge.need_grad)
        if edge.need_grad:
            edge.own_grad = self.edge.grad.view(shape)
        return Variable.of_edge(edge, nd)

    def no_grad(self) -> Variable:
        """A copy of the static graph below in which nothing needs a gradient; its leaves share the
        memory of those here."""
        from nnl.core.graph.dispatch import apply
        from nnl.core.graph.variable import Variable

        copies: dict[tuple[Node, int], Variable] = {}
        leaves: dict[int, Variable] = {}

        def copy(v: Value | None) -> Variable | None:
            if v is None:
                return None
            if v.node is not None:
                return copies[v.node, v.index]
            if id(v) not in leaves:
                leaves[id(v)] = Variable.on(v).unlinked(need_grad=False)
            return leaves[id(v)]

        for node in capture([self.edge]):
            with using(auto_forward=False, no_grad=True, target=node.target):
                ys = apply(node.op, node.attrs, tuple([copy(v) for v in node.inputs]))
            for i, y in enumerate(ys if isinstance(ys, tuple) else (ys,)):
                copies[node, i] = y
        result = copy(self.edge)
        assert result is not None
        return result


def _holders(kind: type, of: Any) -> list[Any]:
    return [h for h in gc.get_referrers(of) if isinstance(h, kind)]
