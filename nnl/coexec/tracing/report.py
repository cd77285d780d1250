# SPDX-License-Identifier: Apache-2.0
"""What became of the steps of a co-executed program, and why."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import lru_cache
from time import perf_counter
from types import CodeType, FrameType
from typing import TYPE_CHECKING

from nnl.coexec.tracing.cursor import mismatch
from nnl.coexec.tracing.loops import Locations
from nnl.coexec.tracing.trace_graph import Item, TraceGraph
from nnl.core.arguments.origin import line_of
from nnl.graph.printing.profile import PROFILES, Span, add_spans

logger = logging.getLogger("nnl")

MOST_WAITING = 100  # traces that are not merged yet

# Attributes that follow from shapes, as every `shape` does, are no part of what a call is.
SIZES = frozenset([("slice", "start"), ("slice", "stop")])

if TYPE_CHECKING:
    from nnl.coexec.plans.paths import PathNode, Paths


class Report:
    """Counts of the steps so far; str() of it is a text for people.

    Attributes:
        steps: How many there were.
        traces: How many of them were new to the graph of all paths; other shapes are nothing new.
        left: How many of them computed at once, all or from where they had not often been.
        fallbacks: What was new in those of them that came after a step without anything new.
        segments: How many pieces ran: a step is cut where something reads or writes a value.
        seconds: What the steps have taken, and `running` what of it their pieces took.
        reads: {line: (how often a step was cut there, seconds)}: what reads or writes values.
        ahead: How many pieces ran while Python was in the next step.
        waits: {line: (how often it has waited for such a piece, seconds)}.
        speculated: How many pieces began to run before Python had made their calls. cancelled: How
            many of them in vain. checkpointed: How many bytes were copied to be able to.
        differences: What shadow mode has found.
        plans: How many plans were made of whole paths, and block_plans of blocks.
        calls_by_blocks: How many calls ran in the plans of blocks.
        graph: All paths in one graph, loops folded.
    """

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self.locations = Locations()
        self._graph = TraceGraph(inputs=_follows)
        # the pieces of steps, and whether these are fallbacks
        self._waiting: list[tuple[list[Sequence[PathNode]], bool]] = []
        self._pieces: list[Sequence[PathNode]] = []  # of the present step
        self._spans: list[Span] = []  # of the present step, if a profile records
        self.steps = self.segments = self.left = self._left_before = 0
        self.seconds = self.running = 0.0
        self.reads: dict[str, tuple[int, float]] = {}
        self.ahead, self.waits = 0, dict[str, tuple[int, float]]()
        self.speculated = self.cancelled = self.checkpointed = 0
        self._traces, self._fallbacks = 0, list[str]()
        self.differences: list[str] = []
        self._settled = False  # whether a step has had nothing new
        self.is_new = False  # whether the present step has left the paths that were known

    def ran(
        self, path: Sequence[PathNode], start: float, asked: FrameType | None, ahead: bool
    ) -> None:
        """A piece of the present step has run since `start`, as this frame asked for a value.

        Args:
            ahead: Whether it only began to run.
        """
        seconds = perf_counter() - start
        self.segments += 1
        self.ahead += ahead
        self.running += seconds
        self._pieces.append(path)
        line = "the end of the step"
        if asked is not None:
            line = _count(self.reads, asked, seconds)
        if PROFILES:
            calls = sum([len(p.calls) for p in path])
            self._spans.append(Span.of("run", start, seconds, {"calls": calls, "asked at": line}))

    def waited(self, start: float, asked: FrameType | None) -> None:
        """This frame has waited since `start` for a piece that runs ahead."""
        if asked is not None:
            _count(self.waits, asked, perf_counter() - start)

    def compared(self, first: str) -> None:
        """Shadow mode has compared a piece; `first` is its first call with another result."""
        if first:
            self.differences.append(f"step {self.steps}: {first}")
            logger.warning("coexecution: %s", self.differences[-1])

    def end_step(self, start: float) -> None:
        """The step that began at `start` is over."""
        seconds = perf_counter() - start
        self.steps += 1
        self.seconds += seconds
        if self.is_new:
            self._waiting.append((self._pieces.copy(), self._settled))
            if len(self._waiting) > MOST_WAITING:
                self._merge()
        elif self.left == self._left_before:
            self._settled = True
        self._left_before = self.left
        if PROFILES:
            whole = Span.of(f"step {self.steps}", start, seconds, {"is new": self.is_new})
            add_spans([whole, *self._spans, *_between(whole, self._spans)])
        self.is_new = False
        self._pieces.clear()
        self._spans.clear()

    def _merge(self) -> None:
        """Add the traces that wait to the graph: not in the steps, as that takes a while."""
        waiting, self._waiting = self._waiting, []
        for pieces, is_fallback in waiting:
            items = _items(pieces)
            cause = mismatch(self._graph, items)
            if self._graph.merge(items):
                self._traces += 1
                if is_fallback and cause is not None:
                    self._fallbacks.append(cause.text)

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

    @property
    def plans(self) -> int:
        return self._paths.plans

    @property
    def block_plans(self) -> int:
        return self._paths.blocks.made

    @property
    def calls_by_blocks(self) -> int:
        return self._paths.blocks.by_plan

    def explain(self) -> str:
        """The functions that steps have called, with their lines and how often, and what is in
        loops. Then the blocks that have plans."""
        lines = [f"{self.graph.traces} traces", *self.graph.body.lines()]
        return "\n".join([*lines, *self._paths.blocks.lines()])

    def __str__(self) -> str:
        lines = [
            f"{self.steps} steps in {self.segments} segments, {self.traces} traces, "
            f"{len(self.fallbacks)} fallbacks" + (f", {self.left} left" if self.left else "")
        ]
        if self.ahead:
            lines.append(f"  {self.ahead} segments ran while Python was in the next step")
        if self.speculated:
            lines.append(
                f"  {self.speculated} segments began before Python was there, {self.cancelled} in "
                f"vain; {self.checkpointed / 1e6:.3g} MB copied"
            )
        if self.calls_by_blocks:
            blocks = len(self._paths.blocks.planned)
            lines.append(f"  {self.calls_by_blocks} calls ran in the plans of {blocks} blocks")
        share = self.running / self.seconds if self.seconds else 0.0
        lines.append(f"  {self.seconds:.3f} s, {share:.0%} of it running what was put off")
        for what, table in (("cut", self.reads), ("waited", self.waits)):
            slowest = sorted(table.items(), key=lambda item: -item[1][1])
            lines += [f"  {what} at {at} {n} times, {s:.3f} s" for at, (n, s) in slowest]
        return "\n".join([*lines, *[f"  {t}" for t in (*self.fallbacks, *self.differences)]])


@lru_cache(1024)
def _line(code: CodeType, at: int) -> str:
    return line_of(((), code, at)).strip("()")


def _count(table: dict[str, tuple[int, float]], frame: FrameType, seconds: float) -> str:
    """Count seconds at the line of a frame; the line."""
    line = _line(frame.f_code, frame.f_lasti)
    count, total = table.get(line, (0, 0.0))
    table[line] = count + 1, total + seconds
    return line


def _follows(op: str, name: str) -> bool:
    """Whether an attribute follows from shapes."""
    return name == "shape" or (op, name) in SIZES


def _between(whole: Span, spans: Sequence[Span]) -> Iterator[Span]:
    """The rest of a step: its Python, before, between and after what ran."""
    at = whole.start_ns
    for start, end in [*[(s.start_ns, s.end_ns) for s in spans], (whole.end_ns, whole.end_ns)]:
        yield Span("Python", at, max(start - at, 0), {})
        at = end


class _None:
    """The attributes of what stands for several calls."""

    values: tuple[()] = ()

    def as_dict(self) -> dict[str, object]:
        return {}


_NONE = _None()


def _items(pieces: Sequence[Sequence[PathNode]]) -> list[Item]:
    """A step as a trace; what an earlier piece has made is given to a later one.

    Calls that always come together, those of a solver, are one item, and so is a backward pass with
    the sums of the gradients that it adds up. Such an item has one output: how many there are, and
    of which rounds, depends on loops.
    """
    items: list[Item] = []
    for path in pieces:
        made: list[tuple[int, int]] = []
        begin = len(items)
        for place in path:
            one, call = len(place.calls) == 1, place.calls[0]
            first = len(made)
            numbers = [n for c in place.calls for n in c.numbers if one or n < first]
            operands = [made[n] if n >= 0 else (None, 0) for n in numbers]
            last = items[-1] if len(items) > begin else None
            if one and last is not None and last.joined and last.location is place.location:
                own = (len(items) - 1, 0)
                more = [s for s in operands if s != own]
                items[-1] = last._replace(operands=(*last.operands, *more))
                one = False
            else:
                op, attrs = (call.op.name, call.attrs) if one else (place.name, _NONE)
                items.append(Item(op, attrs, place.location, tuple(operands), not one))
            outputs = range(sum([len(c.bound.out_specs) for c in place.calls]))
            made += [(len(items) - 1, i if one else 0) for i in outputs]
    return items
