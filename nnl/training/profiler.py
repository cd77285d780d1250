# SPDX-License-Identifier: Apache-2.0
"""Times of every function of a graph, each run on its own, and of the whole graph.

The engine fuses functions of a static graph; here they are timed one by one, as NNabla's
GraphProfiler does. `nnl.profile` shows what the engine really runs.
"""

from __future__ import annotations

import csv
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TextIO

from nnl.core.graph.function import Function
from nnl.core.graph.variable import Variable
from nnl.core.parameters.parameter import get_parameters
from nnl.ext import import_extension_module

UNITS = {"m": 1e3, "u": 1e6, "n": 1e9}  # per second


def convert_time_scale(sec: float, format: str = "m") -> float:
    """Seconds in milliseconds ("m"), microseconds ("u") or nanoseconds ("n").

    Raises:
        ValueError: format is none of these.
    """
    if format not in UNITS:
        raise ValueError(f"convert_time_scale: format is {format!r}, wanted one of {sorted(UNITS)}")
    return sec * UNITS[format]


class ProfileStat(NamedTuple):
    """The time of one function.

    Attributes:
        parameter_scope: Where its parameters are, None if it has none.
        inputs_shape: Shapes of its inputs.
        args_info: (name, value) of its arguments.
        function_name: Type of the function, "Convolution".
        mean_time: Mean time of a run, in the profiler's unit, as text.
        n_run: How many runs that is the mean of.
    """

    parameter_scope: str | None
    inputs_shape: list[tuple[int, ...]]
    args_info: Any
    function_name: str
    mean_time: str
    n_run: int


class GraphProfiler:
    """Measures forward and backward of every function below a Variable, and of all together.

    Args:
        graph: The Variable that the graph computes. Its inputs must hold values.
        device_id: Number of the device, as str.
        ext_name: Extension that the graph runs on, "cpu" or "cudnn": it is waited for.
        solver: Whose update is measured too, as part of a training step; none if left out.
        n_run: Number of runs of each measurement.
        max_measure_execution_time: Seconds after which a measurement ends sooner.
        time_scale: Unit of the results: "m", "u" or "n" seconds.
        backward_accum: Let the functions add to the gradients that are there.
    Raises:
        ValueError: time_scale is unknown.
    """

    def __init__(
        self,
        graph: Variable,
        device_id: str,
        ext_name: str,
        solver: Any = None,
        n_run: int = 100,
        max_measure_execution_time: float = 1,
        time_scale: str = "m",
        backward_accum: bool = False,
    ) -> None:
        convert_time_scale(0.0, time_scale)
        self.graph, self.solver, self.n_run = graph, solver, n_run
        self.device_id, self.ext_name = str(device_id), ext_name
        self.ext_module = import_extension_module(ext_name)
        self.max_measure_execution_time = max_measure_execution_time
        self.time_scale, self.backward_accum = time_scale, backward_accum
        self.name2val = {v: k for k, v in get_parameters(grad_only=False).items()}
        self.result: dict[str, Any] = {}

    def run(self) -> None:
        """Measure everything."""
        self.result = {"forward": [], "backward": []}
        self.time_profiling_whole_graph()
        self.time_profiling_forward()
        self.time_profiling_backward()

    def get_result(self) -> dict[str, Any]:
        """Lists of ProfileStat under "forward" and "backward"; times of the whole graph as text
        under "forward_all", "backward_all" and, with a solver, "training", with the number of runs
        under "n_run_" and the name."""
        return self.result

    def time_profiling_forward(self) -> None:
        """Measure forward() of each function."""
        self.result["forward"] = []
        self.graph.forward()  # keeps what the functions read
        self.graph.visit(lambda f: self._time_profiling(f, "forward"))

    def time_profiling_backward(self) -> None:
        """Measure backward() of each function that has a gradient."""
        self.result["backward"] = []
        self.graph.forward()
        self.graph.visit(lambda f: self._time_profiling(f, "backward"))

    def time_profiling_whole_graph(self) -> None:
        """Measure the graph as it is used: forward, backward and, with a solver, a step."""
        graph = self.graph

        def forward() -> None:
            graph.forward(clear_no_need_grad=True)

        def step() -> None:
            forward()
            graph.backward(clear_buffer=True)

        self._whole("forward_all", forward)
        step_time, runs = self._measure_execution_time(step)
        alone = max(float(step_time) - float(self.result["forward_all"]), 0.0)
        self.result["backward_all"] = f"{alone:.8f}"
        self.result["n_run_backward_all"] = runs
        if self.solver is not None:
            self._whole("training", self.training_function)

    def training_function(self) -> None:
        """A training step: forward, backward and update."""
        self.graph.forward(clear_no_need_grad=True)
        self.solver.zero_grad()
        self.graph.backward(clear_buffer=True)
        self.solver.update()

    def _whole(self, name: str, run: Callable[[], None]) -> None:
        self.result[name], self.result[f"n_run_{name}"] = self._measure_execution_time(run)

    def _time_profiling(self, f: Function, target_process: str) -> None:
        inputs, outputs = f.inputs, f.outputs
        if target_process == "forward":
            run = self._measure_execution_time(f.forward, inputs, outputs)
        elif f.need_grad:
            accum = [self.backward_accum] * len(inputs)
            run = self._measure_execution_time(f.backward, inputs, outputs, accum)
        else:
            return
        parameter = next((self.name2val[v] for v in inputs[1:] if v in self.name2val), None)
        self.result[target_process].append(
            ProfileStat(
                parameter_scope=None if parameter is None else os.path.dirname(parameter),
                inputs_shape=[v.shape for v in inputs],
                args_info=f.info.args.items(),
                function_name=f.name,
                mean_time=run[0],
                n_run=run[1],
            )
        )

    def _measure_execution_time(
        self, execution: Callable[..., Any], *execution_args: Any
    ) -> tuple[str, int]:
        """Mean time of a call, as text, and the number of calls."""
        execution(*execution_args)  # sets up
        wait = self.ext_module.synchronize
        total, runs = 0.0, 0
        while runs < self.n_run and (runs == 0 or total < self.max_measure_execution_time):
            wait(device_id=self.device_id)
            start = time.perf_counter()
            execution(*execution_args)
            wait(device_id=self.device_id)
            total += time.perf_counter() - start
            runs += 1
        return f"{convert_time_scale(total / max(runs, 1), self.time_scale):.8f}", runs

    def print_result(self) -> None:
        """Print the times to stdout."""
        print(f"time scale: {self.time_scale}")
        for name in ("forward", "backward"):
            print(f"---- {name} ----")
            for stat in self.result.get(name, ()):
                print(stat)
        for name in ("forward_all", "backward_all", "training"):
            if name in self.result:
                print(f"{name}: {self.result[name]}")


