# SPDX-License-Identifier: Apache-2.0
"""nnl console --url prints the links of the consoles that run."""

import json
import os
import platform
import subprocess
import sys
from contextlib import contextmanager

import pytest

from nnl.cli.main import main
from nnl.console.server.instances import kept, servers, states


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "nnl" / "consoles"


@contextmanager
def started(folder, *options):
    pytest.importorskip("uvicorn")
    command = [sys.executable, "-m", "nnl.cli.main", "console", str(folder), "--no-browser"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().strip(), process
        finally:
            process.kill()


def test_the_link_of_a_running_console_is_printed_again(tmp_path, state, capsys):
    with started(tmp_path / "work") as (link, process):
        (file,) = state.iterdir()
        assert file.stat().st_mode & 0o777 == 0o600 and state.stat().st_mode & 0o777 == 0o700
        for which in ([], [str(tmp_path / "work")]):
            assert main(["console", "--url", *which]) == 0
            assert capsys.readouterr().out == f"{link}\n"
        assert main(["console", "--url", str(tmp_path / "other")]) == 3
        said = capsys.readouterr()
        assert not said.out and f"no console of this user runs for {tmp_path / 'other'}" in said.err
        process.kill()  # it tells nobody
        process.wait()
        assert file.exists()
        assert main(["console", "--url"]) == 3
        assert "no console of this user runs\n  try: nnl console DIR" in capsys.readouterr().err
        assert not file.exists()


def test_several_consoles_are_listed_with_their_folders(tmp_path, capsys):
    with started(tmp_path / "b", "--one-time") as (once, _), started(tmp_path / "a") as (link, _):
        assert main(["console", "--url"]) == 0
        assert capsys.readouterr().out.splitlines() == [
            f"{link}  {tmp_path / 'a'}",
            f"(its link works once, and was printed when it started)  {tmp_path / 'b'}",
        ]
        assert once.partition("token=")[2] not in "".join(p.read_text() for p in states().iterdir())
        assert main(["console", "--url", str(tmp_path / "b")]) == 1
        assert "was started with --one-time: its link works once" in capsys.readouterr().err


def test_files_of_other_machines_and_damaged_ones_are_left_alone(tmp_path, state, monkeypatch):
    with kept(tmp_path, "http://127.0.0.1:1/?token=a"):
        (file,) = state.iterdir()
        text = file.read_text()
        (state / "elsewhere-1.json").write_text(text.replace(platform.node(), "elsewhere"))
        (state / "broken.json").write_text("{")
        gone = json.loads(text) | {"begin": -1.0}  # another process has its number now
        (state / "gone.json").write_text(json.dumps(gone))
        assert [(s.url, s.pid) for s in servers()] == [("http://127.0.0.1:1/?token=a", os.getpid())]
        names = {p.name for p in state.iterdir()}
        assert names == {file.name, "elsewhere-1.json", "broken.json"}
    assert servers() == [] and not file.exists()


def test_a_console_starts_where_no_state_can_be_kept(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with kept(tmp_path, "http://127.0.0.1:1/?token=a"):
        assert "nnl console --url will not know this console" in caplog.text
    assert servers() == []
