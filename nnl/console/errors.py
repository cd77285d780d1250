# SPDX-License-Identifier: Apache-2.0
"""What the console answers where it cannot do what was asked: a status, a code, text and a hint."""

from __future__ import annotations

import errno
import sqlite3
from typing import Any

STATUS = {
    "unauthorized": 401,
    "host": 403,
    "origin": 403,
    "csrf": 403,
    "read_only": 403,
    "untrusted": 403,
    "locked": 403,
    "not_found": 404,
    "conflict": 409,
    "too_large": 413,
    "media_type": 415,
    "invalid": 422,
    "unreadable": 422,
    "unsupported": 422,
    "busy": 429,
    "failed": 500,
    "disk_full": 507,
}
# What is said where the wheel has no page; console/nnl_build.py builds it.
NOT_BUILT = (
    "the page was not built: there was no Node.js 20.19, 22.12 or newer when nnl was installed. "
    "With it, in the copy of nnl's sources, `pip install --force-reinstall --no-deps .` builds it, "
    "or `make console`, which starts it too"
)


class Refused(Exception):
    """A request that is not done.

    Args:
        code: One of STATUS.
        message: What is wrong.
        hint: What to do about it.
        where: A file, a place in a document, an id.
        status: Of HTTP, where it is not that of the code.
    """

    def __init__(
        self,
        code: str,
        message: str,
        hint: str | None = None,
        where: str | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.hint, self.where = code, message, hint, where
        self.status = STATUS[code] if status is None else status

    def to_json(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "message": self.message,
            "hint": self.hint,
            "where": self.where,
        }


def missing(what: str, key: str) -> Refused:
    """There is no such thing."""
    return Refused("not_found", f"there is no {what} {key!r}", "it may have been deleted", key)


def full_disk() -> Refused:
    hint = "free some space; nothing that was saved before is lost"
    return Refused("disk_full", "there is no space left on the disk", hint)


def refusal(error: BaseException) -> Refused:
    """What the page is told of an error that nobody has caught."""
    if isinstance(error, Refused):
        return error
    full = getattr(error, "sqlite_errorname", None) == "SQLITE_FULL"
    if full or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)):
        return full_disk()
    locked = str(getattr(error, "sqlite_errorname", "")).startswith("SQLITE_READONLY")
    if locked or (isinstance(error, OSError) and error.errno == errno.EROFS):
        return Refused("read_only", "the folder of this console cannot be written any more")
    if isinstance(error, MemoryError):
        return Refused("too_large", "there is not enough memory for this", None)
    if isinstance(error, NotImplementedError):
        return Refused("unsupported", str(error), None)
    if isinstance(error, (OverflowError, sqlite3.ProgrammingError)):  # where an id was wanted
        return Refused("invalid", "a value of the request is of another kind, or too large", None)
    if isinstance(error, (ValueError, TypeError)):
        return Refused("invalid", str(error), None, getattr(error, "where", None))
    return Refused("failed", f"{type(error).__name__}: {error}", "the log of the server says more")
