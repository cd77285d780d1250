# SPDX-License-Identifier: Apache-2.0
"""nnl serve: a language model behind OpenAI's HTTP interface."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path
from typing import Any

from nnl.cli.console import check_installed
from nnl.cli.errors import UsageError

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
    p.add_argument("model", metavar="FOLDER", help="a folder of Hugging Face's libraries")
    p.add_argument("--host", default="127.0.0.1", help="where to listen (default: %(default)s)")
    p.add_argument("--port", type=int, default=8000, metavar="N", help="(default: %(default)s)")
    p.add_argument("--name", help="what clients call the model (default: the folder's name)")
    p.add_argument(
        "--batch", type=int, default=16, metavar="N", help="texts at once (default: %(default)s)"
    )
    p.add_argument(
        "--waiting", type=int, default=64, metavar="N",
        help="texts that may wait for a place (default: %(default)s)",
    )  # fmt: skip
    p.add_argument(
        "--capacity", type=int, default=0, metavar="N",
        help="tokens of a text, prompt and answer (default: 4096, or all that the model has)",
    )  # fmt: skip
    p.set_defaults(run=serve)


def serve(args: argparse.Namespace) -> int:
    """Run the server until it is interrupted."""
    check_installed(*NEEDED, extra="serve")
    for name, least in (("batch", 1), ("waiting", 0), ("capacity", 0), ("port", 1)):
        if getattr(args, name) < least:
            raise UsageError(f"--{name} is {getattr(args, name)}, wanted at least {least}")
    import uvicorn

    from nnl.models import from_huggingface
    from nnl.models.generation.cached import Cached
    from nnl.serving.metrics import Metrics
    from nnl.serving.openai import Limits, Server, application
    from nnl.serving.scheduler import Scheduler

    model = from_huggingface(args.model)
    metrics, scheduler = Metrics(), None
    if model.family.kind == "text":
        longest = model.config.longest
        rows = Cached(model, model.config, args.batch, min(args.capacity or 4096, longest))
        scheduler = Scheduler(rows, model.writer.ends, args.waiting, metrics.count)
    name = args.name or Path(args.model).resolve().name
    server = Server(name, model, scheduler, metrics, Limits(os.environ.get(KEY, "")))
    if args.host not in ("127.0.0.1", "localhost", "::1") and not server.limits.key:
        logger.warning("%s is reached by others, and no key is set: see %s", args.host, KEY)
    print(f"http://{args.host}:{args.port}/v1 serves {name}", file=sys.stderr)
    uvicorn.run(application(server), host=args.host, port=args.port, log_level="warning")
    return 0
