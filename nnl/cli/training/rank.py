# SPDX-License-Identifier: Apache-2.0
"""One process of `nnl launch`: runs a script as `python` would, under the eyes of its parent.

mpiexec starts this file, and the script runs in a child. The parent, the watcher, says how the
child has ended. As mpiexec kills all processes as soon as one of those it has started dies, the
watcher leaves the other ranks some time to say what they were waiting for. It also ends the child
when the launcher or mpiexec has died.
"""

import atexit
import ctypes
import os
import runpy
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

GRACE_S = 5.0  # more than the others take to find that a rank has died, and to say so
LOOK_S = 0.25  # between two looks whether the parent is alive
LINK = "NNL_LAUNCHER"  # environment variable: descriptor and inode of a socket to the launcher
PR_SET_PDEATHSIG = 1  # of Linux's prctl


def die_with_parent(number: int) -> Callable[[], None]:
    """A function that lets this process get a signal when its parent dies; Linux only.

    Made before a fork and called after it. A program that exec starts keeps the setting.
    """
    if sys.platform != "linux":
        return lambda: None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


def signal_name(number: int) -> str:
    return {s.value: s.name for s in signal.Signals}.get(number, f"signal {number}")


def say(text: str) -> None:
    try:
        sys.stderr.write(f"nnl: {text}\n")  # one piece, as the others write there, too
        sys.stderr.flush()
    except OSError:
        pass  # nobody reads it any more


def my_rank() -> str:
    return os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "?"))


def link_to_launcher() -> socket.socket | None:
    """The launcher's socket; None on another machine, or if mpiexec has not passed it on.

    Reading it ends when the launcher dies. Exit codes that are written to it become the job's.
    """
    number, _, inode = os.environ.pop(LINK, "").partition(":")
    try:
        if os.fstat(int(number)).st_ino != int(inode):
            return None
        link = socket.socket(fileno=int(number))
    except (ValueError, OSError):
        return None
    link.set_inheritable(False)
    return link


def end_with_launcher(link: socket.socket | None, parent: int, child: int) -> None:
    """Wait until the launcher or the parent has died, then end everything here."""
    while os.getppid() == parent:
        if link is None:
            time.sleep(LOOK_S)
        elif select.select([link], [], [], LOOK_S)[0]:
            break
    say(f"rank {my_rank()} ends, because what has launched it has died")
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)  # with whatever the script has started
    os.kill(child, signal.SIGKILL)
    os._exit(1)


def watch(child: int, goodbye: int, link: socket.socket | None, parent: int) -> int:
    """Wait for the child; the exit code of this process.

    Args:
        goodbye: A pipe that holds a byte if Python has ended regularly. If not, the
            other ranks have not been told, and mpiexec takes it as a failure.
    """
    stopped: list[int] = []

    def pass_on(number: int, _: Any) -> None:
        stopped.append(number)
        os.kill(child, number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, pass_on)
    threading.Thread(target=end_with_launcher, args=(link, parent, child), daemon=True).start()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    told = select.select([goodbye], [], [], 0)[0] and os.read(goodbye, 1)
    if code == 0 and told:
        return 0
    how = f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
    how += " by os._exit, without a word to the others" if code >= 0 and not told else ""
    code = 128 - code if code < 0 else code or 1
    say(f"rank {my_rank()} {how}")
    if link is not None:
        link.send(f"{code} ".encode())
    if not told and not stopped:
        time.sleep(GRACE_S)
    return code


def run(script: str, arguments: list[str]) -> None:
    """Connect to the other processes, then run the script, or after "-m" the module.

    Connected from the start, a rank that fails before its script calls init() ends the job too.
    """
    sys.path.append(str(Path(__file__).parents[3]))  # where this nnl is, if not installed
    from nnl.communicators.multi_process import world

    world()
    if script == "-m":
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        return
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    runpy.run_path(script, run_name="__main__")


def main() -> None:
    link, parent, watcher = link_to_launcher(), os.getppid(), os.getpid()
    follow_parent = die_with_parent(signal.SIGKILL)
    # mpiexec sends Ctrl-C to both: it is for the script
    on_interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    goodbye, on_exit = os.pipe()
    child = os.fork()
    if child:
        os.close(on_exit)
        sys.exit(watch(child, goodbye, link, parent))
    atexit.register(os.write, on_exit, b".")
    follow_parent()
    if os.getppid() != watcher:
        os._exit(1)  # it has died before
    signal.signal(signal.SIGINT, on_interrupt)
    if link is not None:
        link.close()
    run(sys.argv[1], sys.argv[2:])


if __name__ == "__main__":
    main()
