# SPDX-License-Identifier: Apache-2.0
"""Writing files so that a reader sees the old one or the new one, never half of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path in the folder of `path`; what is written there becomes `path` at the end.

    If the block raises, the temporary file is removed and `path` stays as it was. A process that
    is killed leaves the old file, and its temporary one beside it.

    Raises:
        FileNotFoundError: There is no such folder.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no folder {target.parent}")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
