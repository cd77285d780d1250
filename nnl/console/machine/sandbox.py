# SPDX-License-Identifier: Apache-2.0
"""What files of strangers are read with: a process of its own, with limits of memory and time.

A file may be made so that reading it takes all memory or does not end, or so that it brings a
library down. Then that process ends, and the server says so and goes on. Each process does one
task. A server lets one wait for the next task, with all imports done.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any

from nnl.console.errors import STATUS, Refused, refusal
from nnl.core.arrays.resources import memory_bytes

# What may be asked for: functions that take and give what JSON has.
TASKS = {
    "network": "nnl.console.documents.reading:opened",
    "operators": "nnl.console.documents.reading:operators",
    "tables": "nnl.console.data.uploads:tables",
    "pictures": "nnl.console.data.uploads:pictures",
    "statistics": "nnl.console.data.tables:statistics",
    "infer": "nnl.console.trials.inferring:infer",
}
MAX_ANSWER = 256 * 2**20
_AT_ONCE = BoundedSemaphore(4)


@dataclass(frozen=True)
class Limits:
    """What a task may take, beyond what Python and nnl need to begin.

    Attributes:
        memory: Bytes of addresses; `memory_per_byte` more for each byte of the file.
        cpu_s, wall_s: Seconds of a processor, and of the clock.
        file: Bytes of a file that it writes.
    """

    memory: int = 4 * 2**30
    memory_per_byte: int = 8
    cpu_s: int = 300
    wall_s: float = 600
    file: int = 32 * 2**30


LIMITS = Limits()


class _Process:
    """A process that does one task, and the files that it writes to.

    Args:
        early: Import what tasks need before one is given.
    """

    def __init__(self, early: bool = False) -> None:
        self.answer, self.log = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        command = [
            sys.executable,
            "-m",
            "nnl.console.machine.sandbox",
            *(["early"] if early else []),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=self.answer, stderr=self.log, env=environment,
            start_new_session=True,
        )  # fmt: skip

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)  # what it has started too
            self.process.wait()
        for file in (self.answer, self.log, self.process.stdin):
            if file is not None:
                with contextlib.suppress(BrokenPipeError):
                    file.close()


_waiting: list[_Process] = []


def keep_one_waiting() -> None:
    """Let a process wait for the next task from now on: that begins half a second sooner."""
    if not _waiting:
        _waiting.append(_Process(early=True))


@atexit.register
def _end_waiting() -> None:
    while _waiting:
        _waiting.pop().end()


@contextlib.contextmanager
def _process() -> Iterator[_Process]:
    """The process that waits, after which another one waits; else a new one."""
    waited = False
    with _AT_ONCE:
        try:
            found = _waiting.pop()
            waited = True
        except IndexError:
            found = _Process()
        if found.process.poll() is not None:  # somebody has ended it
            found.end()
            found = _Process()
        try:
            yield found
        finally:
            found.end()
            if waited:
                with contextlib.suppress(OSError):  # no memory for it: the next one begins later
                    keep_one_waiting()


def apart(task: str, path: Path, file: str, **arguments: Any) -> Any:
    """What a task makes of a file.

    Args:
        file: What messages call it.
    Raises:
        Refused: The task has refused it, or has come to one of its limits.
    """
    limits = asdict(LIMITS)
    limits["memory"] += LIMITS.memory_per_byte * path.stat().st_size
    limits["memory"] = min(limits["memory"], memory_bytes() // 4 * 3)
    given = {
        "task": task, "arguments": {"path": str(path), **arguments}, "limits": limits, "name": file,
    }  # fmt: skip
    with _process() as found:
        try:
            found.process.communicate(json.dumps(given).encode(), LIMITS.wall_s)
        except subprocess.TimeoutExpired:
            raise _too_long(file) from None
        if found.answer.seek(0, os.SEEK_END) > MAX_ANSWER:
            raise Refused("too_large", f"{file}: what is in it is too large to show", None, file)
        found.answer.seek(0)
        with contextlib.suppress(ValueError):
            return _result(json.load(found.answer))
        raise _died(found.process.returncode, file)


def _result(found: Any) -> Any:
    if "refused" in found:
        code = found["refused"].pop("code")
        raise Refused(code if code in STATUS else "failed", **found["refused"])
    return found["result"]


def _died(code: int, name: str) -> Refused:
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return _too_long(name)
    names = {s.value: s.name for s in signal.Signals}
    how = names.get(-code, f"code {code}")
    text = f"{name}: what reads it has died ({how}), so it is damaged, or made to do harm"
    return Refused("unreadable", text, "make the file again", name)


def _too_long(name: str) -> Refused:
    text = f"{name}: reading it takes longer than {LIMITS.cpu_s} s, so it was ended"
    return Refused("unreadable", text, "the file may be damaged, or made to do harm", name)


# ---- in the process ----


def main() -> None:
    """Do the task that comes from the standard input; none comes where the server has ended."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed is no part of the answer
    if sys.argv[1:]:
        _import_early()
    asked = sys.stdin.read()
    if not asked:
        return
    given = json.loads(asked)
    module, _, function = TASKS[given["task"]].partition(":")
    work = getattr(import_module(module), function)
    try:
        with _limited(given["limits"]):
            text = json.dumps({"result": work(**given["arguments"])})
    except MemoryError:
        name = given["name"]
        what = f"{name}: reading it takes more than {given['limits']['memory'] / 2**30:.3g} GiB"
        hint = "the file may be damaged, or made to do harm"
        text = json.dumps({"refused": Refused("too_large", what, hint, name).to_json()})
    except Exception as error:  # noqa: BLE001  # the server says what it was
        text = json.dumps({"refused": refusal(error).to_json()})
    with answer:
        answer.write(text)


def _import_early() -> None:
    for task in TASKS.values():
        import_module(task.partition(":")[0])
    for name in ("h5py", "onnx", "nnl.converters.onnx.running.families"):
        with contextlib.suppress(ModuleNotFoundError):
            import_module(name)
    from nnl.console.palette.palette import layers

    layers()


@contextlib.contextmanager
def _limited(limits: dict[str, Any]) -> Iterator[None]:
    """Limits of this process, from what it has taken so far."""
    try:
        import resource
    except ModuleNotFoundError:  # not on this system; the clock remains
        yield
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu = int(used.ru_utime + used.ru_stime) + 1 + limits["cpu_s"]
    wanted = {
        resource.RLIMIT_CPU: cpu,
        resource.RLIMIT_FSIZE: limits["file"],
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_AS: _addresses() + limits["memory"],
    }
    before = resource.getrlimit(resource.RLIMIT_AS)
    for kind, value in wanted.items():
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, hard))
    try:
        yield
    finally:  # so that there is memory to say what went wrong
        resource.setrlimit(resource.RLIMIT_AS, before)


def _addresses() -> int:
    """Bytes of addresses that this process has."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 2**30


if __name__ == "__main__":
    main()
