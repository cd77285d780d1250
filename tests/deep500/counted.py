# SPDX-License-Identifier: Apache-2.0
"""Counts what a back end runs of ONNX's tests, in a Python without pytest too.

python -m tests.deep500.counted BACKEND
"""

from __future__ import annotations

import sys
from pathlib import Path

from nnl.deep500 import operators
from nnl.deep500.cases import cases
from nnl.deep500.report import versions

PAGE = Path(__file__).parents[2] / "docs/deep500_operators.md"


def counted(backend: str) -> tuple[int, int, int, int]:
    """All tests and those that pass; operators on float32 that have a test of one node, and those
    of which one passes. Raises where the page of operators says something else."""
    tests = list(cases())
    results = list(operators.check(tests, backend))
    agree_with_the_page(results, backend)
    floats = {c.name for c in tests if c.operator and c.floating}
    good = [r for r in results if r.status == operators.PASS]
    of, run = ({r.operator for r in some if r.test in floats} for some in (results, good))
    return len(tests), len(good), len(of), len(run)


def agree_with_the_page(results: list[operators.Result], backend: str) -> None:
    """Every number of a back end, unless the page was made with another version of something."""
    text = PAGE.read_text(encoding="utf-8")
    names, *rows = [line.strip("| ").split(" | ") for line in text.splitlines() if "| " in line]
    packages = {"tensorflow": "tensorflow-cpu", "reference": "numpy", "nnl": "numpy"}
    package = packages.get(backend, backend)
    if any(f" {n} {v}" not in text for n, v in versions().items() if n in ("onnx", package)):
        return
    at = names.index(backend)
    stated = {row[0]: row[at] for row in rows}
    found = operators.coverage(results)
    assert stated.pop("operators that pass a test") == str(
        sum(row[backend][0] > 0 for row in found.values())
    )
    passed = sum(r.status == operators.PASS for r in results)
    assert stated.pop("tests passed, all") == str(passed), (stated, passed)
    seen = {name: "{} of {}".format(*row[backend]) for name, row in found.items()}
    differ = {n: (stated.get(n), seen.get(n)) for n in {*stated, *seen}}
    differ = {n: both for n, both in differ.items() if both[0] != both[1]}
    assert not differ, f"the page and {backend}: {differ}"


if __name__ == "__main__":
    print(*counted(sys.argv[1]))
