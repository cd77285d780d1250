# SPDX-License-Identifier: Apache-2.0
"""How long files take to load, beside reading their bytes.

    python benchmarks/formats.py [--megabytes 100] [--rounds 15] [--json FILE]

Every row is the median of several rounds, in each of which the bytes are read and the file is
loaded, one after the other; the files are in the page cache, as a file that was just written or
downloaded is. The ratio is that of the two medians, `best` that of the two shortest times. `save`
is the time to write the file, the disk included.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from machine import processor, versions

import nnl as nn
import nnl.functions as F
from nnl.converters.weights import load_weights
from nnl.core.parameters.parameter import get_parameter_or_create
from nnl.models import resnet
from nnl.utils.load import load
from nnl.utils.save import save

Job = Callable[[Path], object]
ROWS = 1024  # of every weight, 4 MiB each


def milliseconds(run: Callable[[], object]) -> float:
    """Wall time of one call."""
    nn.clear_parameters()
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1e3


def entry(x: nn.Variable, y: nn.Variable) -> dict[str, object]:
    """What `save` takes."""
    net = {"name": "n", "batch_size": x.shape[0], "outputs": {"y": y}, "names": {"x": x}}
    return {"networks": [net]}


def large_layers(megabytes: int) -> dict[str, object]:
    """A stack of square layers of this many megabytes."""
    rng = np.random.default_rng(0)
    x = y = nn.Variable((4, ROWS))
    for i in range(max(megabytes // 4, 1)):
        value = rng.standard_normal((ROWS, ROWS), np.float32)
        y = F.relu(F.affine(y, get_parameter_or_create(f"l{i}/W", (ROWS, ROWS), value)))
    return entry(x, y)


def resnet_50(megabytes: int) -> dict[str, object]:
    """ResNet-50: 102 MB in 267 arrays."""
    x = nn.Variable((1, 3, 224, 224))
    return entry(x, resnet(x, 50, test=True))


def formats(contents: dict[str, Any]) -> Iterator[tuple[str, Job, Job]]:
    """Names of formats, how a file is written, and how it is loaded."""
    for kind in (".h5", ".protobuf"):
        yield f"nnp with {kind}", partial(save, contents=contents, parameter_format=kind), load
    values = {k: v.d for k, v in nn.get_parameters(grad_only=False).items()}
    yield "npz", lambda path: np.savez(path, **values), load_weights
    if importlib.util.find_spec("onnx"):
        from nnl.converters import onnx

        (net,) = contents["networks"]
        yield "onnx", lambda path: onnx.save(path, net["outputs"], net["names"]), onnx.load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="write the rows there as well")
    args = parser.parse_args()
    rows: dict[str, dict[str, float]] = {}
    busy = os.getloadavg()[0]  # other programs stretch the loading more: it uses two threads
    with tempfile.TemporaryDirectory() as folder:
        jobs: list[tuple[str, Path, Job, float]] = []
        for make in (large_layers, resnet_50):
            nn.clear_parameters()
            for kind, write, run in formats(make(args.megabytes)):
                path = Path(folder) / f"{make.__name__}{len(jobs)}.{kind.split()[0]}"
                start = time.perf_counter()
                write(path)
                saved = (time.perf_counter() - start) * 1e3
                jobs.append((f"{make.__name__}, .{kind}", path, run, saved))
        print(f"{'milliseconds':32}{'save':>8}{'read':>8}{'load':>8}{'ratio':>8}{'best':>8}")
        for name, path, run, saved in jobs:
            read, took = [], []
            for _ in range(args.rounds):
                read.append(milliseconds(path.read_bytes))
                took.append(milliseconds(partial(run, path)))
            row = {"save": saved, "read": median(read), "load": median(took)}
            row |= {"ratio": row["load"] / row["read"], "best": min(took) / min(read)}
            rows[name] = {k: round(v, 2) for k, v in row.items()}
            print(f"{name:32}" + "".join(f"{v:8.{2 * (v < 10)}f}" for v in row.values()))
    if args.json:
        machine = {"processor": processor(), "cores": os.cpu_count(), "versions": versions()}
        machine |= {"date": time.strftime("%Y-%m-%d"), "rounds": args.rounds, "load_before": busy}
        report = {"machine": machine, "milliseconds": rows}
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
