# SPDX-License-Identifier: Apache-2.0
"""`nnl launch -n 4 script.py args...`: run a script in several processes under mpiexec."""

from __future__ import annotations

import argparse
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from nnl.cli.errors import UsageError
from nnl.cli.training.rank import GRACE_S, LINK, LOOK_S, die_with_parent, signal_name


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `launch` to the parser of `nnl`."""
    add_arguments(commands.add_parser("launch"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", type=int, default=1, metavar="N", help="number of processes (1)")
    parser.add_argument("script", help="a Python file, or train: the command")
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

    Otherwise it is the exit code of the rank that failed first, 128 + n for a signal n that ended
    the rank or this launcher. Every process gets its share of the cores as threads, unless
    OMP_NUM_THREADS is set.
    """
    if args.n < 1:
        raise UsageError(f"launch: -n is {args.n}, wanted a number of processes >= 1")
    program = [args.script, *args.args]
    if not Path(args.script).is_file():
        if args.script != "train":
            raise ValueError(f"launch: there is no file {args.script}")
        program = ["-m", "nnl.cli.main", "--mpi", *program]
    environment = dict(os.environ)
    environment.setdefault("OMP_NUM_THREADS", str(max((os.cpu_count() or 1) // args.n, 1)))
    # -P: the folder of rank.py has modules with names of Python's own
    rank = [sys.executable, "-P", str(Path(__file__).with_name("rank.py")), *program]
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            environment[LINK] = f"{theirs.fileno()}:{os.fstat(theirs.fileno()).st_ino}"
            process = subprocess.Popen(
                [mpiexec(), "-n", str(args.n), *rank],
                env=environment,
                pass_fds=[theirs.fileno()],
                preexec_fn=die_with_parent(signal.SIGTERM),
            )
        return follow(process, ours)


def follow(process: subprocess.Popen[bytes], link: socket.socket) -> int:
    """Wait for mpiexec and give the job's exit code; a signal to this process ends the job.

    Whatever way this process ends, `link` closes, and with it end the ranks on this machine.
    """
    caught: list[int] = []

    def end_job(number: int, _: Any) -> None:
        caught.append(number)
        if caught != [signal.SIGINT]:  # the terminal sends Ctrl-C to the ranks, too: they get time
            (process.kill if signal.SIGALRM in caught else process.terminate)()
        signal.setitimer(signal.ITIMER_REAL, GRACE_S)

    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM]
    numbers = [n for n in numbers if signal.getsignal(n) != signal.SIG_IGN]
    before = [(n, signal.signal(n, end_job)) for n in numbers]
    try:
        codes = b""
        while process.poll() is None:
            if not select.select([link], [], [], LOOK_S)[0]:
                continue
            some = link.recv(4096)
            if not some:
                break  # all have ended
            codes += some
        code = process.wait()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for n, handler in before:
            signal.signal(n, handler)
    if caught:
        print(f"nnl launch: ended by {signal_name(caught[0])}", file=sys.stderr)
        return 128 + caught[0]
    if codes:
        return int(codes.split()[0])
    if code:
        how = f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        print(f"nnl launch: mpiexec {how}", file=sys.stderr)
    return 128 - code if code < 0 else code
