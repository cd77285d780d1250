# SPDX-License-Identifier: Apache-2.0
"""Routes of projects and their versions."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from nnl.console.documents.diff import diff
from nnl.console.documents.document import Document
from nnl.console.documents.samples import SAMPLES
from nnl.console.errors import missing
from nnl.console.server.requests import Body, Head, The, document, text

router = APIRouter()


def _shown(project: dict[str, Any]) -> dict[str, Any]:
    return {**project, "deleted": bool(project["deleted"])}


@router.get("/samples")
def samples() -> dict[str, Any]:
    return {"samples": [{"id": s.id, "title": s.title, "doc": s.doc} for s in SAMPLES.values()]}


@router.get("/projects")
def projects(console: The, deleted: bool = False) -> dict[str, Any]:
    return {"projects": [_shown(p) for p in console.store.projects(deleted)]}


@router.post("/projects", status_code=201)
def add(console: The, given: Body) -> dict[str, Any]:
    name = text(given, "name")
    if given.get("sample") is not None:
        sample = SAMPLES.get(text(given, "sample"))
        if sample is None:
            raise missing("sample", str(given["sample"])[:60])
        found = sample.document(console)
    elif given.get("document") is not None:
        found = document(given["document"])
    else:
        found = empty()
    return _shown(console.store.add_project(name, found))


def empty() -> Document:
    """A document with nothing in it."""
    return document({"networks": [{"name": "main"}]})


@router.get("/projects/{key}")
def project(console: The, key: str) -> dict[str, Any]:
    return _shown(console.store.project(key))


@router.patch("/projects/{key}")
def rename(console: The, key: str, given: Body) -> dict[str, Any]:
    return _shown(console.store.rename_project(key, text(given, "name")))


@router.delete("/projects/{key}")
def delete(console: The, key: str) -> dict[str, Any]:
    console.store.delete_project(key)
    return _shown(console.store.project(key))


@router.post("/projects/{key}/restore")
def restore(console: The, key: str) -> dict[str, Any]:
    console.store.delete_project(key, False)
    return _shown(console.store.project(key))


@router.post("/projects/{key}/copy", status_code=201)
def copy(console: The, key: str, given: Body) -> dict[str, Any]:
    source = console.store.project(key)
    name = text(given, "name", f"{source['name']} copy")
    return _shown(console.store.add_project(name, console.store.document(source["head"])))


@router.get("/projects/{key}/document")
def present(console: The, key: str, response: Response) -> dict[str, Any]:
    return _version(console, key, console.store.project(key)["head"], response)


@router.get("/projects/{key}/versions")
def versions(console: The, key: str) -> dict[str, Any]:
    return {"versions": console.store.versions(key)}


@router.get("/projects/{key}/versions/{version}")
def version(console: The, key: str, version: str, response: Response) -> dict[str, Any]:
    return _version(console, key, version, response)


def _version(console: The, key: str, version: str, response: Response) -> dict[str, Any]:
    if console.store.version(version)["project"] != key:
        raise missing("version", version)
    response.headers["ETag"] = f'"{version}"'
    return console.store.document(version).to_json()


@router.post("/projects/{key}/versions")
def save(console: The, key: str, given: Body, head: Head, response: Response) -> dict[str, Any]:
    note = text(given, "note", "")
    found, new = console.store.save(key, head, document(given.get("document")), note)
    response.status_code = 201 if new else 200
    response.headers["ETag"] = f'"{found["id"]}"'
    return found


@router.post("/projects/{key}/revert", status_code=201)
def revert(console: The, key: str, given: Body, head: Head, response: Response) -> dict[str, Any]:
    found = console.store.revert(key, head, text(given, "version"))
    response.headers["ETag"] = f'"{found["id"]}"'
    return found


@router.get("/projects/{key}/diff")
def differences(console: The, key: str, a: str, b: str) -> dict[str, Any]:
    for given in (a, b):
        if console.store.version(given)["project"] != key:
            raise missing("version", given)
    return diff(console.store.document(a), console.store.document(b))
