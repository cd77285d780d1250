# SPDX-License-Identifier: Apache-2.0
"""What the markers of pages stand for."""

from __future__ import annotations

import re
from pathlib import Path

from . import commands, dialects, headers, reference

ROOT = Path(__file__).parents[2]


def whole_file(name: str) -> str:
    """A page from outside of docs: its links to pages go on, others become plain text."""
    text = (ROOT / name).read_text(encoding="utf-8")
    text = re.sub(r"`docs/(\w+\.md)`", r"[\1](docs/\1)", text)
    text = re.sub(r"\]\(docs/([\w/]+\.md)", r"](/\1", text)
    return re.sub(r"\[([^]]+)\]\((?!/[\w/]+\.md|#|http)[^)]*\)", r"\1", text)


def other_pages() -> str:
    """Pages that no list of pages names, as lines of such a list: nobody has to remember them."""
    docs = ROOT / "docs"
    lists = "\n".join(page.read_text(encoding="utf-8") for page in docs.rglob("index.md"))
    named = set(re.findall(r"^(?:.*<|\.\./)?(\w+)>?$", lists, re.M))
    found = sorted(page.stem for page in docs.glob("*.md"))
    return "\n".join(f"../{name}" for name in found if name not in {*named, "index"})


MARKERS = {
    "other-pages": other_pages,
    "file": whole_file,
    "begin": reference.beginning,
    "functions": reference.functions,
    "module": reference.module,
    "names": reference.names,
    "table": reference.table,
    "command": commands.usage,
    "commands": commands.others,
    "script": commands.script,
    "dialect": dialects.names,
    "headers": headers.headers,
    "caffe-layers": dialects.caffe_layers,
    "theano-names": dialects.theano_names,
}
