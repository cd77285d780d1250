# SPDX-License-Identifier: Apache-2.0
"""How pip builds nnl: by scikit-build-core, after the page of the console where Node.js is there.

Without Node.js, or without a network for what the page is made of, the wheel has no page: the log
says so (pip -v shows it), and so do `nnl console` and `nnl doctor`, with what to do.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from scikit_build_core.build import *  # noqa: F403  # the hooks that stay as they are
from scikit_build_core.build import build_wheel as _build_wheel

SOURCES = Path(__file__).resolve().parent
PAGE = SOURCES.parent / "nnl" / "console" / "static" / "index.html"
WANTED = "Node.js 20.19, 22.12 or newer"  # as vite does


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """The hook of pip."""
    why = build_page()
    if why is not None:
        print(
            f"nnl: the page of `nnl console` was not built: {why}. With {WANTED}, install nnl "
            "again, or run `make console` in the copy of its sources.",
            file=sys.stderr,
        )
    return _build_wheel(wheel_directory, config_settings, metadata_directory)


def build_page() -> str | None:
    """Build the page unless it is newer than what it is made of; why not, if it cannot be."""
    made_of = [p for p in SOURCES.iterdir() if p.is_file() and p.suffix != ".py"]
    made_of += [p for p in (SOURCES / "src").rglob("*") if p.is_file()]
    if PAGE.exists() and PAGE.stat().st_mtime >= max(p.stat().st_mtime for p in made_of):
        return None
    why = _why_no_node()
    if why is not None:
        return why
    npm = str(shutil.which("npm"))
    for arguments in (["ci", "--no-audit", "--no-fund"], ["run", "build"]):
        done = subprocess.run([npm, *arguments], cwd=SOURCES, text=True, capture_output=True)
        print(done.stdout, done.stderr, file=sys.stderr)
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip() or "no word").splitlines()[-1]
            return f"`npm {arguments[0]}` failed: {last}"
    PAGE.touch()
    return None


def _why_no_node() -> str | None:
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        return "there is no Node.js (node and npm)"
    said = subprocess.run([node, "--version"], text=True, capture_output=True).stdout
    found = re.match(r"v(\d+)\.(\d+)", said)
    version = tuple(int(part) for part in found.groups()) if found else (0, 0)
    if version >= (22, 12) or (20, 19) <= version < (21, 0):
        return None
    return f"node is {said.strip() or 'of no version'}, wanted {WANTED}"
