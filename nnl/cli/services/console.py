# SPDX-License-Identifier: Apache-2.0
"""nnl console: the page that draws, trains, compares and searches networks."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from nnl.cli.errors import UsageError, check_installed

NEEDED = ("fastapi", "uvicorn")


def add_commands(commands: Any) -> None:
    """Register the command."""
    p = commands.add_parser(
        "console",
        description="Starts a server for this machine alone and prints its address. DIR keeps "
        "projects, data sets and trials.",
    )
    p.add_argument("folder", nargs="?", metavar="DIR", help="(default: .)")
    p.add_argument("--host", default="127.0.0.1", help="where to listen (default: %(default)s)")
    p.add_argument("--port", type=int, default=0, metavar="N", help="(default: a free one)")
    p.add_argument("--allow-remote", action="store_true", help="allow a --host of the network")
    p.add_argument("--read-only", action="store_true", help="show everything, change nothing")
    p.add_argument(
        "--one-time",
        action="store_true",
        help="the link works once, in one browser: for machines that one shares",
    )
    p.add_argument(
        "--url",
        action="store_true",
        help="print the link of the console that runs (of DIR), and start none",
    )
    p.add_argument("--no-browser", action="store_true", help="only print the address")
    p.add_argument(
        "--children", type=int, default=2, metavar="N", help="trainings at once (default: 2)"
    )
    p.add_argument(
        "--sample", metavar="NAME", help="open the project of a sample: digits, resnet152 or empty"
    )
    p.set_defaults(run=console)


def console(args: argparse.Namespace) -> int:
    """Run the server until it is interrupted, or print the link of one that runs."""
    if args.url:
        return links(args.folder)
    check_installed(*NEEDED)
    if not 0 <= args.port < 65536:
        raise UsageError(f"--port is {args.port}, wanted 0 to 65535")
    if args.children < 1:
        raise UsageError(f"--children is {args.children}, wanted at least 1")
    from nnl.console.server.server import serve

    return serve(
        Path(args.folder or "."),
        args.host,
        args.port,
        args.allow_remote,
        args.read_only,
        not args.no_browser,
        args.children,
        args.sample,
        args.one_time,
    )


def links(folder: str | None) -> int:
    """Print the links of the consoles that run, of several each with its folder.

    Raises:
        FileNotFoundError: There is none. ValueError: The link works once, and was printed.
    """
    from nnl.console.server.instances import servers

    found = servers(None if folder is None else Path(folder))
    if not found:
        of = "" if folder is None else f" for {folder}"
        raise FileNotFoundError(
            f"no console of this user runs{of}; try: nnl console {folder or 'DIR'}"
        )
    for server in found:
        link = server.url or "(its link works once, and was printed when it started)"
        if len(found) > 1:
            print(f"{link}  {server.folder}")
        elif server.url is None:
            raise ValueError(
                f"the console of {server.folder} was started with --one-time: its link works once, "
                "and was printed then"
            )
        else:
            print(link)
    return 0
