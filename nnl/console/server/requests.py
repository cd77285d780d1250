# SPDX-License-Identifier: Apache-2.0
"""What routes have in common: the console they belong to, and what requests give."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, Header, Request, Response
from starlette.concurrency import run_in_threadpool

from nnl.console.documents.document import Document, Invalid, parse
from nnl.console.errors import Refused
from nnl.console.server.state import Console


def console(request: Request) -> Console:
    """The console of the server."""
    found: Console = request.app.state.console
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


async def body(request: Request) -> dict[str, Any]:
    """The object that the request gives as JSON; an empty one for no body."""
    text = await request.body()
    try:
        found = json.loads(text or b"{}", parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Refused("invalid", f"the request is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise Refused("invalid", f"the request is a {type(found).__name__}, wanted an object")
    return found


def head(if_match: Annotated[str | None, Header()] = None) -> str:
    """The version that the page has."""
    if if_match is None:
        hint = 'send If-Match: "VERSION"'
        raise Refused(
            "invalid", "the request does not say which version it is about", hint, None, 428
        )
    return if_match.removeprefix("W/").strip('"')


The = Annotated[Console, Depends(console)]
Body = Annotated[dict[str, Any], Depends(body)]
Head = Annotated[str, Depends(head)]


def document(given: Any, where: str = "document") -> Document:
    """The document in a request."""
    if given is None:
        raise Refused("invalid", f"the request has no {where!r}")
    try:
        return parse(given)
    except Invalid as error:
        raise Refused("invalid", str(error), None, error.where) from None


def text(given: dict[str, Any], key: str, default: str | None = None) -> str:
    """A text in a request; needed if there is no default."""
    value = given.get(key, default)
    if not isinstance(value, str):
        raise Refused("invalid", f"{key} is {str(value)[:60]!r}, wanted a text", None, key)
    return value


def whole(given: dict[str, Any], key: str, default: int, least: int = 0, most: int = 2**31) -> int:
    """A whole number in a request."""
    value = given.get(key, default)
    if type(value) is not int or not least <= value <= most:
        wanted = f"a whole number from {least} to {most}"
        raise Refused("invalid", f"{key} is {str(value)[:60]!r}, wanted {wanted}", None, key)
    return value


async def received(
    console: Console,
    request: Request,
    name: str,
    use: Callable[[Path], Any],
    most: int | None = None,
) -> Any:
    """What `use` makes of the uploaded file, which is gone afterwards.

    Args:
        most: Bytes that it may have, where that is less than for any upload.
    """
    if Path(name.replace("\\", "/")).name in ("", "..") or "\0" in name:
        raise Refused("invalid", "the upload has no name", "give ?name=", "name")
    with console.scratch(name) as path:
        with open(path, "wb") as file:
            async for block in request.stream():
                file.write(block)
                if most is not None and file.tell() > most:
                    text = f"{path.name} is larger than {most / 2**20:.4g} MiB"
                    raise Refused("too_large", text, None, path.name)
        return await run_in_threadpool(use, path)


def attachment(content: bytes, name: str) -> Response:
    """A file that the browser saves, whatever is in it."""
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in name)
    headers = {"Content-Disposition": f'attachment; filename="{safe}"'}
    return Response(content, media_type="application/octet-stream", headers=headers)
