# SPDX-License-Identifier: Apache-2.0
"""Which programs of a folder that were written for NNabla run, as a table in Markdown.

    .venv/bin/python tests/interop/examples_of_nnabla.py FOLDER [SECONDS] > table.md

Give it a checkout of NNabla's examples or tutorials. Programs are Python files that import nnabla
and do something when they are run, and notebooks. Each runs in a copy of the folder in which
nnabla is renamed, without arguments, until it ends or has run for SECONDS (60).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

NAME = re.compile(r"\bnnabla(?=\b|_ext\b)")
DATA = re.compile(r"urlopen|URLError|Errno -|getaddrinfo|resolve|FileNotFoundError|No such file")


def text_of(path: Path) -> str:
    """The text of a program; the cells of a notebook without the lines that ask for a shell."""
    if path.suffix == ".py":
        return path.read_text(errors="replace")
    cells = json.loads(path.read_text())["cells"]
    lines = [x for c in cells if c["cell_type"] == "code" for x in [*c["source"], "\n"]]
    return "".join(("\n" if x.lstrip()[:1] in "!%" and x.strip() else x) for x in lines)


def programs(folder: Path) -> list[Path]:
    """What can be run, by name; modules that others import are left out."""
    files = [p for p in folder.rglob("*") if p.suffix in (".py", ".ipynb")]
    runs = [p for p in files if p.suffix == ".ipynb" or "__main__" in text_of(p)]
    return sorted(p for p in runs if NAME.search(text_of(p)))


def outcome(program: Path, seconds: float) -> str:
    """What a program did: "runs", or the sentence it stopped at."""
    command = [sys.executable, program.name]
    try:
        done = subprocess.run(
            command,
            cwd=program.parent,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"runs ({seconds:g} s were watched)"
    if done.returncode == 0:
        return "runs"
    lines = [x for x in done.stderr.splitlines() if x.strip()]
    sentence = lines[-1].strip().replace("|", "\\|") if lines else f"exit code {done.returncode}"
    if sentence.startswith("ModuleNotFoundError"):
        return f"wants a package: {sentence}"
    if DATA.search(sentence):
        return f"wants data: {sentence}"
    return f"stops at: {sentence}"


def table(folder: Path, seconds: float = 60) -> str:
    """The table of a folder."""
    rows = ["| program | |", "|---|---|"]
    with tempfile.TemporaryDirectory() as work:
        copy = Path(work) / "examples"
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(".git"))
        found = programs(copy)
        for path in [*copy.rglob("*.py"), *(p for p in found if p.suffix == ".ipynb")]:
            path.with_suffix(".py").write_text(NAME.sub("nnl", text_of(path)))
        for path in found:
            rows.append(
                f"| `{path.relative_to(copy)}` | {outcome(path.with_suffix('.py'), seconds)} |"
            )
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(table(Path(sys.argv[1]), *map(float, sys.argv[2:3])), end="")
