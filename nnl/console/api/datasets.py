# SPDX-License-Identifier: Apache-2.0
"""Routes of data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from nnl.console.data.uploads import BuildOptions
from nnl.console.errors import Refused
from nnl.console.server.requests import Body, The, received, whole

router = APIRouter()
Size = Annotated[int, Query(ge=0, le=4096)]
Count = Annotated[int, Query(ge=1, le=10_000)]


@router.get("/datasets")
def datasets(console: The) -> dict[str, Any]:
    return {"datasets": console.datasets.all()}


@router.post("/datasets", status_code=201)
async def add(console: The, request: Request, name: str) -> dict[str, Any]:
    def use(path: Path) -> dict[str, Any]:
        first, *others = console.datasets.add(path, name)
        return {**first, "also": others}

    found: dict[str, Any] = await received(console, request, name, use)
    return found


@router.post("/datasets/build", status_code=201)
async def build(
    console: The,
    request: Request,
    name: str,
    kind: str = "image_classification",
    width: Size = 0,
    height: Size = 0,
    channels: Size = 0,
    mode: str = "trimming",
    split: Annotated[float, Query(ge=0, lt=1)] = 0.0,
    seed: Size = 0,
    classes: Count = 1,
    anchors: Count = 5,
    grid: Count = 16,
) -> dict[str, Any]:
    kinds = ("image_classification", "object_detection")
    if kind not in kinds:
        text = f"kind is {kind[:40]!r}, wanted one of {', '.join(kinds)}"
        raise Refused("invalid", text, None, "kind")
    options = BuildOptions(kind, width, height, channels, mode, split, seed, classes, anchors, grid)
    found: dict[str, Any] = await received(
        console, request, name, lambda path: console.datasets.build(path, name, options)
    )
    return found


@router.get("/datasets/samples")
def samples() -> dict[str, Any]:
    from nnl.datasets import SAMPLES

    found = [{"id": k, "title": s.title, "classes": list(s.classes)} for k, s in SAMPLES.items()]
    return {"samples": found}


@router.post("/datasets/samples/{name}", status_code=201)
def add_sample(console: The, name: str) -> dict[str, Any]:
    return {"datasets": console.datasets.sample(name)}


@router.delete("/datasets/{key}")
def delete(console: The, key: str) -> dict[str, Any]:
    console.datasets.delete(key)
    return {"id": key}


@router.get("/datasets/{key}/rows")
def rows(
    console: The,
    key: str,
    offset: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
) -> dict[str, Any]:
    return console.datasets.rows(key, offset, limit)


@router.get("/datasets/{key}/thumb/{row}/{column}")
def thumb(
    console: The, key: str, row: int, column: str, size: Annotated[int, Query(ge=8, le=1024)] = 64
) -> Response:
    content = console.datasets.thumb(key, row, column, size)
    headers = {"Cache-Control": "private, max-age=3600"}
    return Response(content, media_type="image/png", headers=headers)


@router.get("/datasets/{key}/stats")
def statistics(console: The, key: str) -> dict[str, Any]:
    return console.datasets.statistics(key)


@router.post("/datasets/{key}/split", status_code=201)
def split(console: The, key: str, given: Body) -> dict[str, Any]:
    parts, names = given.get("parts"), given.get("names")
    numbers = isinstance(parts, list) and all(isinstance(p, (int, float)) for p in parts)
    texts = isinstance(names, list) and all(isinstance(n, str) for n in names)
    if not numbers or not texts:
        raise Refused(
            "invalid", "parts is no list of shares, or names none of texts", None, "parts"
        )
    by = given.get("stratify")
    found = console.datasets.split(key, parts or [], names or [], whole(given, "seed", 0), by)
    return {"datasets": found}
