# SPDX-License-Identifier: Apache-2.0
"""Case assignment: a TraceGraph as switch-cases, of each of which a path selects one case.

Source: Algorithm 1 and Definitions 2, 3 and 5 of Terra's supplement, section B. As printed it drops
edges into the end, and then a trace that ends early has no case in what follows, against its
Theorem 1. Here such edges are held like others that wait, so it selects an empty case there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nnl.coexec.dag import Dag, Node

Edge = tuple[Node, Node]


@dataclass(frozen=True, slots=True)
class Case:
    """What runs if one of its control edges is taken.

    Attributes:
        block: A linear chain: each node has one successor, which has one predecessor. It is empty
            where the edges wait for others that lead to the same node.
        control: Edges to the first node of the block; to a common one if that is empty.
    """

    block: tuple[Node, ...]
    control: tuple[Edge, ...]


SwitchCase = tuple[Case, ...]  # cases without a node or a control edge in common


def assign(dag: Dag) -> list[SwitchCase]:
    """The switch-cases of a graph, in the order they run in; each node is in one block.

    Those with one case need no switch.
    """
    found: list[SwitchCase] = []
    cut = [(dag.start, v) for v in dag.start.after]
    while any(v is not dag.end for _, v in cut):
        edges: dict[Node, list[Edge]] = {}  # of the cut, by the node they lead to
        for edge in cut:
            edges.setdefault(edge[1], []).append(edge)
        switch_case: list[Case] = []
        cut = []
        for v, control in edges.items():
            block: list[Node] = []
            if v is not dag.end and len(control) == len(v.before):
                block = chain(v)
                cut += [(block[-1], w) for w in block[-1].after]
            else:
                cut += control
            switch_case.append(Case(tuple(block), tuple(control)))
        found.append(tuple(switch_case))
    return found


def chain(v: Node) -> list[Node]:
    """The longest linear chain from a node on (Definition 2)."""
    nodes = [v]
    while len(nodes[-1].after) == 1:
        (w,) = nodes[-1].after
        if w is v.dag.end or len(w.before) != 1:
            break
        nodes.append(w)
    return nodes


def selects(switch_cases: Sequence[SwitchCase]) -> dict[Edge, list[tuple[int, int]]]:
    """{edge: [(switch-case, case)]}: what is selected by taking an edge, for those that select.

    An edge that is held selects a case in several switch-cases. Where there is only one case,
    nothing is to be selected.
    """
    table: dict[Edge, list[tuple[int, int]]] = {}
    for s, switch_case in enumerate(switch_cases):
        for c, case in enumerate(switch_case):
            for edge in case.control:
                table.setdefault(edge, []).extend([(s, c)] if len(switch_case) > 1 else [])
    return table


def covering(switch_cases: Sequence[SwitchCase], path: Sequence[Node]) -> list[Case]:
    """The case that a path, from start to end, selects in each switch-case (Definition 5).

    Raises:
        ValueError: They are not one case each by one edge each, or not the path.
    """
    edges = {(u, v) for u, v in zip(path, path[1:], strict=False)}
    chosen: list[Case] = []
    seen = {(path[-2], path[-1])}
    for s, switch_case in enumerate(switch_cases):
        hits = [(case, edge) for case in switch_case for edge in case.control if edge in edges]
        if len(hits) != 1:
            raise ValueError(f"covering: the path selects {len(hits)} cases of switch-case {s}")
        case, edge = hits[0]
        chosen.append(case)
        seen |= {edge, *zip(case.block, case.block[1:], strict=False)}
    if [n for case in chosen for n in case.block] != list(path[1:-1]) or seen != edges:
        raise ValueError("covering: the blocks of the selected cases are not the path")
    return chosen
