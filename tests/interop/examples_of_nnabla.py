# SPDX-License-Identifier: Apache-2.0
"""Which programs of a folder that were written for NNabla run, as a table in Markdown.

    .venv/bin/python tests/interop/examples_of_nnabla.py FOLDER [SECONDS [PYTHON]] > table.md

Give it a checkout of NNabla's examples or tutorials. Programs are Python files that import nnabla
and do something when they are run, and notebooks. Each runs in a copy of the folder in which
nnabla is renamed, until it ends or has run for SECONDS (60). A line `program.py arguments` of a
file arguments.txt in the folder gives it arguments. With the PYTHON that has NNabla each runs
there as well, and the table says how much of what its solvers see and its monitors are told, in
up to 20 updates, differs, relatively: see watched.py.
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
WATCHED = str(Path(__file__).with_name("watched.py"))
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


def outcome(program: Path, seconds: float, command: list[str] | None = None) -> str:
    """What a program did: "runs", or the sentence it stopped at."""
    command = command or [sys.executable, program.name]
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


def compared(ours: Path, theirs: Path, given: list[str], python: str, seconds: float) -> str:
    """How far the numbers of a program under nnl and, a copy of it, under NNabla are apart."""
    said, series = [], []
    for path, library, interpreter in ((ours, "nnl", sys.executable), (theirs, "nnabla", python)):
        result = path.with_suffix(".series.json")
        words = [interpreter, "-W", "ignore", WATCHED, library, str(result), "20", path.name]
        said.append(outcome(path, seconds, [*words, *given]))
        series.append(json.loads(result.read_text()) if result.exists() else [])
    if said[0] != "runs" or said[1] != "runs":
        same = "; NNabla does, too" if said[0] == said[1] else f"; NNabla: {said[1]}"
        return said[0] + same
    mine, wanted = ([v for _, v in s] for s in series)
    updates = sum(what == "g" for what, _ in series[1])
    if not wanted:
        return "runs, as it does in NNabla; nothing to compare"
    if [w for w, _ in series[0]] != [w for w, _ in series[1]]:
        return f"differs: {len(mine)} values for {len(wanted)}"
    off = [
        0 if a == b or a != a and b != b else abs(a - b) / (abs(b) + 1e-8)
        for a, b in zip(mine, wanted, strict=True)
    ]
    second = [i for i, (what, _) in enumerate(series[1]) if what == "g"][1:2] or [len(off) - 1]
    return f"{updates} updates: {max(off[: second[0] + 1]):.0e} in the first 2, then {max(off):.0e}"


def table(folder: Path, seconds: float = 60, python: str = "") -> str:
    """The table of a folder."""
    rows = ["| program | |", "|---|---|"]
    with tempfile.TemporaryDirectory() as work:
        copy, original = Path(work) / "examples", Path(work) / "original"
        for to in (copy, original):
            shutil.copytree(folder, to, ignore=shutil.ignore_patterns(".git"))
        found = programs(copy)
        for path in [*copy.rglob("*.py"), *(p for p in found if p.suffix == ".ipynb")]:
            text = text_of(path)
            (original / path.relative_to(copy)).with_suffix(".py").write_text(text)
            path.with_suffix(".py").write_text(NAME.sub("nnl", text))
        lines = folder / "arguments.txt"
        given = [x.split() for x in lines.read_text().splitlines()] if lines.exists() else []
        for path in found:
            name, program = path.relative_to(copy), path.with_suffix(".py")
            for words in [g[1:] for g in given if g[:1] == [str(name)]] or [[]]:
                if python:
                    theirs = (original / name).with_suffix(".py")
                    said = compared(program, theirs, words, python, seconds)
                else:
                    said = outcome(program, seconds, [sys.executable, program.name, *words])
                rows.append(f"| `{' '.join([str(name), *words])}` | {said} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(table(Path(sys.argv[1]), *map(float, sys.argv[2:3]), *sys.argv[3:4]), end="")
