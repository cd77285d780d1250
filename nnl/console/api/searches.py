# SPDX-License-Identifier: Apache-2.0
"""Routes of structure searches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request, Response

from nnl.console.api.trials import message, stream
from nnl.console.documents.mutation import RULES
from nnl.console.errors import Refused
from nnl.console.server.requests import Body, The, text
from nnl.console.server.state import Console

router = APIRouter()


@router.get("/search/rules")
def rules() -> dict[str, Any]:
    return {"rules": [{"name": name, "doc": doc} for name, (doc, _) in RULES.items()]}


@router.get("/searches")
def searches(console: The, project: str | None = None) -> dict[str, Any]:
    return {"searches": console.searches.all(project)}


@router.post("/searches", status_code=201)
def add(console: The, given: Body) -> dict[str, Any]:
    settings = given.get("settings") or {}
    if not isinstance(settings, dict):
        raise Refused("invalid", "settings is no object", None, "settings")
    return console.searches.add(text(given, "project"), given.get("version"), settings)


@router.get("/searches/{key}")
def search(console: The, key: str) -> dict[str, Any]:
    return console.searches.one(key)


@router.post("/searches/{key}/cancel")
def cancel(console: The, key: str) -> dict[str, Any]:
    return console.searches.cancel(key)


@router.post("/searches/{key}/resume")
def resume(console: The, key: str) -> dict[str, Any]:
    return console.searches.resume(key)


@router.get("/searches/{key}/front")
def front(console: The, key: str) -> dict[str, Any]:
    return console.searches.front(key)


@router.post("/searches/{key}/candidates/{number}/open")
def reopen(console: The, key: str, number: int) -> dict[str, Any]:
    return console.searches.open(key, number)


@router.get("/searches/{key}/events")
async def events(console: The, request: Request, key: str) -> Response:
    console.searches.one(key)
    return stream(_events(console, request, key))


async def _events(console: Console, request: Request, key: str) -> AsyncIterator[str]:
    """Each candidate when it changes, then the search."""
    known: dict[int, Any] = {}
    before: Any = None
    while True:
        entry = console.searches.one(key)
        for c in console.searches.candidates(key):
            if known.get(c["number"]) != c:
                known[c["number"]] = c
                yield message("candidate", c)
        if entry != before:
            before = entry
            yield message("status", entry)
        if entry["status"] != "running" or await request.is_disconnected():
            return
        await asyncio.sleep(0.2)
