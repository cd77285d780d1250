# SPDX-License-Identifier: Apache-2.0
"""mpi_fork: a script starts itself again in several processes."""

from __future__ import annotations

import subprocess
import sys

from nnl.communicators.mpi import started_by_mpi


def mpi_fork(n: int) -> str:
    """Run this script in n processes under MPI.

    Returns:
        "child" in each of them; "parent" in the process that called it first, when they have ended.
    Raises:
        ValueError: n is below 1. RuntimeError: A process has failed.

    Example, as a script:

        if mpi_fork(3) == "child":
            train()
    """
    if n < 1:
        raise ValueError(f"mpi_fork: n is {n}, wanted a number of processes >= 1")
    if started_by_mpi():
        return "child"
    done = subprocess.run([sys.executable, "-m", "nnl.launch", "-n", str(n), *sys.argv])
    if done.returncode:
        raise RuntimeError(f"mpi_fork: a process has ended with exit code {done.returncode}")
    return "parent"
