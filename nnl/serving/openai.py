# SPDX-License-Identifier: Apache-2.0
"""OpenAI's HTTP interface to a language model: completions, chat, embeddings, models.

Source: https://github.com/openai/openai-openapi
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from nnl.models.generation.sampling import generators
from nnl.models.generation.speaking import Said
from nnl.serving.metrics import Metrics
from nnl.serving.requests import MOST_CHOICES, Body, Refused
from nnl.serving.scheduler import Job, Scheduler, _Busy

logger = logging.getLogger("nnl")
Handler = Callable[["Server", Request, Body], Awaitable[Response]]
MOST_ATTENDED = 512  # tokens, for the weights of all heads are there at once


@dataclass(frozen=True)
class Limits:
    """What a client may ask for.

    Attributes:
        key: What `Authorization: Bearer` must say; "" lets everybody in.
        body: Bytes of a request.
        most: Tokens of an answer, where the request does not say it.
    """

    key: str = ""
    body: int = 4 << 20
    most: int = 512


class Server:
    """A model and what serves it.

    Args:
        name: What clients call the model.
        model: Has text.encode, text.decode and text.conversation, and may have vectors.
        scheduler: What writes; None for a model of vectors.
    """

    def __init__(
        self,
        name: str,
        model: Any,
        scheduler: Scheduler | None,
        metrics: Metrics,
        limits: Limits = Limits(),  # noqa: B008  # is frozen
    ) -> None:
        self.name, self.model, self.scheduler, self.metrics = name, model, scheduler, metrics
        self.limits, self.since = limits, int(time.time())
        self.vectors = asyncio.Lock()  # one at a time

    def check(self, body: Body) -> None:
        """Refuse another model than the one that is here."""
        asked = body.of("model", str, self.name, "a name")
        if asked != self.name:
            raise Refused(
                f"there is no model {asked[:80]!r}, only {self.name!r}", "model", 404,
                code="model_not_found",
            )  # fmt: skip

    def abilities(self) -> dict[str, bool]:
        """What may be asked for besides, of which OpenAI says nothing."""
        try:
            has_template = bool(self.model.text.template())
        except ValueError:
            has_template = False
        writes = self.scheduler is not None
        return {
            "completions": writes,
            "chat": writes and has_template,
            "attention": hasattr(self.model, "attention"),
        }

    def jobs(self, body: Body, prompts: Sequence[list[int]], tell: Any) -> list[Job]:
        """A job for each choice of each prompt."""
        if self.scheduler is None:
            raise Refused(f"the model {self.name!r} does not write", "model")
        n = body.integer("n", 1, 1, MOST_CHOICES)
        name = "max_completion_tokens" if "max_completion_tokens" in body.fields else "max_tokens"
        most = body.integer(name, self.limits.most, 1, self.scheduler.rows.capacity)
        how, stops = body.sampling(), body.stops()
        seed = body.integer("seed", None, 0, 2**63)
        streams = generators(seed, n * len(prompts))
        return [
            Job(prompt, most, how, streams[i], Said(self.model.text.decode, stops), _told(tell, i))
            for i, prompt in enumerate(p for p in prompts for _ in range(n))
        ]

    def tokens(self, prompt: str | list[int], special: bool = True) -> list[int]:
        """The tokens of a prompt, which may be given as such."""
        found = prompt
        if isinstance(prompt, str):
            found = self.model.text.encode(prompt, special=special)
        size = self.model.config.vocabulary
        for token in found:
            if not 0 <= int(token) < size:
                raise Refused(f"prompt has the token {token}, wanted 0 to {size - 1}", "prompt")
        return list(map(int, found))


def _told(tell: Any, index: int) -> Callable[[str, str | None], None]:
    return lambda piece, end: tell(index, piece, end)


class Writing:
    """The jobs of a request, as their pieces come into its event loop."""

    def __init__(self, server: Server, request: Request, body: Body, prompts: Any) -> None:
        self.loop = asyncio.get_running_loop()
        self.pieces: asyncio.Queue[tuple[int, str, str | None]] = asyncio.Queue()
        self.server, self.request = server, request
        self.jobs = server.jobs(body, prompts, self.tell)
        assert server.scheduler is not None
        self.scheduler = server.scheduler
        try:
            self.scheduler.submit(self.jobs)
        except _Busy as e:
            raise Refused(str(e), None, 429, "rate_limit_error", "queue_full") from None
        except ValueError as e:
            raise Refused(str(e), "prompt", code="context_length_exceeded") from None

    def tell(self, index: int, piece: str, end: str | None) -> None:
        """Called by the scheduler."""
        with suppress(RuntimeError):  # the loop is closed, nobody waits
            self.loop.call_soon_threadsafe(self.pieces.put_nowait, (index, piece, end))

    async def each(self) -> AsyncIterator[tuple[int, str, str | None]]:
        """(choice, piece, why it ended) until all have; ends all jobs where nobody listens more."""
        left = len(self.jobs)
        try:
            while left:
                index, piece, end = await self.pieces.get()
                if end is not None and end.startswith("error"):
                    raise Refused(end.removeprefix("error: "), None, 500, "server_error")
                left -= end is not None
                yield index, piece, end
        finally:
            self.scheduler.cancel(self.jobs)

    async def whole(self) -> list[tuple[str, str]]:
        """Text and reason of all choices; cancelled when the client leaves."""
        texts, ends = [""] * len(self.jobs), [""] * len(self.jobs)

        async def collect() -> None:
            async for index, piece, end in self.each():
                texts[index] += piece
                ends[index] = end or ""

        async def left() -> None:
            while (await self.request.receive())["type"] != "http.disconnect":
                pass

        work, gone = asyncio.ensure_future(collect()), asyncio.ensure_future(left())
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not work.done():
                work.cancel()
        if not work.done() or work.cancelled():
            raise Refused("the client has left", None, 499, "client_closed")
        work.result()
        return list(zip(texts, ends, strict=True))

    def usage(self) -> dict[str, int]:
        """Tokens of prompts and answers."""
        n = len(self.jobs) // max(1, len({id(j.prompt) for j in self.jobs}))
        read = sum(len(j.prompt) for j in self.jobs[::n])
        written = sum(len(j.said.tokens) for j in self.jobs)
        total = read + written
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": total}


async def completions(server: Server, request: Request, body: Body) -> Response:
    """POST /v1/completions."""
    if "prompt" not in body.fields:
        raise Refused("prompt is missing", "prompt")
    prompts = [server.tokens(p) for p in body.prompts()]
    form = {"id": f"cmpl-{uuid.uuid4().hex}", "object": "text_completion"}

    def choice(index: int, text: str, end: str | None, first: bool, whole: bool) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": end}

    return await _written(server, request, body, prompts, form, choice)


async def chat(server: Server, request: Request, body: Body) -> Response:
    """POST /v1/chat/completions."""
    prompts = [server.tokens(_conversation(server, body), special=False)]
    form = {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": "chat.completion"}
    if body.flag("stream"):
        form["object"] += ".chunk"

    def choice(index: int, text: str, end: str | None, first: bool, whole: bool) -> dict[str, Any]:
        said: dict[str, Any] = {"role": "assistant"} if first or whole else {}
        if text or whole:
            said["content"] = text
        key = "message" if whole else "delta"
        return {"index": index, key: said, "logprobs": None, "finish_reason": end}

    return await _written(server, request, body, prompts, form, choice)


async def _written(
    server: Server, request: Request, body: Body, prompts: list[list[int]],
    form: dict[str, Any], choice: Callable[..., dict[str, Any]],
) -> Response:  # fmt: skip
    form |= {"created": int(time.time()), "model": server.name}
    options = body.of("stream_options", dict, {}, "an object")
    if not body.flag("stream"):
        writing = Writing(server, request, body, prompts)
        found = await writing.whole()
        choices = [choice(i, text, end, True, True) for i, (text, end) in enumerate(found)]
        return JSONResponse({**form, "choices": choices, "usage": writing.usage()})
    writing = Writing(server, request, body, prompts)

    async def events() -> AsyncIterator[str]:
        begun: set[int] = set()
        try:
            async for index, piece, end in writing.each():
                event = choice(index, piece, end, index not in begun, False)
                begun.add(index)
                yield _event({**form, "choices": [event]})
            if options.get("include_usage"):
                yield _event({**form, "choices": [], "usage": writing.usage()})
        except Refused as e:
            yield _event(e.to_json())
        yield "data: [DONE]\n\n"

    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(events(), media_type="text/event-stream", headers=headers)


def _event(value: Any) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


async def embeddings(server: Server, request: Request, body: Body) -> Response:
    """POST /v1/embeddings."""
    if "input" not in body.fields or "prompt" in body.fields:
        raise Refused("input is missing", "input")
    form = body.of("encoding_format", str, "float", "float or base64")
    if form not in ("float", "base64"):
        raise Refused(
            f"encoding_format is {form[:40]!r}, wanted float or base64", "encoding_format"
        )
    if "dimensions" in body.fields:
        raise Refused("dimensions is not supported", "dimensions", code="unsupported_parameter")
    tokens = [server.tokens(p) for p in body.prompts()]
    try:
        async with server.vectors:
            found = await run_in_threadpool(server.model.vectors, tokens)
    except ValueError as e:
        raise Refused(str(e), "input") from None
    count = sum(map(len, tokens))
    data = [
        {"object": "embedding", "index": i, "embedding": _number_list(v, form)}
        for i, v in enumerate(found)
    ]
    usage = {"prompt_tokens": count, "total_tokens": count}
    return JSONResponse({"object": "list", "data": data, "model": server.name, "usage": usage})


async def attention(server: Server, request: Request, body: Body) -> Response:
    """POST /v1/attention, which OpenAI has not: where the tokens of a text look.

    The request has `prompt` or `messages`, and `layer` and `head`, from 0 on. The answer has
    tokens, the text of each; layers and heads, how many there are; and weights (T, T), of which row
    i says how much the i-th token takes from each.
    """
    if not hasattr(server.model, "attention"):
        raise Refused(
            f"the model {server.name!r} keeps no weights of attention: programs have none; serve "
            "the folder that they were made from"
        )
    if "messages" in body.fields:
        text = _conversation(server, body, answer=False)
        tokens = server.tokens(text, special=False)
    else:
        tokens = server.tokens(body.of("prompt", str, "", "a text"))
    if len(tokens) > MOST_ATTENDED:
        raise Refused(f"the text has {len(tokens)} tokens, wanted up to {MOST_ATTENDED}", "prompt")
    try:
        async with server.vectors:
            _, weights = await run_in_threadpool(server.model.attention, tokens)
    except ValueError as e:
        raise Refused(str(e), "prompt") from None
    layers, heads = weights.shape[:2]
    layer, head = body.integer("layer", 0, 0, layers - 1), body.integer("head", 0, 0, heads - 1)
    return JSONResponse({
        "object": "attention", "model": server.name, "tokens": server.model.text.pieces(tokens),
        "layers": layers, "heads": heads, "layer": layer, "head": head,
        "weights": weights[layer, head].astype(np.float64).round(4).tolist(),
    })  # fmt: skip


def _conversation(server: Server, body: Body, answer: bool = True) -> str:
    try:
        return str(server.model.text.conversation(body.messages(), answer))
    except ValueError as e:
        raise Refused(str(e), "messages") from None


def _number_list(v: Any, form: str) -> Any:
    v = np.ascontiguousarray(v, "<f4")
    return v.tolist() if form == "float" else base64.b64encode(v.tobytes()).decode()


def application(server: Server) -> Starlette:
    """The routes of a server, which close its scheduler when they end."""

    def post(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            route = request.url.path
            try:
                _authorize(server, request)
                body = Body(await _read(request, server.limits.body))
                server.check(body)
                response = await handler(server, request, body)
            except Refused as e:
                response = JSONResponse(e.to_json(), e.status)
                if e.status == 429:
                    response.headers["Retry-After"] = "1"
            except Exception as e:
                logger.error("%s %s", request.method, route, exc_info=e)
                refused = Refused("the server failed; its log says more", None, 500, "server_error")
                response = JSONResponse(refused.to_json(), 500)
            server.metrics.requests.labels(route=route, status=response.status_code).inc()
            return response

        return answer

    async def models(request: Request) -> Response:
        try:
            _authorize(server, request)
        except Refused as e:
            return JSONResponse(e.to_json(), e.status)
        own = {
            "id": server.name, "object": "model", "created": server.since, "owned_by": "nnl",
            **server.abilities(),
        }  # fmt: skip
        asked = request.path_params.get("name")
        if asked is None:
            return JSONResponse({"object": "list", "data": [own]})
        if asked == server.name:
            return JSONResponse(own)
        e = Refused(f"there is no model {asked[:80]!r}", "model", 404, code="model_not_found")
        return JSONResponse(e.to_json(), 404)

    async def health(request: Request) -> Response:
        running, waiting = server.scheduler.load if server.scheduler else (0, 0)
        return JSONResponse({"status": "ok", "running": running, "waiting": waiting})

    async def metrics(request: Request) -> Response:
        load = server.scheduler.load if server.scheduler else (0, 0)
        content, kind = server.metrics.text(load)
        return Response(content, headers={"Content-Type": kind})

    @asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        yield
        if server.scheduler is not None:
            await run_in_threadpool(server.scheduler.close)

    def missing(request: Request, error: Exception) -> Response:
        status = getattr(error, "status_code", 404)
        text = f"there is no {request.method} {request.url.path[:100]}"
        return JSONResponse(Refused(text, None, status).to_json(), status)

    return Starlette(
        routes=[
            Route("/v1/completions", post(completions), methods=["POST"]),
            Route("/v1/chat/completions", post(chat), methods=["POST"]),
            Route("/v1/embeddings", post(embeddings), methods=["POST"]),
            Route("/v1/attention", post(attention), methods=["POST"]),
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", models),
            Route("/health", health),
            Route("/metrics", metrics),
        ],
        exception_handlers={404: missing, 405: missing},
        lifespan=life,
    )


def _authorize(server: Server, request: Request) -> None:
    if not server.limits.key:
        return
    given = request.headers.get("authorization", "").encode("utf-8", "replace")
    if not hmac.compare_digest(given, b"Bearer " + server.limits.key.encode()):
        raise Refused(
            "the API key is missing or wrong", None, 401, "authentication_error", "invalid_api_key"
        )


async def _read(request: Request, most: int) -> bytes:
    """The body, as long as it is not too large."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise Refused(f"the body has more than {most} bytes", None, 413)
        parts.append(part)
    return b"".join(parts)
