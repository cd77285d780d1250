# SPDX-License-Identifier: Apache-2.0
"""The Python blocks of the documentation run."""

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
