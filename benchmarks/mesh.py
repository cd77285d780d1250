# SPDX-License-Identifier: Apache-2.0
"""Networks in parts on several ranks, beside one process and plain data parallelism.

    python benchmarks/mesh.py losses memory time bubble checkpoint   # tables on stdout
    python benchmarks/mesh.py jobs --jobs 200    # killed, stopped and slow ranks

losses: 50 steps of ResNet-18, BERT and GPT-2 (small sizes; normalization by fixed statistics, no
dropout; ResNet in float64) on 2 and 4 ranks; the largest relative difference to one process.
memory: bytes per rank of parameters, gradients and states over those of one process, and with what
a step takes. time: a step of each level over one of plain data parallelism, in turns. bubble: the
share of a step in which ranks of a pipeline wait, from steps of two lengths, beside theory.
checkpoint: steps with a checkpoint every 10, written by a thread, over steps without.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
STEPS, BATCH = 50, 8
RATES = {"resnet18": 0.005, "bert": 0.02, "gpt2": 0.02}
SMALL: dict[str, Any] = {"vocabulary": 200, "width": 64, "layers": 2, "heads": 4, "test": True}


def network(name: str, batch: int, **sizes: Any) -> tuple[Any, Any, Any]:
    """(x, target, loss)."""
    import nnl as nn
    import nnl.functions as F
    from nnl import models

    nn.seed(1)
    if name == "resnet18":
        x, t = nn.Variable((batch, 3, 32, 32)), nn.Variable((batch, 1))
        y = models.resnet(x, depth=18, num_classes=10, test=True)
        return x, t, F.mean(F.softmax_cross_entropy(y, t))
    sizes = SMALL | sizes
    x, t = nn.Variable((batch, 16)), nn.Variable((batch, 16, 1))
    make = models.gpt2 if name == "gpt2" else models.bert_masked_language_model
    y = make(x, **sizes)
    y = F.reshape(y, (-1, y.shape[-1]))
    return x, t, F.mean(F.softmax_cross_entropy(y, F.reshape(t, (-1, 1))))


def batches(name: str, steps: int) -> Any:
    rng = np.random.default_rng(0)
    if name == "resnet18":
        pictures = rng.normal(size=(steps, BATCH, 3, 32, 32)).astype(np.float32)
        return pictures, rng.integers(0, 10, (steps, BATCH, 1))
    ids = rng.integers(0, SMALL["vocabulary"], (steps, BATCH, 17))
    return ids[..., :-1], ids[..., 1:, None]


class Training:
    """One network with its solver on a mesh, or alone."""

    def __init__(self, name: str, mesh: Any, level: int, solver: Any, **sizes: Any) -> None:
        import nnl as nn
        import nnl.communicators as C

        nn.clear_parameters()
        self.mesh, self.level, self.solver = mesh, level, solver
        n = mesh.batch.size if level >= 0 else 1
        own = BATCH // n
        self.mine = (
            slice(mesh.batch.place * own, (mesh.batch.place + 1) * own) if n > 1 else slice(None)
        )
        self.x, self.t, self.loss = network(name, own, **sizes)
        params = nn.get_parameters()
        solver.set_parameters(params)
        self.callback = None
        if level > 0:
            C.shard(solver, mesh, level, outputs=self.loss)
        if 0 <= level < 2 and n > 1:
            grads = [p.grad for p in params.values()]
            how = {"division": True, "group": mesh.batch.group}
            self.callback = mesh.comm.all_reduce_callback(grads, 1 << 20, **how)
        self.params = nn.get_parameters()

    def step(self, x: Any, t: Any) -> float:
        self.x.d, self.t.d = x[self.mine], t[self.mine]
        self.loss.forward(clear_no_need_grad=True)
        self.solver.zero_grad()
        self.loss.backward(clear_buffer=True, communicator_callbacks=self.callback)
        self.solver.update()
        return float(self.loss.d)

    def nbytes(self) -> tuple[int, int]:
        """Of parameters, gradients and states; and with all that a step takes."""
        states = [v for s in self.solver.get_states().values() for v in s.pstate.values()]
        kept = sum(v.d.nbytes for v in [*self.params.values(), *states])
        (session,) = self.loss.sessions.values()
        grads = sum(p.d.nbytes for p in self.params.values())
        return kept + grads, kept + session.plans["train"].plan.nbytes


def mean(mesh: Any, values: list[float]) -> Any:
    import nnl as nn

    nd = nn.NdArray.from_numpy_array(np.array(values))
    mesh.comm.all_reduce(nd, division=True)
    return nd.data


def losses(mesh_of: Any, n: int) -> None:
    import nnl as nn
    import nnl.solvers as S

    meshes = {"shard": n} if n == 2 else {"shard": 4}, {"data": 2, "shard": n // 2}
    for name in RATES:
        # ResNet without batch statistics amplifies the rounding of float32 from step to step
        kind = "cpu:double" if name == "resnet18" else "cpu"
        nn.set_default_context(nn.Context([kind]))
        xs, ts = batches(name, STEPS)
        alone = mesh_of(data=n)
        one = Training(name, alone, -1, S.Momentum(RATES[name]))
        want = [one.step(x, t) for x, t in zip(xs, ts, strict=True)]
        for sizes in [m for m in meshes if m.get("shard", 1) > 1]:
            mesh = mesh_of(**sizes)
            for level in (1, 2, 3):
                run = Training(name, mesh, level, S.Momentum(RATES[name]))
                got = mean(mesh, [run.step(x, t) for x, t in zip(xs, ts, strict=True)])
                say(mesh, f"{name:9} {mesh!r:45} level {level}: {worst(got, want):.1e}")


def worst(got: Any, want: Any) -> float:
    return float(np.max(np.abs(np.array(got) - want) / np.abs(want)))


def memory(mesh_of: Any, n: int) -> None:
    import nnl.solvers as S

    sizes, mesh = {"width": 256, "layers": 8, "vocabulary": 2000}, mesh_of(shard=n)
    xs, ts = batches("gpt2", 1)
    found = {}
    for level in (-1, 1, 2, 3):
        run = Training("gpt2", mesh, level, S.Adam(), **sizes)
        for _ in range(2):  # the first step of a callback is planned otherwise
            run.step(xs[0], ts[0])
        found[level] = run.nbytes()
    for level in (1, 2, 3):
        kept, whole = (a / b for a, b in zip(found[level], found[-1], strict=True))
        say(
            mesh,
            f"{n} ranks, level {level}: kept {kept:.3f}, with a step {whole:.3f} of one process",
        )


def times(mesh_of: Any, n: int) -> None:
    import nnl.solvers as S

    mesh = mesh_of(shard=n)
    sizes = {"width": 256, "layers": 4, "vocabulary": 2000}
    xs, ts = batches("gpt2", 1)
    runs = {level: Training("gpt2", mesh, level, S.Adam(), **sizes) for level in (0, 1, 2, 3)}
    found: dict[int, list[float]] = {level: [] for level in runs}
    for k in range(40):
        for level, run in runs.items():
            mesh.comm.barrier()
            start = time.perf_counter()
            run.step(xs[0], ts[0])
            mesh.comm.barrier()
            if k > 4:
                found[level].append(time.perf_counter() - start)
    base = min(found[0])
    text = ", ".join(f"level {k}: {min(v) / base:.3f}" for k, v in found.items() if k)
    say(mesh, f"{n} ranks, plain data parallelism {base * 1e3:.1f} ms; times of it: {text}")


def bubble(mesh_of: Any, n: int) -> None:
    import nnl as nn
    import nnl.communicators as C
    import nnl.functions as F
    import nnl.parametric_functions as PF

    mesh, size, rows = mesh_of(pipe=n), 512, 64

    def layer(k: int) -> Any:
        return lambda h: F.tanh(PF.affine(h, size, name=f"layer{k}"))

    def stage(ks: Any) -> Any:
        def run(h: Any) -> Any:
            for k in ks:
                h = layer(k)(h)
            return h

        return run

    for chunks in (1, 2):
        each = 8 // (n * chunks)
        stages = [stage(range(s * each, (s + 1) * each)) for s in range(n * chunks)]
        took = {}
        for m in (4, 16):
            nn.clear_parameters()
            shape = (m * rows, size)
            p = C.Pipeline(mesh, stages, lambda y, t: F.mean((y - t) ** 2), shape, shape, m)
            x = np.zeros(shape, np.float32)
            runs = []
            for _ in range(15):
                mesh.comm.barrier()
                start = time.perf_counter()
                p.step(x, x)
                runs.append(time.perf_counter() - start)
            took[m] = min(runs[3:])
        one = (took[16] - took[4]) / 12
        for m in (4, 16):
            waits = 1 - m * one / took[m]
            theory = (n - 1) / (chunks * m + n - 1)
            say(mesh, f"{n} ranks, {chunks} stages each, {m} micro batches: waits {waits:.3f} of a "
                f"step of {took[m] * 1e3:.1f} ms, theory {theory:.3f}")  # fmt: skip


def checkpoint(mesh_of: Any, n: int) -> None:
    import nnl.communicators as C
    import nnl.solvers as S

    mesh = mesh_of(shard=n)
    xs, ts = batches("gpt2", 1)
    run = Training("gpt2", mesh, 3, S.Adam(), width=256, layers=4, vocabulary=2000)
    folder = os.environ["MESH_FOLDER"]
    checkpoints = C.Checkpoints(folder, mesh, run.solver)
    took: dict[bool, list[float]] = {False: [], True: []}
    for r in range(14):
        for saves in (False, True):
            checkpoints.wait()
            mesh.comm.barrier()
            start = time.perf_counter()
            for i in range(10):
                run.step(xs[0], ts[0])
                if saves and i == 0:
                    checkpoints.save(r, wait=False)
            mesh.comm.barrier()
            took[saves].append(time.perf_counter() - start)
    checkpoints.wait()
    off, on = (min(took[k][2:]) for k in (False, True))
    say(mesh, f"{n} ranks: 10 steps {off * 1e3:.1f} ms, with a checkpoint {on / off:.3f} of that")


def say(mesh: Any, text: str) -> None:
    if mesh.comm.rank == 0:
        print(text, flush=True)


WORKERS = {
    "losses": losses,
    "memory": memory,
    "time": times,
    "bubble": bubble,
    "checkpoint": checkpoint,
}


def worker(name: str) -> None:
    import nnl as nn
    import nnl.communicators as C

    comm = C.MultiProcessDataParallelCommunicator(nn.get_current_context())
    comm.init()
    WORKERS[name](lambda **sizes: C.Mesh(**sizes, comm=comm), comm.size)


JOB = """
import os, signal, time
import numpy as np
import nnl as nn, nnl.functions as F, nnl.communicators as C, nnl.parametric_functions as PF
import nnl.solvers as S

