# SPDX-License-Identifier: Apache-2.0
"""A job of `nnl launch` ends when one of its processes is killed, whichever it is, and says so."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from nnl.cli.training import rank as rank_module
from nnl.cli.training.rank import LINK, die_with_parent, link_to_launcher, signal_name
from tests.communicators.ranks import ROOT, finish, need_mpi, start

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")

# os.write: print might write a line in pieces, between those of others
HERE = "import os\nos.write(1, b'rank %s %d\\n' % (os.environb[b'PMI_RANK'], os.getpid()))\n"
READY = "os.write(1, b'ready\\n')\n"
FOR_EVER = """
x = nn.NdArray(1000)
while True:
    comm.all_reduce([x])
"""


def state(pid: int) -> list[str]:
    """State and parent of a process, as /proc has them."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return ["X", "0"]


def parent(pid: int) -> int:
    return int(state(pid)[1])


def lives(pid: int) -> bool:
    return state(pid)[0] not in "ZX"


def shared_files(pid: int) -> list[str]:
    """Files in /dev/shm that a process has mapped, also those without a name."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [line.split()[5] for line in lines if "/dev/shm/" in line]


def pids_of_ranks(process: Any, n: int) -> list[int]:
    """As the ranks print them, when all have come to `init()` and beyond."""
    lines = sorted(process.stdout.readline().split() for _ in range(2 * n))
    assert [line[0] for line in lines] == ["rank"] * n + ["ready"] * n, lines
    return [int(line[2]) for line in lines[:n]]


def end_of(pids: list[int], seconds: float = 30) -> list[int]:
    """Those of the processes that still live when all should have ended."""
    deadline = time.monotonic() + seconds
    while [p for p in pids if lives(p)] and time.monotonic() < deadline:
        time.sleep(0.05)
    return [p for p in pids if lives(p)]


def kill_all(process: Any, pids: list[int]) -> None:
    for pid in pids:
        if lives(pid):
            os.kill(pid, signal.SIGKILL)
    process.kill()
    process.communicate()


ENDS = [  # who gets which signal, the job's exit code
    ("launcher", "SIGTERM", 143),
    ("launcher", "SIGKILL", -9),
    ("proxy", "SIGKILL", None),
    ("watcher", "SIGKILL", None),
    pytest.param("launcher", "SIGHUP", 129, marks=pytest.mark.long),
    pytest.param("launcher", "SIGINT", 130, marks=pytest.mark.long),
    pytest.param("mpiexec", "SIGKILL", 137, marks=pytest.mark.long),
    pytest.param("mpiexec", "SIGTERM", None, marks=pytest.mark.long),
    pytest.param("mpiexec", "SIGINT", None, marks=pytest.mark.long),
    pytest.param("launcher and mpiexec", "SIGKILL", -9, marks=pytest.mark.long),
    pytest.param("watcher", "SIGTERM", 143, marks=pytest.mark.long),
]


@pytest.mark.parametrize("who,what,wanted", ENDS)
def test_all_ranks_end_with_any_process_of_the_job(
    tmp_path: Path, who: str, what: str, wanted: int | None
) -> None:
    process = start(tmp_path, 2, READY + FOR_EVER, launch=True, before=HERE)
    ranks = pids_of_ranks(process, 2)
    watchers = [parent(pid) for pid in ranks]
    proxy = parent(watchers[0])
    mpiexec = parent(proxy)
    assert parent(mpiexec) == process.pid
    files = [f for pid in ranks for f in shared_files(pid)]
    named = {"launcher": process.pid, "mpiexec": mpiexec, "proxy": proxy, "watcher": watchers[1]}
    everybody = [*ranks, *watchers, proxy, mpiexec]
    try:
        for name in who.split(" and "):
            os.kill(named[name], getattr(signal, what))
        assert end_of(everybody) == []
        code, _, err = finish(process)
    finally:
        kill_all(process, everybody)
    assert code != 0 and wanted in (None, code)
    assert not [f for f in files if os.path.exists(f)]
    if who == "launcher" and what != "SIGKILL":
        assert f"nnl launch: ended by {what}" in err
    elif who != "launcher and mpiexec" and what == "SIGKILL" and who != "launcher":
        assert re.search(r"nnl launch: mpiexec (was killed by SIGKILL|ended with exit code)", err)


@pytest.mark.parametrize("what", ["SIGTERM", pytest.param("SIGKILL", marks=pytest.mark.long)])
def test_under_nohup_a_hangup_ends_nobody_and_the_end_of_the_launcher_all(
    tmp_path: Path, what: str
) -> None:
    process = start(tmp_path, 2, READY + FOR_EVER, launch=True, before=HERE, nohup=True)
    ranks = pids_of_ranks(process, 2)
    watchers = [parent(pid) for pid in ranks]
    proxy = parent(watchers[0])
    everybody = [*ranks, *watchers, proxy, parent(proxy), process.pid]
    try:
        for pid in everybody:  # as a terminal that is closed, and more
            os.kill(pid, signal.SIGHUP)
        time.sleep(1)
        assert [pid for pid in everybody if not lives(pid)] == []
        process.send_signal(getattr(signal, what))
        assert end_of(everybody[:-1]) == []
        assert finish(process)[0] == {"SIGTERM": 143, "SIGKILL": -9}[what]
    finally:
        kill_all(process, everybody)


def test_ranks_of_plain_mpiexec_end_with_the_process_that_has_started_them(tmp_path: Path) -> None:
    process = start(tmp_path, 2, READY + FOR_EVER, before=HERE)
    ranks = pids_of_ranks(process, 2)
    try:
        os.kill(parent(ranks[0]), signal.SIGKILL)
        assert end_of([*ranks, process.pid]) == []
    finally:
        kill_all(process, ranks)


def test_what_a_script_has_started_ends_with_a_rank_that_is_killed(tmp_path: Path) -> None:
    code = """
    import os, subprocess, sys
    if rank == 1:
        print(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE).pid)
        sys.stdout.flush()
        os.kill(os.getpid(), 9)
    comm.barrier()
    """
    _, out, _ = finish(start(tmp_path, 2, code, launch=True))
    assert end_of([int(out)]) == []


EARLY = [  # what rank 1 does before init(), what stands in stderr, the job's exit code
    ("os.kill(os.getpid(), 9)", "nnl: rank 1 was killed by SIGKILL", 137),
    ("os._exit(5)", r"nnl: rank 1 ended with exit code 5 by os\._exit, without a word", 5),
    ("os._exit(0)", r"nnl: rank 1 ended with exit code 0 by os\._exit, without a word", 1),
]


@pytest.mark.parametrize("end,said,wanted", EARLY)
def test_a_rank_that_ends_before_init_is_named(
    tmp_path: Path, end: str, said: str, wanted: int
) -> None:
    before = f"import os\nif os.environ['PMI_RANK'] == '1': {end}\n"
    started = time.monotonic()
    code, _, err = finish(start(tmp_path, 2, "", launch=True, before=before))
    assert code == wanted, err
    assert re.search(said, err), err
    assert re.search(r"rank 0 waits in call 1, init\(\) of nnl [\d.]+: rank 1 has died", err), err
    assert time.monotonic() - started < 40  # NNL_COMMUNICATOR_TIMEOUT is 50


def test_ranks_of_other_versions_are_named(tmp_path: Path) -> None:
    before = (
        "import os\nfrom importlib import metadata\n"
        "if os.environ['PMI_RANK'] == '1': metadata.version = lambda name: '99.1'\n"
    )
    code, _, err = finish(start(tmp_path, 2, "", launch=True, before=before))
    assert code == 1
    for rank, own, other in ((0, r"[\d.]+", r"99\.1"), (1, r"99\.1", r"[\d.]+")):
        said = rf"rank {rank} has come to call 1, init\(\) of nnl {own}, but rank {1 - rank} to "
        assert len(re.findall(said + rf"call 1, init\(\) of nnl {other} ", err)) == 1, err


def test_a_rank_that_is_done_before_init_is_named(tmp_path: Path) -> None:
    before = "import os\nif os.environ['PMI_RANK'] == '1': raise SystemExit(0)\n"
    code, _, err = finish(start(tmp_path, 2, "", before=before, launch=True))
    assert code == 1
    assert "rank 0 has come to call 1, init() of nnl " in err
    assert ", but rank 1 to the end of the script" in err


def test_the_exit_code_of_the_ranks_is_that_of_the_job(tmp_path: Path) -> None:
    code, _, err = finish(start(tmp_path, 2, "raise SystemExit(4)", launch=True))
    assert code == 4
    assert sorted(err.splitlines()) == [f"nnl: rank {r} ended with exit code 4" for r in (0, 1)]


@pytest.mark.long
def test_an_interrupt_from_the_terminal_reaches_the_scripts(tmp_path: Path) -> None:
    code = """
    import time
    os.write(1, b"ready\\n")
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        os.write(1, b"saved %d\\n" % rank)
    """
    process = start(tmp_path, 2, code, launch=True, before=HERE)
    ranks = pids_of_ranks(process, 2)
    for pid in (process.pid, parent(parent(parent(ranks[0])))):  # the terminal tells both
        os.kill(pid, signal.SIGINT)
    rc, out, err = finish(process)
    assert rc == 130
    assert "saved 0\n" in out and "saved 1\n" in out
    assert err.endswith("nnl launch: ended by SIGINT\n")


@pytest.mark.long
def test_watchers_do_without_the_socket_of_the_launcher(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(HERE + READY + "import time\ntime.sleep(60)\n")
    process = subprocess.Popen(
        [need_mpi(), "-n", "2", sys.executable, "-P", rank_module.__file__, str(script)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    ranks = pids_of_ranks(process, 2)
    watchers = [parent(pid) for pid in ranks]
    try:
        os.kill(parent(watchers[0]), signal.SIGKILL)
        assert end_of([*ranks, *watchers]) == []
    finally:
        kill_all(process, ranks)


@pytest.mark.parametrize("value", [None, "", "nonsense", "0:1", "99999:7"])
def test_without_a_socket_of_the_launcher_there_is_no_link(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv(LINK, raising=False)
    if value is not None:
        monkeypatch.setenv(LINK, value)
    assert link_to_launcher() is None


def test_dying_with_the_parent_is_nothing_where_there_is_no_prctl(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert die_with_parent(signal.SIGKILL)() is None


def test_signals_without_a_name_are_called_by_number() -> None:
    assert (signal_name(9), signal_name(35)) == ("SIGKILL", "signal 35")
