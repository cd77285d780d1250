# SPDX-License-Identifier: Apache-2.0
"""nnl serve: a language model behind OpenAI's HTTP interface."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nnl.cli.errors import UsageError, check_installed

logger = logging.getLogger("nnl")
NEEDED = ("starlette", "uvicorn", "prometheus_client", "tokenizers", "jinja2")
KEY = "NNL_API_KEY"


def add_commands(commands: Any) -> None:
    """Register the command."""
    p = commands.add_parser(
        "serve",
        description="Answers requests for texts and vectors of a model, as OpenAI's interface has "
        f"them. The environment variable {KEY} is the key that clients must give; without it "
        "everybody who reaches the address may ask.",
    )
    p.add_argument(
        "model", metavar="MODEL",
        help="a folder of Hugging Face's libraries, a .gguf, or a .nnlp of Pretrained.save_program",
    )  # fmt: skip
    p.add_argument("--adapter", metavar="FOLDER", help="a folder of peft, for the model")
    p.add_argument("--host", default="127.0.0.1", help="where to listen (default: %(default)s)")
    p.add_argument(
        "--port", type=int, default=8000, metavar="N", help="0 for a free one (default: 8000)"
    )
    p.add_argument("--name", help="what clients call the model (default: that of the file)")
    p.add_argument(
        "--batch", type=int, metavar="N", help="texts at once (default: 16; a .nnlp says its own)"
    )
    p.add_argument(
        "--waiting", type=int, default=64, metavar="N",
        help="texts that may wait for a place (default: %(default)s)",
    )  # fmt: skip
    p.add_argument(
        "--capacity", type=int, metavar="N",
        help="tokens of a text, prompt and answer (default: 4096, or all that the model has; a "
        ".nnlp says its own)",
    )  # fmt: skip
    p.add_argument(
        "--until-eof", action="store_true",
        help="end when standard input does: with the program that has started it",
    )  # fmt: skip
    p.set_defaults(run=serve)


def serve(args: argparse.Namespace) -> int:
    """Run the server until it is interrupted."""
    check_installed(*NEEDED, extra="serve")
    for name, least in (("batch", 1), ("waiting", 0), ("capacity", 0), ("port", 0)):
        given = getattr(args, name)
        if given is not None and given < least:
            raise UsageError(f"--{name} is {given}, wanted at least {least}")
    if args.until_eof:
        threading.Thread(target=_until_eof, daemon=True).start()
    import uvicorn

    from nnl.serving.metrics import Metrics
    from nnl.serving.openai import Limits, Server, application
    from nnl.serving.scheduler import Scheduler

    model, rows, ends = opened(args.model, args.batch, args.capacity, args.adapter)
    metrics = Metrics()
    scheduler = rows and Scheduler(rows, ends, args.waiting, metrics.count)
    path = Path(args.model).resolve()
    name = args.name or (path.name if path.is_dir() else path.stem)
    server = Server(name, model, scheduler, metrics, Limits(os.environ.get(KEY, "")))
    if args.host not in ("127.0.0.1", "localhost", "::1") and not server.limits.key:
        logger.warning("%s is reached by others, and no key is set: see %s", args.host, KEY)
    family = socket.AF_INET6 if ":" in args.host else socket.AF_INET
    with socket.create_server((args.host, args.port), family=family) as listening:
        port = listening.getsockname()[1]
        host = f"[{args.host}]" if ":" in args.host else args.host
        print(f"http://{host}:{port}/v1 serves {name}", file=sys.stderr, flush=True)
        config = uvicorn.Config(application(server), log_level="warning")
        uvicorn.Server(config).run(sockets=[listening])
    return 0


def _until_eof() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def opened(
    path: str, batch: int | None, capacity: int | None, adapter: str | None = None
) -> tuple[Any, Any, Sequence[int]]:
    """(a model, what its scheduler writes with, or None for one that does not write, its ends)."""
    kind = Path(path).suffix.lower()
    if kind == ".nnlp":
        from nnl.serving.program import ProgramRows

        for name, given in (("batch", batch), ("capacity", capacity)):
            if given is not None:
                raise UsageError(f"--{name} is what save_program was told: a .nnlp has its own")
        if adapter is not None:
            raise UsageError("--adapter is for a folder or a .gguf: a .nnlp is saved with adapters")
        rows = ProgramRows(path)
        return rows, rows, rows.text.ends
    from nnl.models import from_gguf, from_huggingface
    from nnl.models.generation.cached import Cached

    model = from_gguf(path) if kind == ".gguf" else from_huggingface(path)
    if adapter is not None:
        model.load_adapter(adapter)
    if model.family.kind != "text":
        return model, None, ()
    most = min(capacity or 4096, model.config.longest)
    return model, Cached(model, model.config, batch or 16, most), model.writer.ends
