# SPDX-License-Identifier: Apache-2.0
"""Routes of the trash."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from nnl.console.server.requests import Body, The, whole

router = APIRouter()


@router.get("/trash")
def contents(console: The) -> dict[str, Any]:
    return console.trash.contents()


@router.post("/trash/empty")
def empty(console: The, given: Body) -> dict[str, int]:
    return console.trash.empty(whole(given, "older_than_days", 0) * 86400.0)


@router.post("/trials/{key}/restore")
def restore_trial(console: The, key: str) -> dict[str, Any]:
    return console.trials.restore(key)


@router.post("/datasets/{key}/restore")
def restore_data(console: The, key: str) -> dict[str, Any]:
    return console.datasets.restore(key)
