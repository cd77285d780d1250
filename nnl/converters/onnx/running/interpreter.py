# SPDX-License-Identifier: Apache-2.0
"""Runs a typed graph by calling nnl functions, so that running it records or computes.

Nodes whose inputs are all constants are computed at once and give constants ("folded"), with
numpy's integers where ONNX has integers. Everything else becomes Variables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from nnl.converters.onnx.file.errors import DAMAGE, OnnxError, UnsupportedOperator, reason_of
from nnl.converters.onnx.file.model import Graph, Model, UnknownNode
from nnl.converters.onnx.file.operators import Node
from nnl.converters.onnx.file.registry import ONNX, one_to_one
from nnl.converters.onnx.running.assignments import Assign, with_assignments
from nnl.converters.onnx.running.function_bodies import body_of_function, body_of_schema
from nnl.converters.onnx.running.table import table_handler
from nnl.converters.onnx.values.counted import follow
from nnl.converters.onnx.values.strings import has_text, words_of
from nnl.converters.onnx.values.values import (
    Counted,
    Rows,
    Sized,
    array,
    dtype_of,
    is_float,
    is_var,
    known,
    tagged,
    var,
)
from nnl.core.graph.variable import Variable
from nnl.core.interpreters.interpreter import EAGER
from nnl.core.settings.context import STATE, using
from nnl.core.settings.context import Context as Device

# what makes tables of sizes
_MAKERS = "ConstantOfShape", "Expand", "EyeLike", "NonZero", "Range", "Tile"
LARGEST = 2**20  # elements of a table that are computed to know them, if the program can
MAX_DEPTH = 48  # of graphs and functions inside each other
MAX_RUNS = 10**5  # of graphs and functions; loops inside loops that want more would never end
# RuntimeError is what oneDNN raises where memory or its own bounds do not suffice
_CAUSES = (*DAMAGE, RuntimeError)
_FIXED = {
    "tensor(int64)": np.dtype(np.int64),
    "tensor(int32)": np.dtype(np.int32),
    "tensor(bool)": np.dtype(bool),
    "tensor(float)": np.dtype(np.float32),
    "tensor(uint8)": np.dtype(np.uint8),
}


class Scope:
    """Values by name, inside the scope around it."""

    __slots__ = ("values", "outer", "graph")

    def __init__(self, graph: Graph | None, outer: Scope | None) -> None:
        self.values: dict[str, Any] = {}
        self.graph, self.outer = graph, outer

    def graphs(self) -> list[Graph]:
        """The graph, and those around it."""
        more = [] if self.outer is None else self.outer.graphs()
        return more if self.graph is None else [self.graph, *more]

    def find(self, name: str) -> Any:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.outer
        raise OnnxError(f"the value {name!r} has not been computed")


class Interpreter:
    """One run of a model; what handlers get as `ctx`.

    Attributes:
        model: The typed view.
        opsets: Operator versions in force, by domain.
        scope: Where the present node reads and writes.
        tables: What handlers make of the attributes of a node, once for all runs.
        max_trips: Of loops whose number of trips only values know; None: any number.
        open: Whether the graph is recorded for open sizes: tables are computed in it then.
        bounded: Whether arrays may have the greatest size of values whose number of entries only
            the run knows. cuts: Whether slices may, of which the run knows the end.
    """

    def __init__(
        self, model: Model, initial: Callable[[str, Any], Any], max_trips: int | None = None
    ) -> None:
        self.model, self.initial, self.max_trips = model, initial, max_trips
        self.open = self.bounded = self.cuts = False
        self.opsets = model.opsets
        self.scope = Scope(None, None)
        self.depth = self.runs = 0
        self.steps: dict[int, tuple[Graph, list[tuple[Node, list[str]]]]] = {}
        self.bodies: dict[Any, Graph] = {}
        self.tables = model.tables

    @property
    def opset(self) -> int:
        """Version of ONNX's own operators."""
        return self.opsets[""]

    # ---- graphs ----

    def run(self, graph: Graph, inputs: Sequence[Any], outer: Scope | None = None) -> list[Any]:
        """Run a graph.

        Args:
            inputs: Values by position; None for those that an initializer gives.
            outer: The scope its nodes may read; a fresh one if left out.
        Returns:
            Values of its outputs.
        """
        if self.depth >= MAX_DEPTH:
            raise OnnxError(f"graphs or functions are nested deeper than {MAX_DEPTH}")
        self.runs += 1
        if self.runs > MAX_RUNS:
            raise OnnxError(f"loops and functions run more than {MAX_RUNS} times in all")
        scope = Scope(graph, outer)
        for name, value in graph.initializers.items():
            scope.values[name] = self.initial(name, value)
        for info, value in zip(graph.inputs, inputs, strict=False):
            if value is not None or info.name not in scope.values:
                scope.values[info.name] = value
        before, self.scope = self.scope, scope
        self.depth += 1
        try:
            for node, dead in self._steps(graph):
                self._step(node, scope)
                for name in dead:
                    scope.values.pop(name, None)
            return [scope.find(v.name) if v.name else None for v in graph.outputs]
        finally:
            self.scope = before
            self.depth -= 1

    def run_inside(self, graph: Graph, inputs: Sequence[Any]) -> list[Any]:
        """Run a subgraph of the present node; it reads the values around it."""
        return self.run(graph, inputs, self.scope)

    def _steps(self, graph: Graph) -> list[tuple[Node, list[str]]]:
        """The nodes, and which values nobody reads after each."""
        found = self.steps.get(id(graph))
        if found is None:
            nodes, last = with_assignments(graph, self.scope.graphs()), {}
            for i, node in enumerate(nodes):
                for name in (*node.inputs, *node.captured, *node.outputs):
                    last[name] = i
            for v in graph.outputs:
                last.pop(v.name, None)
            dead: list[list[str]] = [[] for _ in nodes]
            for name, i in last.items():
                dead[i].append(name)
            both = list(zip(nodes, dead, strict=True))
            found = self.steps[id(graph)] = graph, both  # the graph: so that its id stays
        return found[1]

    # ---- nodes ----

    def _step(self, node: Node, scope: Scope) -> None:
        try:
            values = [scope.find(n) if n else None for n in node.inputs]
            captured = [scope.find(n) for n in node.captured]
            if isinstance(node, Assign) and not node.fits(values):
                for one in node.nodes:
                    self._step(one, scope)
                return
            outs = self._call(node, values, captured)
        except OnnxError as e:
            if e.node:
                raise
            raise type(e)(e.reason, node=node.label) from e.__cause__
        except (*_CAUSES, ValueError, NotImplementedError) as e:
            raise OnnxError(reason_of(e), node=node.label) from e
        for name, value in zip(node.outputs, outs, strict=False):
            if name:
                scope.values[name] = value

    def _call(self, node: Node, values: list[Any], captured: list[Any]) -> list[Any]:
        handler = self.handler(node)
        if has_text(values):
            values = words_of(self.model).inputs_of(node, values)
        seen = [*values, *captured]
        constant = not any(map(_holds_variable, seen)) and not draws(node)
        constant = constant and not _stored(node, values)
        changes: dict[str, Any] = {"origin": STATE.origin or node.label}
        if constant and not STATE.auto_forward:
            changes.update(interpreter=EAGER, no_grad=True)
        if any(
            not (v is None or isinstance(v, (list, Rows))) and dtype_of(v) == np.float64
            for v in values
        ):
            changes.update(context=_double(), target=_double().target)
        run = partial(self._handled, node, handler)
        if any(is_var(v) and isinstance(v.info, Counted) for v in values):
            with using(**changes):
                return follow(node, values, lambda some: run(some, False))
        any_table = any(isinstance(v, Sized) and v.table for v in values)
        made: list[Any] = []
        if any_table:  # unless that needs the numbers
            errors = *_CAUSES, OnnxError, ValueError, NotImplementedError
            recording = {**changes, "auto_forward": False, "no_grad": STATE.no_grad}
            with using(**recording), suppress(*errors):
                tables = [var(v) if isinstance(v, Sized) and v.table else v for v in values]
                made = run(tables, False)
        if made and (not constant or all(is_var(y) and y.size > LARGEST for y in made)):
            return made
        with using(**changes):
            outs = run(values, constant)
        if constant and any(isinstance(v, Sized) for v in values):
            table = any_table or node.op_type in _MAKERS
            for i, y in enumerate(outs):
                graph = made[i] if i < len(made) and is_var(made[i]) else None
                inside = isinstance(y, Sized) and y.table and graph is None
                if isinstance(y, np.ndarray) and not inside:
                    outs[i] = y = y.view(Sized)
                    y.table, y.graph = table and y.dtype.kind != "O", graph
        return outs

    def _handled(
        self, node: Node, handler: Callable[..., Any], values: list[Any], constant: bool
    ) -> list[Any]:
        outs = handler(self, node, *values)
        outs = list(outs) if isinstance(outs, (tuple, list)) else [outs]
        return self._finish(node, values, outs, constant)

    def _finish(self, node: Node, values: Any, outs: list[Any], constant: bool) -> list[Any]:
        """Give every output the type the schema promises; read constants and all but floats."""
        for i, out in enumerate(outs):
            if out is None or isinstance(out, (list, Rows)):
                continue
            if not is_var(out):
                out = np.asanyarray(out)
            dtype = _promised(node, i, values)
            if dtype is None:
                dtype = dtype_of(out)
            if is_var(out):
                out = tagged(out, dtype)
                if constant or (not is_float(dtype) and known(out)):
                    out = array(out)
            elif out.dtype != dtype:
                out = out.astype(dtype)
            outs[i] = out
        return outs

    def handler(self, node: Node) -> Callable[..., Any]:
        """What runs a node: a handler, the table of one-to-one functions, or a function body.

        Raises:
            UnsupportedOperator: Nothing does.
        """
        if isinstance(node, Assign):
            return node.run
        domain, name = node.domain, node.op_type
        function = self.model.functions.get((domain, name))
        if function is not None:
            return lambda ctx, node, *v: ctx.call(node, body_of_function(ctx, node, function), v)
        found = ONNX.find_import(name, node.since or 10**6, domain)
        if found is not None:
            return found
        op = one_to_one().get(name) if domain == "" else None
        if op is not None:
            return table_handler(op)
        if not isinstance(node, UnknownNode):
            schema = node.schema
            if schema.has_function or schema.has_context_dependent_function:
                return lambda ctx, node, *v: ctx.call(node, body_of_schema(ctx, node, v), v)
        raise UnsupportedOperator(
            f"there is no importer for the operator {name!r} of the domain "
            f"{domain or 'ai.onnx'!r} (version {self.opsets.get(domain)}; "
            "documentation: onnx_report#operators)",
            node=node.label,
        )

    def call(
        self, node: Node, body: tuple[Graph, dict[str, int]], values: Sequence[Any]
    ) -> list[Any]:
        """Run the body of a function, which sees none of the values around it.

        Raises:
            OnnxError: As the nodes inside; its text names `node`, which the file has, before them.
        """
        graph, opsets = body
        before, self.opsets = self.opsets, opsets
        try:
            padded = [*values, *[None] * (len(graph.inputs) - len(values))]
            return self.run(graph, padded)
        except OnnxError as e:
            label = f"{node.label}: {e.node}" if e.node else node.label
            raise type(e)(e.reason, node=label) from e.__cause__
        finally:
            self.opsets = before


