# SPDX-License-Identifier: Apache-2.0
"""What Sphinx calls: pages are prepared as they are read, formulas become MathML."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math import latex2mathml

from . import pages
from .markers import MARKERS


def digest(root: Path) -> str:
    """A name for the state of nnl: what cells have computed holds for this one only."""
    found = hashlib.sha256()
    for path in sorted((root / "nnl").rglob("*")):
        if path.suffix in (".py", ".so", ".tsv") and path.is_file():
            found.update(path.read_bytes())
    return found.hexdigest()[:16]


def read(app: Any, docname: str, source: list[str]) -> None:
    """Fill markers in and make cells of blocks, as the page is read."""
    source[0] = pages.notebook(pages.filled(source[0], MARKERS))


def outdated(app: Any, env: Any, added: set[str], changed: set[str], removed: set[str]) -> Any:
    """All pages where nnl has changed since they were read."""
    now = digest(Path(app.srcdir).parent)
    before, env.nnl_digest = getattr(env, "nnl_digest", now), now
    return [] if before == now else env.found_docs


def formula(self: Any, node: nodes.Element, display: bool) -> None:
    """A formula as MathML, which browsers show without a script."""
    try:
        tree = latex2mathml.tex2mathml(node.astext(), as_block=display)
    except Exception as error:
        raise ValueError(f"{node.source}: no MathML for {node.astext()!r}: {error}") from error
    self.body.append(f'<div class="formula">{tree}</div>' if display else tree)
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, Any]:
    app.connect("source-read", read)
    app.connect("env-get-outdated", outdated)
    app.add_html_math_renderer(
        "mathml",
        (lambda self, node: formula(self, node, False), None),
        (lambda self, node: formula(self, node, True), None),
    )
    return {"parallel_read_safe": True, "parallel_write_safe": True}
