# SPDX-License-Identifier: Apache-2.0
"""Commands of nnl that run on workers: processes here, or those of Dask or Ray.

    python -m nnl.cli.training.remote dask://HOST:PORT train ARGUMENT...

This process stands in for the command: it ends with the command's exit code, and passes signals on.
Both sides see one folder, the current one. If the worker dies, the command is given to another
one, a training with -r: it goes on from its last saved epoch.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from nnl.cli.errors import UsageError, check_installed
from nnl.cli.training.rank import die_with_parent

PASSED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
LOOK_S = 0.2
LOST_S = 30.0  # without a sign of the process that stands in, after which a command ends
TRIES = 3  # of a command that a signal ends
PER_WORKER = 4  # pieces: as many as one has to do again at most, and it waits for the others


def run(arguments: Sequence[str], folder: str, at: str = "") -> int:
    """Run the command here, on a worker.

    Args:
        folder: Where its log is, and what tells of the process that stands in.
        at: The folder that it runs in; the same one if left out.
    """
    here = Path(folder)
    began, told, sign = here / "remote.began", here / "remote.signal", here / "remote.sign"
    again = ["-r"] if began.exists() and arguments[0] == "train" else []
    began.touch()
    with open(here / "log.txt", "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "nnl.cli.main", *arguments, *again],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=at or here,
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


class Workers:
    """Where commands run.

    Attributes:
        size: How many at once.
    """

    size: int

    def submit(self, *arguments: Any) -> Any:
        """Call run() on a worker: a future, with done() and result()."""
        raise NotImplementedError

    def close(self) -> None:
        """Take no more."""


class _Here(Workers):
    def __init__(self, number: str) -> None:
        self.size = int(number)
        self.pool = ThreadPoolExecutor(self.size)

    def submit(self, *arguments: Any) -> Any:
        return self.pool.submit(run, *arguments)

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)


class _Dask(Workers):
    def __init__(self, address: str) -> None:
        from distributed import Client

        self.client = Client(f"tcp://{address}", set_as_default=False)
        self.size = max(sum(self.client.nthreads().values()), 1)

    def submit(self, *arguments: Any) -> Any:
        return self.client.submit(run, *arguments, pure=False)

    def close(self) -> None:
        self.client.close()


class _Ray(Workers):
    def __init__(self, address: str) -> None:
        import ray

        self.ray = ray
        ray.init(f"ray://{address}", log_to_driver=False)
        self.size = max(int(ray.cluster_resources().get("CPU", 1)), 1)

    def submit(self, *arguments: Any) -> Any:
        function = self.ray.remote(run).options(max_retries=TRIES)
        return function.remote(*arguments).future()

    def close(self) -> None:
        self.ray.shutdown()


KINDS: dict[str, tuple[type[Workers], str, str]] = {
    "local:": (_Here, r"[1-9]\d{0,3}", ""),
    "dask://": (_Dask, r"[^/:]+:\d+", "distributed"),
    "ray://": (_Ray, r"[^/:]+:\d+", "ray"),
}
ON = "local:N, dask://HOST:PORT or ray://HOST:PORT"


def check_on(call: str, on: str) -> None:
    """
    Raises:
        UsageError: It names no workers. ModuleNotFoundError: What leads there is not installed.
    """
    scheme, address = _parts(on)
    if scheme not in KINDS or not re.fullmatch(KINDS[scheme][1], address):
        raise UsageError(f"{call}: --on is {on!r}, wanted {ON}")
    package = KINDS[scheme][2]
    if package:
        check_installed(package, extra=scheme.rstrip(":/"))


def opened(on: str) -> Workers:
    """The workers that an option --on names."""
    scheme, address = _parts(on)
    return KINDS[scheme][0](address)


def _parts(on: str) -> tuple[str, str]:
    scheme = next((s for s in KINDS if on.startswith(s)), "")
    return scheme, on[len(scheme) :]


def row_range(text: str) -> tuple[int, int]:
    """A type of options: the rows of a piece."""
    start, _, end = text.partition(":")
    return int(start), int(end)


def run_all(workers: Workers, commands: Sequence[Sequence[str]], folder: Path) -> None:
    """Run commands on workers, in the current folder, which all see; a bar on stderr.

    Args:
        folder: Of the commands' logs, a folder each, 00000 and so on.
    Raises:
        RuntimeError: One has failed; the text ends with what it said last.
    """
    from tqdm import tqdm

    futures: dict[int, Any] = {}
    tries = [0] * len(commands)

    def submit(k: int) -> None:
        here = folder / f"{k:05}"
        here.mkdir(exist_ok=True)
        (here / "remote.sign").touch()
        tries[k] += 1
        futures[k] = workers.submit(list(commands[k]), str(here), os.getcwd())

    try:
        for k in range(len(commands)):
            submit(k)
        with tqdm(total=len(commands), unit="piece", disable=None) as bar:
            while futures:
                time.sleep(LOOK_S)
                for k in list(futures):
                    os.utime(folder / f"{k:05}" / "remote.sign")
                    if not futures[k].done():
                        continue
                    code = futures.pop(k).result()
                    if code < 0 and tries[k] < TRIES:
                        submit(k)
                    elif code:
                        log = (folder / f"{k:05}" / "log.txt").read_text(errors="replace").strip()
                        said = log.splitlines()[-1:] or [f"it ended with {code}"]
                        raise RuntimeError(f"piece {k + 1} of {len(commands)}: {said[0]}")
                    else:
                        bar.update()
    except BaseException:
        for k in futures:
            (folder / f"{k:05}" / "remote.signal").write_text(str(int(signal.SIGTERM)))
        raise


def main() -> int:
    """Submit the command and wait for its end."""
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
    workers = opened(address)
    future = workers.submit(arguments, str(folder))
    while not future.done():
        time.sleep(LOOK_S)
        os.utime(sign)
    code = int(future.result())
    workers.close()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
