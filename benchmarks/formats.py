# SPDX-License-Identifier: Apache-2.0
"""How long files take to load, beside reading their bytes.

    python benchmarks/formats.py [--megabytes 100] [--rounds 5]

Every row is the best of several rounds; the files are in the page cache, as a file that was just
written or downloaded is.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import nnl as nn
import nnl.functions as F
from nnl.converters.weights import load_weights
from nnl.core.parameter import get_parameter_or_create
from nnl.utils.load import load
from nnl.utils.save import save

ROWS = 1024  # of every weight, 4 MiB each


def best(rounds: int, run: Callable[[], object]) -> float:
    """Shortest time in seconds."""
    times = []
    for _ in range(rounds):
        nn.clear_parameters()
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def model(megabytes: int) -> dict[str, object]:
    """A stack of square layers of this many megabytes."""
    rng = np.random.default_rng(0)
    x = y = nn.Variable((4, ROWS))
    for i in range(max(megabytes // 4, 1)):
        value = rng.standard_normal((ROWS, ROWS), np.float32)
        y = F.relu(F.affine(y, get_parameter_or_create(f"l{i}/W", (ROWS, ROWS), value)))
    return {"networks": [{"name": "n", "batch_size": 4, "outputs": {"y": y}, "names": {"x": x}}]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        contents = model(args.megabytes)
        files = {kind: Path(folder) / f"{kind}.nnp" for kind in ("h5", "protobuf")}
        for kind, path in files.items():
            save(path, contents, parameter_format=f".{kind}")
        arrays = {k: v.d for k, v in nn.get_parameters().items()}
        np.savez(Path(folder) / "w.npz", **arrays)
        print(f"{'file':24}{'read (ms)':>12}{'load (ms)':>12}{'ratio':>8}")
        jobs: list[tuple[str, Path, Callable[[Path], object]]] = [
            (f".nnp with .{kind}", path, load) for kind, path in files.items()
        ]
        jobs.append((".npz", Path(folder) / "w.npz", load_weights))
        for name, path, run in jobs:
            read = best(args.rounds, path.read_bytes)
            took = best(args.rounds, lambda run=run, path=path: run(path))
            print(f"{name:24}{read * 1e3:12.1f}{took * 1e3:12.1f}{took / read:8.2f}")


if __name__ == "__main__":
    main()
