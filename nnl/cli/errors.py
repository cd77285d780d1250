# SPDX-License-Identifier: Apache-2.0
"""What the command line says when it fails: the error, where, what to try, and an exit code."""

from __future__ import annotations

import difflib
import errno
import json
import os
import re
from dataclasses import asdict, dataclass
from importlib.util import find_spec

# Exit codes by name. 2 is wrong usage, as argparse has it.
CODES = {"failed": 1, "disk_full": 1, "usage": 2, "not_found": 3, "unsupported": 4, "memory": 5,
         "interrupted": 130}  # fmt: skip
EXPECTED = (
    ValueError,
    TypeError,
    ArithmeticError,
    NotImplementedError,
    OSError,
    ImportError,
    MemoryError,
    RuntimeError,
)

# Where the documentation has the packages of nnl's extras.
DOCUMENTED = {
    "console": "console#the-console",
    "dask": "console#structure-search",
    "ray": "console#structure-search",
    "serve": "guides/serving",
}


class UsageError(ValueError):
    """Options that cannot be, or not together."""


def check_installed(*names: str, extra: str = "console") -> None:
    """Raise if a package that a command needs is not there; `extra` of nnl has it."""
    lacking = [n for n in names if find_spec(n) is None]
    if lacking:
        raise ModuleNotFoundError(
            f"{', '.join(lacking)} is not installed: pip install 'nnl[{extra}]' "
            f"(documentation: {DOCUMENTED[extra]})"
        )


@dataclass
class Problem:
    """An error as people and programs read it.

    Attributes:
        error: What is wrong.
        code: Key of CODES.
        hint: A command or an edit to try.
        where: File that it is about.
    """

    error: str
    code: str = "failed"
    hint: str | None = None
    where: str | None = None

    @property
    def exit_code(self) -> int:
        return CODES[self.code]

    def text(self, name: str, as_json: bool) -> str:
        """As `nnl --json` or a person reads it."""
        if as_json:
            return json.dumps(asdict(self))
        hint = f"\n  try: {self.hint}" if self.hint else ""
        return f"{name}: error: {self.error}{hint}"


def problem_of(error: BaseException, files: str = "") -> Problem:
    """The problem that an exception is.

    Args:
        files: What the command was about, for errors that do not say it.
    """
    text, _, hint = str(error).removeprefix("nnl: ").partition("; try: ")
    found = Problem(text, "failed", hint or None)
    if isinstance(error, KeyboardInterrupt):
        return Problem("interrupted", "interrupted")
    if isinstance(error, MemoryError):
        return Problem(f"{files}there is not enough memory: {text}", "memory", hint or None)
    if isinstance(error, UsageError):
        found.code = "usage"
    elif isinstance(error, (NotImplementedError, ImportError)):
        found.code = "unsupported"
    elif isinstance(error, UnicodeError):
        found.error = f"{files}{text}"
    elif isinstance(error, RuntimeError):
        found.error = f"{files}failed: {text}"
    elif isinstance(error, OSError) and _is_disk_full(error):
        found.code, found.where = "disk_full", str(error.filename or "") or None
        if error.errno is None:
            found.error = f"{files}an array could not be written whole: {text} bytes"
        found.hint = "free some space; what was written before is whole"
    elif isinstance(error, (FileNotFoundError, IsADirectoryError, PermissionError)):
        found.code, found.where = "not_found", str(error.filename or "") or None
        if error.errno is not None and found.where:  # Python's own: [Errno 2] No such file ...
            found.error = _WORDS[type(error)].format(found.where)
        if isinstance(error, FileNotFoundError) and found.where and not found.hint:
            found.hint = _similar_file(found.where)
    elif isinstance(error, OSError) and error.strerror and error.filename:
        found.where = str(error.filename)  # Python's own: [Errno 17] File exists: ...
        found.error = f"{found.where}: {error.strerror}"
    return found


def _is_disk_full(error: OSError) -> bool:
    # numpy says "9216 requested and 1008 written", without a number
    short = error.errno is None and re.fullmatch(r"\d+ requested and \d+ written", str(error))
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or bool(short)


_WORDS = {
    FileNotFoundError: "there is no file {}",
    IsADirectoryError: "{} is a folder, wanted a file",
    PermissionError: "{} may not be opened by this user",
}


def _similar_file(path: str) -> str | None:
    folder, name = os.path.split(path)
    try:
        names = os.listdir(folder or ".")
    except OSError:
        return None
    close = difflib.get_close_matches(name, names, 1)
    return os.path.join(folder, close[0]) if close else None
