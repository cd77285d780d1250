# SPDX-License-Identifier: Apache-2.0
"""Routes that turn files into documents and documents into files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response

from nnl.console.documents.code import code
from nnl.console.documents.document import Document
from nnl.console.documents.training import FILES, export
from nnl.console.errors import Refused
from nnl.console.server.requests import Body, The, attachment, document, received, text
from nnl.console.server.state import Console
from nnl.console.trials.report import html
from nnl.converters.nnp.parameter_files import Stored

router = APIRouter()
WITHOUT_WEIGHTS = ("python", "html")
FORMATS = ("nntxt", "nnp", *FILES, *WITHOUT_WEIGHTS)


@router.post("/import")
async def load(console: The, request: Request, name: str) -> dict[str, Any]:
    return await received(console, request, name, lambda path: imported(console, path))


def imported(console: Console, path: Path) -> dict[str, Any]:
    """The answer for a file."""
    found = console.opened(path)
    return {
        "document": found.document.to_json(),
        "name": path.stem,
        "report": [{"severity": s, "message": m} for s, m in found.report],
    }


@router.post("/export")
def save(console: The, given: Body, format: str) -> Response:
    found = document(given.get("document"))
    weights = [] if format in WITHOUT_WEIGHTS else console.trials.weights(found.weights_from)
    return written(console, found, format, weights, text(given, "name", "network"))


def written(
    console: Console,
    found: Document,
    kind: str,
    weights: list[Stored],
    name: str,
    more: Mapping[str, Any] | None = None,
) -> Response:
    """A document as a file of some format."""
    if kind not in FORMATS:
        raise Refused("unsupported", f"the format is {kind!r}, wanted one of {', '.join(FORMATS)}")
    columns = console.columns(found)
    if kind == "python":
        return attachment(code(found, columns)[0].encode(), f"{name}.py")
    if kind == "html":
        return attachment(html(found, columns, name, more).encode(), f"{name}.html")
    with console.scratch(f"{name}.{kind}") as path:
        export(found, path, *console.data(found), weights)
        return attachment(path.read_bytes(), f"{name}.{kind}")
