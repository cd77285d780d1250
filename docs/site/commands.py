# SPDX-License-Identifier: Apache-2.0
"""The commands of `nnl` as they describe themselves."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

from nnl.cli.main import parser

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "commands.md"


@cache
def commands() -> dict[str, argparse.ArgumentParser]:
    """The parser of each command."""
    os.environ["COLUMNS"] = "90"  # argparse breaks lines by it
    actions = parser()._actions
    found = next(a for a in actions if isinstance(a, argparse._SubParsersAction))
    return dict(found.choices)


def usage(name: str) -> str:
    """What `nnl NAME --help` prints."""
    return f"```text\n{commands()[name].format_help().strip()}\n```"


@cache
def script(path: str) -> str:
    """What a script of the repository prints with `--help`."""
    environment = {**os.environ, "COLUMNS": "90"}
    said = subprocess.run(
        [sys.executable, ROOT / path, "--help"],
        capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    return f"```text\n{said.stdout.strip()}\n```"


def without_example() -> list[str]:
    """Commands without a block of the page that runs them."""
    runs = re.findall(r"^```sh run\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    return [name for name in commands() if not any(f"nnl {name}" in block for block in runs)]


def others() -> str:
    """Commands that the page does not name."""
    text = PAGE.read_text(encoding="utf-8")
    shown = re.findall(r"^<!-- command (\S+) -->$", text, re.M)
    return "\n\n".join(f"## {name}\n\n{usage(name)}" for name in commands() if name not in shown)
