# SPDX-License-Identifier: Apache-2.0
"""Jobs that `nnl launch` starts again, from a checkpoint, on the machines that are there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nnl.cli.main import main
from tests.communicators.ranks import HEADER, ROOT, need_mpi
from tests.communicators.test_launch import end_of

TRAIN = """
import os, sys, time
import nnl.parametric_functions as PF
import nnl.solvers as S

os.write(1, b"pid %d\\n" % os.getpid())
nn.seed(4)
mesh = C.Mesh(shard=size, comm=comm)
X = np.random.default_rng(0).normal(size=(12, 4, 3)).astype(np.float32)
b = 4 // size
x = nn.Variable((b, 3))
loss = F.mean(PF.affine(x, 5) ** 2)
solver = S.Adam(0.05)
solver.set_parameters(nn.get_parameters())
C.shard(solver, mesh, outputs=loss)
checkpoints = C.Checkpoints(FOLDER, mesh, solver)
found = checkpoints.load()
for i in range(0 if found is None else found[0], 12):
    x.d = X[i, rank * b : (rank + 1) * b]
    loss.forward(clear_no_need_grad=True), solver.zero_grad(), loss.backward(clear_buffer=True)
    solver.update()
    checkpoints.save(i + 1, wait=i % 2 == 0)
    FAIL
checkpoints.wait()
total = mesh.batch.all_reduce(loss) / size
total.forward()
if rank == 0:
    os.write(1, b"%d ranks, restart %s: %.6f\\n"
             % (size, os.environb.get(b"NNL_RESTART"), float(total.d)))
"""


def launch(tmp_path: Path, fail: str, *options: str, path: str = "", n: int | None = 2) -> Any:
    need_mpi()
    script = tmp_path / "train.py"
    code = HEADER + TRAIN.replace("FOLDER", repr(str(tmp_path / "saved")))
    script.write_text(code.replace("FAIL", fail))
    number = [] if n is None else ["-n", str(n)]
    return subprocess.run(
        [sys.executable, "-m", "nnl.launch", *number, *options, str(script)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        timeout=90,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "PATH": f"{path}{os.pathsep}{os.environ['PATH']}",
        },
    )


def end(out: str) -> tuple[list[int], str]:
    """The processes that there have been, and the last line."""
    lines = out.splitlines()
    return [int(line.split()[1]) for line in lines if line.startswith("pid ")], lines[-1]


def test_a_job_goes_on_after_a_rank_was_killed(tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    (tmp_path / "job").mkdir()
    whole = launch(tmp_path / "alone", "pass")
    assert whole.returncode == 0, whole.stderr
    fail = "if rank == 1 and i == 5 and os.environ['NNL_RESTART'] == '0': os.kill(os.getpid(), 9)"
    done = launch(tmp_path / "job", fail, "--restarts", "3")
    assert done.returncode == 0, done.stderr
    pids, line = end(done.stdout)
    assert len(pids) == 4 and end_of(pids) == []
    assert line.replace("restart 1", "restart 0") == end(whole.stdout)[1]
    assert "nnl launch: restart 1 of 3, with 2 processes\n" in done.stderr
    assert "nnl: rank 1 was killed by SIGKILL" in done.stderr


@pytest.mark.long
def test_a_job_that_always_fails_ends_with_its_exit_code(tmp_path: Path) -> None:
    done = launch(tmp_path, "raise SystemExit(7)", "--restarts", "1")
    assert done.returncode == 7
    assert done.stderr.count("restart") == 1 and end_of(end(done.stdout)[0]) == []


@pytest.mark.long
def test_a_job_goes_on_without_a_machine_that_does_not_answer(tmp_path: Path) -> None:
    """mpiexec and the launcher reach other machines by ssh, which here reaches none."""
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text("#!/bin/sh\nexit 255\n")
    ssh.chmod(0o755)
    options = ("--hosts", "localhost:2,away:2", "--restarts", "1")
    done = launch(tmp_path, "pass", *options, path=str(ssh.parent), n=None)
    assert done.returncode == 0, done.stderr
    assert "restart 1 of 1, with 2 processes, without away\n" in done.stderr
    assert end(done.stdout)[1].startswith("2 ranks, restart 1: ")


def test_what_is_wrong_with_the_options_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    for options, text in (
        (["--hosts", "a:x"], "--hosts is 'a:x', wanted machines as in a:4,b:4"),
        (["--hosts", "a:2,a:2"], "--hosts is 'a:2,a:2', wanted machines"),
        (["--hosts", ""], "--hosts is '', wanted machines"),
        (["--hosts", "a:2,b", "-n", "4"], "-n is 4, but --hosts has room for 3"),
        (["--restarts", "-1"], "--restarts is -1, wanted a number >= 0"),
    ):
        assert main(["launch", *options, __file__]) == 2
        assert f"launch: {text}" in capsys.readouterr().err
