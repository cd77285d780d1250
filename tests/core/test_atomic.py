# SPDX-License-Identifier: Apache-2.0
"""Files that are replaced whole: several savers at once, killed ones, links and modes."""

from __future__ import annotations

import errno
import multiprocessing
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import nnl as nn
from nnl.core.parameters.atomic import replacing


def kept(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_threads_that_save_one_path_do_not_disturb_each_other(tmp_path: Path) -> None:
    path, errors = tmp_path / "a", []
    contents = [bytes([k]) * 100_000 for k in range(8)]

    def save(content: bytes) -> None:
        try:
            for _ in range(30):
                with replacing(path) as file, open(file, "wb") as out:
                    out.write(content[:50_000])
                    out.flush()
                    out.write(content[50_000:])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=save, args=(c,)) for c in contents]
    for t in threads:
        t.start()
    while any(t.is_alive() for t in threads):
        assert not path.exists() or path.read_bytes() in contents
    assert errors == [] and path.read_bytes() in contents and kept(tmp_path) == ["a"]


def test_two_saves_of_one_path_at_a_time_in_one_thread(tmp_path: Path) -> None:
    with replacing(tmp_path / "a") as first:
        with replacing(tmp_path / "a") as second:
            assert first != second
            first.write_text("first")
            second.write_text("second")
        assert (tmp_path / "a").read_text() == "second" and first.read_text() == "first"
    assert (tmp_path / "a").read_text() == "first" and kept(tmp_path) == ["a"]


