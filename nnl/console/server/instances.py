# SPDX-License-Identifier: Apache-2.0
"""The consoles that run for this user, and their links, which `nnl console --url` prints again.

A server keeps a file in the user's folder of states, which only that user can read. A file whose
process is gone is removed by whoever looks next.
"""

from __future__ import annotations

import json
import logging
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from nnl.console.machine.processes import is_running, started_at

logger = logging.getLogger("nnl")


@dataclass(frozen=True)
class Server:
    """A console that runs.

    Attributes:
        folder: What it shows.
        url: Its link; None where that works once only, and has been printed.
        machine, pid, begin: Its process. Machines may share a home folder.
    """

    folder: str
    url: str | None
    machine: str
    pid: int
    begin: float | None


def states() -> Path:
    """The folder of the files."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "nnl" / "consoles"


@contextmanager
def kept(folder: Path, url: str | None) -> Iterator[None]:
    """Keep the link of this process's server while the block runs."""
    pid = os.getpid()
    own = Server(str(folder.resolve()), url, platform.node(), pid, started_at(pid))
    path = None
    try:
        path = states() / f"{own.machine or 'machine'}-{pid}.json"
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # of a process that had this number
        with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            json.dump(asdict(own), file)
    except (OSError, RuntimeError) as error:  # the latter of a user without a home folder
        logger.warning("nnl console --url will not know this console: %s", error)
    try:
        yield
    finally:
        if path is not None:
            with suppress(OSError):
                path.unlink(missing_ok=True)


def servers(folder: Path | None = None) -> list[Server]:
    """The consoles of this machine that run, by folder; those of one folder if it is given."""
    found = []
    for path in states().glob("*.json"):
        try:
            server = Server(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):  # it ends just now, or begins
            continue
        if server.machine != platform.node():
            continue
        if is_running(server.pid, server.begin):
            found.append(server)
        else:
            with suppress(OSError):
                path.unlink()
    wanted = None if folder is None else str(folder.resolve())
    chosen = [s for s in found if wanted in (None, s.folder)]
    return sorted(chosen, key=lambda s: (s.folder, s.begin or 0))
