# SPDX-License-Identifier: Apache-2.0
"""Routes of the quick page: drop a model, choose data, train."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from nnl.console.server.ready_models import inspect, train
from nnl.console.server.requests import Body, The, received, text, whole

router = APIRouter(prefix="/quick")


@router.post("/inspect")
async def look(console: The, request: Request, name: str) -> dict[str, Any]:
    found: dict[str, Any] = await received(
        console, request, name, lambda path: inspect(console, path, name)
    )
    return found


@router.post("/train", status_code=201)
def begin(console: The, given: Body) -> dict[str, Any]:
    epochs, size = whole(given, "max_epoch", 3, 1), whole(given, "batch_size", 32, 1, 2**20)
    valid = text(given, "valid", "")
    return train(console, text(given, "file"), text(given, "dataset"), epochs, size, valid)
