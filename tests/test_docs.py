# SPDX-License-Identifier: Apache-2.0
"""The Python blocks of the documentation run, and its tables are whole."""

import re
from pathlib import Path

import pytest

import nnl as nn
from nnl.core.op import OPS

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("page", ["README.md", "docs/how_it_works.md", "docs/formats.md"])
def test_code_on_the_page_runs(page, tmp_path, monkeypatch):
    if page == "docs/formats.md":
        pytest.importorskip("onnx")
    monkeypatch.chdir(tmp_path)
    text = (ROOT / page).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    assert blocks
    names = {}
    known = set(OPS)
    nn.clear_parameters()
    try:
        for block in blocks:
            exec(compile(block, page, "exec"), names)
    finally:
        nn.clear_parameters()
        for op in set(OPS) - known:
            del OPS[op]


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_table_begins_with_its_heading(page):
    """A blank line within a table would end it, and show the rest as text."""
    lines = page.read_text().splitlines()
    for k, line in enumerate(lines):
        if line.startswith("|") and not lines[k - 1].startswith("|"):
            assert lines[k + 1].startswith("|---"), f"{page.name}:{k + 1}: {line}"
