# SPDX-License-Identifier: Apache-2.0
"""Runs Python code in several processes under mpiexec, for the tests."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEADER = """
import numpy as np
import nnl as nn
import nnl.functions as F
import nnl.communicators as C
comm = C.MultiProcessDataParallelCommunicator(nn.get_current_context())
comm.init()
rank, size = comm.rank, comm.size
"""


def need_mpi(python: str = sys.executable) -> str:
    """The mpiexec beside a Python; skips the test where mpi4py or it is missing."""
    if python == sys.executable and importlib.util.find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed")
    program = Path(python).parent / "mpiexec"
    if not program.exists():
        pytest.skip(f"there is no {program}")
    return str(program)


def start(
    folder: Path,
    n: int,
    code: str,
    launch: bool = False,
    before: str = "",
    python: str = sys.executable,
    nohup: bool = False,
    **environment: Any,
) -> Any:
    """Start a script of `before`, HEADER and `code` on n ranks.

    Args:
        launch: With `python -m nnl.launch` instead of mpiexec.
        python: What runs it.
        nohup: As the program nohup does it. Else no signal is ignored, whatever has started this.
    """

    def dispose() -> None:
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        if nohup:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

    program = need_mpi(python)
    script = folder / "script.py"
    script.write_text(before + HEADER + textwrap.dedent(code))
    command = [program, "-n", str(n), python, str(script)]
    if launch:
        command = [python, "-m", "nnl.launch", "-n", str(n), str(script)]
    known = {k: v for k, v in os.environ.items() if k != "NNL_COMMUNICATOR"}
    settings = {k: str(v) for k, v in environment.items()}
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**known, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **settings},
        preexec_fn=dispose,
    )


def finish(process: Any, seconds: float = 60) -> tuple[int, str, str]:
    """Exit code, stdout and stderr; a job that hangs is killed and fails the test."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        pytest.fail(f"still running after {seconds} s\n{out}\n{err}")
    return process.returncode, out, err


# Ranks that run one script after the other: to start nnl takes longer than most scripts do.
SERVE = """
import contextlib, io, runpy, traceback
from multiprocessing.connection import Listener
usual = nn.get_current_context()
def received(tests):
    try:
        return tests.recv()
    except EOFError:  # the tests have ended
        return None
with Listener(f"{FOLDER}/rank{rank}") as listener, listener.accept() as tests:
    while script := received(tests):
        out, failed = io.StringIO(), ""
        try:
            with contextlib.redirect_stdout(out):
                runpy.run_path(script)
        except Exception:
            failed = traceback.format_exc()
        nn.set_default_context(usual)
        nn.clear_parameters()
        tests.send((out.getvalue(), failed))
"""


class Job:
    """n ranks that wait for scripts, and end when nobody can send any."""

    running: dict[int, Job] = {}

    def __init__(self, folder: Path, n: int) -> None:
        self.folder, self.scripts = folder, 0
        self.process = start(self.folder, n, SERVE.replace("FOLDER", repr(str(self.folder))))
        self.ranks = [self.connection(rank) for rank in range(n)]
        Job.running[n] = self

    def connection(self, rank: int, seconds: float = 60) -> Any:
        end = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < end:
            try:
                return Client(str(self.folder / f"rank{rank}"))
            except OSError:  # it is not there yet
                time.sleep(0.01)
        self.process.kill()
        pytest.fail("\n".join(self.process.communicate()))

    @classmethod
    def of(cls, folder: Path, n: int) -> Job:
        found = cls.running.get(n)
        return found if found and found.process.poll() is None else Job(folder, n)

    def run(self, code: str, seconds: float) -> str:
        self.scripts += 1
        script = self.folder / f"script{self.scripts}.py"
        script.write_text(HEADER + textwrap.dedent(code))
        for rank in self.ranks:
            rank.send(str(script))
        end, said = time.monotonic() + seconds, []
        try:
            for rank in self.ranks:
                assert rank.poll(max(0, end - time.monotonic())), f"still running after {seconds} s"
                said.append(rank.recv())
            assert not any(failed for _, failed in said), "\n".join(f for _, f in said)
        except BaseException:
            self.process.kill()
            self.process.wait()  # then the next script gets other ranks
            raise
        return "".join(out for out, _ in said)


def run(
    folder: Path, n: int, code: str, seconds: float = 60, fresh: bool = False, **settings: Any
) -> str:
    """The output of a script that must end well.

    Args:
        fresh: Whether its ranks have done nothing before; with other settings they have not.
    """
    need_mpi()
    if not fresh and settings in ({}, {"NNL_COMMUNICATOR": "shared"}):  # as on Linux
        return Job.of(folder, n).run(code, seconds)
    code_, out, err = finish(start(folder, n, code, **settings), seconds)
    assert code_ == 0, f"{out}\n{err}"
    return out


SAYS = """
import json
said = []
for code in CODES:
    nn.clear_parameters()
    try:
        exec(BEFORE + code, {**globals()})
    except Exception as e:
        said.append(f"{type(e).__name__}: {e}")
    comm.barrier()
print(json.dumps(said))
"""


def say(folder: Path, n: int, codes: list[str], before: str = "") -> list[list[str]]:
    """What the ranks of one job raise for each code, behind `before`: by code, of all ranks."""
    code = SAYS.replace("CODES", repr(codes)).replace("BEFORE", repr(before))
    by_rank = [json.loads(line) for line in run(folder, n, code).splitlines()]
    return [list(said) for said in zip(*by_rank, strict=True)]
