# SPDX-License-Identifier: Apache-2.0
"""Hooks that watch a graph while it runs: times by function, NaN and infinity, statistics."""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from nnl.core.arrays.array import NdArray
from nnl.core.graph.function import Function
from nnl.core.graph.node import Node
from nnl.core.graph.variable import Variable
from nnl.core.parameters.atomic import replacing
from nnl.core.parameters.parameter import get_parameters
from nnl.ext import import_extension_module

Hook = Callable[[Function], None]


class FunctionHookCallbackBase:
    """What has a `pre_hook` and a `post_hook` to pass to forward() and backward()."""

    @property
    def pre_hook(self) -> Hook | None:
        """What is called before each function."""
        raise NotImplementedError(f"{type(self).__name__} has no pre_hook")

    @property
    def post_hook(self) -> Hook | None:
        """What is called after each function."""
        raise NotImplementedError(f"{type(self).__name__} has no post_hook")


class TimeProfiler(FunctionHookCallbackBase):
    """Times of every function, by part of the program.

    The engine runs functions one by one while hooks watch, so sums are larger than the time of
    the same graph without; `nnl.profile` shows what the engine runs otherwise.

    Args:
        ext_name: The extension that is waited for, "cpu" or "cudnn".
        device_id: Number of its device, as str.

    Example:
        >>> import nnl as nn, nnl.functions as F
        >>> x = nn.Variable.from_numpy_array([1.0, 2.0])
        >>> y = F.exp(x)
        >>> p = TimeProfiler("cpu", "0")
        >>> with p.scope("forward") as p:
        ...     y.forward(function_pre_hook=p.pre_hook, function_post_hook=p.post_hook)
        >>> p.calc_elapsed_time(["forward", "summary"])
        >>> sorted(p.get_all_results()), list(p.get_all_results()["forward"])
        (['forward', 'summary'], ['Exp_0'])
    """

    def __init__(self, ext_name: str, device_id: str) -> None:
        module = import_extension_module(ext_name)
        self._wait = lambda: module.synchronize(device_id=device_id)
        self._scope = ""
        self._open: list[tuple[str, Any, float]] = []
        self._now: dict[str, dict[str, float]] = {}  # scope: {function: seconds} so far
        self._all: dict[str, dict[str, list[float]]] = {}
        self._names: dict[Node, str] = {}
        self._count: dict[str, int] = {}

    @contextmanager
    def scope(self, scope_name: str) -> Iterator[TimeProfiler]:
        """Count what runs inside the with block as scope_name, and the block as "summary"."""
        outer, self._scope = self._scope, scope_name
        self._wait()
        start = time.perf_counter()
        try:
            yield self
        finally:
            self._wait()
            self._scope = outer
            self._add("summary", scope_name, time.perf_counter() - start)

    @property
    def pre_hook(self) -> Hook:
        def start(f: Function) -> None:
            self._wait()
            self._open.append((self._scope, f.node, time.perf_counter()))

        return start

    @property
    def post_hook(self) -> Hook:
        def stop(f: Function) -> None:
            self._wait()
            scope, node, start = self._open.pop()
            self._add(scope, self._name(node, f.name), time.perf_counter() - start)

        return stop

    def _name(self, node: Node, type_name: str) -> str:
        """ "Convolution_2" for the third convolution that was seen."""
        if node not in self._names:
            n = self._count.get(type_name, 0)
            self._count[type_name] = n + 1
            self._names[node] = f"{type_name}_{n}"
        return self._names[node]

    def _add(self, scope: str, name: str, seconds: float) -> None:
        times = self._now.setdefault(scope, {})
        times[name] = times.get(name, 0.0) + seconds

    def calc_elapsed_time(self, names: str | Sequence[str] | None = None) -> None:
        """Take what was measured since the last call into the results, as one iteration.

        Args:
            names: Scopes to take; all of them if left out. Others are dropped.
        """
        wanted = [names] if isinstance(names, str) else names
        for scope, times in self._now.items():
            if wanted is None or scope in wanted or scope == "summary":
                for name, seconds in times.items():
                    self._all.setdefault(scope, {}).setdefault(name, []).append(seconds)
        self._now = {}

    def get_all_results(self) -> dict[str, dict[str, list[float]]]:
        """{scope: {function: seconds per iteration}}."""
        return self._all

    def average(self, start_index: int = 0) -> dict[str, dict[str, float]]:
        """{scope: {function: mean of seconds from iteration start_index on}}."""
        return {
            scope: {n: float(np.mean(s[start_index:])) for n, s in times.items() if s[start_index:]}
            for scope, times in self._all.items()
        }

    def __call__(self, ignore_init: bool = True) -> None:
        """Print mean times in ms to stdout, without those of the first iteration."""
        for scope, times in self.average(int(ignore_init)).items():
            print(scope)
            for name, seconds in times.items():
                print(f"  {name:<40} {seconds * 1e3:12.6f} ms")

    def to_csv(self, out_dir: str = "./", ignore_init: bool = True) -> None:
        """Write profile_summary.csv and profile_detail.csv: scope, function, ms, iterations.

        Args:
            out_dir: Folder, made if it is missing.
            ignore_init: Leave out the first iteration.
        """
        os.makedirs(out_dir, exist_ok=True)
        first = int(ignore_init)
        means = self.average(first)
        rows = [
            [scope, name, ms * 1e3, "ms", len(self._all[scope][name]) - first]
            for scope, times in means.items()
            for name, ms in times.items()
        ]
        for file, summary in (("profile_summary.csv", True), ("profile_detail.csv", False)):
            path = os.path.join(out_dir, file)
            with (
                replacing(path) as temporary,
                open(temporary, "w", newline="", encoding="utf-8") as f,
            ):
                write = csv.writer(f).writerow
                write(["scope", "function", "time", "scale", "num"])
                for row in rows:
                    if (row[0] == "summary") == summary:
                        write(row)


