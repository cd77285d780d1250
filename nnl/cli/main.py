# SPDX-License-Identifier: Apache-2.0
"""nnl: convert, look into and run networks from the command line."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence

from nnl.cli import (
    completion,
    console,
    convert,
    cpp,
    inspect,
    launch,
    models,
    run,
    template,
    view,
)
from nnl.logger import logger

MODULES = (convert, template, view, inspect, models, run, launch, cpp, console, completion)
EPILOG = "Results go to stdout, messages to stderr. The exit code is 0 only if all was done."


def parser(convert: str = "nnl convert") -> argparse.ArgumentParser:
    """The parser of `nnl` with all its commands; `convert` is what it calls that one."""
    top = argparse.ArgumentParser(prog="nnl", description=__doc__, epilog=EPILOG)
    top.add_argument("-q", "--quiet", action="store_true", help="no messages but errors")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in MODULES:
        module.add_commands(commands)
    commands.choices["convert"].prog = convert
    version = commands.add_parser("version", help="print the version")
    version.set_defaults(run=_version)
    return top


def _version(args: argparse.Namespace) -> int:
    import nnl

    print(nnl.__version__)
    return 0


def main(argv: Sequence[str] | None = None, convert: str = "nnl convert") -> int:
    """Entry point of `nnl`; returns the exit code: 0 done, 1 failed, 2 wrong usage."""
    args = parser(convert).parse_args(argv)
    name = convert if args.command == "convert" else f"nnl {args.command}"
    if args.quiet:
        logger.setLevel(logging.ERROR)
    try:
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # the reader of our output has had enough; Python would complain once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, TypeError, NotImplementedError, OSError, ModuleNotFoundError) as error:
        print(f"{name}: error: {error}", file=sys.stderr)
        return 1
    except (MemoryError, RuntimeError) as error:  # of Python, or of oneDNN
        what = "there is not enough memory" if isinstance(error, MemoryError) else "failed"
        print(f"{name}: error: {_files(args)}{what}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return 130


def _files(args: argparse.Namespace) -> str:
    """The files that a command was given, for messages."""
    given = next((v for k in ("files", "file", "config") if (v := getattr(args, k, None))), [])
    return "".join(f"{name}: " for name in (given if isinstance(given, list) else [given])[:1])


def convert_main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `nnl-convert`, which is `nnl convert`."""
    return main(["convert", *(sys.argv[1:] if argv is None else argv)], "nnl-convert")


def launch_main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `python -m nnl.launch`, which is `nnl launch`."""
    return main(["launch", *(sys.argv[1:] if argv is None else argv)])


if __name__ == "__main__":
    sys.exit(main())
