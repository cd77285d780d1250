# SPDX-License-Identifier: Apache-2.0
"""Routes of the reports of `nnl bench`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from nnl.console.server.requests import The, received
from nnl.console.trials.reports import MAX_BYTES

router = APIRouter()


@router.get("/reports")
def reports(console: The) -> dict[str, Any]:
    return {"reports": console.reports.all(), "folder": str(console.reports.folder)}


@router.post("/reports", status_code=201)
async def bring(console: The, request: Request, name: str) -> dict[str, Any]:
    found: dict[str, Any] = await received(console, request, name, console.reports.add, MAX_BYTES)
    return found


@router.get("/reports/compare")
def compare(console: The, first: str, second: str) -> dict[str, Any]:
    return console.reports.compared(first, second)


@router.get("/reports/{key}")
def report(console: The, key: str) -> dict[str, Any]:
    return console.reports.one(key)
