# SPDX-License-Identifier: Apache-2.0
"""What became of the steps of a co-executed program, and why."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING

from nnl.coexec import drawing
from nnl.coexec.loops import Locations
from nnl.coexec.trace_graph import Item, TraceGraph
from nnl.core.origin import at
from nnl.core.origin import place as place_of

logger = logging.getLogger("nnl")

MOST_WAITING = 100  # traces that are not merged yet

# Attributes that follow from shapes, which are no part of what a call is.
SIZES = frozenset(
    [("reshape", "shape"), ("broadcast", "shape"), ("slice", "start"), ("slice", "stop")]
)

if TYPE_CHECKING:
    from nnl.coexec.paths import Call, Place


class Report:
    """Counts of the steps so far; str() of it is a text for people.

    Attributes:
        steps: How many there were.
        traces: How many of them were new to the graph of all paths; other shapes are nothing new.
        left: How many of them computed at once from where new paths hardly ever come again.
        fallbacks: What was new in those of them that came after a step without anything new.
        segments: How many pieces ran: a step is cut where something reads or writes a value.
        seconds: What the steps have taken, and `running` what of it their pieces took.
        reads: {line: (how often a step was cut there, seconds)}: what reads or writes values.
        differences: What shadow mode has found.
        graph: All paths in one graph, loops folded.
    """

    def __init__(self) -> None:
        self.locations = Locations()
        self._graph = TraceGraph(inputs=_follows)
        self._waiting: list[tuple[list[Item], str]] = []  # traces, and their fallbacks
        self._pieces: list[Sequence[Place]] = []  # of the present step
        self.steps = self.segments = self.left = 0
        self.seconds = self.running = 0.0
        self.reads: dict[str, tuple[int, float]] = {}
        self._traces, self._fallbacks = 0, list[str]()
        self.differences: list[str] = []
        self._settled = False  # whether a step has had nothing new
        self._new = ""  # what the present step has had that was new

    def saw(self, before: Place, new: Call) -> None:
        """A path has left those that were known."""
        self._new = self._new or cause(before, new)

    def ran(self, path: Sequence[Place], seconds: float, asked: FrameType | None) -> None:
        """A piece of the present step has run, as this frame asked for a value."""
        self.segments += 1
        self.running += seconds
        self._pieces.append(path)
        if asked is not None:
            line = place_of(((), asked.f_code, asked.f_lasti)).strip("()")
            count, total = self.reads.get(line, (0, 0.0))
            self.reads[line] = count + 1, total + seconds

    def compared(self, first: str) -> None:
        """Shadow mode has compared a piece; `first` is its first call with another result."""
        if first:
            self.differences.append(f"step {self.steps}: {first}")
            logger.warning("coexecution: %s", self.differences[-1])

    def end_step(self, seconds: float) -> None:
        """The step is over."""
        self.steps += 1
        self.seconds += seconds
        if self._new:
            fallback = self._new if self._settled else ""
            self._waiting.append((list(_items(self._pieces)), fallback))
            if len(self._waiting) > MOST_WAITING:
                self._merge()
        else:
            self._settled = True
        self._new = ""
        self._pieces.clear()

    def _merge(self) -> None:
        """Add the traces that wait to the graph: not in the steps, as that takes a while."""
        waiting, self._waiting = self._waiting, []
        for items, fallback in waiting:
            if self._graph.merge(items):
                self._traces += 1
                self._fallbacks += [fallback] if fallback else []

    @property
    def graph(self) -> TraceGraph:
        self._merge()
        return self._graph

    @property
    def traces(self) -> int:
        self._merge()
        return self._traces

    @property
    def fallbacks(self) -> list[str]:
        self._merge()
        return self._fallbacks

    def explain(self) -> str:
        """The functions that steps have called, with their lines: what is always the same, what
        depends on the path, and what is in loops."""
        return drawing.text(self.graph)

    def dot(self) -> str:
        """The same in the language of Graphviz: `dot -Tsvg`."""
        return drawing.dot(self.graph)

    def __str__(self) -> str:
        lines = [
            f"{self.steps} steps in {self.segments} segments, {self.traces} traces, "
            f"{len(self.fallbacks)} fallbacks" + (f", {self.left} left" if self.left else "")
        ]
        share = self.running / self.seconds if self.seconds else 0.0
        lines.append(f"  {self.seconds:.3f} s, {share:.0%} of it running what was put off")
        slowest = sorted(self.reads.items(), key=lambda item: -item[1][1])
        lines += [f"  cut at {at} {n} times, {s:.3f} s" for at, (n, s) in slowest]
        return "\n".join([*lines, *[f"  {t}" for t in (*self.fallbacks, *self.differences)]])


def _follows(op: str, name: str) -> bool:
    """Whether an attribute follows from shapes."""
    return (op, name) in SIZES


def _items(pieces: Sequence[Sequence[Place]]) -> Iterator[Item]:
    """A step as a trace; what an earlier piece has made is given to a later one."""
    count = 0
    for path in pieces:
        made: list[tuple[int, int]] = []
        for place in path:
            for call in place.calls:
                operands = [made[i] if i >= 0 else (None, 0) for i in call.numbers]
                yield Item(call.op.name, call.attrs, place.location, tuple(operands))
                made += [(count, i) for i in range(len(call.bound.out_specs))]
                count += 1


def cause(before: Place, new: Call) -> str:
    """Why a call has left the known paths, against what came there before."""
    here = at(new.op.name, new.origin)
    known = [p.calls[0] for p in before.after.values()]
    if not known:
        return f"{here} is called where the paths so far end"
    same = [c for c in known if c.op is new.op]
    if not same:
        return f"{here} is called, was {at(known[-1].op.name, known[-1].origin)}"
    for old in same:
        if old.attrs is not new.attrs:
            for name, now in new.attrs.as_dict().items():
                was = old.attrs.as_dict()[name]
                if was != now:
                    return f"{here}: {name} is {now!r}, was {was!r}"
        if old.bound is not new.bound and old.bound.in_specs != new.bound.in_specs:
            return f"{here}: inputs are {new.bound.in_specs}, were {old.bound.in_specs}"
    differing = [
        i for i, (a, b) in enumerate(zip(same[-1].numbers, new.numbers, strict=False)) if a != b
    ]
    return f"{here}: input {differing[0] if differing else 0} is another value than before"
