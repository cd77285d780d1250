# SPDX-License-Identifier: Apache-2.0
"""Writing files so that a reader sees the old one or the new one, never half of it."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ModuleNotFoundError:  # on Windows: what killed saves leave stays there
    fcntl = None  # type: ignore[assignment]

# in the folder of a save
_LOCK = "lock"  # locked as long as the process that saves lives
_NEW = "new"  # a folder of what takes its place at the end


@contextmanager
def replacing(path: str | os.PathLike[str], folder: bool = False) -> Iterator[Path]:
    """A path of this save's own; what is written there becomes `path` at the end.

    Files written beside it take their places too, just before it. Links are followed, and the new
    file has the mode of the old one. If the block raises, nothing changes. A process that is killed
    leaves the old file, and a folder that the next save of `path` removes.

    Args:
        folder: What is written is a folder, and takes the place of none or of an empty one.
    Raises:
        FileNotFoundError: The folder of `path` does not exist. IsADirectoryError: `path` is one.
        FileExistsError: A folder is written, and `path` is a file or a folder with files.
    """
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no folder {target.parent}")
    if folder and target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise FileExistsError(f"{path} exists already, wanted a new folder or an empty one")
    if target.is_dir() and not folder:
        raise IsADirectoryError(f"{path} is a folder, wanted a file")
    if not folder and target.exists() and not target.is_file():
        with _naming(path):
            yield target  # a device or a pipe: written to, not replaced
        return
    saves = target.with_name(f".{target.name}.tmp")  # all that are under way, in folders
    try:
        own, lock = _own_folder(saves)
    except OSError as error:  # the name of our folder says nothing to whoever gave the path
        error.filename = os.fspath(path)
        raise
    try:
        (own / _NEW).mkdir()
        written = own / _NEW / target.name
        if folder:
            written.mkdir()
        with _naming(path):
            yield written
        for new in sorted(written.parent.iterdir(), key=lambda p: p == written):  # it is the last
            _move(new, target.with_name(new.name))
    finally:
        os.close(lock)  # Windows removes no open file
        _remove(own)
        with suppress(OSError):  # others save as well
            saves.rmdir()


@contextmanager
def _naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Name the file in errors that do not: that a disk is full is one."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = os.fspath(path)
        raise


def _move(new: Path, old: Path) -> None:
    with suppress(FileNotFoundError):
        new.chmod(stat.S_IMODE(old.stat().st_mode))
    os.replace(new, old)


def _own_folder(saves: Path) -> tuple[Path, int]:
    """A new folder, and its open lock; folders of saves whose processes are gone are removed."""
    while True:
        made = not saves.is_dir()
        if made:
            saves.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):  # another save has just removed `saves`, or the folder
            if made:
                with suppress(PermissionError):
                    shutil.copymode(saves.parent, saves)  # who may save here may do so beside us
            for folder in saves.iterdir():
                _remove_if_left(folder)
            folder = Path(tempfile.mkdtemp(dir=saves))
            lock = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
            if try_lock(lock) is not False and (folder / _LOCK).exists():
                return folder, lock
            os.close(lock)


def try_lock(file: int) -> bool | None:
    """Lock an open file: False if another process has done so, None where there are no locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _remove_if_left(folder: Path) -> None:
    with suppress(OSError):  # somebody else's, or removed by another save
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR)
        except FileNotFoundError:
            folder.rmdir()  # without a lock yet, it is empty
            return
        try:
            if try_lock(lock):
                _remove(folder)
        finally:
            os.close(lock)


def _remove(folder: Path) -> None:
    """Remove the folder of a save, its lock after the rest: if the process is killed meanwhile, the
    next save still knows the folder as one that is left.
    """
    with suppress(OSError):
        if (folder / _NEW).exists():
            shutil.rmtree(folder / _NEW)
        (folder / _LOCK).unlink()
        folder.rmdir()
