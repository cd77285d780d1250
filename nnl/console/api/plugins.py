# SPDX-License-Identifier: Apache-2.0
"""Routes of plugins and their runs."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import FileResponse

from nnl.console.errors import Refused
from nnl.console.server.requests import Body, The, text

router = APIRouter()


@router.get("/plugins")
def plugins(console: The) -> dict[str, Any]:
    return {"plugins": console.plugins.all(), "folder": str(console.plugins.folder)}


@router.get("/plugins/{key}/schema")
def schema(console: The, key: str) -> dict[str, Any]:
    form = console.plugins.form(key)
    return {"doc": form.doc, "fields": [f.to_json() for f in form.fields]}


@router.post("/plugins/{key}/trust")
def trust(console: The, key: str, given: Body) -> dict[str, Any]:
    return console.plugins.trust(key, text(given, "sha256"))


@router.post("/plugins/{key}/run", status_code=201)
def run(console: The, key: str, given: Body) -> dict[str, Any]:
    args, row = given.get("args") or {}, given.get("row")
    if not isinstance(args, dict) or not (row is None or type(row) is int):
        raise Refused("invalid", "args is no object, or row no number", None, "args")
    return console.plugins.run(key, args, given.get("trial"), row)


@router.get("/runs/{key}")
def result(console: The, key: str) -> dict[str, Any]:
    return console.plugins.result(key)


@router.post("/runs/{key}/cancel")
def cancel(console: The, key: str) -> dict[str, Any]:
    return console.plugins.cancel(key)


@router.get("/runs/{key}/artifacts/{name:path}")
def artifact(console: The, key: str, name: str) -> Response:
    path = console.plugins.artifact(key, name)
    if path.suffix == ".png":
        return FileResponse(path, media_type="image/png")
    return FileResponse(path, filename=path.name, media_type="application/octet-stream")
