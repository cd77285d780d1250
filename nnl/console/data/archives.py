# SPDX-License-Identifier: Apache-2.0
"""Archives that somebody has uploaded: nothing in them gets out of the folder they are put in."""

from __future__ import annotations

import stat
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from nnl.console.errors import Refused

MAX_MEMBERS = 500_000
MAX_BYTES = 32 * 2**30  # unpacked
MAX_RATIO = 1000  # of what is unpacked to what was sent, above a megabyte
_BLOCK = 2**20
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError)
_IMPOSSIBLE = (FileExistsError, NotADirectoryError, IsADirectoryError)  # a file is a folder too


def unpack(path: Path, folder: Path) -> list[Path]:
    """Unpack a zip archive; returns its files, without what macOS puts beside each of them.

    Raises:
        Refused: It is damaged, too large, or has a member that would be elsewhere.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            _check(members, path.stat().st_size)
            members = [m for m in members if not _is_beside(m.filename)]
            return [found for m in members if (found := _member(archive, m, folder)) is not None]
    except (*_DAMAGED, *_IMPOSSIBLE) as error:
        raise Refused("unreadable", f"the archive is damaged: {error}", "make it again") from None


def _check(members: list[zipfile.ZipInfo], sent: int) -> None:
    if len(members) > MAX_MEMBERS:
        raise Refused("too_large", f"the archive has {len(members)} files, at most {MAX_MEMBERS}")
    size = sum(m.file_size for m in members)
    if size > MAX_BYTES or size > max(sent * MAX_RATIO, 2**20):
        raise Refused("too_large", f"the archive becomes {size / 2**20:.4g} MiB, it is no data set")
    for m in members:
        parts = PurePosixPath(m.filename.replace("\\", "/")).parts
        link = stat.S_ISLNK(m.external_attr >> 16)
        outside = ".." in parts or m.filename.startswith(("/", "\\")) or ":" in parts[0:1]
        if outside or "\0" in m.filename or link:
            text = f"the archive has the member {m.filename[:100]!r}, which leads out of it"
            raise Refused("unreadable", text)


def _is_beside(name: str) -> bool:
    """Whether a member is Finder's: as ._cat.png, which is no picture."""
    parts = PurePosixPath(name).parts
    return parts[:1] == ("__MACOSX",) or parts[-1:] == (".DS_Store",)


def _member(archive: zipfile.ZipFile, m: zipfile.ZipInfo, folder: Path) -> Path | None:
    target = (folder / m.filename.replace("\\", "/")).resolve()
    if not target.is_relative_to(folder.resolve()):
        raise Refused("unreadable", f"the archive has the member {m.filename[:100]!r}")
    if m.is_dir():
        target.mkdir(parents=True, exist_ok=True)
        return None
    target.parent.mkdir(parents=True, exist_ok=True)
    left = m.file_size
    with archive.open(m) as source, open(target, "wb") as file:
        while block := source.read(_BLOCK):
            left -= len(block)
            if left < 0:
                raise Refused("unreadable", f"{m.filename[:100]}: it is larger than it says")
            file.write(block)
    return target