_DOUBLE: list[Device] = []


def _double() -> Device:
    if not _DOUBLE:
        _DOUBLE.append(Device(["cpu:double"]))
    return _DOUBLE[0]


def _holds_variable(x: Any) -> bool:
    return isinstance(x, (Variable, Rows)) or (isinstance(x, list) and any(map(_holds_variable, x)))


def _stored(node: Node, values: Sequence[Any]) -> bool:
    """Whether a node gives weights that a static graph keeps in 8 bits."""
    if node.op_type != "DequantizeLinear" or STATE.auto_forward:
        return False
    kind = dtype_of(values[0])
    return kind.kind in "iu" and kind.itemsize == 1 and np.size(values[0]) > 1


def draws(node: Node) -> bool:
    """Whether each run draws new numbers, so that the node must not become a constant."""
    return node.schema is not None and bool(node.schema.non_deterministic)


def _promised(node: Node, index: int, values: Sequence[Any]) -> Any:
    """The type that the schema promises for an output, given the inputs; None if it says none."""
    inputs, outputs = node.type_names
    if not outputs:
        return None
    name = outputs[min(index, len(outputs) - 1)]
    if not name:  # what a subgraph gives, of any type
        return None
    name = node.fixed_types.get(name, name)
    if name in _FIXED:
        return _FIXED[name]
    for i, value in enumerate(values):
        if value is None or isinstance(value, (list, Rows)):
            continue
        if inputs and inputs[min(i, len(inputs) - 1)] == name:
            return dtype_of(value)
    return None