class NanInfTracer(FunctionHookCallbackBase):
    """Finds the function whose result is not finite first.

    Args:
        trace_nan, trace_inf: What to look for.
        need_details: Say shapes and arguments too.

    Example:
        >>> import nnl as nn, nnl.functions as F
        >>> y = F.log(nn.Variable.from_numpy_array([0.0]))
        >>> tracer = NanInfTracer(need_details=False)
        >>> try:
        ...     with tracer.trace():
        ...         y.forward(function_post_hook=tracer.forward_post_hook)
        ... except ValueError as error:
        ...     print(str(error).partition(" (doc")[0])
        NanInfTracer: forward of Log (rank 0): output 0 has a NaN or infinity
    """

    def __init__(
        self, trace_nan: bool = True, trace_inf: bool = True, need_details: bool = True
    ) -> None:
        self.trace_nan, self.trace_inf, self.need_details = trace_nan, trace_inf, need_details
        self._found: str | None = None
        self._ends: list[Function] = []  # that write gradients of leaves

    @property
    def pre_hook(self) -> None:
        return None

    @property
    def post_hook(self) -> Hook | None:
        raise NotImplementedError(
            "NanInfTracer has no post_hook: pass forward_post_hook to forward() and "
            "backward_post_hook to backward()"
        )

    @property
    def forward_post_hook(self) -> Hook:
        """Looks at outputs."""
        return lambda f: self._look("forward", "output", f, [v.data for v in f.outputs])

    @property
    def backward_post_hook(self) -> Hook:
        """Looks at gradients of outputs; those of leaves are there for check(), after the run."""

        def look(f: Function) -> None:
            self._look("backward", "gradient of output", f, [v.grad for v in f.outputs])
            if any(v.need_grad and v.parent is None for v in f.inputs):
                self._ends.append(f)

        return look

    def _look(self, where: str, what: str, f: Function, arrays: Sequence[NdArray]) -> None:
        if self._found is not None:
            return
        for i, nd in enumerate(arrays):
            if nd.blank or nd.zeroing or np.dtype(nd.dtype).kind in "biu":
                continue
            x = nd.data
            nan, inf = self.trace_nan and np.isnan(x).any(), self.trace_inf and np.isinf(x).any()
            if nan or inf:
                kinds = " or ".join(
                    k for k, on in (("NaN", self.trace_nan), ("infinity", self.trace_inf)) if on
                )
                self._found = f"{where} of {f.name} (rank {f.rank}): {what} {i} has a {kinds}"
                if self.need_details:
                    shapes = ", ".join(str(v.shape) for v in f.inputs)
                    self._found += f"; its inputs are {shapes}, its arguments {f.info.args}"
                return

    def check(self) -> None:
        """Say what was found, and forget it.

        Raises:
            ValueError: Something was not finite.
        """
        for f in self._ends:
            leaves = [v.grad for v in f.inputs if v.need_grad and v.parent is None]
            self._look("backward", "gradient of leaf", f, leaves)
        self._ends = []
        found, self._found = self._found, None
        if found is not None:
            raise ValueError(
                f"NanInfTracer: {found} "
                "(documentation: guides/sharp_bits#when-a-training-does-not-work)"
            )

    @contextmanager
    def trace(self) -> Iterator[None]:
        """Check when the with block is over."""
        yield
        self.check()


def pprint(
    v: Variable,
    forward: bool = False,
    backward: bool = False,
    summary: bool = False,
    hidden: bool = False,
    printer: bool = False,
) -> list[Function] | None:
    """Print every function below a Variable: arguments and shapes, on request statistics.

    Args:
        forward, backward: Run these first.
        summary: Print mean, deviation, least and largest of inputs and outputs.
        hidden, printer: Return the functions, in order.
    """
    if forward:
        v.forward()
    if backward:
        v.backward()
    names = {p: name for name, p in get_parameters(grad_only=False).items()}
    functions: list[Function] = []
    v.visit(functions.append)
    for depth, f in enumerate(functions, 1):
        scope = next((os.path.dirname(names[x]) for x in f.inputs if x in names), "")
        print(f"{scope + '/' if scope else ''}{f.name}")
        print(f"\tDepth = {depth}")
        print(f"\tArgs: {[f'{k}={a}' for k, a in f.info.args.items()]}")
        for what, xs in (("Inputs", f.inputs), ("Outputs", f.outputs)):
            print(f"\t{what}: {[x.shape for x in xs]}")
            if summary:
                _print_statistics(f"{what[:-1]} Data", [x.data for x in xs])
                if backward:
                    _print_statistics(f"{what[:-1]} Grads", [x.grad for x in xs])
    return functions if hidden or printer else None


def _print_statistics(title: str, arrays: Sequence[NdArray]) -> None:
    print(f"\t{title}:")
    values = [nd.data for nd in arrays if not nd.blank and nd.size]
    for name, of in (("Ave", np.mean), ("Std", np.std), ("Min", np.min), ("Max", np.max)):
        print(f"\t\t{name}: {[float(of(x)) for x in values]}")
