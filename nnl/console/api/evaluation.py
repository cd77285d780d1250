# SPDX-License-Identifier: Apache-2.0
"""Routes of evaluations."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool

from nnl.console.errors import Refused
from nnl.console.machine.sandbox import apart
from nnl.console.server.requests import Body, The, body, received, text, whole
from nnl.console.trials.evaluation import confusion, results, table

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


@router.post("/trials/{key}/infer")
async def infer(
    console: The, request: Request, key: str, name: str | None = None, weights: str = "best"
) -> dict[str, Any]:
    """The network of a trial on a row, on given values, or on an uploaded file."""
    if weights not in ("best", "last"):
        raise Refused(
            "invalid", f"weights is {weights[:20]!r}, wanted best or last", None, "weights"
        )
    path = console.trials.trained(key, weights == "best")
    if name is not None:
        return dict(
            await received(
                console, request, name, lambda p: apart("infer", path, name, sample=str(p))
            )
        )
    given = await body(request)
    values, row = given.get("values") or {}, whole(given, "row", 0)
    if not isinstance(values, dict):
        raise Refused("invalid", "values is no object", None, "values")
    csv = console.datasets.path(text(given, "dataset")) if given.get("dataset") else None
    more = {"csv": csv and str(csv), "row": row, "values": values}
    return dict(await run_in_threadpool(apart, "infer", path, "the sample", **more))


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