class GraphProfilerCsvWriter:
    """Writes the results of a GraphProfiler as comma-separated values.

    Args:
        gb: The profiler, after run().
        file: An open text file; stdout if left out.
    """

    HEADER = (
        "parameter_scope", "function_name", "inputs_shape", "args_info",
        "forward", "backward", "forward_n_run", "backward_n_run",
    )  # fmt: skip

    def __init__(self, gb: GraphProfiler, file: TextIO | None = None) -> None:
        self.gb, self.file = gb, sys.stdout if file is None else file

    def write_header(self) -> None:
        """Write how it was measured."""
        gb = self.gb
        write = csv.writer(self.file).writerow
        write(["num. of run", gb.n_run])
        write(["device id", gb.device_id])
        write(["ext name", gb.ext_name])
        write(["time scale", gb.time_scale])
        write([])

    def check_same(self, f: ProfileStat, b: ProfileStat) -> bool:
        """Whether two entries are of one function: all but the times are equal."""
        return f[:2] == b[:2] and list(f.args_info) == list(b.args_info) and f[3] == b[3]

    def write(self) -> None:
        """Write the header, a row for each function, and the times of the whole graph."""
        self.write_header()
        write = csv.writer(self.file).writerow
        write(self.HEADER)
        result = self.gb.result
        backward = list(result["backward"])
        for f in result["forward"]:
            b = None
            if backward and self.check_same(f, backward[0]):
                b = backward.pop(0)
            write([
                f.parameter_scope, f.function_name, f.inputs_shape,
                ", ".join(f"{k}: {v}" for k, v in f.args_info),
                f.mean_time, b.mean_time if b else "", f.n_run, b.n_run if b else "",
            ])  # fmt: skip
        names = {"forward_all": "forward all", "backward_all": "backward all"}
        names["training"] = "training(forward + backward + update)"
        for name, text in names.items():
            if name in result:
                write([])
                write([text, result[name]])
                write([f"{name}_n_run", result[f"n_run_{name}"]])
