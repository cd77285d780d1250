# SPDX-License-Identifier: Apache-2.0
"""What Sphinx calls: pages are prepared as they are read, formulas made, the site looked over."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math import latex2mathml
from sphinx.errors import SphinxError

from . import pages
from .digest import digest
from .finished import faults
from .markers import MARKERS


def said(app: Any, text: str) -> str:
    """A name for what a page says and shows: its filled text and the state of nnl's code."""
    return f"{digest(Path(app.srcdir).parent)} {hashlib.sha256(text.encode()).hexdigest()}"


def read(app: Any, docname: str, source: list[str]) -> None:
    """Fill markers in and make cells of blocks, as the page is read."""
    text = pages.filled(source[0], MARKERS)
    app.env.metadata[docname]["said"] = said(app, text)
    source[0] = pages.notebook(text)


def outdated(app: Any, env: Any, added: set[str], changed: set[str], removed: set[str]) -> Any:
    """Pages that say something else now, by their markers or by nnl's code."""
    return [
        name
        for name in env.found_docs - added - changed
        if env.metadata[name]["said"]
        != said(app, pages.filled(Path(env.doc2path(name)).read_text(encoding="utf-8"), MARKERS))
    ]


def formula(self: Any, node: nodes.Element, display: bool) -> None:
    """A formula as MathML, which browsers show without a script."""
    try:
        tree = latex2mathml.tex2mathml(node.astext(), as_block=display)
    except Exception as error:
        raise ValueError(f"{node.source}: no MathML for {node.astext()!r}: {error}") from error
    self.body.append(f'<div class="formula">{tree}</div>' if display else tree)
    raise nodes.SkipNode


def look_over(app: Any, exception: Exception | None) -> None:
    """Fail where the finished site does not hold what it must."""
    if exception is None and app.builder.format == "html" and (found := faults(Path(app.outdir))):
        raise SphinxError("\n".join(found))


def setup(app: Any) -> dict[str, Any]:
    app.connect("source-read", read)
    app.connect("env-get-outdated", outdated)
    app.connect("build-finished", look_over)
    app.add_html_math_renderer(
        "mathml",
        (lambda self, node: formula(self, node, False), None),
        (lambda self, node: formula(self, node, True), None),
    )
    return {"parallel_read_safe": True, "parallel_write_safe": True}
