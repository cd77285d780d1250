# SPDX-License-Identifier: Apache-2.0
"""ProtoGraphs out of functions and Modules that are called on ProtoVariables."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from nnl.converters.nnp.graph_capture import add_network
from nnl.converters.nnp.graph_def import DEFAULT_NAME, ProtoGraph, ProtoNetwork, ProtoVariable
from nnl.core.graph.node import Node, Value
from nnl.core.graph.variable import Variable
from nnl.core.interpreters.interpreter import Interpreter, Static
from nnl.core.parameters.parameter import Scope, get_parameter, parameter_scope, set_parameter
from nnl.core.settings.context import STATE, using
from nnl.parametric_functions.module import Module


class _Part:
    """Calls that become one network.

    Attributes:
        name: Of the network, before it is made unique.
        module: The Module that was called, None for functions called outside of any.
        named: The name that graph_name() gave, or None.
        nodes: The functions, in the order of the calls.
        paths: What stands before the names of each of them.
    """

    def __init__(self, name: str, module: Module | None, named: str | None = None) -> None:
        self.name, self.module, self.named = name, module, named
        self.nodes: list[Node] = []
        self.paths: dict[int, str] = {}
        self.modules: dict[int, Module] = {}


class Recorder(Static):
    """Records as static graphs do, and notes the calls of functions and Modules.

    Args:
        name: Of the one network that everything becomes. If left out, every call of a Module
            becomes a network of its own with the Module's name, the rest one called "model".
        scope: Where parameters are, the current scope if left out.
        roots: Keys of the variables to follow; all calls are recorded without.
    """

    def __init__(self, name: str | None, scope: Scope | None, roots: set[Any] | None) -> None:
        self.name, self.scope, self.roots = name, scope, roots
        self.parts: list[_Part] = []
        self._modules: list[Module] = []
        self._followed: set[int] = set()
        super().__init__(STATE.interpreter.now)
        outer: Interpreter = STATE.interpreter
        self.outer = outer if isinstance(outer, Recorder) else None
        self.graph: ProtoGraph | None = None
        self._networks: dict[Any, str] = {}

    def recorded(self, ys: Sequence[Variable]) -> None:
        node = ys[0].edge.node
        if node is not None:
            self._add(node)
        if self.outer is not None:
            self.outer.recorded(ys)

    def called(self, module: Module, args: tuple[Any, ...], kw: dict[str, Any]) -> Any:
        module._parts()  # a part in a list knows its path from now on
        if not self._modules and self.name is None and HERE.named is None:
            self.parts.append(_Part(module.name, module))
        self._modules.append(module)
        try:
            return (self.outer or super()).called(module, args, kw)
        finally:
            self._modules.pop()

    def _add(self, node: Node) -> None:
        if self.roots is not None and not any(
            v is not None and (id(v.node) in self._followed or v.key in self.roots)
            for v in node.inputs
        ):
            return
        self._followed.add(id(node))
        top = (
            self._modules[0] if self._modules and self.name is None and HERE.named is None else None
        )
        last = self.parts[-1] if self.parts else None
        if last is None or last.module is not top or last.named != HERE.named:
            self.parts.append(_Part(HERE.named or self.name or DEFAULT_NAME, top, HERE.named))
        part = self.parts[-1]
        part.nodes.append(node)
        path = self._modules[-1].get_path_name() if self._modules else ""
        part.paths[id(node)] = path or (f"@{self.name}" if self.name is not None else "")
        part.modules.update((id(m), m) for m in self._modules[:1])
        self.graph = None

    def result(self) -> ProtoGraph:
        """The graph of what was called so far."""
        if self.graph is None:
            self.graph = self._built()
        return self.graph

    def _built(self) -> ProtoGraph:
        parts = [p for p in self.parts if p.nodes]
        own = OrderedDict() if any(p.modules for p in parts) else self.scope
        graph = ProtoGraph(parameter_scope=own)
        if own is not self.scope:
            outside = ProtoGraph(parameter_scope=self.scope)
            graph.set_parameters(outside.get_parameters())
        self._networks = {}
        names: dict[Any, str] = {}
        for part in parts:
            count = sum(n == part.name or n.startswith(f"{part.name}_") for n in graph.networks)
            name = f"{part.name}_{count}" if count else part.name
            for module in part.modules.values():
                _register(graph, module, name)
            ends = _ends(part.nodes)
            before = {n: v for key, n in names.items() for v in _edges_of(part, key)}
            written = add_network(graph, name, ends, before, part.paths)
            for key, known in written.names().items():
                names.setdefault(key, known)
                if key[0] in part.paths:
                    self._networks[key] = name
        return graph

    def network_of(self, v: Variable) -> ProtoNetwork | None:
        """The network that computes a Variable."""
        graph = self.result()
        name = self._networks.get(v.edge.key)
        return None if name is None else graph.networks[name]


def _ends(nodes: list[Node]) -> list[Variable]:
    """What is computed and not read."""
    read = {v.key for node in nodes for v in node.inputs if v is not None}
    return [
        Variable.on(Value.of(node, i, spec, False, None if node.outs is None else node.outs[i]))
        for node in nodes
        for i, spec in enumerate(node.out_specs[: node.op.visible])
        if (id(node), i) not in read
    ]


def _edges_of(part: _Part, key: Any) -> list[Variable]:
    """What a part reads from another part under this key."""
    for node in part.nodes:
        for v in node.inputs:
            if v is not None and v.key == key and v.node is not None and key[0] not in part.paths:
                return [Variable.on(v)]
    return []


def _register(graph: ProtoGraph, module: Module, network: str) -> None:
    """The parameters of a Module under their names, or after the network's where those are taken
    by others."""
    with parameter_scope("", graph.parameter_scope):
        for key, p in module.get_parameters().items():
            taken = get_parameter(key)
            if taken is None:
                set_parameter(key, p)
            elif taken.edge.key != p.edge.key:
                set_parameter(f"@{network}/{key}", p)


# ---- the graph of a with block, and the default graph ----


class _Here(threading.local):
    """What a thread records.

    Attributes:
        last: Of the latest with block, or the default graph that began since then.
        named: What graph_name() gave.
    """

    last: Recorder | None = None
    named: str | None = None


HERE = _Here()


@contextmanager
def graph_name(name: str) -> Iterator[None]:
    """What is called inside the with block becomes a network of this name."""
    outer, HERE.named = HERE.named, name
    try:
        yield
    finally:
        HERE.named = outer


@contextmanager
def graph(name: str | None = None, parameter_scope: Scope | None = None) -> Iterator[ProtoGraph]:
    """What is called inside the with block becomes the graph that it gives.

    Args:
        name: Of the one network that everything becomes. If left out, every call of a Module
            becomes a network of its own with the Module's name, the rest one called "model".
        parameter_scope: Where functions find their parameters; the current scope if left out.

    >>> with graph() as g:
    ...     y = PF.affine(nn.ProtoVariable((8, 16), "x"), 10)
    >>> g.save("ex.nnp")
    """
    recorder = Recorder(name, parameter_scope, None)
    result = ProtoGraph(parameter_scope=parameter_scope)
    with using(interpreter=recorder):
        yield result
    built = recorder.result()
    result.parameter_scope = built.parameter_scope
    for key, network in built.networks.items():
        result.networks[key] = network
        network.owner = result
    recorder.graph = result
    reset_default_graph()
    HERE.last = recorder


def _follow(v: Variable) -> None:
    """A ProtoVariable was made: outside of `with graph()`, the default graph begins with it."""
    if STATE.auto_forward:
        return
    if type(STATE.interpreter) is Static:
        HERE.last = STATE.interpreter = Recorder(None, None, set())
    roots = getattr(STATE.interpreter, "roots", None)
    if roots is not None:
        roots.add(v.edge.key)


ProtoVariable.listeners.append(_follow)


def get_default_graph() -> ProtoGraph:
    """The graph of what was called on ProtoVariables: of the last `with graph()` block, or outside
    of any since then.

    Raises:
        ValueError: There was nothing.
    """
    if HERE.last is None:
        raise ValueError("get_default_graph: call functions on a nnl.ProtoVariable first")
    return HERE.last.result()


def get_default_graph_by_variable(proto_variable: Variable) -> ProtoNetwork:
    """The network of the default graph that computes a variable.

    Raises:
        ValueError: There is none.
    """
    found = None if HERE.last is None else HERE.last.network_of(proto_variable)
    if found is None:
        raise ValueError(
            "get_default_graph_by_variable: no network of the default graph computes "
            f"{proto_variable!r}"
        )
    return found


def reset_default_graph() -> None:
    """Forget the default graph. Until then it keeps what was called on ProtoVariables."""
    if STATE.interpreter is HERE.last:
        STATE.interpreter = HERE.last.now.switched(False)
    HERE.last = None
