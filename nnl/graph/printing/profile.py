# SPDX-License-Identifier: Apache-2.0
"""What each operation of a run costs: a table, and a trace file for a browser."""

from __future__ import annotations

import json
import operator
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from threading import get_ident
from typing import Any, NamedTuple

import numpy as np

from nnl.core.arguments.origin import Origin, here, line_of
from nnl.core.arrays.spec import Spec
from nnl.core.ops.caches import LIMITS
from nnl.core.ops.op import Cost
from nnl.core.parameters.atomic import replacing
from nnl.core.settings.context import SPACES, STATE, Backend, Target, using

Call = Callable[..., Any]


class Event(NamedTuple):
    """One operation that ran.

    Attributes:
        op: Name of the op, or of the fused kernel.
        where: "native", "numpy" or the name of another backend.
        what: Shapes that went in and came out.
        layer: Parameter scope and line where the function was called: "block1/fc (train.py:12)".
        start_ns, time_ns: On the clock of time.perf_counter_ns.
        flops, bytes: What it costs by the op's own account.
        dtype: The type of its arithmetic, of whose peak it has a share.
    """

    op: str
    where: str
    what: str
    start_ns: int
    time_ns: int
    flops: int
    bytes: int
    layer: str
    dtype: np.dtype[Any]


class Span(NamedTuple):
    """A time in which operations ran, or something else did."""

    name: str
    start_ns: int
    time_ns: int
    facts: dict[str, Any]

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.time_ns

    @classmethod
    def of(cls, name: str, start: float, seconds: float, facts: dict[str, Any]) -> Span:
        """One that began when time.perf_counter was `start`."""
        return cls(name, int(1e9 * start), int(1e9 * seconds), facts)


@cache
def peak_flops(target: Target, dtype: np.dtype[Any]) -> float:
    """Operations per second in a large product of matrices of this type, where the target computes.

    Measured once, like peak_bytes, in about a twentieth of a second.
    """
    from nnl.core.graph.dispatch import bind
    from nnl.core.ops.op import OPS

    op, space = OPS["batch_matmul"], SPACES[target.backends[0].space]

    def product(n: int) -> float:
        spec = Spec.of((1, n, n), dtype)
        call = bind(op, op.attrs(), target, (spec, spec)).call
        a = space.from_host(np.ones((1, n, n), dtype))
        return 2.0 * n**3 / _fastest(lambda: call(a, a), space)

    flops = product(1 << 10)
    return product(1 << 13) if flops > BUSY_FLOPS else flops


@cache
def peak_bytes(target: Target) -> float:
    """Bytes per second that copying a large array reads and writes."""
    space = SPACES[target.backends[0].space]

    def copy(n: int) -> float:
        a, b = (space.from_host(np.ones(n, np.float32)) for _ in range(2))
        return 8.0 * n / _fastest(lambda: operator.setitem(b, ..., a), space)

    rate = copy(1 << 24)
    return copy(1 << 27) if rate > BUSY_BYTES else rate


BUSY_FLOPS, BUSY_BYTES = 1e13, 5e11  # beyond is a GPU, which takes more to be busy


def _fastest(f: Call, space: Any) -> float:
    times = []
    for _ in range(4):
        start = time.perf_counter()
        f()
        space.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


class Profile:
    """What ran while it was recording; made by `profile`.

    Attributes:
        events: Operations, in order.
        spans: Co-executed steps, and in them what was put off ("run") and the rest ("Python").
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.spans: list[Span] = []
        self.target, self.thread = STATE.target, get_ident()
        self._before = {kind: (limit.made, limit.dropped) for kind, limit in LIMITS.items()}

    @property
    def caches(self) -> dict[str, tuple[int, int]]:
        """How many plans and kernels were made and dropped since it began; see set_cache_size."""
        before = self._before
        return {k: (x.made - before[k][0], x.dropped - before[k][1]) for k, x in LIMITS.items()}

    def table(self, top: int = 30, layers: bool = True) -> str:
        """Per function called: calls, time, share of it, rates, share of the machine's peak.

        The column "of peak" is how close it comes to the limit that binds it, arithmetic or memory;
        the last one is the parameter scope and the line where the function was called.

        Args:
            top: How many rows, those that took the most time.
            layers: Whether calls in different places are different rows.
        """
        rows: dict[tuple[str, str, str], list[float]] = {}
        for e in self.events:
            row = rows.setdefault((e.op, e.where, e.layer if layers else ""), [0, 0, 0, 0, 0])
            least = least_s(Cost(e.flops, e.bytes), e.dtype, self.target)
            for k, v in enumerate((1, e.time_ns, e.flops, e.bytes, least)):
                row[k] += v
        total = sum(r[1] for r in rows.values()) or 1
        lines = [
            f"{'op':<36} {'where':<8} {'calls':>6} {'ms':>10} {'share':>6} {'GFLOP/s':>8} "
            f"{'GB/s':>7} {'of peak':>7}{'  layer' if layers else ''}"
        ]
        for (op, where, layer), (calls, ns, flops, nbytes, least) in sorted(
            rows.items(), key=lambda kv: -kv[1][1]
        )[:top]:
            lines.append(
                f"{op:<36} {where:<8} {calls:>6} {ns / 1e6:>10.3f} {ns / total:>6.1%} "
                f"{flops / max(ns, 1):>8.1f} {nbytes / max(ns, 1):>7.1f} "
                f"{least * 1e9 / max(ns, 1):>7.0%}  {layer}".rstrip()
            )
        if len(rows) > top:
            lines.append(f"... and {len(rows) - top} more")
        lines.append(f"{'total':<36} {'':<8} {len(self.events):>6} {total / 1e6:>10.3f}")
        for kind, (made, dropped) in self.caches.items():
            if made or dropped:
                lines.append(
                    f"{made} {kind} made, {dropped} dropped from tables of {LIMITS[kind].most} "
                    "(nnl.set_cache_size)"
                )
        return "\n".join(lines)

    __str__ = table

    def save(self, path: str) -> None:
        """Write a trace in Chrome's format: open it in chrome://tracing or Perfetto."""
        spans = [(s.name, "coexecution", s.start_ns, s.time_ns, s.facts) for s in self.spans]
        spans += [
            (e.op, e.where, e.start_ns, e.time_ns,
             {"what": e.what, "layer": e.layer, "flops": e.flops, "bytes": e.bytes})
            for e in self.events
        ]  # fmt: skip
        events = [
            {
                "name": name, "cat": kind, "ph": "X", "pid": os.getpid(), "tid": 0,
                "ts": start_ns / 1e3, "dur": time_ns / 1e3, "args": facts,
            }
            for name, kind, start_ns, time_ns, facts in spans
        ]  # fmt: skip
        with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as f:
            json.dump({"traceEvents": events, "displayTimeUnit": "ms"}, f)


