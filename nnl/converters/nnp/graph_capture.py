# SPDX-License-Identifier: Apache-2.0
"""ProtoGraphs out of Variables, and out of functions called on ProtoVariables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from nnl.converters.nnp.graph_def import DEFAULT_NAME, ProtoGraph, ProtoNetwork
from nnl.converters.nnp.messages import messages
from nnl.converters.nnp.network_writer import WrittenNetwork
from nnl.core.context import using
from nnl.core.graph import Node, Value, capture
from nnl.core.op import Op
from nnl.core.parameter import Scope
from nnl.core.variable import Variable


def create_graph_from_variable(
    name: str,
    variables: Variable | Sequence[Variable],
    names: Mapping[str, Variable] | None = None,
    parameter_scope: Scope | None = None,
) -> ProtoGraph:
    """The graph below Variables as a ProtoGraph with one network.

    Args:
        name: Name of the network.
        variables: Its outputs.
        names: Names for Variables in it; their own names are used as well.
        parameter_scope: Where its parameters are registered; the current scope if left out.
    Raises:
        TypeError: variables holds something else.
        NotImplementedError: A function has no type in .nnp files.
    """
    several = isinstance(variables, (list, tuple))
    outputs: list[Any] = list(variables) if several else [variables]  # type: ignore[arg-type]
    if not all(isinstance(v, Variable) for v in outputs):
        raise TypeError(f"create_graph_from_variable: variables is {variables!r}, wanted Variables")
    return _captured(name, outputs, dict(names or {}), parameter_scope)


def _captured(
    name: str, outputs: Sequence[Variable], names: dict[str, Variable], scope: Scope | None
) -> ProtoGraph:
    graph = ProtoGraph(parameter_scope=scope)
    parameters = graph.get_parameters()
    known = {v.edge.key for v in (*names.values(), *parameters.values())}
    for edge in _edges(outputs):
        if edge.name and edge.key not in known and edge.name not in {*names, *parameters}:
            names[edge.name] = Variable.on(edge)
            known.add(edge.key)
    entry = {"name": name, "batch_size": 0, "names": names, "outputs": {}, "unnamed": outputs}
    message = _written(entry, parameters)
    graph.networks[name] = ProtoNetwork(graph, message, message.batch_size or None)
    return graph


def _edges(outputs: Sequence[Variable]) -> Iterator[Value]:
    for node in capture([v.edge for v in outputs]):
        yield from (v for v in node.inputs if v is not None)
    yield from (v.edge for v in outputs)


def _written(entry: dict[str, Any], parameters: Mapping[str, Variable]) -> Any:
    message = messages()["Network"]()
    try:
        written = WrittenNetwork(message, entry, parameters, True)
    except ValueError:
        # a Reshape mixes samples, so the batch size is fixed
        message = messages()["Network"]()
        written = WrittenNetwork(message, entry, parameters, False)
    message.batch_size = written.batch or 0
    return message


# ---- functions called on ProtoVariables ----

_last: list[ProtoGraph] = []


@contextmanager
def graph(name: str = DEFAULT_NAME, parameter_scope: Scope | None = None) -> Iterator[ProtoGraph]:
    """What is called inside the with block becomes the network `name` of the graph that it gives.

    >>> with nnl.graph_def.graph() as g:
    ...     y = PF.affine(nnl.ProtoVariable((8, 16), "x"), 10)
    >>> g.save("net.nnp")
    """
    made: list[Node] = []
    results = ProtoGraph(parameter_scope=parameter_scope)
    apply = Op.apply

    def recording(op: Op, attrs: Any, inputs: tuple[Any, ...]) -> Any:
        y = apply(op, attrs, inputs)
        first = y[0] if isinstance(y, tuple) else y
        if isinstance(first, Variable) and first.edge.node is not None:
            made.append(first.edge.node)
        return y

    with using(auto_forward=False):
        Op.apply = staticmethod(recording)
        try:
            yield results
        finally:
            Op.apply = staticmethod(apply)
    read = {v.key for node in made for v in node.inputs if v is not None}
    ends = [
        Variable.on(Value.of(node, i, spec, False, None if node.outs is None else node.outs[i]))
        for node in made
        for i, spec in enumerate(node.out_specs[: node.op.visible])
        if (id(node), i) not in read
    ]
    if ends:
        built = _captured(name, ends, {}, results.parameter_scope)
        results.networks[name] = built.networks[name]
        results.networks[name].owner = results
    _last[:] = [results]


def get_default_graph() -> ProtoGraph:
    """The graph of the last `with graph()` block.

    Raises:
        ValueError: There was none.
    """
    if not _last:
        raise ValueError("get_default_graph: call functions inside `with nnl.graph_def.graph():`")
    return _last[0]


def reset_default_graph() -> None:
    """Forget the graph of the last `with graph()` block."""
    _last.clear()
