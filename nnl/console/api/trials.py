# SPDX-License-Identifier: Apache-2.0
"""Routes of trials: lists, what may be done with them, what they have written."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import FileResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool

from nnl.console.api.files import WITHOUT_WEIGHTS, written
from nnl.console.errors import Refused, missing
from nnl.console.machine.processes import size_of, tail
from nnl.console.server.requests import Body, The, attachment, text
from nnl.console.server.state import Console
from nnl.console.trials.comparing import compared, exported, listed
from nnl.console.trials.events import lines, parsed, series
from nnl.console.trials.trials import ENDED

router = APIRouter()
_POLL_S = 0.1
_KINDS = {
    ".nnp": "weights",
    ".h5": "weights",
    ".nntxt": "network",
    ".csv": "csv",
    ".png": "image",
    ".yml": "report",
    ".txt": "log",
    ".jsonl": "log",
}


@router.get("/trials")
def trials(
    console: The,
    project: str | None = None,
    status: str | None = None,
    tag: str | None = None,
    q: str | None = None,
    pinned: bool | None = None,
    search: str | None = None,
    sort: str = "-created",
    offset: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 200,
    sparkline: str | None = None,
) -> dict[str, Any]:
    return listed(
        console.trials, project, status, tag, q, pinned, search, sort, offset, limit, sparkline
    )


@router.post("/trials", status_code=201)
def add(console: The, given: Body) -> dict[str, Any]:
    project = text(given, "project")
    for key in ("config", "weights_from"):
        if not isinstance(given.get(key), (dict, type(None))):
            raise Refused("invalid", f"{key} is no object", None, key)
    config = dict(given.get("config") or {})
    if given.get("seed") is not None:
        config["seed"] = given["seed"]
    return console.trials.add(
        project,
        given.get("version"),
        text(given, "kind", "train"),
        config,
        given.get("weights_from"),
        given.get("name"),
        given.get("dataset"),
    )


@router.get("/trials/export.{kind}")
def export_all(console: The, kind: str, project: str | None = None) -> Response:
    if kind not in ("csv", "json"):
        raise missing("format", kind[:20])
    return attachment(exported(console.trials, project, kind).encode(), f"trials.{kind}")


@router.get("/compare")
def compare(console: The, trials: str) -> dict[str, Any]:
    return compared(console.trials, [key for key in trials.split(",") if key])


@router.get("/trials/{key}")
def trial(console: The, key: str) -> dict[str, Any]:
    return console.trials.one(key, True)


@router.patch("/trials/{key}")
def change(console: The, key: str, given: Body) -> dict[str, Any]:
    return console.trials.change(key, given)


@router.delete("/trials/{key}")
def delete(console: The, key: str) -> dict[str, Any]:
    return console.trials.delete(key)


@router.post("/trials/{key}/cancel")
def cancel(console: The, key: str) -> dict[str, Any]:
    return console.trials.cancel(key)


@router.post("/trials/{key}/suspend")
def suspend(console: The, key: str) -> dict[str, Any]:
    return console.trials.suspend(key)


@router.post("/trials/{key}/finish")
def finish(console: The, key: str) -> dict[str, Any]:
    return console.trials.finish(key)


@router.post("/trials/{key}/resume")
def resume(console: The, key: str) -> dict[str, Any]:
    return console.trials.resume(key)


@router.post("/trials/{key}/retrain", status_code=201)
def retrain(console: The, key: str) -> dict[str, Any]:
    return console.trials.retrain(key)


@router.post("/trials/{key}/open")
def reopen(console: The, key: str, given: Body) -> dict[str, Any]:
    document = console.trials.document(key)
    if given.get("with_weights"):
        document.weights_from = {"trial": key}
        console.trials.weights(document.weights_from)  # or it says that there are none
    return {"version": console.trials.one(key)["version"], "document": document.to_json()}


# ---- what they have written ----


@router.get("/trials/{key}/metrics")
def metrics(
    console: The,
    key: str,
    names: str | None = None,
    since: Annotated[int, Query(ge=0)] = 0,
    points: Annotated[int, Query(ge=10, le=100_000)] = 1000,
) -> dict[str, Any]:
    console.trials.one(key)
    wanted = set(names.split(",")) if names else None
    path = console.trials.folder(key) / "out" / "events.jsonl"
    return series(path, wanted, since, points)


@router.get("/trials/{key}/log")
def log(
    console: The, key: str, tail_lines: Annotated[int, Query(alias="tail", ge=1, le=100_000)] = 200
) -> dict[str, Any]:
    console.trials.one(key)
    path = console.trials.folder(key) / "log.txt"
    found = tail(path, 400 * tail_lines).splitlines()[-tail_lines:]
    return {"text": "\n".join(found), "bytes": size_of(path)}


@router.get("/trials/{key}/artifacts")
def artifacts(console: The, key: str) -> dict[str, Any]:
    console.trials.one(key)
    out = console.trials.folder(key) / "out"
    files = sorted(p for p in out.rglob("*") if p.is_file())
    found = [
        {
            "id": str(p.relative_to(out)),
            "kind": _KINDS.get(p.suffix, "file"),
            "name": p.name,
            "bytes": p.stat().st_size,
            "created": p.stat().st_mtime,
        }
        for p in files[:10_000]
    ]
    return {"artifacts": found}


@router.get("/trials/{key}/artifacts/{name:path}")
def artifact(console: The, key: str, name: str) -> Response:
    console.trials.one(key)
    out = (console.trials.folder(key) / "out").resolve()
    path = (out / name).resolve() if "\0" not in name else out
    if not path.is_relative_to(out) or not path.is_file():
        raise missing("artifact", name[:100])
    return FileResponse(path, filename=path.name, media_type="application/octet-stream")


@router.get("/trials/{key}/export")
def export(console: The, key: str, format: str, weights: str = "best") -> Response:
    entry = console.trials.one(key)
    if weights not in ("best", "last"):
        raise Refused(
            "invalid", f"weights is {weights[:20]!r}, wanted best or last", None, "weights"
        )
    arrays = []
    if format not in WITHOUT_WEIGHTS:
        arrays = console.trials.weights({"trial": key}, weights == "best")
    facts = {"status": entry["status"], "best": entry["best"], "last": entry["last"]}
    return written(console, console.trials.document(key), format, arrays, entry["name"], facts)


# ---- streams ----


@router.get("/trials/{key}/events")
async def events(
    console: The,
    request: Request,
    key: str,
    since: Annotated[int, Query(ge=0)] = 0,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    console.trials.one(key)
    given = last_event_id or ""
    begin = int(given) if given.isdecimal() else since
    return stream(_trial(console, request, key, begin))


def stream(messages: AsyncIterator[str]) -> Response:
    """Server-sent events."""
    return StreamingResponse(messages, media_type="text/event-stream")


def message(name: str, data: Any, number: int | None = None) -> str:
    """One event; `data` is an object or its text."""
    content = data if isinstance(data, str) else json.dumps(data)
    return f"{f'id: {number}{chr(10)}' if number else ''}event: {name}\ndata: {content}\n\n"


async def _trial(console: Console, request: Request, key: str, since: int) -> AsyncIterator[str]:
    reader = _Reader(console.trials.folder(key) / "out" / "events.jsonl", since)
    before: Any = None
    while True:
        entry = await run_in_threadpool(console.trials.one, key)
        while text := await run_in_threadpool(reader.read):  # all that was there when it ended
            yield text
        state = {k: v for k, v in entry.items() if k != "eta_s"}
        if state != before:
            yield message("status", entry)
            before = state
        if entry["status"] in ENDED or await request.is_disconnected():
            return
        await asyncio.sleep(_POLL_S)


class _Reader:
    """New lines of a file as messages; of steps that follow each other only the last one."""

    def __init__(self, path: Path, since: int) -> None:
        self.path, self.since = path, since
        self.line = self.offset = 0

    def read(self) -> str:
        """Some messages; "" where there are no more."""
        out: list[str] = []
        step = ""
        for number, after, content in lines(self.path, self.line, self.offset):
            self.line, self.offset = number, after
            event = parsed(content) if number > self.since else None
            if event is None:
                continue
            if event["event"] == "step_after":
                step = message("step_after", content, number)
                continue
            out += [step, message(event["event"], content, number)]
            step = ""
            if len(out) >= 1000:
                break
        return "".join([*out, step])


@router.get("/events")
async def changes(console: The, request: Request) -> Response:
    return stream(_changes(console, request))


async def _changes(console: Console, request: Request) -> AsyncIterator[str]:
    """Every trial whose status or epoch has changed since the last look, or that is gone."""
    known: dict[str, Any] = {}
    seen, alive = -1, time.monotonic()
    while not await request.is_disconnected():
        if console.trials.changes != seen:
            first, seen = not known, console.trials.changes
            found = await run_in_threadpool(listed, console.trials, limit=10_000)
            for entry in found["trials"]:
                state = (entry["status"], entry["epoch"], entry["name"], entry["pinned"])
                if known.get(entry["id"]) != state:
                    known[entry["id"]] = state
                    if not first:
                        yield message("status", entry)
            for key in known.keys() - {e["id"] for e in found["trials"]} - {""}:
                del known[key]
                yield message("gone", {"id": key})
            known.setdefault("", None)
        if time.monotonic() - alive > 15:
            alive = time.monotonic()
            yield ": alive\n\n"
        await asyncio.sleep(_POLL_S * 2)
