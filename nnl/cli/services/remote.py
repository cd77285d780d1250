# SPDX-License-Identifier: Apache-2.0
"""A command of nnl that runs on a worker of Dask.

    python -m nnl.cli.services.remote dask://HOST:PORT train ARGUMENT...

This process stands in for the command: it ends with the command's exit code, and passes signals on.
Both sides see one folder, the current one. If the worker dies, Dask gives the command to another
one, a training with -r: it goes on from its last saved epoch.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nnl.cli.training.rank import die_with_parent

PASSED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
LOOK_S = 0.2
LOST_S = 30.0  # without a sign of the process that stands in, after which a command ends


def run(arguments: Sequence[str], folder: str) -> int:
    """Run the command here, on a worker."""
    here = Path(folder)
    began, told, sign = here / "remote.began", here / "remote.signal", here / "remote.sign"
    again = ["-r"] if began.exists() and arguments[0] == "train" else []
    began.touch()
    with open(here / "log.txt", "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "nnl.cli.main", *arguments, *again],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=here,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            preexec_fn=die_with_parent(signal.SIGKILL),
        )  # fmt: skip
    seen, latest = 0, time.monotonic()
    while process.poll() is None:
        time.sleep(LOOK_S)
        now = sign.stat().st_mtime_ns if sign.exists() else 0
        seen, latest = (now, time.monotonic()) if now != seen else (seen, latest)
        if told.exists():
            number = int(told.read_text() or signal.SIGTERM)
            told.unlink()
            process.send_signal(number)
        elif time.monotonic() - latest > LOST_S:
            process.terminate()
    return process.returncode


def main() -> int:
    """Submit the command and wait for its end."""
    from distributed import Client

    address, *arguments = sys.argv[1:]
    folder = Path.cwd()
    for name in ("remote.began", "remote.signal"):
        (folder / name).unlink(missing_ok=True)

    def tell(number: int, _: Any) -> None:
        new = folder / "remote.new"
        new.write_text(str(number))
        os.replace(new, folder / "remote.signal")

    for number in PASSED:
        signal.signal(number, tell)
    sign = folder / "remote.sign"
    sign.touch()
    with Client(address.replace("dask://", "tcp://", 1), set_as_default=False) as client:
        future = client.submit(run, arguments, str(folder), pure=False)
        while not future.done():
            time.sleep(LOOK_S)
            os.utime(sign)
        code = int(future.result())
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
