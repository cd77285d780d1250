# SPDX-License-Identifier: Apache-2.0
"""Traces that merge: what is the same node, and that the graph has what its definition demands."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from nnl.coexec.tracing.cursor import Cursor
from nnl.coexec.tracing.loops import Locations
from nnl.coexec.tracing.trace_graph import Item, TraceGraph
from nnl.core.ops.op import OPS
from tests.coexec.programs import NONE, Attrs, Calls, check, explained, follow, paths


def words(graph: TraceGraph) -> list[str]:
    """The names of the calls of every path."""
    return sorted("".join(n.op for n in path[1:-1]) for path in paths(graph.body))


def merged(calls: Calls, *names: str) -> TraceGraph:
    graph = TraceGraph()
    for name in names:
        graph.merge(calls.trace(name))
        check(graph.body)
    return graph


def one(item: Item) -> list[Item]:
    return [item]


def test_equal_calls_are_one_node_and_others_are_not() -> None:
    calls, product = Calls(), OPS["batch_matmul"]
    plain, other = product.attrs(), product.attrs(transpose_a=True)
    here, there = calls.at("train.py:7", "net.py:3"), calls.at("train.py:8", "net.py:3")
    first = Item("batch_matmul", plain, here)
    for second, nodes in [
        (first, 1),
        (Item("batch_matmul", product.attrs(transpose_a=False), here), 1),
        (Item("batch_matmul", other, here), 2),
        (Item("batch_matmul", plain, there), 2),
        (Item("affine", plain, here), 2),
    ]:
        graph = TraceGraph()
        assert graph.merge(one(first))
        assert graph.merge(one(second)) == (nodes == 2)
        assert len(graph.body.nodes) == nodes


def test_tracing_goes_on_until_a_trace_is_contained() -> None:
    calls = Calls()
    graph = merged(calls, "abcd")
    assert not graph.merge(calls.trace("abcd"))
    assert graph.merge(calls.trace("axd"))
    assert not graph.merge(calls.trace("axd"))
    assert (graph.traces, graph.version) == (4, 2)
    assert words(graph) == ["abcd", "axd"]


def test_paths_that_no_trace_has_taken_come_from_merging() -> None:
    assert words(merged(Calls(), "abcde", "xbz")) == ["abcde", "abz", "xbcde", "xbz"]


def test_a_call_that_would_close_a_cycle_is_another_node() -> None:
    graph = merged(Calls(), "abc", "bac")
    assert [n.op for n in graph.body.nodes] == ["a", "b", "c", "a"]
    assert words(graph) == ["abac", "abc", "bac", "bc"]


def test_a_step_may_end_early_and_may_be_empty() -> None:
    assert words(merged(Calls(), "a", "ab", "")) == ["", "a", "ab"]


@pytest.mark.parametrize("k", [1, 2, 3, 7])
def test_k_alternating_paths_need_at_most_k_plus_1_traces(k: int) -> None:
    calls, graph = Calls(), TraceGraph()
    steps = itertools.cycle([f"a{chr(ord('b') + i)}z" for i in range(k)])
    while graph.merge(calls.trace(next(steps))):
        pass
    assert graph.traces == k + 1


def test_all_pairs_of_short_traces_give_the_paths_that_a_cursor_follows() -> None:
    names = ["".join(p) for n in range(4) for p in itertools.permutations("abc", n)]
    names += ["aa", "aba", "aab", "bcb"]  # calls that repeat outside of any loop
    calls = Calls()
    for first, second in itertools.product(names, names):
        graph = merged(calls, first, second)
        found = words(graph)
        assert first in found and second in found
        for name in names:
            assert (follow(graph, calls.trace(name)) is not None) == (name in found)
            if name in found:
                assert not graph.merge(calls.trace(name))


def test_a_dag_keeps_its_order_as_random_traces_merge() -> None:
    rng, calls = random.Random(1), Calls()
    for _ in range(200):
        names = "abcdefgh"[: rng.randint(2, 8)]
        traces = ["".join(rng.choices(names, k=rng.randint(0, 8))) for _ in range(5)]
        graph = merged(calls, *traces)
        assert all(follow(graph, calls.trace(t)) for t in traces)
        reached = {(p[i], n) for p in paths(graph.body) for i in range(len(p)) for n in p[i:]}
        for u, v in itertools.product(graph.body.nodes, repeat=2):
            assert graph.body.reaches(u, v) == ((u, v) in reached)


def test_an_edge_that_closes_a_cycle_is_refused() -> None:
    graph = merged(Calls(), "abc")
    a, _, c = graph.body.nodes
    with pytest.raises(ValueError, match=r"Dag: an edge from c \(c.py:1\) to a \(a.py:1\) closes"):
        graph.body.link(c, a)


# ---- operands ----


def chain(calls: Calls, text: str, operands: Sequence[tuple[int | None, int]]) -> list[Item]:
    items = calls.trace(text)
    return [*items[:-1], items[-1]._replace(operands=tuple(operands))]


def test_operands_are_kept_as_variants_of_one_node() -> None:
    calls, graph = Calls(), TraceGraph()
    assert graph.merge(chain(calls, "abz", [(0, 0), (1, 0)]))
    assert graph.merge(chain(calls, "abz", [(0, 0), (0, 1)]))
    assert graph.merge(chain(calls, "abz", [(None, 0), (0, 0)]))
    assert not graph.merge(chain(calls, "abz", [(0, 0), (1, 0)]))
    a, b, z = graph.body.nodes
    assert z.variants == {
        ((a, 0), (b, 0)): 0, ((a, 0), (a, 1)): 1, ((None, 0), (a, 0)): 2,
    }  # fmt: skip
    cursor = follow(graph, chain(calls, "abz", [(0, 0), (0, 1)]))
    assert cursor is not None and cursor.path == [a, b, z]
    assert z.variants[z.operands] == 1
    assert follow(graph, chain(calls, "abz", [(1, 0), (1, 0)])) is None


# ---- promotion ----


def dropped(calls: Calls, p: float, axis: int = 0) -> list[Item]:
    return one(Item("dropout", Attrs({"p": p, "axis": axis}), calls.at("net.py:5")))


def test_a_number_becomes_an_input_with_its_second_value() -> None:
    calls, graph = Calls(), TraceGraph()
    assert graph.merge(dropped(calls, 0.5))
    (node,) = graph.body.nodes
    assert node.promoted == ()
    assert graph.merge(dropped(calls, 0.25))
    assert node.promoted == ("p",)
    assert not graph.merge(dropped(calls, 0.125))
    assert follow(graph, dropped(calls, 0.75)) is not None
    assert follow(graph, dropped(calls, 0.75, axis=1)) is None
    assert graph.merge(dropped(calls, 0.5, axis=1))
    assert [n.promoted for n in graph.body.nodes] == [("p",), ()]


def test_following_steps_makes_nothing_grow() -> None:
    calls, graph = Calls(), TraceGraph()
    for p in (0.5, 0.25):
        graph.merge(dropped(calls, p))

    def sizes() -> list[int]:
        nodes = [graph.body.start, *graph.body.nodes]
        return [len(x) for n in nodes for x in (n.next, n.via, n.after, n.variants)]

    before = sizes()
    for i in range(1000):
        assert follow(graph, dropped(calls, 1 / (i + 1))) is not None
    assert sizes() == before and len(graph.body.start.next[calls.at("net.py:5")]) == 1


def test_what_becomes_an_input_is_for_the_caller_to_say() -> None:
    calls = Calls()
    graph = TraceGraph(promotable=lambda op, name, old, new: (op, name) == ("dropout", "axis"))
    for p, axis, grown in [(0.5, 0, 1), (0.5, 1, 1), (0.5, 2, 0), (0.25, 2, 1), (0.25, 3, 1)]:
        assert graph.merge(dropped(calls, p, axis)) == grown
    assert [n.promoted for n in graph.body.nodes] == [("axis",), ("axis",)]


def test_sizes_that_follow_from_operands_tell_no_calls_apart() -> None:
    calls = Calls()
    graph = TraceGraph(inputs=lambda op, name: (op, name) == ("dropout", "axis"))
    assert graph.merge(dropped(calls, 0.5, axis=1))
    assert not graph.merge(dropped(calls, 0.5, axis=2))
    assert graph.merge(dropped(calls, 0.25, axis=3))
    assert [n.promoted for n in graph.body.nodes] == [("p", "axis")]


def test_calls_with_other_attributes_than_before_are_others() -> None:
    calls, graph = Calls(), TraceGraph()  # several calls that are one item have none
    for attrs in ({}, {"p": 0.5}, {"p": 0.5, "q": 1.0}, {"p": 0.25}):
        assert graph.merge(one(Item("dropout", Attrs(attrs), calls.at("net.py:5"))))
    assert [n.promoted for n in graph.body.nodes] == [(), ("p",), ()]


@pytest.mark.parametrize(("old", "new"), [(0.0, -0.0), (1, True), (1, 1.0), ((1,), (1.0,))])
def test_values_that_compare_equal_are_told_apart(old: object, new: object) -> None:
    calls, graph = Calls(), TraceGraph(promotable=lambda *_: False)
    for value in (old, new):
        assert graph.merge(one(Item("pad", Attrs({"value": value}), calls.at("net.py:5"))))
    assert len(graph.body.nodes) == 2


# ---- what a cursor says ----


def test_causes_are_told_in_words() -> None:
    calls, graph = Calls(), TraceGraph()
    net, train = calls.at("train.py:70", "net.py:30"), calls.at("train.py:71", "net.py:31")
    first = Item("relu", NONE, net, ((None, "x"),))
    second = Item("sum", Attrs({"axis": 0, "keepdims": False}), train, ((0, 0),))
    third = Item("add2", NONE, calls.at("train.py:72"), ((1, 0), (0, 0)))
    graph.merge([first, second, third])

    def cause(*trace: Item) -> tuple[str, str]:
        return explained(graph, trace)

    assert cause(first, second._replace(attrs=Attrs({"axis": 1, "keepdims": False}))) == (
        "attribute",
        "attribute axis of sum is 1, was 0, at net.py:31",
    )
    assert cause(first, second._replace(op="mean")) == (
        "op",
        "mean is called at net.py:31, was sum",
    )
    assert cause(first, second._replace(location=calls.at("train.py:77", "net.py:31"))) == (
        "call site",
        "new call site train.py:77 of sum (net.py:31)",
    )
    inside = Locations.below.__code__  # of this package
    function = calls.locations.below(calls.at("train.py:78"), inside, 0)
    graph.merge([first._replace(location=calls.locations.below(net, inside, 0)), second, third])
    assert cause(first, second._replace(location=function)) == (
        "call site",
        "new call site train.py:78 of sum",
    )
    assert cause(first, Item("exp", NONE, calls.at("train.py:70", "net.py:99"))) == (
        "call site",
        "new call of exp at net.py:99",
    )
    assert cause(first, second, third._replace(operands=((1, 0), (None, "y")))) == (
        "operand",
        "operand 1 of add2 comes from outside the step (y), came from relu (net.py:30), "
        "at train.py:72",
    )
    assert cause(first, second, third._replace(operands=((0, 1), (0, 0)))) == (
        "operand",
        "operand 0 of add2 comes from output 1 of relu (net.py:30), came from sum (net.py:31), "
        "at train.py:72",
    )
    assert cause(first, second, third._replace(operands=((0, 0),))) == (
        "operand",
        "add2 (train.py:72) has 1 operands, had 2",
    )
    assert cause(first, third._replace(operands=())) == (
        "order",
        "add2 at train.py:72 follows relu (net.py:30) for the first time",
    )
    assert cause(first, second) == (
        "end",
        "the step ended earlier, after sum (net.py:31), add2 (train.py:72) came next",
    )
    assert cause() == ("end", "the step ended earlier, after start, relu (net.py:30) came next")


def test_after_a_mismatch_a_cursor_stays_where_it_is() -> None:
    calls = Calls()
    graph = merged(calls, "ab")
    cursor = Cursor(graph)
    a, x, b = calls.trace("axb")
    for item, found in [(a, True), (x, False), (b, True)]:
        assert (cursor.next(item.op, NONE, item.location, ()) is not None) == found
    assert cursor.ends() and [n.op for n in cursor.path] == ["a", "b"]
