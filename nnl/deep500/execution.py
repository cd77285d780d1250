# SPDX-License-Identifier: Apache-2.0
"""Runs a typed graph by a visitor whose methods take values and give values.

An eager back end computes in its methods, one that builds a graph makes nodes of it in them: the
order, the names and the lives of values are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from nnl.converters.onnx.file.errors import UnsupportedOperator
from nnl.converters.onnx.file.model import Graph, Model, Node, StrictVisitor
from nnl.converters.onnx.running.function_bodies import body_of_function, body_of_schema
from nnl.deep500.contract import Network, listed
from nnl.deep500.operation import Operation
from nnl.deep500.program import Call, Program, program

Values = dict[str, Any]


class ValueVisitor(StrictVisitor):
    """Base of the visitors: visit_OPERATOR(node, *inputs) gives the output or a tuple of outputs.

    Inputs that are left out are None. A method that gives NotImplemented leaves the node to the
    body that ONNX has for its operator. `simple` names functions of the inputs alone, for
    operators that need no method. prepare_OPERATOR(node) is asked once for a call in which the
    attributes are worked out already: a function of the inputs that gives the one output, or a
    tuple of a function and what follows the inputs; None leaves the node to the other two. Methods
    control_OPERATOR(machine, node, values, *inputs) run subgraphs.
    """

    simple: dict[str, Callable[..., Any]] = {}

    def call(self, node: Node) -> Call | None:
        """What computes a node; None if the visitor does not have the operator."""
        if isinstance(node, Operation):
            return Call(partial(self.own, node))
        plain = node.domain == ""
        prepare = getattr(self, f"prepare_{node.op_type}", None) if plain else None
        ready = None if prepare is None else prepare(node)
        if ready is not None:
            function, *more = ready if isinstance(ready, tuple) else (ready,)
            return Call(function, tuple(more), one=True)
        found = self.method(node)
        if found is not None:
            return Call(partial(found, node))
        simple = self.simple.get(node.op_type) if plain else None
        return None if simple is None else Call(simple, one=True)

    def control(self, node: Node) -> Callable[..., Any] | None:
        """What runs a node that has subgraphs."""
        return getattr(self, f"control_{node.op_type}", None) if node.domain == "" else None

    def own(self, node: Operation, *inputs: Any) -> Any:
        """Compute an operator that the user has written."""
        return self.missing(node, *inputs)

    def spec(self, value: Any) -> Any:
        """An array of the dtype and shape of a value; its numbers do not matter."""
        return np.asarray(value)


class Machine:
    """Runs graphs of one model by one visitor.

    Attributes:
        opsets, bodies: What reading the bodies of functions needs.
    """

    def __init__(self, visitor: ValueVisitor, model: Model) -> None:
        self.visitor, self.model = visitor, model
        self.opsets, self.bodies = model.opsets, {}  # type: dict[str, int], dict[Any, Any]
        self._programs: dict[int, tuple[Graph, Program]] = {}
        self._expanded: dict[Any, tuple[Graph, dict[str, int]]] = {}

    def missing(self, graph: Graph) -> list[Node]:
        """Nodes that nothing can run: no method, and no body of other operators."""
        return [node for node in graph.walk() if not self._has(node)]

    def _has(self, node: Node) -> bool:
        if self.visitor.call(node) or self.visitor.control(node):
            return True
        if (node.domain, node.op_type) in self.model.functions:
            return True
        schema = node.schema
        return schema is not None and bool(
            schema.has_function or schema.has_context_dependent_function
        )

    def run(self, graph: Graph, values: Values) -> list[Any]:
        """Run all nodes; `values` holds inputs and initializers by name. Gives the outputs."""
        found = self._programs.get(id(graph))
        if found is None:  # with the graph, which so keeps its id
            found = self._programs[id(graph)] = graph, program(graph, self._call, self._by_schema)
        return found[1](values)

    def inside(self, graph: Graph, values: Values, inputs: Sequence[Any]) -> list[Any]:
        """Run a subgraph of a node, which may read the values around it."""
        inner = {**values, **graph.initializers}
        inner = {n: self.constant(v) if n in graph.initializers else v for n, v in inner.items()}
        inner.update(zip([v.name for v in graph.inputs], inputs, strict=False))
        return self.run(graph, inner)

    def constant(self, value: Any) -> Any:
        """A numpy array as a value of the back end."""
        convert = getattr(self.visitor, "constant", None)
        return value if convert is None else convert(value)

    def _call(self, node: Node) -> Call:
        function = self.model.functions.get((node.domain, node.op_type))
        if function is not None:
            return Call(
                lambda *inputs: self._expand(body_of_function(self, node, function), inputs)
            )
        control = self.visitor.control(node)
        if control is not None:
            return Call(partial(control, self, node), around=True)
        return self.visitor.call(node) or Call(partial(self._by_schema, node))

    def _by_schema(self, node: Node, *inputs: Any) -> Any:
        if node.schema is None:
            return self.visitor.missing(node)
        specs = [None if v is None else self.visitor.spec(v) for v in inputs]
        key = id(node), *[(v.dtype, v.shape) if isinstance(v, np.ndarray) else v for v in specs]
        if any(isinstance(v, list) for v in specs):  # of sequences
            return self._expand(body_of_schema(self, node, specs), inputs)
        if key not in self._expanded:
            self._expanded[key] = body_of_schema(self, node, specs)
        return self._expand(self._expanded[key], inputs)

    def _expand(self, body: tuple[Graph, dict[str, int]], inputs: Sequence[Any]) -> tuple[Any, ...]:
        graph, opsets = body
        before, self.opsets = self.opsets, opsets
        try:
            given = [*inputs, *[None] * (len(graph.inputs) - len(inputs))]
            values = dict(zip([v.name for v in graph.inputs], given, strict=True))
            return tuple(self.run(graph, values))
        finally:
            self.opsets = before


class VisitorNetwork(Network):
    """A network that runs its graph by a visitor, every time it is called.

    A back end of this kind gives a visitor, and says how numpy arrays become its values and back.
    """

    visitor: ValueVisitor

    def missing(self) -> list[str]:
        return listed(Machine(self.visitor, self.model).missing(self.graph))

    def _build(self) -> None:
        self.machine = Machine(self.visitor, self.model)
        self.constants: Values = {}
        self.values: Values = {}
        for name, array in self.graph.initializers.items():
            if name in self._names:
                self.values[name] = self.variable(array)
            else:
                self.constants[name] = self.constant(array)

    def _release(self) -> None:
        self.constants, self.values = {}, {}

    def _run(self, inputs: Values) -> list[Any]:
        values = {**self.constants, **self.values, **inputs}
        return self.machine.run(self.graph, values)

    def _given(self, inputs: Values) -> Values:
        return {name: self.constant(v) for name, v in inputs.items()}

    def _results(self, outs: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self._given_back, map(self.array, outs), strict=True))

    def _infer(self, inputs: Values) -> dict[str, Any]:
        return self._results(self._run(self._given(inputs)))

    # ---- what a back end of this kind implements ----

    def constant(self, value: Any) -> Any:
        """A numpy array as a value; lists and None stay what they are."""
        return value

    def variable(self, value: Any) -> Any:
        """A numpy array as a parameter."""
        return self.constant(value)

    def array(self, value: Any) -> Any:
        """A value as a numpy array."""
        return value


__all__ = ["Machine", "UnsupportedOperator", "ValueVisitor", "Values", "VisitorNetwork"]
