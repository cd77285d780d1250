# SPDX-License-Identifier: Apache-2.0
"""Loops: where they are, and that a number of rounds nobody has seen is nothing new."""

from __future__ import annotations

import argparse
import dis
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nnl.coexec.tracing.loops import Location, Locations, _handlers, advance, trips
from nnl.coexec.tracing.trace_graph import TraceGraph
from tests.coexec.programs import Calls, Recorder, Source, check, dags, explained, follow, traced

Step = Callable[..., Any]


def counters(step: Step, *args: Any) -> list[tuple[str, tuple[int, ...]]]:
    """(operation, loop counters) of the calls of a function."""
    last: Location | None = None
    rounds: tuple[int, ...] = ()
    found = []
    for item in Recorder(Locations(), step).run(*args):
        rounds = advance(rounds, last, item.location)
        last = item.location
        found.append((item.op, rounds))
    return found


def nested(op: Step) -> None:
    op("a")
    for i in range(2):
        op("b")
        for _ in range(i + 1):
            op("c")
        op("d")
    op("e")


def test_counters_of_nested_loops() -> None:
    assert counters(nested) == [
        ("a", ()),
        ("b", (0,)), ("c", (0, 0)), ("d", (0,)),
        ("b", (1,)), ("c", (1, 0)), ("c", (1, 1)), ("d", (1,)),
        ("e", ()),
    ]  # fmt: skip


def leaving(op: Step, how: str) -> None:
    for i in range(3):
        op("a")
        if how == "continue" and i == 1:
            continue
        if how == "break" and i == 1:
            break
        if how == "return" and i == 1:
            return
        if how == "raise" and i == 1:
            raise KeyError
        op("b")
    op("c")


def caught(op: Step, how: str) -> None:
    try:
        leaving(op, how)
    except KeyError:
        op("d")
    op("e")


@pytest.mark.parametrize(
    ("how", "names"),
    [
        ("continue", "ab a ab c e"), ("break", "ab a c e"), ("return", "ab a e"),
        ("raise", "ab a d e"), ("", "ab ab ab c e"),
    ],
)  # fmt: skip
def test_the_counters_are_balanced_however_a_loop_is_left(how: str, names: str) -> None:
    *rounds, last, end = names.split()
    inside = [(name, (i,)) for i, text in enumerate(rounds) for name in text]
    middle = [(last, (len(rounds),))] if last == "a" else [(last, ())]
    assert counters(caught, how) == [*inside, *middle, (end, ())]


def handled(op: Step) -> None:
    n = 0
    while n < 3:
        n += 1
        try:
            op("a")
            if n == 2:
                raise KeyError
            op("b")
        except KeyError:
            op("c")
            continue
        finally:
            op("d")
    op("e")


def generated(op: Step) -> Iterator[int]:
    for i in range(3):
        op("a")
        yield i


def consumed(op: Step) -> None:
    for _ in generated(op):
        op("b")
    op("c")


def comprehended(op: Step) -> None:
    [op("a") for _ in range(3)]
    op("b")


def test_what_a_loop_runs_over_is_outside_of_it() -> None:
    def step(op: Step) -> None:
        for _ in op("a"):  # two of them
            op("b")

    assert counters(step) == [("a", ()), ("b", (0,)), ("b", (1,))]


def test_another_function_from_the_same_call_is_another_round() -> None:
    def first(op: Step) -> None:
        op("a")

    def second(op: Step) -> None:
        (op("b"))
        op("c")

    def step(op: Step) -> None:
        for f in (first, second, first):
            f(op)

    assert counters(step) == [("a", (0,)), ("b", (1,)), ("c", (1,)), ("a", (2,))]


@pytest.mark.parametrize("step", [handled, consumed, comprehended])
def test_what_is_after_a_loop_is_outside_of_it(step: Step) -> None:
    found = counters(step)
    assert all(any(rounds) for name, rounds in found[2:-1] if name in "ab")
    assert found[-1][1] == ()


def test_handlers_are_those_that_python_lists() -> None:
    codes = [c for c in vars(argparse.ArgumentParser).values() if hasattr(c, "__code__")]
    found = [(c.__code__, list(_handlers(c.__code__))) for c in codes]
    assert sum(len(handlers) for _, handlers in found) > 10
    for code, handlers in found:
        wanted = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
        assert handlers == [(e.start, e.end, e.target) for e in wanted]


def test_code_that_runs_a_loop_of_c_has_no_counters() -> None:
    def mapped(op: Step) -> None:
        list(map(op, "aaa"))

    assert counters(mapped) == [("a", ()), ("a", ()), ("a", ())]


def test_rounds_are_counted_at_every_exit() -> None:
    locations = [item.location for item in Recorder(Locations(), nested).run()]
    assert [n for _, n in trips(locations)] == [1, 2, 2]


def test_a_location_is_the_same_however_often_code_is_compiled() -> None:
    locations = Locations()
    found = set()
    for file in ("a.py", "a.py", "b.py"):
        space: dict[str, Any] = {}
        exec(compile("def step(op): op('a')", file, "exec"), space)
        found |= {item.location for item in Recorder(locations, space["step"]).run()}
    assert sorted(map(str, found)) == ["a.py:1", "b.py:1"]


def test_a_location_stays_the_same_while_python_specialises_its_code() -> None:
    class Value:
        def __getitem__(self, i: int) -> Value:
            op("a")
            return self

        def __radd__(self, other: object) -> Value:
            op("b")
            return self

    def step(_: Step) -> None:
        sum([value[0]])
        [list(value) for value in [map(op, "cd")]]

    value, recorder = Value(), Recorder(Locations(), step)
    op = recorder.op
    found = {tuple(item.location for item in recorder.run()) for _ in range(100)}
    assert len(found) == 1


