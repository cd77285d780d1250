# SPDX-License-Identifier: Apache-2.0
"""Training on n ranks gives what one process gives for the whole batch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnl.cli.main import main
from nnl.ext.native import library
from tests.communicators.ranks import HEADER, ROOT, need_mpi, run

MODES = ("static", "kept", "dynamic", "compiled", "coexecuted")

TRAIN = """
import nnl.parametric_functions as PF
import nnl.solvers as S

STEPS, BATCH = 4, 12
rng = np.random.default_rng(0)
X = rng.normal(size=(STEPS, BATCH, 1, 8, 8)).astype(np.float32)
T = rng.integers(0, 4, (STEPS, BATCH, 1))
EVAL = rng.normal(size=(3, 1, 8, 8))
share = BATCH // size
mine = slice(rank * share, (rank + 1) * share)

def network(x):
    h = F.relu(PF.convolution(x, 4, (3, 3), name="c1"))
    h = PF.sync_batch_normalization(h, comm, name="bn")
    h = F.max_pooling(F.relu(PF.convolution(h, 4, (3, 3), name="c2")), (2, 2))
    h = F.tanh(PF.affine(h, 6, name="a1"))
    for _ in range(2):  # a parameter that is used twice
        h = F.relu(PF.affine(h, 6, name="shared"))
    return PF.affine(h, 4, name="a2")

def train(mode, overlapped):
    nn.clear_parameters()
    nn.seed(1)
    network(nn.Variable((1, 1, 8, 8)))
    PF.affine(nn.Variable((1, 2)), 2, name="never used")
    solver = S.Momentum(0.1)
    solver.set_parameters(nn.get_parameters())
    grads = [p.grad for p in nn.get_parameters().values()]
    x, t = nn.Variable((share, 1, 8, 8)), nn.Variable((share, 1))

    def loss_of(x, t):
        return F.mean(F.softmax_cross_entropy(network(x), t))

    def update(loss):
        solver.zero_grad()
        clear = {"clear_buffer": mode != "kept"}
        if overlapped:
            callback = comm.all_reduce_callback(grads, 50, division=True)
            loss.backward(**clear, communicator_callbacks=callback)
        else:
            loss.backward(**clear)
            comm.all_reduce(grads, division=True)
        solver.clip_grad_by_norm(0.5)
        solver.update()

    def step(x, t):
        loss = loss_of(x, t)
        loss.forward(clear_no_need_grad=True)
        update(loss)
        return loss

    @nn.coexecute
    def coexecuted(x, t):
        now = loss_of(x, t)
        update(now)
        return now

    compiled = nn.compile(step)
    loss = None if mode in ("dynamic", "coexecuted") else loss_of(x, t)
    losses = []
    for i in range(STEPS):
        x.d, t.d = X[i, mine], T[i, mine]
        if mode == "compiled":
            now = compiled(x, t)
        elif mode == "dynamic":
            with nn.auto_forward():
                now = loss_of(x, t)
                update(now)
        elif mode == "coexecuted":
            with nn.auto_forward():
                now = coexecuted(x, t)
        else:
            loss.forward(clear_no_need_grad=mode == "static")
            update(loss)
            now = loss
        losses.append(float(now.d))
    losses = nn.NdArray.from_numpy_array(np.array(losses))
    comm.all_reduce(losses, division=True)
    out = {k: p.d.copy() for k, p in nn.get_parameters(grad_only=False).items()}
    nn.clear_parameters()
    return {**out, "losses": losses.data}
"""

ON_RANKS = """
modes = {modes!r}
for mode in modes:
    for overlapped in (False, True):
        got = train(mode, overlapped)
        if rank == 0:
            np.savez(f"{folder}/{{mode}}-{{overlapped}}.npz", **got)
"""

QUICK = [(2, "shared")]
LONG = [(n, b) for b in ("shared", "mpi") for n in (2, 3, 4) if (n, b) not in QUICK]


@pytest.mark.parametrize(
    ("n", "backend"), [*QUICK, *(pytest.param(*x, marks=pytest.mark.long) for x in LONG)]
)
def test_n_processes_give_the_single_process_result(tmp_path: Path, n: int, backend: str) -> None:
    folders = {1: tmp_path / "alone", n: tmp_path / "ranks"}
    for k, folder in folders.items():
        folder.mkdir()
        code = TRAIN + ON_RANKS.format(modes=MODES, folder=folder)
        run(tmp_path, k, code, NNL_COMMUNICATOR=backend if k > 1 else "local")
    assert_same_results(folders[1], folders[n])


def assert_same_results(alone: Path, ranks: Path) -> None:
    """What the script ON_RANKS has saved, by one process and by several."""
    for mode in MODES:
        want = np.load(alone / f"{mode}-False.npz")
        for overlapped in (False, True):
            got = np.load(ranks / f"{mode}-{overlapped}.npz")
            assert set(got) == set(want)
            for k in want:  # sums run in another order, and four steps carry that on
                np.testing.assert_allclose(
                    got[k], want[k], rtol=2e-4, atol=2e-5, err_msg=f"{mode} {overlapped} {k}"
                )


SYNC = """
def batch(sizes, seed=1):
    rng = np.random.default_rng(seed)
    x = rng.normal(2, 3, (sum(sizes), 3, 5)).astype(np.float32)
    gy = rng.normal(size=x.shape).astype(np.float32)
    beta, gamma = rng.normal(size=(2, 1, 3, 1)).astype(np.float32)
    return x, gy, beta, gamma

