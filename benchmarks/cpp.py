# SPDX-License-Identifier: Apache-2.0
"""Speed of programs in C++: beside Python's static plan and ONNX Runtime, in one run.

    python benchmarks/cpp.py [--only start,resnet18] [--quick] [--json FILE]

C++ is benchmarks/cpp_job.cpp, compiled with `nnl cpp-flags`; Python runs the plan of the same file,
without copying inputs. ONNX Runtime runs the network exported to ONNX, and is called from Python:
its C++ library has the same kernels, and the call takes some 10 us. All processes of a row stay
alive and take turns; numbers are medians of the rounds. `start` is from the creation of the process
to its first result, files in the cache of the system. `written` is the same step of LeNet written
in C++, which is to take at most 1.5 times as long as the plan.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl import models

HERE = Path(__file__).resolve().parent
ROUNDS = 11
ROUND_S = 0.5

# ---- what is run ----


def _images(network: Callable[[nn.Variable], nn.Variable], maps: int, size: int) -> Any:
    x = nn.Variable((1, maps, size, size))
    return network(x), x


def _bert() -> Any:
    x = nn.Variable.from_numpy_array(np.arange(128).reshape(1, 128) % 1000)
    return models.bert_masked_language_model(x, test=True), x


NETWORKS: dict[str, Callable[[], Any]] = {
    "lenet": lambda: _images(models.lenet, 1, 28),
    "resnet18": lambda: _images(lambda x: models.resnet(x, depth=18, test=True), 3, 224),
    "resnet50": lambda: _images(lambda x: models.resnet(x, test=True), 3, 224),
    "mobilenet_v3": lambda: _images(lambda x: models.mobilenet_v3(x, test=True), 3, 224),
    "bert": _bert,
}


def save_network(name: str, folder: Path) -> None:
    nn.clear_parameters()
    y, x = NETWORKS[name]()
    nn.save_program(folder / f"{name}.nnlp", {"y": y}, {"x": x})
    try:
        import nnl.converters.onnx as onnx

        onnx.save(folder / f"{name}.onnx", {"y": y}, {"x": x})
    except (ModuleNotFoundError, NotImplementedError) as e:
        print(f"{name} is not exported to ONNX: {e}", file=sys.stderr)


def save_step(folder: Path) -> None:
    """A training step of LeNet, batch 64, with Adam."""
    nn.clear_parameters()
    solver = S.Adam()

    @nn.compile
    def step(x: nn.Variable, t: nn.Variable) -> nn.Variable:
        loss = F.mean(F.softmax_cross_entropy(models.lenet(x), t))
        solver.set_parameters(nn.get_parameters(), reset=False, retain_state=True)
        solver.zero_grad()
        loss.forward(clear_no_need_grad=True)
        loss.backward(clear_buffer=True)
        solver.update()
        return loss

    step(nn.Variable((64, 1, 28, 28)), nn.Variable((64, 1)))
    step.save(folder / "step.nnlp")


# ---- processes that take turns ----


def in_python(path: str) -> Callable[[], Any]:
    plan = nn.load_program(path).runner().plan
    return plan.run_both


def in_onnx_runtime(path: str, threads: int) -> Callable[[], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (x,) = session.get_inputs()
    shape = [n if isinstance(n, int) else 1 for n in x.shape]  # the batch size is left open
    value = np.zeros(shape, {"tensor(float)": "f4", "tensor(int64)": "i8"}.get(x.type, "i4"))
    return lambda: session.run(None, {x.name: value})


def work(engine: str, path: str, threads: int) -> None:
    """The process of an engine in Python: the median of a run in ms for each line of seconds."""
    step = in_python(path) if engine == "plan" else in_onnx_runtime(path, threads)
    step()
    print("ready", flush=True)
    for line in sys.stdin:
        end, taken = time.perf_counter() + float(line), []
        while time.perf_counter() < end or not taken:
            start = time.perf_counter()
            step()
            taken.append((time.perf_counter() - start) * 1e3)
        print(statistics.median(taken), flush=True)


class Process:
    def __init__(self, command: list[str], threads: int) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stdout is not None and self.process.stdin is not None
        self.out, self.into = self.process.stdout, self.process.stdin
        if self.out.readline() != "ready\n":
            raise RuntimeError(f"{' '.join(command)} has failed")

    def ask(self, seconds: float) -> list[float]:
        self.into.write(f"{seconds}\n")
        self.into.flush()
        return [float(x) for x in self.out.readline().split()]

    def close(self) -> None:
        self.into.close()
        self.process.wait()


def build(folder: Path) -> Path:
    """The C++ program, compiled as users compile theirs."""
    flags = subprocess.run(
        [sys.executable, "-m", "nnl.cli.main", "cpp-flags"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    program = folder / "cpp_job"
    command = ["g++", "-std=c++17", "-O2", str(HERE / "cpp_job.cpp"), *shlex.split(flags)]
    subprocess.run([*command, "-o", str(program)], check=True)
    return program


def start_ms(program: Path, path: Path) -> float:
    begin = time.perf_counter()
    process = Process([str(program), "start", str(path)], os.cpu_count() or 1)
    taken = (time.perf_counter() - begin) * 1e3
    process.close()
    return taken


def measure(name: str, threads: int, program: Path, folder: Path, rounds: int) -> dict[str, float]:
    path = folder / f"{name}.nnlp"
    ours = [sys.executable, str(HERE / "cpp.py"), "--work"]
    commands = {
        "C++": [str(program), "steps", str(path)],
        "plan": [*ours, "plan", str(path), str(threads)],
    }
    if name == "step":
        commands["written"] = [str(program), "train"]  # the same step, written in C++
    if path.with_suffix(".onnx").exists():
        commands["onnxruntime"] = [*ours, "ort", str(path.with_suffix(".onnx")), str(threads)]
    processes = {}
    for engine, command in commands.items():
        try:
            processes[engine] = Process(command, threads)
        except RuntimeError as e:
            print(e, file=sys.stderr)
    times: dict[str, list[float]] = {engine: [] for engine in processes}
    for _ in range(rounds):
        for engine, process in processes.items():
            times[engine] += process.ask(ROUND_S)
    for process in processes.values():
        process.close()
    return {engine: round(statistics.median(t), 4) for engine, t in times.items()}


def two_runners(program: Path, path: Path, rounds: int) -> dict[str, float]:
    process = Process([str(program), "two", str(path)], 1)
    found = [process.ask(2 * ROUND_S) for _ in range(rounds)]
    process.close()
    one, two = (statistics.median(x) for x in zip(*found, strict=True))
    return {"one a second": round(one, 2), "two a second": round(two, 2), "ratio": two / one}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="rows: start, two, step, " + ", ".join(NETWORKS))
    parser.add_argument("--quick", action="store_true", help="two rounds, to see whether it works")
    parser.add_argument("--json", type=Path, help="write the rows there as well")
    parser.add_argument("--work", nargs=3, metavar=("ENGINE", "FILE", "THREADS"))
    args = parser.parse_args()
    if args.work:
        return work(args.work[0], args.work[1], int(args.work[2]))
    rounds = 2 if args.quick else ROUNDS
    wanted = args.only.split(",") if args.only else ["start", "two", "step", *NETWORKS]
    report: dict[str, Any] = {"machine": describe(), "rounds": rounds, "rows": {}}

    def show(row: str, found: dict[str, float]) -> None:
        report["rows"][row] = found
        print(f"{row:28}" + "".join(f"{k:>14} {v:9.3f}" for k, v in found.items()), flush=True)

    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        program = build(folder)
        needed = [n for n in NETWORKS if n in wanted]
        needed += ["lenet", "resnet50"] if "start" in wanted else []
        needed += ["resnet18"] if "two" in wanted else []
        for name in dict.fromkeys(needed):
            save_network(name, folder)
        if "start" in wanted:
            for name in ("lenet", "resnet50"):
                taken = [start_ms(program, folder / f"{name}.nnlp") for _ in range(3 * rounds)]
                show(f"start {name}", {"ms": statistics.median(taken), "best": min(taken)})
        if "two" in wanted:
            show("two runners, resnet18", two_runners(program, folder / "resnet18.nnlp", rounds))
        if "step" in wanted:
            save_step(folder)
            for threads in (1, 2):
                found = measure("step", threads, program, folder, rounds)
                show(f"lenet b64 step, {threads} thread", found)
        for name in NETWORKS:
            for threads in (1, 2) if name in wanted else ():
                show(f"{name}, {threads} thread", measure(name, threads, program, folder, rounds))
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