def test_a_location_names_the_line_that_calls() -> None:
    locations = Locations()
    frame = sys._getframe()
    assert str(locations.here(frame, frame.f_back)) == f"test_loops.py:{frame.f_lineno}"


def test_a_location_in_this_package_names_the_line_that_calls_the_package() -> None:
    calls = Calls()
    inside = Locations.below.__code__
    assert str(calls.locations.below(calls.at("train.py:7"), inside, 0)) == "train.py:7"
    alone = calls.locations.below(calls.locations.outermost, inside, 0)
    assert str(alone) == f"loops.py:{inside.co_firstlineno}"


# ---- folded ----


def layers(op: Step, n: int) -> None:
    x: Any = (None, "x")
    for _ in range(n):
        x = op("affine", x, (None, "w"))
        x = op("relu", x)
    op("sum", x)


FILE, LAYERS = "test_loops.py", layers.__code__.co_firstlineno


@pytest.mark.parametrize("unroll", [False, True])
def test_a_loop_is_one_node(unroll: bool) -> None:
    step = Recorder(Locations(), layers)
    graph = TraceGraph(unroll=unroll)
    assert graph.merge(step.run(3))
    assert not graph.merge(step.run(3))
    if unroll:  # until it runs for another number of rounds
        assert [n.op for n in graph.body.nodes] == ["affine", "relu"] * 3 + ["sum"]
        assert follow(graph, step.run(2)) is None
        assert explained(graph, step.run(4)) == (
            "rounds",
            f"the loop at {FILE}:{LAYERS + 2} goes on after 3 rounds",
        )
        assert explained(graph, step.run(2))[0] == "order"
        assert graph.merge(step.run(2))
    loop, last = graph.body.nodes
    assert loop.body is not None and [n.op for n in loop.body.nodes] == ["affine", "relu"]
    affine, relu = loop.body.nodes
    assert list(affine.variants) == [((None, "x"), (None, "w")), ((relu, 0), (None, "w"))]
    for n in (1, 2, 4, 100):
        assert follow(graph, step.run(n)) is not None
        assert not graph.merge(step.run(n))
    # without a round, the sum reads what it has never read
    assert follow(graph, step.run(0)) is None
    assert graph.merge(step.run(0))
    assert [n.op for n in graph.body.nodes if n.loop is None] == ["sum"]
    assert last.variants == {((relu, 0),): 0, ((None, "x"),): 1}


def test_a_loop_may_run_no_round_though_it_always_did() -> None:
    def step(op: Step, n: int) -> None:
        op("a")
        for _ in range(n):
            op("b")
        op("c")

    run = Recorder(Locations(), step)
    graph = TraceGraph()
    graph.merge(run.run(1))
    for n in range(5):
        assert follow(graph, run.run(n)) is not None


def test_values_of_earlier_rounds_are_told_from_those_of_the_last_one() -> None:
    def step(op: Step, n: int) -> None:
        a = b = (None, "x")
        for _ in range(n):
            a, b = op("next", a, b), a

    run = Recorder(Locations(), step)
    graph = TraceGraph()
    assert graph.merge(run.run(2))
    assert graph.merge(run.run(3))
    assert not graph.merge(run.run(9))
    ((loop,),) = [graph.body.nodes]
    assert loop.body is not None
    (node,) = loop.body.nodes
    assert [[s[0] for s in v] for v in node.variants] == [[None, None], [node, None], [node, None]]
    assert len(node.variants) == 3


def test_unrolled_loops_that_change_are_folded_alone() -> None:
    def step(op: Step, n: int) -> None:
        for _ in range(2):
            op("a")
            for _ in range(n):
                op("b")

    run = Recorder(Locations(), step)
    graph = TraceGraph(unroll=True)
    for n, grown in [(2, True), (2, False), (3, True), (5, False), (1, False)]:
        assert graph.merge(run.run(n)) == grown
    assert [n.op or "loop" for n in graph.body.nodes] == ["a", "loop", "a", "loop"]


# ---- random programs ----


def check_program(seed: int) -> None:
    """A random program: its graphs are valid, and contain what has been traced."""
    _, traces = traced(seed, 1 + seed % 4)
    for unroll in (False, True):
        graph = TraceGraph(unroll=unroll)
        for trace in traces:
            grown = follow(graph, trace) is None
            assert graph.merge(trace) == grown
        check(graph.body)
        for trace in traces:
            cursor = follow(graph, trace)
            assert cursor is not None and [n.op for n in cursor.path] == [i.op for i in trace]
            assert not graph.merge(trace)


def check_rounds(seed: int) -> None:
    """A program without branches: after two rounds of everything, nothing is new."""
    rng = random.Random(seed)
    source = Source(rng, branches=False)
    recorder = Recorder(Locations(), source.compiled())
    graph = TraceGraph()
    graph.merge(recorder.run(rng.randrange, lambda: 2))
    for _ in range(5):
        trace = recorder.run(rng.randrange, lambda: rng.randint(1, 6))
        assert follow(graph, trace) is not None, source.text
        assert not graph.merge(trace)
    assert len(dags(graph.body)) == 1 + sum(
        n.loop is not None for d in dags(graph.body) for n in d.nodes
    )


@pytest.mark.parametrize("part", range(4))
def test_random_programs(part: int) -> None:
    for seed in range(part * 100, part * 100 + 100):
        check_program(seed)
        check_rounds(seed)


def test_another_number_of_rounds_folds_nothing_where_the_trace_is_contained() -> None:
    check_program(1879)  # two traces of it have paths in common that make a third one


@pytest.mark.long
def test_many_random_programs() -> None:
    for seed in range(1000, 21000):
        check_program(seed)
        check_rounds(seed)