HANGS = """
import sys, time
from nnl.core.parameters.atomic import replacing
with replacing(sys.argv[1]) as file:
    file.write_text("half")
    print("here", flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="nobody sees which process is gone")
def test_what_killed_saves_left_goes_with_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    command = [sys.executable, "-c", HANGS, str(path)]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    for child in children:
        assert child.stdout is not None and child.stdout.readline() == b"here\n"
    children[0].send_signal(signal.SIGKILL)
    children[0].wait()
    (saves,) = [p for p in tmp_path.iterdir() if p != path]
    assert len(kept(saves)) == 2 and path.read_text() == "old"
    with replacing(path) as file:
        file.write_text("new")
    assert len(kept(saves)) == 1  # that of the process that still saves
    children[1].kill()
    children[1].wait()
    (saves / "no lock").mkdir()  # killed even earlier
    with replacing(path) as file:
        file.write_text("newer")
    assert kept(tmp_path) == ["a"] and path.read_text() == "newer"


def test_links_are_followed_and_modes_kept(tmp_path: Path) -> None:
    real, link = tmp_path / "there" / "real.h5", tmp_path / "link.h5"
    real.parent.mkdir()
    real.write_bytes(b"old")
    real.chmod(0o640)
    link.symlink_to(Path("there") / "real.h5")
    nn.save_parameters(link, {"w": nn.Variable.from_numpy_array(np.ones(3))})
    assert link.is_symlink() and real.read_bytes()[1:4] == b"HDF"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert kept(real.parent) == ["real.h5"] and kept(tmp_path) == ["link.h5", "there"]
    (tmp_path / "to nothing").symlink_to(tmp_path / "there" / "made")
    with replacing(tmp_path / "to nothing") as file:
        file.write_text("now")
    assert (tmp_path / "there" / "made").read_text() == "now"


def test_a_new_file_has_the_mode_that_open_gives(tmp_path: Path) -> None:
    with replacing(tmp_path / "a") as file:
        file.write_text("")
    open(tmp_path / "b", "w").close()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_a_failed_save_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(KeyError), replacing(tmp_path / "a") as file:
        file.write_text("half")
        file.with_name("b").write_text("beside")
        raise KeyError
    assert kept(tmp_path) == ["a"] and (tmp_path / "a").read_text() == "old"


def test_files_beside_take_their_places_too(tmp_path: Path) -> None:
    with replacing(tmp_path / "a") as file:
        file.with_name("a.data").write_text("data")
        file.write_text("main")
    assert kept(tmp_path) == ["a", "a.data"]


def test_folders_are_refused_and_devices_written_to(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="is a folder, wanted a file"):
        nn.save_parameters(f"{tmp_path}{os.sep}x.h5{os.sep}..", extension=".h5")
    with (
        pytest.raises(FileNotFoundError, match="a: there is no folder"),
        replacing(tmp_path / "b/a"),
    ):
        pass
    nn.save_parameters(os.devnull, {}, extension=".h5")
    assert not Path(os.devnull).is_file()


def test_a_file_of_any_name_is_saved(tmp_path: Path) -> None:
    for name in ("lock", "new", ".a.tmp"):
        with replacing(tmp_path / name) as file:
            file.write_text(name)
        assert (tmp_path / name).read_text() == name
    assert kept(tmp_path) == sorted(["lock", "new", ".a.tmp"])


def _save_often(path: str) -> None:
    while True:
        with replacing(path) as file, open(file, "wb") as out:
            out.write(bytes(10_000))
            out.write(bytes(10_000))


def test_a_save_that_fails_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        with replacing("/dev/full") as file, open(file, "wb") as out:
            out.write(b"1")
    for number, text in ((errno.EACCES, "Permission denied"), (errno.ENOENT, "No such file")):

        def refused(self: Path, exist_ok: bool = False, number: int = number) -> None:
            raise OSError(number, os.strerror(number), str(self))

        monkeypatch.setattr(Path, "mkdir", refused)
        path = tmp_path / "a"
        with pytest.raises(OSError, match=f"{text}.*: '{re.escape(str(path))}'"):
            with replacing(path):
                raise AssertionError("there is no folder to write to")
    assert kept(tmp_path) == []


@pytest.mark.skipif(sys.platform == "win32", reason="nobody sees which process is gone")
def test_killed_at_any_time(tmp_path: Path) -> None:
    path, fork = tmp_path / "a", multiprocessing.get_context("fork")
    for k in range(15):
        children = [fork.Process(target=_save_often, args=(str(path),)) for _ in range(2)]
        for child in children:
            child.start()
        time.sleep(0.005 + 0.003 * k)
        for child in children:
            child.kill()
            child.join()
    with replacing(path) as file:
        file.write_bytes(bytes(20_000))
    assert kept(tmp_path) == ["a"] and path.stat().st_size == 20_000


def _save(path: Path, ending: str, calls: int = 1000) -> None:
    """Save `path`; die after that many calls to the file system."""
    left = iter(range(calls))

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event in ("open", "os.mkdir", "os.rmdir", "os.remove", "os.rename", "os.listdir"):
            if next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    with suppress(KeyError), replacing(path) as file:
        file.with_name("b").write_text("beside")
        file.write_text("new")
        if ending == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if ending == "fails":
            raise KeyError


@pytest.mark.skipif(sys.platform == "win32", reason="nobody sees which process is gone")
@pytest.mark.parametrize("ending", ["fails", "whole"])
def test_killed_at_every_call(tmp_path: Path, ending: str) -> None:
    """Also while it removes what another one left."""
    fork = multiprocessing.get_context("fork")
    for calls in range(1000):
        path = tmp_path / str(calls) / "a"
        path.parent.mkdir()
        path.write_text("old")
        for arguments in (("killed",), (ending, calls)):
            child = fork.Process(target=_save, args=(path, *arguments))
            child.start()
            child.join()
            assert child.exitcode in (0, -signal.SIGKILL)
        assert path.read_text() in (("old",) if ending == "fails" else ("old", "new"))
        if path.read_text() == "new":  # it is the last to take its place
            assert path.with_name("b").read_text() == "beside"
        with replacing(path) as file:
            file.write_text("newer")
        assert ".a.tmp" not in kept(path.parent) and path.read_text() == "newer"
        if child.exitcode == 0:
            break
    assert calls > 10
