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


def run(folder: Path, n: int, code: str, seconds: float = 60, **settings: Any) -> str:
    """The output of a script that must end well."""
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
