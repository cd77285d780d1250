# SPDX-License-Identifier: Apache-2.0
"""The server of a console: its routes, the page's files, and how it starts."""

from __future__ import annotations

import ipaddress
import logging
import socket
import sqlite3
import sys
import webbrowser
from importlib import import_module
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException

from nnl.console.documents.samples import project_of
from nnl.console.errors import NOT_BUILT, Refused, refusal
from nnl.console.machine.sandbox import keep_one_waiting
from nnl.console.server.instances import kept
from nnl.console.server.security import Guard
from nnl.console.server.state import Console

logger = logging.getLogger("nnl")
STATIC = Path(__file__).parents[1] / "static"
PARTS = (
    "editing",
    "projects",
    "files",
    "datasets",
    "trials",
    "evaluation",
    "searches",
    "plugins",
    "quick",
    "trash",
    "reports",
    "chat",
)


def application(console: Console) -> FastAPI:
    """The routes of a console, without the checks around them."""
    app = FastAPI(title="nnl console", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.console = console
    for part in PARTS:
        app.include_router(import_module(f"nnl.console.api.{part}").router, prefix="/api/v1")

    @app.exception_handler(Exception)
    def failed(request: Request, error: Exception) -> Response:
        logger.error("%s %s", request.method, request.url.path, exc_info=error)
        return _answer(refusal(error))

    known = (Refused, OSError, MemoryError, NotImplementedError, ValueError, TypeError)
    for kind in (*known, OverflowError, sqlite3.OperationalError, sqlite3.ProgrammingError):
        app.add_exception_handler(kind, lambda request, error: _answer(refusal(error)))

    @app.exception_handler(HTTPException)
    def not_found(request: Request, error: HTTPException) -> Response:
        code = {404: "not_found", 405: "not_found"}.get(error.status_code, "invalid")
        return _answer(
            Refused(code, f"there is no {request.url.path[:100]}", None, None, error.status_code)
        )

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = str(first["loc"][-1])
        return _answer(Refused("invalid", f"{where}: {first['msg']}", None, where))

    @app.get("/assets/{name:path}")
    def asset(name: str) -> Response:
        path = below(STATIC / "assets", name)
        if path is None or not path.is_file():
            raise Refused("not_found", f"there is no file {name[:100]!r}")
        return FileResponse(path, headers={"Cache-Control": "no-cache"})

    @app.get("/{path:path}")
    def page(path: str) -> Response:
        if path.startswith("api/"):
            raise Refused("not_found", f"there is no /{path[:100]}")
        index = STATIC / "index.html"
        if not index.is_file():
            text = NOT_BUILT[0].upper() + NOT_BUILT[1:]
            page = '<!doctype html><meta charset="utf-8"><title>nnl console</title>\n<p>'
            return HTMLResponse(f"{page}{text}.</p>\n", 503)
        return FileResponse(index, headers={"Cache-Control": "no-cache"})

    return app


def _answer(refused: Refused) -> Response:
    return JSONResponse(refused.to_json(), refused.status)


def below(root: Path, name: str) -> Path | None:
    """The file of this name inside a folder; None for what would be elsewhere."""
    if not name or "\0" in name:
        return None
    path = (root / name).resolve()
    return path if path.is_relative_to(root.resolve()) else None


def guarded(
    console: Console, host: str, port: int, hosts: tuple[str, ...] = (), one_time: bool = False
) -> Guard:
    """The application with the checks around it.

    Args:
        hosts: What else the Host header may name.
        one_time: Whether the token is good for one browser only.
    """
    names = {"127.0.0.1", "localhost", "[::1]", f"[{host}]" if ":" in host else host, *hosts}
    allowed = {f"{name}:{port}" for name in names} | (names if port == 80 else set())
    cookie = f"nnl_session_{port}"
    guard = Guard(application(console), allowed, cookie, console.read_only, one_time)
    if not console.store.writable:
        guard.why = f"its folder {console.folder} cannot be written"
    return guard


def serve(
    folder: Path,
    host: str = "127.0.0.1",
    port: int = 0,
    allow_remote: bool = False,
    read_only: bool = False,
    browser: bool = True,
    children: int = 2,
    sample: str | None = None,
    one_time: bool = False,
) -> int:
    """Run a console until it is interrupted; prints one line, its link.

    Args:
        sample: What to open: the project of this sample, made if there is none yet.
        one_time: Whether the link works once, in one browser.
    """
    import uvicorn

    if not _is_loopback(host) and not allow_remote:
        raise ValueError(
            f"--host {host} lets other machines in: whoever has the address can run programs here. "
            "Give --allow-remote as well if that is meant"
        )
    if not _is_loopback(host):
        logger.warning(
            "other machines can reach this console, over a connection that is not encrypted"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(128)  # who opens the address at once waits
        port = listening.getsockname()[1]
        console = Console(folder, read_only, children)
        start = "/" if sample is None else f"/p/{project_of(console, sample)}/edit"
        console.begin()
        if console.read_only and not read_only:
            logger.warning("%s cannot be written: it is only shown", console.folder)
        names = () if _is_loopback(host) else (socket.gethostname(),)
        guard = guarded(console, host, port, names, one_time)
        guard.start = start
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{port}/?token={guard.token}"
        config: Any = uvicorn.Config(
            guard, log_level="warning", access_log=False, server_header=False, date_header=False,
            timeout_graceful_shutdown=3, ws="none",
        )  # fmt: skip
        try:
            with kept(console.folder, None if one_time else address):
                print(address, flush=True)
                if not (STATIC / "index.html").is_file():
                    print(NOT_BUILT, file=sys.stderr)
                if not console.read_only:
                    keep_one_waiting()
                if browser:
                    webbrowser.open(address)
                uvicorn.Server(config).run(sockets=[listening])
        finally:
            console.close()
    return 0


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
