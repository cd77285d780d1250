# SPDX-License-Identifier: Apache-2.0
"""The programs in C++ and C on the pages compile, run, and print what the pages say."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from nnl.cli.networks.cpp import folder
from tests.native.kernels import require_library
from tests.test_docs import ROOT, fresh, run_blocks  # noqa: F401  (a fixture)

# a program, and what it prints where the page says so
PROGRAM = re.compile(r"^```(cpp|c)\n(.*?)^```$(?:\n\n^```text prints\n(.*?)^```$)?", re.M | re.S)
PAGES = [
    page
    for page in sorted((ROOT / "docs").rglob("*.md"))
    if PROGRAM.search(page.read_text(encoding="utf-8"))
]
WARNINGS = ["-Wall", "-Wextra", "-Werror"]


def compiled(kind: str, code: str, name: str) -> bool:
    """Compile code, to a program if it is a whole one; whether it is."""
    Path(f"{name}.{kind}").write_text(code, encoding="utf-8")
    compiler = ["g++", "-std=c++17"] if kind == "cpp" else ["gcc", "-std=c99"]
    place, whole = folder(), bool(re.search(r"^int main\(", code, re.M))
    library = ["-lnnl", f"-L{place / 'lib'}", f"-Wl,-rpath,{place / 'lib'}", "-o", name]
    done = subprocess.run(
        [*compiler, *WARNINGS, f"-I{place / 'include'}", f"{name}.{kind}"]
        + (library if whole else ["-fsyntax-only"]),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, code + done.stderr
    return whole


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_programs_on_the_page_print_what_it_says(page: Path, fresh: None) -> None:  # noqa: F811
    require_library()
    if shutil.which("g++") is None or shutil.which("gcc") is None:
        pytest.skip("there is no compiler for C++")
    text = page.read_text(encoding="utf-8")
    run_blocks(page)  # they write the files that the programs read
    said = re.search(r"^\./main (.+)$", text, re.M)
    arguments = said[1].split() if said else []
    for i, (kind, code, printed) in enumerate(PROGRAM.findall(text)):
        if compiled(kind, code, f"program{i}"):
            done = subprocess.run([f"./program{i}", *arguments], capture_output=True, text=True)
            assert done.returncode == 0, code + done.stdout + done.stderr
            if printed:
                assert done.stdout.split() == printed.split(), code


def test_every_header_has_a_program_that_includes_it() -> None:
    missing = []
    for page in (ROOT / "docs" / "reference" / "cpp_headers").glob("*.md"):
        parts = re.split(r"^<!-- headers (\w+) -->$", page.read_text(encoding="utf-8"), flags=re.M)
        for name, part in zip(parts[1::2], parts[2::2], strict=True):
            programs = [code for _, code, _ in PROGRAM.findall(part)]
            if not any(f'#include "nnl/{name}.h"' in code for code in programs):
                missing.append(name)
    assert missing == []
