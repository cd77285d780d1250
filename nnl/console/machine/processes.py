# SPDX-License-Identifier: Apache-2.0
"""Child processes that outlive the server which has started them, and are found again."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

try:
    import resource
except ModuleNotFoundError:  # not on this system, which limits no files then
    resource = None  # type: ignore[assignment]


def start(
    command: Sequence[str], log: Path, folder: Path, largest_file: int | None = None
) -> subprocess.Popen[bytes]:
    """Start a process whose output goes to a file; it does not end with this one.

    Args:
        largest_file: Bytes that each file may have which it writes, where the system can tell.
    """
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with open(log, "ab") as file:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
    if largest_file is not None and hasattr(resource, "prlimit"):
        try:
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (largest_file, largest_file))
        except ProcessLookupError:
            pass  # it has ended
    return process


def started_at(pid: int) -> float | None:
    """When a process began, on a clock of its own; None if there is none. Two processes that get
    one number after each other differ in it."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return _alive_elsewhere(pid)
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == "Z" else float(fields[19])


def _alive_elsewhere(pid: int) -> float | None:
    """Without /proc: whether there is such a process, 0.0 if so."""
    if Path("/proc/self/stat").exists():
        return None
    try:
        os.kill(pid, 0)
    except OSError:
        return None
    return 0.0


def is_running(pid: int | None, begin: float | None) -> bool:
    """Whether the process that was started then still runs."""
    return pid is not None and begin is not None and started_at(pid) == begin


def tell(pid: int, begin: float | None, what: signal.Signals) -> bool:
    """Send a signal, unless the process has ended."""
    if not is_running(pid, begin):
        return False
    try:
        os.kill(pid, what)
    except ProcessLookupError:
        return False
    return True


def tail(path: Path, size: int) -> str:
    """The end of a file as text, from the beginning of a line on."""
    try:
        with open(path, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(end - size, 0))
            content = file.read()
    except OSError:
        return ""
    if len(content) == size:
        content = content.partition(b"\n")[2]
    return content.decode("utf-8", "replace")


def size_of(path: Path) -> int:
    """Bytes of a file, 0 if there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


Process = subprocess.Popen[Any]
