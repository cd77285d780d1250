# SPDX-License-Identifier: Apache-2.0
"""Names for states of nnl's code: what pages have computed is kept while code stays the same."""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from pathlib import Path


@cache
def digest(root: Path) -> str:
    """A name for the state of nnl's code: what cells have computed holds for this one only."""
    found = hashlib.sha256()
    for path in sorted((root / "nnl").rglob("*")):
        if path.suffix == ".py":
            found.update(code(path.read_bytes()))
        elif path.suffix in (".so", ".tsv") and path.is_file():
            found.update(path.read_bytes())
    return found.hexdigest()[:16]


def code(source: bytes) -> bytes:
    """What a file of Python computes: comments and docstrings, which pages show, are left out."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if ast.get_docstring(node, clean=False) is not None:
                del node.body[0]
    return ast.dump(tree).encode()
