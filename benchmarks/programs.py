# SPDX-License-Identifier: Apache-2.0
"""How fast a training step is saved as a program, and how long it takes to load.

    python benchmarks/programs.py [--image 224] [--rounds 15] [--json FILE]

The step is one of ResNet-50 with momentum, batch 8: 205 MB of weights and states. Every round
writes the bytes of the file as one block, and saves the step; both replace the file of the round
before, neither waits for the disk. `first save` makes the program as well, `load` opens the file by
map in a process of its own, which has imported nnl and done nothing else; `load again` once more.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from machine import processor, versions

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl.models import resnet

BATCH = 8
WARM = 1 << 28  # bytes
LOAD = """
import sys, time
import nnl as nn
for _ in range(2):
    start = time.perf_counter()
    found = nn.load_program(sys.argv[1])
    print((time.perf_counter() - start) * 1e3)
"""


def milliseconds(run: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1e3


def training_step(image: int) -> Any:
    """A compiled step that has run once."""
    rng = np.random.default_rng(0)
    x, t = nn.Variable((BATCH, 3, image, image)), nn.Variable((BATCH, 1))
    x.d, t.d = rng.normal(size=x.shape), rng.integers(0, 1000, t.shape)
    solver = S.Momentum(0.01)

    @nn.compile
    def step(x: Any, t: Any) -> Any:
        loss = F.mean(F.softmax_cross_entropy(resnet(x, 50, test=False), t))
        solver.set_parameters(nn.get_parameters(), reset=False)
        solver.zero_grad()
        loss.forward(clear_no_need_grad=True)
        loss.backward(clear_buffer=True)
        solver.update()
        return loss

    step(x, t)
    return step


def replace(path: Path, content: bytes) -> None:
    """Write a new file in the place of the old one, as a save does."""
    new = path.with_suffix(".new")
    with open(new, "wb") as file:
        file.write(content)
    os.replace(new, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", type=int, default=224, help="height and width")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="write the rows there as well")
    args = parser.parse_args()
    busy = os.getloadavg()[0]
    times: dict[str, list[float]] = {"write": [], "save": [], "load": [], "load again": []}
    step = training_step(args.image)
    with tempfile.TemporaryDirectory() as folder:
        path, plain = Path(folder) / "step.nnlp", Path(folder) / "plain"
        replace(plain, bytes(WARM))  # whatever the file system does at first
        times["first save"] = [milliseconds(lambda: step.save(path))]
        content = path.read_bytes()
        for _ in range(args.rounds):
            times["write"].append(milliseconds(lambda: replace(plain, content)))
            times["save"].append(milliseconds(lambda: step.save(path)))
        for _ in range(args.rounds):
            command = [sys.executable, "-c", LOAD, str(path)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            for name, line in zip(("load", "load again"), done.stdout.split(), strict=True):
                times[name].append(float(line))
    rows = {k: {"median": round(median(v), 2), "best": round(min(v), 2)} for k, v in times.items()}
    speeds = {k: round(rows["write"][k] / rows["save"][k], 2) for k in ("median", "best")}
    print(f"{len(content) / 1e6:.0f} MB{'median':>16}{'best':>10}")
    for name, row in rows.items():
        print(f"{name:12}{row['median']:9.1f} ms{row['best']:7.1f} ms")
    print(f"speed of saving, of that of a plain write: {speeds['median']}, best {speeds['best']}")
    if args.json:
        machine = {"processor": processor(), "cores": os.cpu_count(), "versions": versions()}
        machine |= {"date": time.strftime("%Y-%m-%d"), "rounds": args.rounds, "load_before": busy}
        step_data = {"network": "ResNet-50", "batch": BATCH, "image": args.image}
        report = {"machine": machine, "step": {**step_data, "bytes": len(content)}}
        report |= {"milliseconds": rows, "speed_of_saving": speeds}
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
