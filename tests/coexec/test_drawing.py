# SPDX-License-Identifier: Apache-2.0
"""A TraceGraph for people."""

from __future__ import annotations

import re
from typing import Any

from nnl.coexec.drawing import dot, text
from nnl.coexec.loops import Locations
from nnl.coexec.trace_graph import Item, TraceGraph
from tests.coexec.programs import Attrs, Calls, Recorder, dags

NET = """
def step(op, n, deep):
    x = op("affine", (None, "x"))
    for i in range(n):
        if deep: x = op("relu", x)
        else: x = op("tanh", x)
    op("sum", x)
    if deep: op('print "x"')
"""

TEXT = """\
3 traces
affine (net.py:3) x3
loop (net.py:4), 6 rounds
  switch of 2 cases
    case 1, after start
      tanh (net.py:6) x3, 2 operand variants
    case 2, after start
      relu (net.py:5) x3, 2 operand variants
sum (net.py:7) x3, 2 operand variants
switch of 2 cases
  case 1, after sum (net.py:7): nothing
  case 2, after sum (net.py:7)
    print "x" (net.py:8) x1"""


def net() -> TraceGraph:
    space: dict[str, Any] = {}
    exec(compile(NET, "net.py", "exec"), space)
    step, graph = Recorder(Locations(), space["step"]), TraceGraph()
    for n, deep in [(2, False), (3, True), (1, False)]:
        graph.merge(step.run(n, deep))
    return graph


def test_the_text_has_lines_counts_switches_and_loops() -> None:
    assert text(net()) == TEXT


def test_the_text_names_attributes_that_are_inputs() -> None:
    calls, graph = Calls(), TraceGraph()
    for p in (0.5, 0.25):
        graph.merge([Item("dropout", Attrs({"p": p}), calls.at("net.py:5"))])
    assert text(graph) == "2 traces\ndropout (net.py:5) x2, inputs: p"


def test_an_empty_graph_is_drawn() -> None:
    graph = TraceGraph()
    assert text(graph) == "0 traces"
    graph.merge([])
    assert text(graph) == "1 traces" and "n0 -> n1" in dot(graph)


def test_graphviz_is_told_of_every_node_and_edge() -> None:
    graph = net()
    lines = [line.strip() for line in dot(graph).splitlines()]
    declared = [m[1] for line in lines if (m := re.match(r"(n\d+) \[", line))]
    ends = [m.groups() for line in lines if (m := re.match(r"(n\d+) -> (n\d+)", line))]
    assert (
        len(declared) == len(set(declared)) == sum(2 + len(d.nodes) for d in dags(graph.body)) - 1
    )
    assert {n for edge in ends for n in edge} == set(declared)
    # and one back to the start of the loop
    edges = sum(len(u.after) for d in dags(graph.body) for u in (d.start, *d.nodes))
    assert len(ends) == edges + 1
    assert 'label="loop (net.py:4)"' in lines
    assert any(r'[label="print\n\"x\" (net.py:8) x1"' in line for line in lines)
    assert lines.count("}") == 2


def test_a_loop_that_is_unrolled_is_drawn_round_by_round() -> None:
    def step(op: Any) -> None:
        for _ in range(2):
            op("a")

    graph = TraceGraph(unroll=True)
    graph.merge(Recorder(Locations(), step).run())
    assert text(graph).endswith(" x1, 2 of them")
