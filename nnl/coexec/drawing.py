# SPDX-License-Identifier: Apache-2.0
"""A TraceGraph as text, and in the language of Graphviz."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from nnl.coexec.cases import assign
from nnl.coexec.dag import Dag, Node
from nnl.coexec.trace_graph import TraceGraph
from nnl.graph.drawing import color_of


def text(graph: TraceGraph) -> str:
    """The graph for people: its switch-cases in order, with what is in their cases and in loops.

    A line `affine (net.py:12) x8, 2 operand variants, inputs: p` has the operation, the line that
    calls it, in how many rounds of traces it was called, on how many choices of operands, and
    which of its attributes are inputs.
    """
    lines = [f"{graph.traces} traces"]
    for line, same in groupby(_lines(graph.body)):
        n = len(list(same))
        lines.append(line if n == 1 else f"{line}, {n} of them")
    return "\n".join(lines)


def _lines(dag: Dag) -> Iterator[str]:
    for switch_case in assign(dag):
        if len(switch_case) == 1:
            for node in switch_case[0].block:
                yield from _node(node)
            continue
        yield f"switch of {len(switch_case)} cases"
        for number, case in enumerate(switch_case, 1):
            from_ = ", ".join(f"{u!r}" for u, _ in case.control)
            yield f"  case {number}, after {from_}{'' if case.block else ': nothing'}"
            for node in case.block:
                yield from (f"    {line}" for line in _node(node))


def _node(node: Node) -> Iterator[str]:
    if node.body is not None:
        yield f"{node!r}, {node.body.start.count} rounds"
        yield from (f"  {line}" for line in _lines(node.body))
        return
    variants = f", {len(node.variants)} operand variants" if len(node.variants) > 1 else ""
    inputs = f", inputs: {', '.join(node.promoted)}" if node.promoted else ""
    yield f"{node!r} x{node.count}{variants}{inputs}"


def dot(graph: TraceGraph) -> str:
    """The graph in the language of Graphviz; a loop is a box around one round of it."""
    names: dict[Node, str] = {}
    lines = ["digraph {", "  node [shape=box, style=filled, fontcolor=white]"]
    lines += [f"  {line}" for line in _declared(graph.body, names)]
    lines += [f"  {line}" for line in _edges(graph.body, names)]
    return "\n".join([*lines, "}"])


def _declared(dag: Dag, names: dict[Node, str]) -> Iterator[str]:
    for node in (dag.start, *dag.nodes, dag.end):
        names[node] = f"n{len(names)}"
        if node.body is not None:
            yield f"subgraph cluster_{names[node]} {{"
            yield f"  label={_quoted(repr(node))}"
            yield from (f"  {line}" for line in _declared(node.body, names))
            yield "}"
        elif node in (dag.start, dag.end):
            yield f'{names[node]} [shape=point, label=""]'
        else:
            label = "\n".join(next(_node(node)).split(" ", 1))
            yield f"{names[node]} [label={_quoted(label)}, fillcolor={color_of(node.op)}]"


def _edges(dag: Dag, names: dict[Node, str]) -> Iterator[str]:
    for u in (dag.start, *dag.nodes):
        out = u if u.body is None else u.body.end
        for v in u.after:
            into = v if v.body is None else v.body.start
            yield f"{names[out]} -> {names[into]}"
        if u.body is not None:
            yield from _edges(u.body, names)
            yield f"{names[out]} -> {names[u.body.start]} [style=dashed]"


def _quoted(label: str) -> str:
    return '"' + label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
