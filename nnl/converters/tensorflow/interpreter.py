# SPDX-License-Identifier: Apache-2.0
"""Runs a graph by calling nnl functions, so that running it records.

Nodes whose inputs are all constants are computed at once and give constants. So conditions and
counters of loops are known where nothing but constants decides them, and loops are unrolled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from nnl.converters.onnx.file.errors import DAMAGE
from nnl.converters.onnx.values.values import array, is_var, known, scalar, tagged, var
from nnl.converters.tensorflow.axes import Axes
from nnl.converters.tensorflow.graph import Edge, Graph, Library, Node
from nnl.converters.tensorflow.messages import TensorFlowError, dtype_of_code
from nnl.core.graph.variable import Variable
from nnl.core.interpreters.interpreter import EAGER
from nnl.core.ops.op import OPS
from nnl.core.parameters.parameter import get_parameter_or_create, set_parameter
from nnl.core.settings.context import using

MAX_DEPTH = 48  # of functions inside each other
MAX_STEPS = 2 * 10**5  # nodes, of all functions and turns of loops; more would never end
DEAD = type("Dead", (), {"__repr__": lambda self: "nothing"})()  # what a switch does not give


class _NotByTurn(Exception):
    """A loop does more in its turns than to take and to give rows: it is unrolled."""


class ByTurn:
    """What is another thing in each turn of a loop that is recorded once."""

    def step(self, op: str, values: Sequence[Any]) -> Any:
        """What an operator gives of it."""
        raise NotImplementedError


Handler = Callable[..., Any]
HANDLERS: dict[str, Handler] = {}


def tf_import(*names: str) -> Callable[[Handler], Handler]:
    """Decorator: this function runs these operators. It gets the interpreter, the node and the
    values of its inputs; it gives a value, or a list of them."""

    def register(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return register


class Unsupported(TensorFlowError, NotImplementedError):
    """Operators, or forms of them, that cannot be imported."""


class Scope:
    """Values of the nodes of one run of a graph.

    Attributes:
        values: By name of a node: those of its outputs.
        inside: The nodes that a turn of a loop computes for itself; `outer` has those of others.
    """

    def __init__(
        self, graph: Graph, outer: Scope | None = None, inside: set[str] | None = None
    ) -> None:
        self.graph, self.outer, self.inside = graph, outer, inside
        self.values: dict[str, Sequence[Any]] = {}

    def owner(self, name: str) -> Scope:
        """The scope that has, or will have, the values of a node."""
        scope = self
        while scope.inside is not None and name not in scope.inside and scope.outer is not None:
            scope = scope.outer
        return scope

    def value(self, edge: Edge) -> Any:
        """What an output gave."""
        found = self.owner(edge[0]).values[edge[0]]
        if len(found) == 1 and found[0] is DEAD:
            return DEAD
        if edge[1] >= len(found):
            raise TensorFlowError(f"{edge[0]} has no output {edge[1]}")
        return found[edge[1]]


_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
# Their values are not among their inputs.
_READS = (
    "Exit", "Placeholder", "ReadVariableOp", "AssignAddVariableOp", "AssignSubVariableOp",
    "RandomUniform", "RandomStandardNormal",
)  # fmt: skip
# Places in a table, which sizes may decide: a function, not one more table.
_LOOKUPS = ("Gather", "GatherV2", "ResourceGather")


def is_table(x: Any) -> bool:
    """Whether a value is an array of rows of real numbers."""
    return isinstance(x, np.ndarray) and x.dtype.kind == "f" and x.ndim > 1


class Interpreter:
    """One run of a graph; what handlers get as `ctx`.

    Attributes:
        library: Functions that nodes may call.
        axes: What is held with other axes.
        state: Values of variables by what names them.
        files: Reads a tensor of a checkpoint by name, None where there is none.
        assigned: Names of the variables that were given a value.
        kept: Names of those that keep it for the next run; leaves: what holds them between runs.
    """

    def __init__(
        self,
        library: Library,
        state: dict[str, Any] | None = None,
        files: Callable[[str], Any] | None = None,
    ) -> None:
        self.library, self.axes, self.files = library, Axes(), files
        self.state = {} if state is None else state
        self.depth = self.steps = 0
        self.open = False  # whether sizes are open
        self.in_turn = False  # of a loop that is recorded once
        self.parameters: dict[str, tuple[Any, Variable]] = {}
        self.scaled: dict[Any, tuple[Any, Any, Any]] = {}  # products by key: they, and of what
        self.frames: dict[tuple[int, str], Any] = {}  # loops of version 1, by graph and name
        self.assigned: set[str] = set()
        self.kept: set[str] = set()
        self.leaves: dict[str, Variable] = {}
        self.following = False  # nodes that must run before others, too
        self.scope = Scope(Graph({}))

    # ---- graphs ----

    def call(self, name: str, values: Sequence[Any]) -> list[Any]:
        """The results of a function of the library."""
        graph = self.library.graph(name)
        if self.depth >= MAX_DEPTH:
            raise TensorFlowError(f"functions are nested deeper than {MAX_DEPTH}")
        if len(values) != len(graph.args):
            raise TensorFlowError(
                f"the function {name!r} takes {len(graph.args)} values, got {len(values)}"
            )
        self.steps += 5  # it takes as long as that many nodes
        scope = Scope(graph)
        scope.values.update((a, [v]) for a, v in zip(graph.args, values, strict=True))
        self.depth += 1
        try:
            self.run(scope, [*[n for n, _ in graph.results], *(graph.effects * self.following)])
        finally:
            self.depth -= 1
        return [scope.value(edge) for edge in graph.results]

    def run(self, scope: Scope, names: Iterable[str]) -> None:
        """Compute nodes, and all that they need."""
        todo = list(names)[::-1]
        path: set[tuple[int, str]] = set()
        while todo:
            name = todo[-1]
            owner = scope.owner(name)
            if name in owner.values:
                todo.pop()
                continue
            node = owner.graph.nodes[name]
            missing = [n for n in self._needs(node) if n not in owner.owner(n).values]
            if not missing:
                todo.pop()
                path.discard((id(owner), name))
                self._step(owner, node)
                continue
            if (id(owner), name) in path:
                raise TensorFlowError(f"{node.label}: it needs its own result")
            path.add((id(owner), name))
            todo += missing[::-1]

    def _needs(self, node: Node) -> list[str]:
        if node.op in ("Exit", "RefExit"):  # of a loop, which runs when they are computed
            return []
        return [n for n, _ in node.inputs] + (node.controls if self.following else [])

    def _step(self, scope: Scope, node: Node) -> None:
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise TensorFlowError(f"its loops and functions run more than {MAX_STEPS} nodes")
        before, self.scope = self.scope, scope
        try:
            values = [scope.value(edge) for edge in node.inputs if self._needs(node)]
            dead = [v is DEAD for v in values]
            if any(dead) and not (node.op in ("Merge", "RefMerge") and not all(dead)):
                scope.values[node.name] = [DEAD]
                return
            ys = self._call(node, values)
        except TensorFlowError as error:
            if node.name in str(error):
                raise
            raise type(error)(f"{node.label}: {error}") from None
        except DAMAGE as error:
            raise TensorFlowError(f"{node.label}: {_reason(error)}") from error
        except (ValueError, NotImplementedError, RuntimeError) as error:
            raise TensorFlowError(f"{node.label}: {error}") from error
        finally:
            self.scope = before
        if node.name not in scope.values:  # a loop gives the values of all its exits
            scope.values[node.name] = ys

    def _call(self, node: Node, values: list[Any]) -> list[Any]:
        handler = HANDLERS.get(node.op)
        if handler is None:
            if node.op in self.library:
                return self.call(node.op, values)
            raise Unsupported(f"there is no importer for the operator {node.op}")
        of_turn = next((v for v in values if isinstance(v, ByTurn)), None)
        if of_turn is not None and node.op not in _CALLS:
            return [of_turn.step(node.op, values)]
        looked_up = node.op in _LOOKUPS and is_table(values[0])
        if any(map(_depends, values)) or looked_up or node.op in _READS:
            ys = handler(self, node, *values)
            return list(ys) if isinstance(ys, (list, tuple)) else [ys]
        with using(interpreter=EAGER, no_grad=True):
            ys = handler(self, node, *values)
            found = list(ys) if isinstance(ys, (list, tuple)) else [ys]
            return [array(y) if is_var(y) else y for y in found]

    # ---- what handlers use ----

    def parameter(self, node: Node, name: str, value: Any, need_grad: bool = True) -> Any:
        """A weight: a parameter of the network if it is a constant."""
        if is_var(value):
            return value
        base = "/".join(p for p in node.name.split("/") if p) or "_"
        key, n = f"{base}/{name}", 1
        while key in self.parameters and self.parameters[key][0] is not node:
            key, n = f"{base}_{n}/{name}", n + 1
        if key not in self.parameters or self.parameters[key][1].shape != value.shape:
            kept = value.astype(np.float32) if value.dtype != np.float64 else value
            made = get_parameter_or_create(key, kept.shape, lambda shape: kept, need_grad=need_grad)
            self.parameters[key] = node, made
        return tagged(self.parameters[key][1], value.dtype)

    def read(self, name: str) -> Any:
        """The value of a variable."""
        value = self.state[name]
        if name in self.kept and name not in self.leaves:
            if value.dtype.kind not in "fiub":
                raise Unsupported(f"assigns the variable {name!r} of {value.dtype}")
            leaf = self.leaves[name] = Variable.from_numpy_array(value.astype(np.float32))
            set_parameter(f"states/{name}", leaf)
            self.state[name] = tagged(leaf, value.dtype)
        return self.state[name]

    def assign(self, name: str, value: Any) -> None:
        """Let a variable be something from here on."""
        if self.in_turn:
            raise _NotByTurn
        self.assigned.add(name)
        self.state[name] = value

    def keep(self, y: Variable) -> Variable:
        """An output, after which the variables that a run has assigned are kept for the next."""
        done = []
        for name, leaf in self.leaves.items():
            now = var(self.state[name])
            if now.edge.key != leaf.edge.key:
                done.append(OPS["store"](leaf, OPS["cast"](now, dtype="float32")))
        return OPS["keep_states"](y, *done) if done else y

    def typed(self, y: Any, code: int | None) -> Any:
        """A value as a type of TensorFlow, if it is one."""
        if code is None:
            return y
        dtype = dtype_of_code(code)
        if is_var(y):
            return tagged(y, dtype)
        return np.asarray(y).astype(dtype, copy=False)

    def decided(self, x: Any, what: str) -> bool:
        """The truth of a value that must be a constant.

        Raises:
            Unsupported: It depends on the inputs.
        """
        if not known(x):
            raise Unsupported(f"{what} depends on the inputs, wanted one that constants decide")
        value = scalar(x, what=what) if np.asarray(x).size == 1 else np.asarray(x).size
        return bool(value)

    # ---- loops of version 1 ----

    def leave(self, scope: Scope, node: Node) -> Any:
        """Run the loop that a node leaves; all its exits get their values."""
        switch = self._maker(scope, node.inputs, "Switch")
        merge = self._maker(scope, switch.inputs, "Merge")
        enter = self._maker(scope, merge.inputs, "Enter")
        frame = enter.attr("frame_name", "")
        key = id(scope.graph), frame
        if key not in self.frames:
            self.frames[key] = _frame(scope.graph, frame)
        inside, merges, exits = self.frames[key]
        goes = self._maker(scope, switch.inputs[1:], "LoopCond")
        outer = scope
        self.run(outer, [e for m in merges for e, _ in m.inputs[:1]])
        state = [outer.value(m.inputs[0]) for m in merges]
        while True:
            turn = Scope(scope.graph, outer, inside)
            turn.values.update(
                (m.name, [v, np.int32(0)]) for m, v in zip(merges, state, strict=True)
            )
            self.run(turn, [goes.name])
            if not self.decided(turn.value((goes.name, 0)), "the condition of a loop"):
                break
            ends = [m.inputs[1] for m in merges]
            self.run(turn, [name for name, _ in ends])
            state = [turn.value(edge) for edge in ends]
        of = {m.name: v for m, v in zip(merges, state, strict=True)}
        for other in exits:
            its = self._maker(scope, other.inputs, "Switch")
            source = its.inputs[0][0]
            if source not in of:
                raise TensorFlowError(f"{other.label} leaves a loop with what does not go around")
            scope.values[other.name] = [of[source]]
        return scope.values[node.name]

    def _maker(self, scope: Scope, inputs: Sequence[Edge], op: str) -> Node:
        node = scope.graph.nodes[inputs[0][0]] if inputs else None
        if node is None or node.op not in (op, f"Ref{op}"):
            raise TensorFlowError(f"a loop has no {op} where one belongs")
        return node


def _frame(graph: Graph, frame: str) -> tuple[set[str], list[Node], list[Node]]:
    """The nodes of a loop, those that merge what goes around, and its exits."""
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes.values():
        for name, _ in node.inputs:
            readers.setdefault(name, []).append(node)
    depth = {
        n.name: 1
        for n in graph.nodes.values()
        if n.op in ("Enter", "RefEnter") and n.attr("frame_name", "") == frame
    }
    todo, exits = list(depth), []
    while todo:
        name = todo.pop()
        for node in readers.get(name, ()):
            d = depth[name] + (node.op in ("Enter", "RefEnter")) - (node.op in ("Exit", "RefExit"))
            if d == 0:
                exits.append(node)
            elif node.name not in depth:
                depth[node.name] = d
                todo.append(node.name)
    merges = [
        n
        for n in graph.nodes.values()
        if depth.get(n.name) == 1
        and n.op in ("Merge", "RefMerge")
        and len(n.inputs) == 2
        and graph.nodes[n.inputs[0][0]].op in ("Enter", "RefEnter")
    ]
    return set(depth), merges, exits


def _depends(x: Any) -> bool:
    if isinstance(x, tuple):  # an array of tensors
        return any(map(_depends, x))
    return is_var(getattr(x, "whole", x))


def _reason(error: BaseException) -> str:
    """What an error in our code tells the reader of a file: its data are of the wrong kind."""
    if isinstance(error, MemoryError):
        return "there is not enough memory for it"
    if isinstance(error, TypeError) and str(error).startswith(tuple("abcdefghijklmnopqrstuvwxyz")):
        name, colon, _ = str(error).partition(": ")
        if colon and name.isidentifier():  # of a function of nnl
            return str(error)
    return "its inputs or attributes are not of the kind that the operator takes"
