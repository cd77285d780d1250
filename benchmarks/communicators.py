# SPDX-License-Identifier: Apache-2.0
"""All-reduce between the processes of one node, beside mpi4py in the same run.

    python benchmarks/communicators.py [--ranks 2] [--rounds 15] [--out file.json]

Rows take turns within a round, so that other programs disturb all of them alike; a table of medians
and minima of the slowest rank's time, in milliseconds, goes to stdout. "flat" are gradients in the
flat buffer of all_reduce_callback, as static graphs leave them there. The last table
has steps of MobileNetV3-small for 32 pictures of 64 x 64 per rank, without and with synchronised
batch normalisation.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
LARGE = [25_000_000]  # elements: 100 MB of float32
MANY = [1 + int(x) for x in np.geomspace(64, 400_000, 160)[::-1] * 0.6866]  # 25 MB


def connect(backend: str) -> Any:
    """A communicator on one back end."""
    import nnl as nn
    import nnl.communicators as C

    os.environ["NNL_COMMUNICATOR"] = backend
    comm = C.MultiProcessDataParallelCommunicator(nn.get_current_context())
    comm.init()
    return comm


def touched_zeros(n: int) -> np.ndarray[Any, Any]:
    """Zeros in memory that is there already: sums of ones would overflow after 128 rounds."""
    return np.full(n, 0, np.float32)


def rows(comms: dict[str, Any], sizes: list[int]) -> dict[str, Callable[[], None]]:
    """What is measured, by name."""
    from mpi4py import MPI

    import nnl as nn

    world = MPI.COMM_WORLD
    arrays = [touched_zeros(n) for n in sizes]
    flat = touched_zeros(sum(sizes)) if len(sizes) > 1 else arrays[0]

    def one_by_one() -> None:
        for a in arrays:
            world.Allreduce(MPI.IN_PLACE, a)

    def packed() -> None:
        np.concatenate(arrays, out=flat)
        world.Allreduce(MPI.IN_PLACE, flat)
        at = 0
        for a in arrays:
            a[...] = flat[at : at + a.size]
            at += a.size

    def in_place() -> None:
        world.Allreduce(MPI.IN_PLACE, flat)

    found = {"mpi4py, in place": in_place}
    if len(sizes) > 1:
        found |= {"mpi4py, one by one": one_by_one, "mpi4py, packed": packed}
    for name, comm in comms.items():
        # the very memory of mpi4py's rows: some has large pages and some has not
        nds = [nn.NdArray(n) for n in sizes]
        for nd, a in zip(nds, arrays, strict=True):
            nd.write("host", a)
        found[f"nnl {name}"] = lambda comm=comm, nds=nds: comm.all_reduce(nds)
        homes = [nn.NdArray.from_numpy_array(touched_zeros(n)) for n in sizes]
        callback = comm.all_reduce_callback(homes, 2 * 1024 * 1024)
        callback.finish()
        found[f"nnl {name}, flat"] = callback.finish
    return found


def training_steps(comm: Any) -> dict[str, Callable[[], None]]:
    """Steps of two networks that differ in whose batches they normalise with."""
    from contextlib import nullcontext

    import nnl as nn
    import nnl.functions as F
    import nnl.solvers as S
    from nnl import models

    rng = np.random.default_rng(comm.rank)
    x = nn.Variable.from_numpy_array(rng.normal(size=(32, 3, 64, 64)).astype(np.float32))
    t = nn.Variable.from_numpy_array(rng.integers(0, 10, (32, 1)))

    def made(name: str, synchronised: bool) -> Callable[[], None]:
        with nn.parameter_scope(name), models.synchronised(comm) if synchronised else nullcontext():
            y = models.mobilenet_v3(x, "small", num_classes=10)
            loss, parameters = F.mean(F.softmax_cross_entropy(y, t)), nn.get_parameters()
        solver = S.Momentum(0.01)
        solver.set_parameters(parameters)
        grads = [p.grad for p in parameters.values()]
        callback = comm.all_reduce_callback(grads, 1 << 20, division=True)

        def step() -> None:
            loss.forward(clear_no_need_grad=True)
            solver.zero_grad()
            loss.backward(clear_buffer=True, communicator_callbacks=callback)
            solver.update()

        return step

    return {"step": made("alone", False), "step, synchronised": made("all", True)}


def measure(rounds: int) -> dict[str, Any] | None:
    """The result of a rank; None on all but the first."""
    from mpi4py import MPI

    comms = {name: connect(name) for name in ("mpi", "shared")}
    out: dict[str, Any] = {}
    cases = {"100 MB, 1 array": LARGE, "25 MB, 160 arrays": MANY, "MobileNetV3-small": None}
    for case, sizes in cases.items():
        times: dict[str, list[float]] = {}
        todo = training_steps(comms["shared"]) if sizes is None else rows(comms, sizes)
        for k in range(rounds + 2):
            for name, run in todo.items():
                MPI.COMM_WORLD.Barrier()
                start = time.perf_counter()
                run()
                spent = MPI.COMM_WORLD.allreduce(time.perf_counter() - start, MPI.MAX)
                if k >= 2:
                    times.setdefault(name, []).append(spent * 1e3)
        out[case] = {
            name: {"median_ms": float(np.median(t)), "best_ms": min(t)} for name, t in times.items()
        }
    return out if comms["mpi"].rank == 0 else None


def machine() -> dict[str, Any]:
    sys.path.insert(0, str(Path(__file__).parent))
    import importlib.metadata

    import machine

    found = machine.describe()
    for name in ("mpi4py", "mpich"):
        found["versions"][name] = importlib.metadata.version(name)
    return dict(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, help="write a JSON file")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        found = measure(args.rounds)
        if found is not None:
            print(json.dumps(found))
        return
    about = machine()
    mpiexec = Path(sys.executable).with_name("mpiexec")
    command = [str(mpiexec), "-n", str(args.ranks), sys.executable, __file__, "--rank"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    text = subprocess.check_output(
        [*command, "--rounds", str(args.rounds)], text=True, env=environment
    )
    found = json.loads(text)
    for case, times in found.items():
        print(f"{case}, {args.ranks} ranks" + " " * 10 + "median ms   best ms")
        for name, t in times.items():
            print(f"  {name:<30} {t['median_ms']:>12.2f} {t['best_ms']:>9.2f}")
    if args.out:
        result = {"machine": about, "ranks": args.ranks, "rounds": args.rounds, "rows": found}
        args.out.with_suffix(".tmp").write_text(json.dumps(result, indent=1) + "\n")
        args.out.with_suffix(".tmp").replace(args.out)


if __name__ == "__main__":
    main()
