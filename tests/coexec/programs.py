# SPDX-License-Identifier: Apache-2.0
"""Programs to trace: single calls, and random functions whose calls are recorded as they run."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nnl.coexec.tracing.cursor import Cursor, mismatch
from nnl.coexec.tracing.dag import Dag, Node
from nnl.coexec.tracing.loops import Location, Locations
from nnl.coexec.tracing.trace_graph import Item, TraceGraph


@dataclass(eq=False)
class Attrs:
    """Attributes of an operation."""

    named: dict[str, Any]

    @property
    def values(self) -> tuple[Any, ...]:
        return tuple(self.named.values())

    def as_dict(self) -> dict[str, Any]:
        return self.named


NONE = Attrs({})


class Calls:
    """Calls by name: equal names are one location."""

    def __init__(self) -> None:
        self.locations = Locations()

    def at(self, *lines: str) -> Location:
        """The location of a chain of calls "net.py:31", outermost first."""
        location = self.locations.outermost
        for line in lines:
            file, _, number = line.partition(":")
            code = compile("\n" * (int(number) - 1) + "x", file, "eval")
            at = max(i for i, _, n in code.co_lines() if n == int(number))
            location = self.locations.below(location, code, at)
        return location

    def trace(self, names: Iterable[str]) -> list[Item]:
        return [Item(name, NONE, self.at(f"{name}.py:1")) for name in names]


class Recorder:
    """Records the calls of `op` that a function makes.

    What `op` returns stands for a tensor and is an operand of later calls.
    """

    def __init__(self, locations: Locations, function: Callable[..., Any]) -> None:
        self.locations, self.function = locations, function
        self.trace: list[Item] = []

    def op(self, name: str, *operands: tuple[int | None, int]) -> tuple[int | None, int]:
        frame = sys._getframe(1)
        location = self.locations.here(frame, self.outermost)
        self.trace.append(Item(name, NONE, location, operands))
        return len(self.trace) - 1, 0

    def run(self, *args: Any) -> list[Item]:
        self.trace, self.outermost = [], sys._getframe(0)
        self.function(self.op, *args)
        return self.trace


def follow(graph: TraceGraph, trace: Sequence[Item]) -> Cursor | None:
    """A cursor that has followed a whole trace; None if it could not."""
    cursor = Cursor(graph)
    for item in trace:
        operands = tuple(
            [(None, k) if p is None else cursor.source(p, k) for p, k in item.operands]
        )
        if cursor.next(item.op, item.attrs, item.location, operands) is None:
            return None
    return cursor if cursor.ends() else None


def explained(graph: TraceGraph, trace: Sequence[Item]) -> tuple[str, str]:
    """(kind, text) of the cause why a trace is not contained."""
    cause = mismatch(graph, trace)
    assert cause is not None
    places = [str(item.location) for item in trace]
    assert cause.where == (places or [""])[-1] if cause.kind == "end" else cause.where in places
    return cause.kind, cause.text


def dags(dag: Dag) -> list[Dag]:
    """A Dag, and those of the loops in it."""
    found = [dag]
    for node in dag.nodes:
        if node.body is not None:
            found += dags(node.body)
    return found


def check(dag: Dag) -> None:
    """Definition 1: no cycle, one source, one sink, and so every node on a path between them."""
    for d in dags(dag):
        every = [d.start, *d.nodes, d.end]
        assert all(u.rank < v.rank and u in v.before for u in every for v in u.after)
        assert all(bool(n.before) == (n is not d.start) for n in every)
        assert all(bool(n.after) == (n is not d.end) for n in every)


def paths(dag: Dag, limit: int = 10**9) -> list[list[Node]]:
    """All paths from start to end, with these."""
    found: list[list[Node]] = []
    waiting = [[dag.start]]
    while waiting and len(found) < limit:
        path = waiting.pop()
        if path[-1] is dag.end:
            found.append(path)
        waiting += [[*path, n] for n in path[-1].after]
    return found


class Source:
    """A random function in text: step(op, choose, rounds), over five registers of tensors.

    Args:
        branches: Whether it has any, and early ends of rounds and calls.
    """

    def __init__(self, rng: random.Random, branches: bool = True) -> None:
        self.rng, self.branches = rng, branches
        self.number = 0
        self.functions: list[str] = []
        body = self.block(3, False)
        self.text = "\n".join(
            [*self.functions, "def step(op, choose, rounds):", " r = [(None, i) for i in range(5)]"]
            + indented(body)
        )

    def block(self, depth: int, in_loop: bool) -> list[str]:
        lines: list[str] = []
        for _ in range(self.rng.randint(1, 3)):
            lines += self.statement(depth, in_loop)
        return lines

    def statement(self, depth: int, in_loop: bool) -> list[str]:
        kind = self.rng.random()
        if depth == 0 or kind < 0.4:
            return [self.call()]
        if kind < 0.65:
            n = self.number = self.number + 1
            head = self.rng.choice([f"for i{n} in range(rounds()):", f"for i{n} in gen(rounds()):"])
            body = self.block(depth - 1, True)
            if self.rng.random() < 0.3:
                return [f"i{n} = rounds()", f"while i{n} > 0:", f" i{n} -= 1", *indented(body)]
            return [head, *indented(body)]
        if kind < 0.8 or not self.branches:
            n = self.number = self.number + 1
            body = self.block(depth - 1, False)
            self.functions += [f"def f{n}(op, choose, rounds, r):", *indented(body)]
            return [f"f{n}(op, choose, rounds, r)"] * self.rng.randint(1, 2)
        if kind < 0.9:
            lines = ["if choose(2):", *indented(self.block(depth - 1, in_loop))]
            if self.rng.random() < 0.5:
                lines += ["else:", *indented(self.block(depth - 1, in_loop))]
            return lines
        if kind < 0.95:
            body = [*self.block(depth - 1, in_loop), "if choose(2): raise KeyError"]
            return ["try:", *indented([*body, self.call()]), "except KeyError:", " " + self.call()]
        leave = self.rng.choice(["break", "continue"] if in_loop else ["return"])
        return [f"if choose(3) == 0: {leave}"]

    def call(self) -> str:
        self.number += 1
        operands = "".join(f", r[{self.rng.randrange(5)}]" for _ in range(self.rng.randint(0, 2)))
        return f"r[{self.rng.randrange(5)}] = op('op{self.number}'{operands})"

    def compiled(self) -> Callable[..., Any]:
        space: dict[str, Any] = {}
        exec(
            compile("def gen(n):\n while n: n -= 1; yield n\n" + self.text, "net.py", "exec"), space
        )
        return space["step"]


def indented(lines: Sequence[str]) -> list[str]:
    return [f" {line}" for line in lines]


def traced(seed: int, count: int) -> tuple[Recorder, list[list[Item]]]:
    """Some runs of a random program."""
    rng = random.Random(seed)
    recorder = Recorder(Locations(), Source(rng).compiled())
    return recorder, [recorder.run(rng.randrange, lambda: rng.randint(0, 3)) for _ in range(count)]
