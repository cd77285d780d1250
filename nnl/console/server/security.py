# SPDX-License-Identifier: Apache-2.0
"""Who may ask the server: checks before any route, and the headers of every answer.

The server listens on this machine only, but every page that a browser shows can send requests
there. So requests must name this server as their host and origin, carry the cookie that the URL
printed at the start has set, and, where they change something, a header that only the console's own
page sends.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

from nnl.console.errors import Refused

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

JSON_BYTES = 16 * 2**20
UPLOAD_BYTES = 4 * 2**30
_HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'self'; style-src 'self'; img-src 'self' blob: data:; object-src 'none'; "
        b"frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]
_NO_COOKIE = """<!doctype html><meta charset="utf-8"><title>nnl console</title>
<p>This page needs the link that <code>nnl console</code> has printed when it started. {}</p>
"""
_AGAIN = "It works in any browser as long as the server runs; nnl console --url prints it again."
_ONCE = (
    "It works once, in one browser, as --one-time says: start another console for the same folder "
    "to get another one."
)


class Guard:
    """The checks, around the application.

    Args:
        hosts: What the Host header may be: "127.0.0.1:8000", ...
        cookie: Name of the cookie; consoles on other ports of this machine have others.
        read_only: Whether nothing may be changed.
        one_time: Whether the token is good for one browser only.
    Attributes:
        token: What the printed URL carries; None once it was used, where it is good once.
        start: The page that it leads to.
    """

    def __init__(
        self,
        app: App,
        hosts: set[str],
        cookie: str,
        read_only: bool = False,
        one_time: bool = False,
    ) -> None:
        self.app, self.hosts, self.cookie = app, hosts, cookie
        self.read_only, self.one_time = read_only, one_time
        self.why = "it was started with --read-only"  # nothing may be changed
        self.token: str | None = secrets.token_urlsafe(24)
        self.session = secrets.token_urlsafe(24)
        self.start = "/"

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *((n, v) for n, v in _HEADERS if n not in given),
                ]
                if b"cache-control" not in given:
                    message["headers"].append((b"cache-control", b"no-store"))
            await send(message)

        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        try:
            self._check_source(scope, headers)
            if await self._enters(scope, headers, guarded):
                return None
            self._check_session(scope, headers)
            limit = self._check_change(scope, headers)
        except Refused as refused:
            return await _refuse(scope, refused, guarded, self._link)
        return await self.app(scope, _limited(receive, limit), guarded)

    @property
    def _link(self) -> str:
        return _ONCE if self.one_time else _AGAIN

    def _check_source(self, scope: Any, headers: dict[str, str]) -> None:
        hosts = [v for k, v in scope["headers"] if k == b"host"]
        # Any port of these names: that of a tunnel, as ssh -L makes, is another one. A page of
        # elsewhere whose name leads here keeps its own name.
        if len(hosts) != 1 or _name(headers["host"]) not in {_name(h) for h in self.hosts}:
            raise Refused("host", "the request names another host", "use the printed address")
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{headers['host']}":
            raise Refused("origin", f"a page of {origin[:100]} may not ask this server")
        if headers.get("sec-fetch-site") == "cross-site" and scope["method"] != "GET":
            raise Refused("origin", "a page of another site may not ask this server")

    async def _enters(self, scope: Any, headers: dict[str, str], send: Send) -> bool:
        """Take the token of the printed URL for a cookie."""
        if scope["path"] != "/" or scope["method"] != "GET" or not scope["query_string"]:
            return False
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if not given:
            return False
        valid = self.token is not None and hmac.compare_digest(given.encode(), self.token.encode())
        if not valid and not self._known(headers):
            return False
        if valid and self.one_time:
            self.token = None
        cookie = f"{self.cookie}={self.session}; HttpOnly; SameSite=Strict; Path=/"
        answer = [(b"location", self.start.encode()), (b"content-length", b"0")]
        if valid:
            answer.append((b"set-cookie", cookie.encode()))
        await send({"type": "http.response.start", "status": 303, "headers": answer})
        await send({"type": "http.response.body", "body": b""})
        return True

    def _known(self, headers: dict[str, str]) -> bool:
        for part in headers.get("cookie", "").split(";"):
            name, _, value = part.strip().partition("=")
            if name == self.cookie and hmac.compare_digest(value.encode(), self.session.encode()):
                return True
        return False

    def _check_session(self, scope: Any, headers: dict[str, str]) -> None:
        if scope["path"] != "/api/v1/health" and not self._known(headers):
            raise Refused(
                "unauthorized",
                "the server does not know this browser",
                f"open the link of `nnl console` in another tab, then go on here. {self._link}",
            )

    def _check_change(self, scope: Any, headers: dict[str, str]) -> int:
        """Raise unless a request that changes something may; returns how long its body may be."""
        if scope["method"] in ("GET", "HEAD"):
            return JSON_BYTES
        if headers.get("x-nnl") != "1":
            raise Refused("csrf", "the request lacks the header X-NNL: 1")
        if self.read_only and scope["path"] not in _READING:
            raise Refused("read_only", f"this console only shows: {self.why}")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        limit = {"application/json": JSON_BYTES, "application/octet-stream": UPLOAD_BYTES}.get(kind)
        if limit is None and not (scope["method"] == "DELETE" and not kind):
            wanted = "application/json or application/octet-stream"
            raise Refused("media_type", f"the content type is {kind[:80]!r}, wanted {wanted}")
        limit = limit or 0
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > limit:
            raise _too_long(limit)
        return limit


def _name(host: str) -> str:
    """A host without its port."""
    return re.sub(r":\d+$", "", host)


# What is asked with POST and changes nothing.
_READING = frozenset(f"/api/v1/{name}" for name in ("analyze", "code", "arrange", "diff", "export"))


def _too_long(limit: int) -> Refused:
    return Refused("too_large", f"the request is larger than {limit / 2**20:.4g} MiB")


def _limited(receive: Receive, limit: int) -> Receive:
    seen = 0

    async def read() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > limit:
            raise _too_long(limit)
        return message

    return read


async def _refuse(scope: Any, refused: Refused, send: Send, link: str) -> None:
    page = refused.code == "unauthorized" and not scope["path"].startswith("/api/")
    body = _NO_COOKIE.format(link).encode() if page else json.dumps(refused.to_json()).encode()
    kind = b"text/html; charset=utf-8" if page else b"application/json"
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
