# SPDX-License-Identifier: Apache-2.0
"""A search whose candidates are trained by workers of Dask."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nnl.cli.main import main
from nnl.console.server.state import Console
from tests.console.test_search import project_of

distributed = pytest.importorskip("distributed")

SCRIPT = """
import os, time
again = os.path.exists("runs")
with open("runs", "a") as file:
    print("again" if again else "first", file=file)
time.sleep(0 if again else 60)
"""


@pytest.fixture
def cluster() -> Iterator[Any]:
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as found:
        yield found


def address_of(cluster: Any) -> str:
    return str(cluster.scheduler_address).replace("tcp://", "dask://")


def test_candidates_are_trained_by_workers(
    tmp_path: Path, cluster: Any, capsys: pytest.CaptureFixture
) -> None:
    pytest.importorskip("optuna")
    console = Console(tmp_path)
    project = project_of(console, max_epoch=1, batch_size=5)
    where = ["-d", str(tmp_path), "--on", address_of(cluster)]
    assert console.store.leads()
    assert main(["search", "run", project, "--attempts", "1", *where]) == 1
    assert "--on, but another process starts the trials of" in capsys.readouterr().err
    console.close()
    run = ["search", "run", project, "--attempts", "2", "--jobs", "2"]
    assert main([*run, "--method", "random", *where]) == 0
    assert capsys.readouterr().out.count("finished") >= 2
    assert len(list((tmp_path / ".nnl").glob("trials/*/remote.began"))) == 2
    assert main([*run, "-d", str(tmp_path), "--on", "ray://here"]) == 2
    assert "--on is 'ray://here', wanted local:N, dask" in capsys.readouterr().err


def began(folder: Path, how: str) -> None:
    end = time.monotonic() + 60
    while not (folder / "runs").exists() or how not in (folder / "runs").read_text():
        assert time.monotonic() < end, (folder / "log.txt").read_text()
        time.sleep(0.1)


def start(folder: Path, cluster: Any) -> subprocess.Popen[bytes]:
    (folder / "script.py").write_text(SCRIPT)
    remote = [sys.executable, "-m", "nnl.cli.training.remote", address_of(cluster)]
    return subprocess.Popen([*remote, "launch", "-n", "1", "script.py"], cwd=folder)


def test_a_command_goes_on_elsewhere_when_its_worker_dies(tmp_path: Path, cluster: Any) -> None:
    pytest.importorskip("mpi4py")
    process = start(tmp_path, cluster)
    began(tmp_path, "first")
    with distributed.Client(cluster) as client:
        busy = [w for w, keys in client.processing().items() if keys]
        (pid,) = client.run(os.getpid, workers=busy).values()
    os.kill(pid, signal.SIGKILL)
    assert process.wait(60) == 0
    assert (tmp_path / "runs").read_text() == "first\nagain\n"


def test_signals_are_passed_on(tmp_path: Path, cluster: Any) -> None:
    pytest.importorskip("mpi4py")
    process = start(tmp_path, cluster)
    began(tmp_path, "first")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
    assert "ended by SIGTERM" in (tmp_path / "log.txt").read_text()
