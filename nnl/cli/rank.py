# SPDX-License-Identifier: Apache-2.0
"""One process of `nnl launch`: runs a script as `python` would, under the eyes of its parent.

mpiexec starts this file and kills all processes as soon as one of those it has started dies, before
the others can say what they were waiting for. So the script runs in a child, and when that is
killed the parent leaves the others some time.
"""

import os
import runpy
import signal
import sys
import time
from pathlib import Path

GRACE_S = 5.0  # more than the others take to find that a rank has died, and to say so


def watch(pid: int) -> int:
    """Wait for the child; the exit code of this process."""
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code < 0:
        name = signal.Signals(-code).name
        rank = os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "?"))
        print(f"nnl: rank {rank} was killed by {name}", file=sys.stderr, flush=True)
        time.sleep(GRACE_S)
        return 128 - code
    return code


def run(script: str, arguments: list[str]) -> None:
    """Connect to the other processes, then run the script.

    Connected from the start, a rank that fails before its script calls init() ends the job too.
    """
    sys.path.append(str(Path(__file__).parents[2]))  # where this nnl is, if not installed
    from nnl.communicators.multi_process import world

    world()
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    child = os.fork()
    if child:
        sys.exit(watch(child))
    run(sys.argv[1], sys.argv[2:])
