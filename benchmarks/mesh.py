# SPDX-License-Identifier: Apache-2.0
"""Networks in parts on several ranks, beside one process and plain data parallelism.

    python benchmarks/mesh.py losses memory time bubble checkpoint   # tables on stdout
    python benchmarks/mesh.py jobs --jobs 200    # killed, stopped and slow ranks

losses: 50 steps of small networks like ResNet, BERT and GPT-2, with layers in parts and in stages,
for every combination of data, shard, model and pipe on 2 and 4 ranks; the largest relative
difference to one process.
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
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
STEPS, BATCH = 50, 8
SMALL: dict[str, Any] = {"vocabulary": 200, "width": 64, "layers": 2, "heads": 4, "test": True}


def network(batch: int, **sizes: Any) -> tuple[Any, Any, Any]:
    """(x, target, loss) of GPT-2."""
    import nnl as nn
    import nnl.functions as F
    from nnl import models

    nn.seed(1)
    x, t = nn.Variable((batch, 16)), nn.Variable((batch, 16, 1))
    y = models.gpt2(x, **(SMALL | sizes))
    y = F.reshape(y, (-1, y.shape[-1]))
    return x, t, F.mean(F.softmax_cross_entropy(y, F.reshape(t, (-1, 1))))


def batch() -> tuple[Any, Any]:
    ids = np.random.default_rng(0).integers(0, SMALL["vocabulary"], (BATCH, 17))
    return ids[..., :-1], ids[..., 1:, None]


class Training:
    """One network with its solver on a mesh, or alone."""

    def __init__(self, mesh: Any, level: int, solver: Any, **sizes: Any) -> None:
        import nnl as nn
        import nnl.communicators as C

        nn.clear_parameters()
        self.mesh, self.level, self.solver = mesh, level, solver
        n = mesh.batch.size if level >= 0 else 1
        own = BATCH // n
        self.mine = (
            slice(mesh.batch.place * own, (mesh.batch.place + 1) * own) if n > 1 else slice(None)
        )
        self.x, self.t, self.loss = network(own, **sizes)
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


def layers_of(name: str, over: Any) -> tuple[list[Any], Any]:
    """The layers of a network over ranks, and its loss."""
    import nnl.communicators as C
    import nnl.functions as F
    import nnl.parametric_functions as PF

    if name == "resnet":
        size = 8

        def residual(k: int) -> Any:
            def layer(h: Any) -> Any:
                y = C.convolution(h, size, (3, 3), over, pad=(1, 1), name=f"{k}a")
                y = C.convolution(F.relu(y), size, (3, 3), over, "in", pad=(1, 1), name=f"{k}b")
                return F.relu(h + PF.batch_normalization(y, batch_stat=False, name=f"{k}n"))

            return layer

        def first(x: Any) -> Any:
            return F.relu(PF.convolution(x, size, (3, 3), pad=(1, 1), name="first"))

        def last(h: Any) -> Any:
            return PF.affine(F.mean(h, axis=(2, 3)), 10, name="last")

        loss = lambda y, t: F.mean(F.softmax_cross_entropy(y, t))  # noqa: E731
        return [first, *[residual(k) for k in range(4)], last], loss

    words, size, heads, causal = 64, 32, 4, name == "gpt2"

    def norm(h: Any, at: str) -> Any:
        return PF.layer_normalization(h, batch_axis=(0, 1), name=at)

    def block(k: int) -> Any:
        def parts(n: Any) -> Any:
            qkv = C.affine(n, 3 * size, over, groups=3, name=f"{k}qkv")
            qkv = F.reshape(qkv, (*n.shape[:2], 3, heads // over.size, size // heads))
            q, key, v = (F.transpose(a, (0, 2, 1, 3)) for a in F.split(qkv, axis=2))
            a = F.transpose(F.attention(q, key, v, causal=causal), (0, 2, 1, 3))
            a = F.reshape(a, (*n.shape[:2], size // over.size))
            return C.affine(a, size, over, split="in", name=f"{k}out")

        def wide(n: Any) -> Any:
            up = F.gelu(C.affine(n, 4 * size, over, name=f"{k}up"))
            return C.affine(up, size, over, split="in", name=f"{k}down")

        def layer(h: Any) -> Any:
            if causal:
                h = h + parts(norm(h, f"{k}n1"))
                return h + wide(norm(h, f"{k}n2"))
            h = norm(h + parts(h), f"{k}n1")
            return norm(h + wide(h), f"{k}n2")

        return layer

    def embed(x: Any) -> Any:
        at = PF.get_parameter_or_create("at", (1, x.shape[1], size), np.ones((1, x.shape[1], size)))
        return C.embed(x, words, size, over, name="words") + at

    def head(h: Any) -> Any:
        return C.affine(norm(h, "n"), words, over, with_bias=False, name="head")

    loss = lambda y, t: F.mean(C.softmax_cross_entropy(y, t, over))  # noqa: E731
    return [embed, *[block(k) for k in range(4)], head], loss


def train(name: str, mesh: Any, level: int) -> list[float]:
    """The losses of 50 steps."""
    import nnl as nn
    import nnl.communicators as C
    import nnl.solvers as S

    nn.clear_parameters()
    nn.seed(1)
    layers, loss = layers_of(name, mesh.model)
    n = mesh.pipe.size
    parts = [in_turn(layers[k * len(layers) // n : (k + 1) * len(layers) // n]) for k in range(n)]
    rng, b = np.random.default_rng(0), BATCH // mesh.batch.size
    if name == "resnet":
        x, t = rng.normal(size=(STEPS, BATCH, 3, 8, 8)), rng.integers(0, 10, (STEPS, BATCH, 1))
    else:
        ids = rng.integers(0, 64, (STEPS, BATCH, 9))
        x, t = ids[..., :-1], ids[..., 1:, None]
    mine = slice(mesh.batch.place * b, (mesh.batch.place + 1) * b)
    p = C.Pipeline(mesh, parts, loss, (b, *x.shape[2:]), (b, *t.shape[2:]), 2)
    solver = S.Momentum(0.02)
    solver.set_parameters(nn.get_parameters())
    grads = [v.grad for v in nn.get_parameters().values()]
    if level:
        C.shard(solver, mesh, level, outputs=p.outputs)
    found = []
    for k in range(STEPS):
        solver.zero_grad()
        got = nn.NdArray.from_numpy_array(np.array([p.step(x[k, mine], t[k, mine])]))
        if level < 2 and mesh.batch.size > 1:
            mesh.comm.all_reduce(grads, division=True, group=mesh.batch.group)
        solver.update()
        mesh.comm.all_reduce(got, division=True)
        found.append(float(got.data[0]))
    return found


def in_turn(layers: Any) -> Any:
    def stage(h: Any) -> Any:
        for layer in layers:
            h = layer(h)
        return h

    return stage


def losses(mesh_of: Any, n: int) -> None:
    names = ("data", "shard", "model", "pipe")
    meshes: list[dict[str, int]] = [{d: n} for d in names] if n > 1 else [{}]
    if n == 4:
        meshes += [{a: 2, b: 2} for a, b in combinations(names, 2)]
    folder = Path(os.environ["MESH_FOLDER"])
    for name in ("resnet", "bert", "gpt2"):
        file = folder / f"{name}.npy"
        for sizes in meshes:
            mesh = mesh_of(**sizes)
            for level in (1, 2, 3) if "shard" in sizes else (0,):
                got = train(name, mesh, level)
                if not sizes:
                    np.save(file, got)
                    say(mesh, f"{name}: {got[0]:.4f} to {got[-1]:.4f}")
                    continue
                worst = np.max(np.abs(np.array(got) / np.load(file) - 1))
                say(mesh, f"{name:7} {sizes!s:24} level {level}: {worst:.1e}")


def memory(mesh_of: Any, n: int) -> None:
    import nnl.solvers as S

    sizes, mesh = {"width": 256, "layers": 8, "vocabulary": 2000}, mesh_of(shard=n)
    x, t = batch()
    found = {}
    for level in (-1, 1, 2, 3):
        run = Training(mesh, level, S.Adam(), **sizes)
        for _ in range(2):  # the first step of a callback is planned otherwise
            run.step(x, t)
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
    x, t = batch()
    runs = {level: Training(mesh, level, S.Adam(), **sizes) for level in (0, 1, 2, 3)}
    clocks = {"wall": time.perf_counter, "processor": time.process_time}
    found: dict[Any, list[float]] = {(level, c): [] for level in runs for c in clocks}
    for k in range(100):
        for level, run in runs.items():
            mesh.comm.barrier()
            start = {c: clock() for c, clock in clocks.items()}
            run.step(x, t)
            mesh.comm.barrier()
            for c, clock in clocks.items() if k > 4 else ():
                found[level, c].append(clock() - start[c])
    for how, of in {"median": np.median, "least": min}.items():
        for c in clocks:
            base, *rest = (of(found[level, c]) for level in runs)
            text = ", ".join(f"level {k}: {v / base:.3f}" for k, v in enumerate(rest, 1))
            say(mesh, f"{n} ranks, {how} {c} time, plain {base * 1e3:.1f} ms; times of it: {text}")


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
    x, t = batch()
    run = Training(mesh, 3, S.Adam(), width=256, layers=4, vocabulary=2000)
    folder = os.environ["MESH_FOLDER"]
    checkpoints = C.Checkpoints(folder, mesh, run.solver)
    clocks = {"wall": time.perf_counter, "processor": time.process_time}
    took: dict[Any, list[float]] = {(saves, c): [] for saves in (False, True) for c in clocks}
    for r in range(30):
        for saves in (False, True):
            checkpoints.wait()
            mesh.comm.barrier()
            start = {c: clock() for c, clock in clocks.items()}
            for i in range(10):
                run.step(x, t)
                if saves and i == 0:
                    checkpoints.save(r, wait=False)
            mesh.comm.barrier()
            for c, clock in clocks.items():
                took[saves, c].append(clock() - start[c])
    checkpoints.wait()
    for how, of in {"median": np.median, "least": min}.items():
        for c in clocks:
            off, on = (of(took[k, c][2:]) for k in (False, True))
            say(
                mesh,
                f"{n} ranks, {how} {c} time: 10 steps {off * 1e3:.1f} ms, "
                f"with a checkpoint {on / off:.3f} of that",
            )


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
        ranks = {"losses": (1, 2, 4), "memory": (2, 4)}.get(what, (2,))
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "MESH_FOLDER": folder, "OMP_NUM_THREADS": "1"}
            for n in ranks:
                print(f"# {what}", flush=True)
                command = ["-m", "nnl.launch", "-n", str(n), __file__, what, "--worker"]
                subprocess.run([sys.executable, *command], cwd=ROOT, check=True, env=environment)
    return 0


if __name__ == "__main__":
    sys.exit(main())
