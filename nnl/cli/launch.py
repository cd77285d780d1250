# SPDX-License-Identifier: Apache-2.0
"""`nnl launch -n 4 script.py args...`: run a script in several processes under mpiexec."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `launch` to the parser of `nnl`."""
    add_arguments(commands.add_parser("launch", help="run a script in several processes"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", type=int, default=1, metavar="N", help="number of processes (1)")
    parser.add_argument("script", help="a Python file")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="arguments of the script")
    parser.set_defaults(run=launch)


def mpiexec() -> str:
    """The mpiexec of this Python environment, or else the first on PATH.

    Raises:
        ModuleNotFoundError: There is none.
    """
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise ModuleNotFoundError("launch: there is no mpiexec: pip install 'nnl[mpi]'")
    return found


def launch(args: argparse.Namespace) -> int:
    """Run the processes; the exit code is 0 only if all of them ended well.

    Every process gets its share of the cores as threads, unless OMP_NUM_THREADS is set.
    """
    if args.n < 1:
        raise ValueError(f"launch: -n is {args.n}, wanted a number of processes >= 1")
    if not Path(args.script).is_file():
        raise ValueError(f"launch: there is no file {args.script}")
    environment = dict(os.environ)
    environment.setdefault("OMP_NUM_THREADS", str(max((os.cpu_count() or 1) // args.n, 1)))
    # -P: the folder of rank.py has modules with names of Python's own
    rank = [sys.executable, "-P", str(Path(__file__).with_name("rank.py")), args.script, *args.args]
    return subprocess.call([mpiexec(), "-n", str(args.n), *rank], env=environment)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `python -m nnl.launch`."""
    from nnl.cli.main import main as nnl

    return nnl(["launch", *(sys.argv[1:] if argv is None else argv)])