def least_s(cost: Cost, dtype: np.dtype[Any], target: Target) -> float:
    """The seconds in which the machine's peak, arithmetic or memory, would allow this work."""
    arithmetic = cost.flops / peak_flops(target, dtype) if cost.flops else 0.0
    return max(arithmetic, cost.bytes / peak_bytes(target))


PROFILES: list[Profile] = []  # those that record now, of any thread


@contextmanager
def profile(path: str | None = None) -> Iterator[Profile]:
    """Record what operations of this thread cost: of plans, and of functions that run at once.

    Args:
        path: Where to write a trace in Chrome's format at the end; nowhere if left out.

    Example:
        >>> import nnl as nn, nnl.functions as F
        >>> x = nn.Variable.from_numpy_array([[1.0, 2.0]])
        >>> with nn.profile() as p, nn.auto_forward():
        ...     y = F.relu(x)
        >>> [e.op for e in p.events]
        ['relu']
    """
    recorded = Profile()
    PROFILES.append(recorded)
    try:
        with using(target=_timed(STATE.target), profiled=True):
            yield recorded
    finally:
        PROFILES.remove(recorded)
        if path is not None:
            recorded.save(path)


# ---- functions that run at once: the same backends, with a clock around every call ----

_TIMED: dict[Target, Target] = {}


def _timed(target: Target) -> Target:
    if target in _TIMED.values():
        return target
    if target not in _TIMED:
        copy = Target.__new__(Target)
        for field in Target.__slots__:
            setattr(copy, field, getattr(target, field))
        copy.backends = tuple([_timed_backend(b) for b in target.backends])
        _TIMED.setdefault(target, copy)
    return _TIMED[target]


def _timed_backend(backend: Backend) -> Backend:
    def bind(op: Any, attrs: Any, ins: tuple[Any, ...], outs: tuple[Any, ...]) -> Any:
        made = backend.bind(op, attrs, ins, outs)
        if made is None:
            return None
        call, into = made
        cost = cost_of(attrs, ins, outs)
        what, dtype = shapes_text(ins, outs), arithmetic_type(ins, outs)

        def timed(*bufs: Any, **kw: Any) -> Any:
            if not STATE.profiled:
                return call(*bufs, **kw)
            start = time.perf_counter_ns()
            y = call(*bufs, **kw)
            SPACES[backend.space].synchronize()
            ns = time.perf_counter_ns() - start
            note(
                op.name,
                backend.name,
                what,
                start,
                ns,
                cost,
                dtype,
                STATE.origin or here(STATE.layer),
            )
            return y

        return timed, into

    return replace(backend, bind=bind)


def note(
    op: str,
    where: str,
    what: str,
    start_ns: int,
    time_ns: int,
    cost: Cost,
    dtype: np.dtype[Any],
    origin: Origin | str | None,
) -> None:
    """Add an event to everything that records in this thread."""
    layer = line_of(origin)
    event = Event(op, where, what, start_ns, time_ns, cost.flops, cost.bytes, layer, dtype)
    for p in list(PROFILES):
        if p.thread == get_ident():
            p.events.append(event)


def add_spans(spans: Sequence[Span]) -> None:
    """Add spans to everything that records in this thread."""
    for p in list(PROFILES):
        if p.thread == get_ident():
            p.spans += spans


def cost_of(attrs: Any, ins: Sequence[Spec | None], outs: Sequence[Spec]) -> Cost:
    """What one call costs: by the op's own account where it gives one, else its arrays' bytes."""
    nbytes = sum(s.nbytes for s in (*ins, *outs) if s is not None)
    if not hasattr(attrs, "cost"):
        return Cost(0, nbytes)
    cost: Cost = attrs.cost(*ins)
    return cost


def shapes_text(ins: Sequence[Spec | None], outs: Sequence[Spec]) -> str:
    """ "float32[2, 3], float32[3] -> float32[2]" """
    return " -> ".join(", ".join(repr(s) for s in side if s is not None) for side in (ins, outs))


def arithmetic_type(ins: Sequence[Spec | None], outs: Sequence[Spec]) -> np.dtype[Any]:
    """The narrowest floating-point type of the arrays: the one of the factors of a product."""
    floats = [s.dtype for s in (*ins, *outs) if s is not None and s.is_float]
    return min(floats, key=lambda dtype: dtype.itemsize, default=np.dtype(np.float32))
