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

ANSWER_S = 5  # seconds in which a machine answers


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `launch` to the parser of `nnl`."""
    add_arguments(commands.add_parser("launch"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n", type=int, metavar="N", help="number of processes: those of --hosts, or 1"
    )
    parser.add_argument(
        "--hosts",
        metavar="A:4,B:4",
        help="machines to run on, with their numbers of processes; those of the job under Slurm",
    )
    parser.add_argument(
        "--restarts", type=int, default=0, metavar="N", help="start again after a failure (0 times)"
    )
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
    OMP_NUM_THREADS is set. With --restarts a job that has failed begins again, on those machines
    of --hosts that are there; NNL_RESTART tells the script how often.
    """
    hosts = hosts_of(args.hosts)
    n = args.n if args.n is not None else sum(hosts.values()) or 1
    if n < 1:
        raise UsageError(f"launch: -n is {n}, wanted a number of processes >= 1")
    if hosts and n > sum(hosts.values()):
        raise UsageError(f"launch: -n is {n}, but --hosts has room for {sum(hosts.values())}")
    if args.restarts < 0:
        raise UsageError(f"launch: --restarts is {args.restarts}, wanted a number >= 0")
    program = [args.script, *args.args]
    if not Path(args.script).is_file():
        if args.script != "train":
            raise ValueError(f"launch: there is no file {args.script}")
        program = ["-m", "nnl.cli.main", "--mpi", *program]
    code = 1
    for attempt in range(args.restarts + 1):
        there = hosts if attempt == 0 else {h: k for h, k in hosts.items() if is_there(h)}
        if hosts and not there:
            print("nnl launch: no machine of --hosts answers", file=sys.stderr)
            return code
        away = [h for h in hosts if h not in there]
        own = min(n, sum(there.values())) if hosts else n
        if attempt:
            without = f", without {', '.join(away)}" if away else ""
            print(
                f"nnl launch: restart {attempt} of {args.restarts}, with {own} processes{without}",
                file=sys.stderr,
            )
        code, ended = start(own, there, program, attempt)
        if code == 0 or ended:
            break
    return code


def hosts_of(text: str | None) -> dict[str, int]:
    """{machine: number of processes} of "a:4,b:4".

    Raises:
        UsageError: It is something else.
    """
    found: dict[str, int] = {}
    for part in (text or "").split(",") if text is not None else ():
        host, _, number = part.strip().partition(":")
        if not host or host in found or not (number or "1").isdigit() or number == "0":
            raise UsageError(f"launch: --hosts is {text!r}, wanted machines as in a:4,b:4")
        found[host] = int(number or 1)
    return found


def is_there(host: str) -> bool:
    """Whether a machine answers; mpiexec starts processes there by ssh."""
    if host in ("localhost", socket.gethostname()):
        return True
    ask = ["ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={ANSWER_S}", host, "true"]
    try:
        return subprocess.run(ask, capture_output=True, timeout=2 * ANSWER_S).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def start(n: int, hosts: dict[str, int], program: list[str], attempt: int) -> tuple[int, bool]:
    """Run the processes once; the exit code, and whether a signal to this process ended them."""
    environment = dict(os.environ)
    most = max(hosts.values(), default=n)
    environment.setdefault("OMP_NUM_THREADS", str(max((os.cpu_count() or 1) // most, 1)))
    environment["NNL_RESTART"] = str(attempt)
    # -P: the folder of rank.py has modules with names of Python's own
    rank = [sys.executable, "-P", str(Path(__file__).with_name("rank.py")), *program]
    where = ["-hosts", ",".join(f"{h}:{k}" for h, k in hosts.items())] if hosts else []
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            environment[LINK] = f"{theirs.fileno()}:{os.fstat(theirs.fileno()).st_ino}"
            process = subprocess.Popen(
                [mpiexec(), *where, "-n", str(n), *rank],
                env=environment,
                pass_fds=[theirs.fileno()],
                preexec_fn=die_with_parent(signal.SIGTERM),
            )
        return follow(process, ours)


def follow(process: subprocess.Popen[bytes], link: socket.socket) -> tuple[int, bool]:
    """Wait for mpiexec; the job's exit code, and whether a signal to this process ended the job.

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
        return 128 + caught[0], True
    if codes:
        return int(codes.split()[0]), False
    if code:
        how = f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        print(f"nnl launch: mpiexec {how}", file=sys.stderr)
    return 128 - code if code < 0 else code, False
