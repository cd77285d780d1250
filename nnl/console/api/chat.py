# SPDX-License-Identifier: Apache-2.0
"""Routes of language models: those of the folder, what one writes, and where it looks."""

from __future__ import annotations

import http.client
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from nnl.console.chat.served import ROUTES
from nnl.console.errors import missing
from nnl.console.server.requests import Body, The, received

router = APIRouter()


@router.get("/models")
def models(console: The) -> dict[str, Any]:
    return {"models": console.models.all(), "folder": str(console.models.folder)}


@router.post("/models", status_code=201)
async def bring(console: The, request: Request, name: str) -> dict[str, Any]:
    found: dict[str, Any] = await received(console, request, name, console.models.add)
    return found


@router.post("/models/{key}/open")
def load(console: The, key: str) -> dict[str, Any]:
    return console.models.open(key)


@router.post("/models/{key}/{what}")
async def ask(console: The, key: str, what: str, given: Body) -> Response:
    """What `nnl serve` answers, as it comes; it stops writing when the page has left."""
    if what not in ROUTES:
        raise missing("route", what[:40])
    served = console.models.opened(key)
    answer = await run_in_threadpool(served.ask, what, given)
    return StreamingResponse(_pieces(answer), media_type=answer.headers["content-type"])


async def _pieces(answer: http.client.HTTPResponse) -> AsyncIterator[bytes]:
    with answer:
        while piece := await run_in_threadpool(answer.read1):
            yield piece
