# SPDX-License-Identifier: Apache-2.0
"""How long files take to load, beside reading their bytes.

    python benchmarks/formats.py [--megabytes 100] [--rounds 5]

Every row is the best of several rounds; the files are in the page cache, as a file that was just
written or downloaded is. Beside the wall clock stands the processor time of the loading thread,
which other programs on the machine disturb less; checksums are computed by other threads.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import nnl as nn
import nnl.functions as F
from nnl.converters.weights import load_weights
from nnl.core.parameter import get_parameter_or_create
from nnl.models import resnet
from nnl.utils.load import load
from nnl.utils.save import save

ROWS = 1024  # of every weight, 4 MiB each


def best(rounds: int, run: Callable[[], object]) -> tuple[float, float]:
    """Shortest wall time and processor time of this thread, in seconds."""
    walls, threads = [], []
    for _ in range(rounds):
        nn.clear_parameters()
        start, busy = time.perf_counter(), time.thread_time()
        run()
        walls.append(time.perf_counter() - start)
        threads.append(time.thread_time() - busy)
    return min(walls), min(threads)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        jobs: list[tuple[str, Path, Callable[[Path], object]]] = []
        for make in (large_layers, resnet_50):
            nn.clear_parameters()
            contents = make(args.megabytes)
            for kind in ("h5", "protobuf"):
                path = Path(folder) / f"{make.__name__}_{kind}.nnp"
                save(path, contents, parameter_format=f".{kind}")
                jobs.append((f"{make.__name__}, .nnp with .{kind}", path, load))
            path = Path(folder) / f"{make.__name__}.npz"
            np.savez(path, **{k: v.d for k, v in nn.get_parameters(grad_only=False).items()})
            jobs.append((f"{make.__name__}, .npz", path, load_weights))
            if importlib.util.find_spec("onnx"):
                from nnl.converters import onnx

                (net,) = contents["networks"]  # type: ignore[misc]
                path = Path(folder) / f"{make.__name__}.onnx"
                onnx.save(path, net["outputs"], net["names"])
                jobs.append((f"{make.__name__}, .onnx", path, onnx.load))
        print(f"{'':32}{'read':>8}{'load':>8}{'ratio':>8}{'read':>12}{'load':>8}{'ratio':>8}")
        print(f"{'':32}{'ms of wall time':>24}{'ms of the thread':>28}")
        for name, path, run in jobs:
            read = best(args.rounds, path.read_bytes)
            took = best(args.rounds, lambda run=run, path=path: run(path))
            cells = [
                f"{r * 1e3:8.1f}{t * 1e3:8.1f}{t / r:8.2f}" for r, t in zip(read, took, strict=True)
            ]
            print(f"{name:32}{'    '.join(cells)}")


if __name__ == "__main__":
    main()