def normalized(comm, mine, sizes, auto, with_stat):
    x, gy, beta, gamma = batch(sizes)
    x, beta, gamma = (
        nn.Variable.from_numpy_array(a, need_grad=True) for a in (x[mine], beta, gamma)
    )
    mean, var = nn.Variable((1, 3, 1)), nn.Variable((1, 3, 1))
    with nn.auto_forward(auto):
        ys = F.sync_batch_normalization(
            x, beta, gamma, mean, var, comm, eps=1e-3, output_stat=with_stat
        )
        y, *stat = ys if with_stat else (ys,)
        loss = F.sum(y * nn.Variable.from_numpy_array(gy[mine]))
        for k, s in enumerate(stat):  # of all ranks together, once
            part = F.sum(s ** 2) * (k + 1)
            loss = loss + part / (comm.size if comm is not None else 1)
    if not auto:
        loss.forward()
    loss.backward()
    return [x, beta, gamma], [y, *stat, mean, var]
"""

SYNC_ON_RANKS = """
for sizes in ([4] * size, list(range(1, size + 1)), [0, *[3] * (size - 1)]):
    start = sum(sizes[:rank])
    mine = slice(start, start + sizes[rank])
    for auto in (False, True):
        for with_stat in (False, True):
            (x, *params), outs = normalized(comm, mine, sizes, auto, with_stat)
            (x1, *params1), outs1 = normalized(None, slice(None), sizes, auto, with_stat)
            np.testing.assert_allclose(x.g, x1.g[mine], rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(outs[0].d, outs1[0].d[mine], rtol=1e-5, atol=1e-5)
            for a, b in zip(outs[1:], outs1[1:]):
                np.testing.assert_allclose(a.d, b.d, rtol=1e-5, atol=1e-5)
            comm.all_reduce([p.grad for p in params])
            for a, b in zip(params, params1):
                np.testing.assert_allclose(a.g, b.g, rtol=1e-4, atol=1e-4)
"""


@pytest.mark.parametrize("n", [2, pytest.param(3, marks=pytest.mark.long)])
def test_sync_batch_normalization_is_that_of_the_whole_batch(tmp_path: Path, n: int) -> None:
    run(tmp_path, n, SYNC + SYNC_ON_RANKS)


def test_loss_scaling_sums_the_gradients_of_all_ranks(tmp_path: Path) -> None:
    code = """
    import nnl.solvers as S
    from nnl.experimental.mixed_precision_training import DynamicLossScalingUpdater
    w = nn.Variable.from_numpy_array(np.ones(3, np.float32), need_grad=True)
    loss = F.sum(w * float(rank + 1))
    solver = S.Sgd(0.5)
    solver.set_parameters({"w": w})
    DynamicLossScalingUpdater(solver, loss, comm=comm, grads=[w.grad]).update()
    assert (w.d == 1 - 0.5 * 3).all()
    """
    run(tmp_path, 2, code)


LISTING_3 = """
from nnl.ext_utils import get_extension_context
import nnl.communicators as C
ctx = get_extension_context("cpu")
comm = C.MultiProcessDataParallelCommunicator(ctx)
comm.init()
loss = network()
params = [x.grad for x in nn.get_parameters().values()]
loss.backward(clear_buffer=True)
comm.all_reduce(params)
"""


def test_listing_3_of_the_paper_sums_the_gradients(tmp_path: Path) -> None:
    code = f"""
import nnl.parametric_functions as PF
def network():
    x = nn.Variable.from_numpy_array(np.full((2, 3), rank + 1.0))
    loss = F.sum(PF.affine(x, 4))
    loss.forward(clear_no_need_grad=True)
    return loss
{LISTING_3}
assert (params[0].data == 2 * 3).all() and (params[1].data == 4).all()
"""
    run(tmp_path, 2, code)


def launch(*command: str, **environment: str) -> Any:
    need_mpi()
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


@pytest.mark.parametrize(
    "command",
    [
        ("-m", "nnl.launch"),
        pytest.param(("-m", "nnl.cli.main", "launch"), marks=pytest.mark.long),
    ],
)
def test_launch_runs_a_script_with_its_arguments_in_n_processes(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "beside.py").write_text("answer = 42\n")
    script = tmp_path / "script.py"
    script.write_text(
        HEADER + "import sys, os, beside\n"
        "if rank == 1: print(size, sys.argv[1:], __name__, beside.answer,"
        " os.environ['OMP_NUM_THREADS'])\n"
    )
    done = launch(*command, "-n", "2", str(script), "-x", "--epochs", "3", OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2 ['-x', '--epochs', '3'] __main__ 42 1\n"


def test_launch_says_what_is_wrong_with_its_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    for args, code, text in (
        (["-n", "0", __file__], 2, "launch: -n is 0, wanted a number of processes >= 1"),
        (["-n", "2", "nowhere.py"], 1, "launch: there is no file nowhere.py"),
    ):
        assert main(["launch", *args]) == code
        assert text in capsys.readouterr().err


def test_launch_says_how_to_get_mpiexec(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["launch", "-n", "2", __file__]) == 4
    assert "launch: there is no mpiexec: pip install 'nnl[mpi]'" in capsys.readouterr().err


@pytest.mark.long
def test_the_digits_example_trains_on_two_processes(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    script = str(ROOT / "examples" / "digits" / "train.py")
    done = launch("-m", "nnl.launch", "-n", "2", script, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = re.findall(r"test accuracy ([\d.]+) ?%", done.stdout)
    assert len(found) == 1 and float(found[0]) >= 98.5


TILED = """
import nnl.parametric_functions as PF
import nnl.solvers as S

nn.seed(1)
share = 4 // size
x = nn.Variable((share, 16, 6, 6))
h = F.tanh(PF.convolution(x, 32, (3, 3), name="c1"))
loss = F.mean(PF.convolution(h, 16, (3, 3), name="c2") ** 2)
params = nn.get_parameters()
grads = [p.grad for p in params.values()]
solver = S.Momentum(0.1)
solver.set_parameters(params)
X = np.random.default_rng(0).normal(size=(3, 4, 16, 6, 6))
orders = []
for i in range(3):
    x.d = X[i, rank * share : (rank + 1) * share]
    loss.forward(clear_no_need_grad=True)
    solver.zero_grad()
    loss.backward(clear_buffer=True)
    w = params["c1/conv/W"].grad
    if i == 1 and rank == 0:
        w.data  # makes it plain, here only
    comm.all_reduce(grads, division=True)
    orders += w.bufs
    solver.update()
np.savez(f"{folder}/{{size}}-{{rank}}.npz", orders=orders, **{{k: p.d for k, p in params.items()}})
"""


@pytest.mark.skipif(library() is None, reason="the native engine is not built")
def test_gradients_are_summed_in_the_order_that_all_ranks_have_them_in(tmp_path: Path) -> None:
    for n in (1, 2):
        run(tmp_path, n, TILED.format(folder=tmp_path))
    want = np.load(tmp_path / "1-0.npz")
    for rank in (0, 1):
        got = np.load(tmp_path / f"2-{rank}.npz")
        assert list(got["orders"]) == ["tiled", "host", "tiled"]
        for name in want.files:
            if name != "orders":
                np.testing.assert_allclose(got[name], want[name], rtol=1e-4, atol=1e-6)


OTHERS = """
uses = [[0, 2, 4], [5, 3, 1, 0]]
ws = [nn.parameter.get_parameter_or_create(f"w{k}", (3,)) for k in range(6)]
for k, w in enumerate(ws):
    w.d = k + 1
for dynamic in (False, True):
    for w in ws:
        w.grad.zero()
    with nn.auto_forward(dynamic):
        loss = sum(F.sum(ws[k] ** 2) for k in uses[rank])
        loss.forward()
        callback = comm.all_reduce_callback([w.grad for w in ws], 4)
        loss.backward(clear_buffer=True, communicator_callbacks=callback)
    used = [sum(k in some for some in uses) for k in range(6)]
    assert [w.g[0] for w in ws] == [2 * (k + 1) * n for k, n in enumerate(used)]
def step():
    loss = F.sum(ws[rank] ** 2)
    for w in ws[:2]:
        w.grad.zero()
    loss.backward(communicator_callbacks=comm.all_reduce_callback([w.grad for w in ws[:2]], 4))
    return loss
try:
    nn.compile(step)()
except C.CommunicatorError as e:
    assert f"sum(float32[3], [{rank}] of 2) in group 'world', but rank {1 - rank} " in str(e)
else:
    raise AssertionError
"""


def test_ranks_whose_losses_need_other_parameters(tmp_path: Path) -> None:
    run(tmp_path, 2, OTHERS)
