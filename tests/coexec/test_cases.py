# SPDX-License-Identifier: Apache-2.0
"""Case assignment: the example of the paper, traces that end early, and all small graphs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator

import pytest

from nnl.coexec.cases import Case, Edge, SwitchCase, assign, covering, selects
from nnl.coexec.dag import Dag, Node
from nnl.coexec.trace_graph import TraceGraph
from tests.coexec.programs import Calls, check, dags, paths, traced

# Figures 2 and 3, with its letters for edges; k and l are not in the text
FIGURE = {
    "a": "s1", "b": "12", "c": "14", "d": "16", "e": "23", "f": "45",
    "g": "37", "h": "57", "i": "68", "j": "78", "k": "89", "l": "9e",
}  # fmt: skip


def dag_of(edges: Iterable[str]) -> Dag:
    """A graph of edges like "12"; "s" is its start and "e" its end."""
    dag = Dag()
    names = {"s": dag.start, "e": dag.end}
    for u, v in edges:
        for name in (u, v):
            if name not in names:
                names[name] = dag.add(name, Node(dag, op=name))
        dag.link(names[u], names[v])
    return dag


def name(node: Node) -> str:
    return node.op or ("s" if node is node.dag.start else "e")


def letters(edges: Iterable[Edge]) -> str:
    letter = {edge: letter for letter, edge in FIGURE.items()}
    return "".join(sorted(letter[name(u) + name(v)] for u, v in edges))


def told(cases: Iterable[Case]) -> list[tuple[str, str]]:
    """[(block, edges)] in letters."""
    return [("".join(n.op for n in c.block), letters(c.control)) for c in cases]


def blocks(graph: TraceGraph) -> list[list[str]]:
    return [["".join(n.op for n in c.block) for c in s] for s in assign(graph.body)]


def switches(found: list[SwitchCase]) -> int:
    """How many Switch-Case operations: a switch-case with one block is inlined."""
    return sum(len(s) > 1 for s in found)


def test_the_figures_of_the_paper() -> None:
    dag = dag_of(FIGURE.values())
    found = assign(dag)
    assert [told(s) for s in found] == [
        [("1", "a")],
        [("23", "b"), ("45", "c"), ("6", "d")],
        [("7", "gh"), ("", "i")],
        [("89", "ij")],
    ]
    assert switches(found) == 2
    chosen = {letters(zip(p, p[1:], strict=False)): told(covering(found, p)) for p in paths(dag)}
    blocks = {path: [block for block, _ in cases] for path, cases in chosen.items()}
    assert blocks == {
        "abegjkl": ["1", "23", "7", "89"],
        "acfhjkl": ["1", "45", "7", "89"],
        "adikl": ["1", "6", "", "89"],
    }


def test_what_the_edges_of_the_figures_select() -> None:
    table = selects(assign(dag_of(FIGURE.values())))
    # numbers from 0: edge c is the second case of the first switch; i waits, but in no switch
    assert {letters([edge]): cases for edge, cases in table.items()} == {
        "a": [], "b": [(1, 0)], "c": [(1, 1)], "d": [(1, 2)],
        "g": [(2, 0)], "h": [(2, 0)], "i": [(2, 1)], "j": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("traces", "wanted"),
    [
        (["a", "ab"], [["a"], ["", "b"]]),  # an early end
        (["ixo", "ixyo"], [["ix"], ["y", ""], ["o"]]),  # a loop that is unrolled
        (["", "a"], [["a", ""]]),  # an empty step
        (["abc"], [["abc"]]),
        ([""], []),
    ],
)
def test_graphs_of_few_traces(traces: list[str], wanted: list[list[str]]) -> None:
    calls, graph = Calls(), TraceGraph()
    for trace in traces:
        graph.merge(calls.trace(trace))
    assert [sorted(s) for s in blocks(graph)] == [sorted(s) for s in wanted]


def test_calls_in_two_orders() -> None:
    calls, graph = Calls(), TraceGraph()
    for trace in ("abc", "bac"):
        graph.merge(calls.trace(trace))
    assert blocks(graph) == [["a", ""], ["b"], ["", "a"], ["c"]]
    assert len(paths(graph.body)) == 4


def test_what_is_not_covered_is_an_error() -> None:
    dag = dag_of(["s1", "1e", "12", "2e"])
    (short,) = [p for p in paths(dag) if len(p) == 3]
    one, other = assign(dag)
    published = [one, tuple([c for c in other if c.block])]  # edges into the end are dropped
    with pytest.raises(ValueError, match="covering: the path selects 0 cases of switch-case 1"):
        covering(published, short)
    with pytest.raises(ValueError, match="covering: the blocks of the selected cases are not the"):
        covering([one], next(p for p in paths(dag) if len(p) == 4))


def verify(dag: Dag) -> int:
    """Definitions 2, 3 and 5 for all paths of a graph; how many there are."""
    check(dag)
    found = assign(dag)
    assert len(found) <= len(dag.nodes)  # each places a node, or it would not stop
    placed = [n for s in found for c in s for n in c.block]
    assert len(placed) == len(set(placed)) and set(placed) == set(dag.nodes)
    for s in found:
        edges = [edge for c in s for edge in c.control]
        assert len(edges) == len(set(edges))
        for c in s:
            assert len({v for _, v in c.control}) == 1
            assert not c.block or c.control[0][1] is c.block[0]
            assert all([*u.after] == [v] and [*v.before] == [u] for u, v in pairs(c.block))
    table, every = selects(found), paths(dag, 400)
    for path in every:
        chosen = covering(found, path)
        selected = [one for edge in pairs(path) for one in table.get(edge, ())]
        wanted = [(i, s.index(chosen[i])) for i, s in enumerate(found) if len(s) > 1]
        assert sorted(selected) == wanted
    return len(every)


def pairs(nodes: Iterable[Node]) -> Iterator[Edge]:
    return itertools.pairwise(nodes)


def test_all_graphs_of_up_to_three_nodes() -> None:
    assert exhaustive(3) == (135, 520)


@pytest.mark.long
def test_all_graphs_of_up_to_four_nodes() -> None:
    assert exhaustive(4) == (3481, 21561)


def exhaustive(most: int) -> tuple[int, int]:
    """(graphs, paths) of all TraceGraphs with so many nodes, each verified."""
    graphs = count = 0
    for n in range(most + 1):
        nodes = "1234"[:n]
        possible = [u + v for u, v in itertools.combinations("s" + nodes + "e", 2)]
        for chosen in itertools.product([False, True], repeat=len(possible)):
            edges = list(itertools.compress(possible, chosen))
            # every node on a path from start to end
            if {e[1] for e in edges} == {*nodes, "e"} and {e[0] for e in edges} == {"s", *nodes}:
                graphs += 1
                count += verify(dag_of(edges))
    return graphs, count


def random_dag(rng: random.Random) -> Dag:
    nodes = "123456789"[: rng.randint(1, 9)]
    p = rng.choice([0.15, 0.3, 0.5])
    edges = [u + v for u, v in itertools.combinations(nodes, 2) if rng.random() < p]
    entered, left = {e[1] for e in edges}, {e[0] for e in edges}
    edges += ["s" + v for v in nodes if v not in entered or rng.random() < 0.1]
    edges += [u + "e" for u in nodes if u not in left or rng.random() < 0.1]
    return dag_of(edges)


def test_random_graphs() -> None:
    rng = random.Random(1)
    for _ in range(300):
        verify(random_dag(rng))


def test_graphs_of_random_programs() -> None:
    verify_programs(range(200))


@pytest.mark.long
def test_many_random_graphs() -> None:
    rng = random.Random(2)
    for _ in range(20000):
        verify(random_dag(rng))
    verify_programs(range(1000, 3000))


def verify_programs(seeds: Iterable[int]) -> None:
    for seed in seeds:
        _, traces = traced(seed, 4)
        for unroll in (False, True):
            graph = TraceGraph(unroll=unroll)
            for trace in traces:
                graph.merge(trace)
            for dag in dags(graph.body):
                verify(dag)
