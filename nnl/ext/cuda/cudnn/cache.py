# SPDX-License-Identifier: Apache-2.0
"""Plans of cuDNN on disk: building a fused graph takes up to seconds, reading its plan does not.

One file for each plan, named by a hash of everything that it depends on. A file that is damaged or
of another version is deleted and the plan made again; nothing that goes wrong here is an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from nnl.core.parameters.atomic import replacing

logger = logging.getLogger("nnl")

__all__ = ["PlanCache"]

MAGIC = b"nnl cuDNN plan 1\n"
LIMIT_BYTES = 256 << 20  # of all files; those unused for longest go first


class PlanCache:
    """Bytes by key, in files of a folder.

    Args:
        path: The folder; it is made when something is first stored.
        limit_bytes: What all files may take together.
    """

    def __init__(self, path: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self.path, self.limit = path, limit_bytes

    def file(self, key: str) -> Path:
        return self.path / f"{hashlib.sha256(key.encode()).hexdigest()}.plan"

    def load(self, key: str) -> bytes | None:
        """What was stored under a key; None if there is nothing, or nothing that can be trusted."""
        file = self.file(key)
        try:
            data = file.read_bytes()
        except OSError:
            return None
        head, _, plan = data.removeprefix(MAGIC).partition(b"\n")
        if not data.startswith(MAGIC) or head != _digest(key, plan):
            logger.info("cuDNN: %s is damaged or of another version, and made again", file)
            self.drop(key)
            return None
        with contextlib.suppress(OSError):
            os.utime(file)  # used now
        return plan

    def store(self, key: str, plan: bytes) -> None:
        """Keep bytes under a key, if the folder can be written to."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with replacing(self.file(key)) as temporary:
                temporary.write_bytes(MAGIC + _digest(key, plan) + b"\n" + plan)
            self._shrink()
        except OSError as e:
            logger.info("cuDNN: a plan cannot be kept in %s: %s", self.path, e)

    def drop(self, key: str) -> None:
        """Delete what is stored under a key."""
        with contextlib.suppress(OSError):
            self.file(key).unlink()

    def _shrink(self) -> None:
        files = sorted(self._files(), reverse=True)
        total = 0
        for _, size, file in files:
            total += size
            if total > self.limit:
                with contextlib.suppress(OSError):
                    file.unlink()

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        for file in self.path.glob("*.plan"):
            with contextlib.suppress(OSError):  # another process may have deleted it
                status = file.stat()
                yield status.st_mtime, status.st_size, file


def _digest(key: str, plan: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\n" + plan).hexdigest().encode()