os.write(1, b"pid %d\\n" % os.getpid())
mesh = C.Mesh(shard=2)
x = nn.Variable((2, 3))
loss = F.mean(PF.affine(x, 5) ** 2)
solver = S.Adam(0.05)
solver.set_parameters(nn.get_parameters())
C.shard(solver, mesh, outputs=loss)
checkpoints = C.Checkpoints(os.environ["MESH_FOLDER"], mesh, solver)
found = checkpoints.load()
rank, who, at, what = mesh.comm.rank, *os.environ["MESH_FATE"].split()
for i in range(0 if found is None else found[0], 12):
    if rank == int(who) and i == int(at) and os.environ["NNL_RESTART"] == "0":
        if what == "slow":
            time.sleep(1.5)
        elif what != "none":
            os.kill(os.getpid(), int(what))
    x.d = np.arange(6.0).reshape(2, 3) / (i + 1) + rank
    loss.forward(clear_no_need_grad=True), solver.zero_grad(), loss.backward(clear_buffer=True)
    solver.update()
    checkpoints.save(i + 1, wait=i % 2 == 0)
checkpoints.wait()
if rank == 0:
    os.write(1, b"%.6f\\n" % float(loss.d))
"""


def lives(pid: str, script: Path) -> bool:
    """Whether a process of the job is there; the number may be another's by now."""
    try:
        return str(script) in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


