# SPDX-License-Identifier: Apache-2.0
"""ProtoGraphs out of Variables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nnl.converters.nnp.graph_def import ProtoGraph, ProtoNetwork
from nnl.converters.nnp.messages import messages
from nnl.converters.nnp.network_writer import WrittenNetwork
from nnl.core.graph.node import Value, capture
from nnl.core.graph.variable import Variable
from nnl.core.parameters.parameter import Scope


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
    add_network(graph, name, outputs, names)
    return graph


def add_network(
    graph: ProtoGraph,
    name: str,
    outputs: Sequence[Variable],
    names: dict[str, Variable],
    paths: Mapping[int, str] | None = None,
) -> WrittenNetwork:
    """Add what is below the outputs; see WrittenNetwork for `paths`."""
    parameters = graph.get_parameters()
    known = {v.edge.key for v in (*names.values(), *parameters.values())}
    for edge in _edges(outputs):
        if edge.name and edge.key not in known and edge.name not in {*names, *parameters}:
            names[edge.name] = Variable.on(edge)
            known.add(edge.key)
    entry = {"name": name, "batch_size": 0, "names": names, "outputs": {}, "unnamed": outputs}
    written = _written({**entry, "paths": paths}, parameters)
    size = written.message.batch_size or None
    graph.networks[name] = ProtoNetwork(graph, written.message, size)
    graph.networks[name].recorded(written.names(), outputs)
    return written


def _edges(outputs: Sequence[Variable]) -> Iterator[Value]:
    for node in capture([v.edge for v in outputs]):
        yield from (v for v in node.inputs if v is not None)
    yield from (v.edge for v in outputs)


def _written(entry: dict[str, Any], parameters: Mapping[str, Variable]) -> WrittenNetwork:
    message = messages()["Network"]()
    try:
        written = WrittenNetwork(message, entry, parameters, True)
    except ValueError:
        # a Reshape mixes samples, so the batch size is fixed
        message = messages()["Network"]()
        written = WrittenNetwork(message, entry, parameters, False)
    message.batch_size = written.batch or 0
    return written
