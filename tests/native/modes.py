# SPDX-License-Identifier: Apache-2.0
"""Runs a random graph in every mode of execution, twice, and compares what comes out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import nnl as nn
from tests.native.graphs import NUMPY, Graph

ROUNDING = {"float": 1e-6, "half": 5e-4, "bfloat16": 4e-3}  # of a result, relative
NEAR = {"float": 2e-5, "half": 2e-3, "bfloat16": 1.6e-2}  # error of a few of them, of the largest

Result = dict[str, np.ndarray]


class Run:
    """One graph in one mode: `first` and `second` runs on the same variables."""

    def __init__(self, graph: Graph, noise: float = 0.0, salt: int = 0) -> None:
        self.graph, self.noise = graph, noise
        self.leaves = graph.variables(noise, salt)
        self.seeded = any(c.attrs.get("seed", -1) != -1 for c in graph.calls)

    def collect(self, values: Any, which: Any, inner: Any = ()) -> Result:
        out: Result = {}
        for i in which:
            out[f"value {i}"] = values[i].d.copy()
        for k, (leaf, v) in enumerate(zip(self.graph.leaves, self.leaves, strict=True)):
            if leaf.need_grad:
                out[f"gradient of leaf {-1 - k}"] = v.g.copy()
            if leaf.state and leaf.array.dtype == np.float32:
                out[f"state {-1 - k}"] = v.d.copy()
        for i in inner:
            if values[i].need_grad and values[i].parent is not None:
                out[f"gradient of {i}"] = values[i].g.copy()
        return out

    def again(self) -> None:
        self.graph.drift(self.leaves)
        for k, v in enumerate(self.leaves):
            if k % 2 and v.need_grad:
                v.grad.zero()  # the others accumulate


def dynamic(run: Run) -> Iterator[Result]:
    for again in (False, True):
        if again:
            if run.seeded:
                return  # a new call starts the stream of its seed anew
            run.again()
        with nn.auto_forward():
            values = run.graph.build(run.leaves)
            loss = run.graph.loss(values)
            if loss.need_grad:
                loss.backward()
        yield run.collect(values, range(len(values)))


def static(
    forward: dict[str, bool], backward: dict[str, bool], readable: str
) -> Callable[[Run], Iterator[Result]]:
    def mode(run: Run) -> Iterator[Result]:
        values = run.graph.build(run.leaves, run.noise)
        loss = run.graph.loss(values)
        below = set()
        loss.visit(lambda f: below.update(id(v.data) for v in f.outputs))
        reached = [i for i, v in enumerate(values) if id(v.data) in below]
        if readable == "persistent":
            read = {i for c in run.graph.calls for i in c.ins}  # flags are known by the readers
            reached = [i for i in reached if values[i].persistent and i in read]
        for again in (False, True):
            if again:
                run.again()
            loss.forward(**forward)
            before = {f"value {i}": values[i].d.copy() for i in reached}
            if loss.need_grad:
                loss.backward(**backward)
            if not loss.need_grad:
                inner = []
            elif not backward:  # nothing is told to clear
                inner = reached
            else:
                inner = [i for i in reached if values[i].persistent]
            after = run.collect(values, [] if backward else reached, inner)
            yield {**before, **after}

    return mode


def inference(run: Run) -> Iterator[Result]:
    values = run.graph.build(run.leaves)
    ends = [values[i] for i in run.graph.ends]
    for again in (False, True):
        if again:
            run.again()
        nn.forward_all(ends, clear_buffer=True)
        got = run.collect(values, run.graph.ends)
        yield {k: v for k, v in got.items() if not k.startswith("gradient")}


def compiled(run: Run) -> Iterator[Result]:
    graph = run.graph

    @nn.compile
    def step() -> list[nn.Variable]:
        values = graph.build(run.leaves)
        loss = graph.loss(values)
        loss.forward(clear_no_need_grad=True)
        if loss.need_grad:
            loss.backward(clear_buffer=True)
        return [values[i] for i in graph.ends]

    for again in (False, True):
        if again:
            run.again()
        ys = step()
        got = run.collect([], [])
        yield {**got, **{f"value {i}": y.d.copy() for i, y in zip(graph.ends, ys, strict=True)}}


MODES: dict[str, Callable[[Run], Iterator[Result]]] = {
    "dynamic": dynamic,
    "keep": static({}, {}, "all"),
    "train": static({"clear_no_need_grad": True}, {"clear_buffer": True}, "persistent"),
    "clear in forward": static({"clear_no_need_grad": True}, {}, "persistent"),
    "clear in backward": static({}, {"clear_buffer": True}, "all"),
    "inference": inference,
    "compiled": compiled,
}


def run_mode(graph: Graph, mode: str, context: Any, noise: float = 0.0, salt: int = 0) -> Any:
    nn.seed(graph.seed)
    with nn.context_scope(context), np.errstate(all="ignore"):
        return list(MODES[mode](Run(graph, noise, salt)))


def native_context(kind: str) -> nn.Context:
    # A device of its own: what is bound here with tiny arrays must not be found by other tests.
    return nn.Context([f"cpu:{kind}"], device_id="fuzz")


class Oracle:
    """What numpy computes, and how far rounding may move it."""

    def __init__(self, graph: Graph, kind: str) -> None:
        self.graph, self.kind = graph, kind
        self.want = run_mode(graph, "keep", nn.Context([f"numpy:{kind}"]))
        self.moved: list[Any] = []

    def slack(self, run: int, name: str, trials: int) -> float:
        """How far the array moves when the leaves move by rounding: jumps of a step function and
        what cancellation amplifies."""
        for salt in range(len(self.moved), trials):
            noise = ROUNDING[self.kind] * (0.1, 1, 1, 3)[salt % 4]
            self.moved.append(run_mode(self.graph, "keep", NUMPY, noise, salt))
        want = self.want[run][name].astype(np.float64)
        return max(float(np.abs(m[run][name] - want).max(initial=0)) for m in self.moved)

    def difference(self, got: list[Result]) -> str:
        """What differs by more than rounding; empty if nothing does."""
        for run, (g, w) in enumerate(zip(got, self.want, strict=False)):
            for name, a in g.items():
                if name not in w:
                    continue
                b = w[name]
                if a.shape != b.shape or a.dtype != b.dtype:
                    return f"run {run}, {name}: {a.dtype}{a.shape}, wanted {b.dtype}{b.shape}"
                a, b = a.astype(np.float64), b.astype(np.float64)
                ok = np.isfinite(b)
                if not np.array_equal(ok, np.isfinite(a)):
                    return f"run {run}, {name}: infinities or NaN differ"
                error = float(np.abs(a[ok] - b[ok]).max(initial=0))
                scale = max(1.0, float(np.abs(b[ok]).max(initial=0)))
                near = NEAR[self.kind] * scale
                if error > near and all(
                    error > near + 10 * self.slack(run, name, trials) for trials in (4, 40)
                ):
                    return f"run {run}, {name}: error {error:.3g} of {scale:.3g}"
        return ""


def check(graph: Graph, modes: Any = MODES, kind: str = "float", context: Any = None) -> str:
    """Which mode differs from numpy, and where; empty if none does."""
    oracle = Oracle(graph, kind)
    for mode in modes:
        try:
            got = run_mode(graph, mode, context or native_context(kind))
        except Exception as e:  # noqa: BLE001  (whatever it is, it is the finding)
            return f"{mode}: {type(e).__name__}: {e}"
        found = oracle.difference(got)
        if found:
            return f"{mode}: {found}"
    return ""


def shrink(graph: Graph, mode: str, kind: str) -> Graph:
    """A smaller graph that still fails in this mode: calls and ends are dropped one by one."""

    def fails(g: Graph) -> bool:
        try:
            return bool(g.ends) and bool(check(g, [mode], kind))
        except Exception:  # noqa: BLE001  (numpy itself cannot run it)
            return False

    smaller = True
    while smaller:
        smaller = False
        for candidate in reductions(graph):
            if fails(candidate):
                graph, smaller = candidate, True
                break
    return graph


def reductions(graph: Graph) -> Iterator[Graph]:
    def copy() -> Graph:
        g = Graph(graph.seed)
        g.leaves, g.calls, g.ends = graph.leaves, list(graph.calls), list(graph.ends)
        return g

    for k in range(len(graph.ends)):
        if len(graph.ends) > 1:
            g = copy()
            del g.ends[k]
            yield g.without_idle_calls()
    used = {i for c in graph.calls for i in c.ins if i is not None} | set(graph.ends)
    first = sum(c.count for c in graph.calls)
    for k in reversed(range(len(graph.calls))):
        call = graph.calls[k]
        first -= call.count
        made = range(first, first + call.count)
        inputs: list[Any] = [None]
        if any(i in used for i in made):
            inputs = [i for i in call.ins if i is not None] if call.count == 1 else []
        for instead in inputs:  # readers read an input of the call instead

            def renumber(i: Any, instead: Any = instead, made: range = made) -> Any:
                if i is None or i < made.start:
                    return i
                if i in made:
                    return instead
                return i - len(made)

            g = copy()
            del g.calls[k]
            g.calls[k:] = [c.reading([renumber(i) for i in c.ins]) for c in g.calls[k:]]
            g.ends = [e for e in map(renumber, g.ends) if e is not None and e >= 0]
            yield g.without_idle_calls()
        if call.marks:
            g = copy()
            g.calls[k] = call.reading(call.ins)
            g.calls[k].marks = frozenset()
            yield g