def jobs(count: int) -> int:
    """Jobs with a rank that is killed, stopped or slow; how many have not ended as they should."""
    rng, bad, wanted = random.Random(0), 0, None
    kinds = ["none", *[str(int(signal.SIGKILL)), str(int(signal.SIGSTOP)), "slow"] * count][:count]
    for k, what in enumerate(kinds):
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "job.py"
            script.write_text(JOB)
            fate = f"{rng.randrange(2)} {rng.randrange(1, 12)} {what}"
            environment = {
                "MESH_FOLDER": f"{folder}/saved",
                "MESH_FATE": fate,
                "OMP_NUM_THREADS": "1",
            }
            done = subprocess.run(
                [sys.executable, "-m", "nnl.launch", "-n", "2", "--restarts", "2", str(script)],
                env={**os.environ, **environment, "NNL_COMMUNICATOR_TIMEOUT": "4"},
                capture_output=True, text=True, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            lines = done.stdout.split("\n")
            time.sleep(0.5)  # what the kernel has killed has gone by then
            left = [p for p in lines if p.startswith("pid ") and lives(p[4:], script)]
            value = lines[-2] if done.returncode == 0 else "failed"
            wanted = wanted or value
            again = "restart 1 of 2" in done.stderr
            if value != wanted or left or again != (what in ("9", "19")):
                bad += 1
                print(f"job {k}, {fate}: {value}, left {left}\n{done.stderr[-2000:]}", flush=True)
    print(f"{count} jobs, {bad} did not end as they should", flush=True)
    return bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", nargs="+", choices=[*WORKERS, "jobs"])
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.what[0])
        return 0
    for what in args.what:
        if what == "jobs":
            return int(jobs(args.jobs) > 0)
        for n in (2, 4) if what in ("losses", "memory") else (2,):
            print(f"# {what}", flush=True)
            with tempfile.TemporaryDirectory() as folder:
                command = [
                    sys.executable,
                    "-m",
                    "nnl.launch",
                    "-n",
                    str(n),
                    __file__,
                    what,
                    "--worker",
                ]
                environment = {"MESH_FOLDER": folder, "OMP_NUM_THREADS": "1"}
                subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, **environment})
    return 0


if __name__ == "__main__":
    sys.exit(main())
