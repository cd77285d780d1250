# SPDX-License-Identifier: Apache-2.0
"""Routes of evaluations."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from nnl.console.api.requests import Body, The, text
from nnl.console.errors import Refused
from nnl.console.evaluation import confusion, results, table

router = APIRouter()


@router.post("/trials/{key}/evaluate", status_code=201)
def evaluate(console: The, key: str, given: Body) -> dict[str, Any]:
    entry = console.trials.one(key, True)
    weights = text(given, "weights", "best")
    if weights not in ("best", "last"):
        raise Refused(
            "invalid", f"weights is {weights[:20]!r}, wanted best or last", None, "weights"
        )
    return console.trials.add(
        entry["project"],
        entry["version"],
        "evaluate",
        None,
        {"trial": key, "weights": weights},
        f"{entry['name'][:180]} evaluated",
        given.get("dataset"),
        document=console.trials.document(key),
    )


@router.get("/trials/{key}/confusion")
def matrix(
    console: The, key: str, label: str | None = None, output: str | None = None
) -> dict[str, Any]:
    found: dict[str, Any] = confusion(results(console.trials, key), label, output)
    return found


@router.get("/trials/{key}/results")
def samples(
    console: The,
    key: str,
    offset: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    cell: str | None = None,
    sort: str = "index",
    label: str | None = None,
    output: str | None = None,
) -> dict[str, Any]:
    found = results(console.trials, key)
    return table(found, offset, limit, cell, sort, label, output)
