# SPDX-License-Identifier: Apache-2.0
"""A network as a page of its own, to be read without the console."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from nnl.console.documents.analysis import analyse
from nnl.console.documents.document import Document


def html(
    document: Document,
    columns: Mapping[str, tuple[int, ...]] | None,
    name: str,
    more: Mapping[str, Any] | None = None,
) -> str:
    """Tables of the layers, of totals and of the configuration; `more` is shown above them."""
    found = analyse(document, columns)
    parts = [f"<h1>{escape(name)}</h1>", _table(("", ""), (more or {}).items())]
    for net in document.networks.values():
        entry = found["networks"][net.name]
        rows = []
        for key, node in net.nodes.items():
            e = entry["nodes"][key]
            shape = ", ".join(str(tuple(o["shape"])) for o in e["outputs"])
            properties = ", ".join(f"{k}={v}" for k, v in node.properties.items())
            numbers = (f"{e['parameters']:,}", f"{e['multiply_adds']:,}")
            rows.append((node.name, node.type, properties, shape, *numbers))
        head = ("name", "layer", "properties", "output", "parameters", "multiply-adds")
        parts += [f"<h2>{escape(net.name)}</h2>", _table(head, rows)]
        parts.append(_table(("", ""), [(k, f"{v:,}") for k, v in entry["totals"].items()]))
    parts += ["<h2>Configuration</h2>", _table(("", ""), document.config.items())]
    style = "body{font:14px sans-serif}td,th{padding:2px 8px;text-align:left}"
    head = f"<!doctype html><meta charset=utf-8><title>{escape(name)}</title><style>{style}</style>"
    return "\n".join([head, *parts, ""])


def _table(head: Any, rows: Any) -> str:
    title = "".join(f"<th>{escape(str(c))}</th>" for c in head)
    lines = ["".join(f"<td>{escape(str(c))}</td>" for c in row) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><tr>{title}</tr>{body}</table>" if lines else ""
