# SPDX-License-Identifier: Apache-2.0
"""nnl dump and function_info: what is in a file."""

from __future__ import annotations

import argparse
import fnmatch
import json
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

from nnl.cli.errors import UsageError
from nnl.cli.networks.convert import allowed_functions
from nnl.cli.networks.view import shape_text
from nnl.converters.formats import FORMATS, Format, format_of, is_programs, read_model
from nnl.converters.networks.model import NnpModel
from nnl.converters.nnp.archive import Content
from nnl.converters.nnp.content import expanded, functions_of, network_of, with_executor
from nnl.converters.nnp.function_messages import op_of_type
from nnl.core.graph.node import capture
from nnl.core.parameters.atomic import replacing
from nnl.graph import load_program


def add_commands(commands: Any) -> None:
    """Register the commands."""
    p = commands.add_parser("dump")
    p.add_argument("files", nargs="+", metavar="FILE")
    p.add_argument(
        "-I",
        "--import-format",
        choices=sorted(FORMATS),
        metavar="FORMAT",
        help=f"format of the files: {', '.join(sorted(FORMATS))}",
    )
    p.add_argument("--nnp-exclude-preprocess", action="store_true", help=argparse.SUPPRESS)
    p.add_argument("-F", "--dump-functions", action="store_true", help="list the functions")
    p.add_argument(
        "-V", "--dump-variables", action="store_true", help="with -F: shapes of their variables"
    )
    p.add_argument("-n", "--dump-variable-name", metavar="NAME", help="shape of one variable")
    p.add_argument(
        "-E", "--nnp-import-executor-index", type=int, metavar="I", help="only executor I"
    )
    p.add_argument("-v", "--dump-verbose", action="store_true", help="the messages as text")
    p.add_argument(
        "--dump-limit", type=int, default=-1, metavar="N", help="lines of a network with -v"
    )
    p.add_argument("--nnp-no-expand-network", action="store_true", help="keep loops")
    p.add_argument("--json", action="store_true", help="as JSON")
    p.set_defaults(run=dump)

    p = commands.add_parser("function_info")
    p.add_argument("files", nargs="*", metavar="FILE")
    p.add_argument(
        "-f",
        "--all_support",
        "--export-format",
        dest="export_format",
        choices=sorted(FORMATS),
        metavar="FORMAT",
        help=f"split by support of this format: {', '.join(sorted(FORMATS))}",
    )
    p.add_argument(
        "-c", "--config", metavar="LIST", help="split by this list of functions, one per line"
    )
    p.add_argument("--nnp-no-expand-network", action="store_true", help="keep loops")
    p.add_argument(
        "--api",
        type=int,
        metavar="LEVEL",
        help="API level of NNB's runtime; without -f: list the forms of functions in it, or "
        "with -1 the newest level",
    )
    p.add_argument("-x", "--exclude", action="append", default=[], metavar="NAME", help="leave out")
    p.add_argument("-q", "--query", metavar="NAME", help="only this function; * stands for all")
    p.add_argument(
        "-t",
        "--target",
        action="store_true",
        help="with -f and FILE: what it becomes in that format",
    )
    p.add_argument("-o", "--output", metavar="FILE", help="write the list there")
    p.add_argument("--json", action="store_true", help="as JSON")
    p.set_defaults(run=function_info)


# ---- dump ----


def dump(args: argparse.Namespace) -> int:
    """Everything in a file by name."""
    model, source = read_model(args.files, args.import_format)
    try:
        content = model.content()
    except NotImplementedError as error:
        if source.name == "NNP":
            raise
        raise NotImplementedError(f"{error}. `nnl view` shows the network") from error
    if not args.nnp_no_expand_network:
        content = expanded(content)
    if args.nnp_import_executor_index is not None:
        content = with_executor(content, args.nnp_import_executor_index)
    if args.dump_variable_name is not None:
        return _dump_variable(content, args)
    if args.dump_verbose:
        lines = str(content.proto).splitlines()
        cut = len(lines) if args.dump_limit < 0 else args.dump_limit
        print("\n".join(lines[:cut] + (["..."] if cut < len(lines) else [])))
        return 0
    found = {
        "networks": [_network(content, n, args) for n in content.proto.network],
        "executors": [_user(content, e, "output_variable") for e in content.proto.executor],
        "optimizers": [
            {**_user(content, o, "loss_variable"), "solver": o.solver.type}
            for o in content.proto.optimizer
        ],
        "monitors": [_user(content, m, "monitor_variable") for m in content.proto.monitor],
        "datasets": [
            {"name": d.name, "uri": d.uri, "variables": list(d.variable), "batch": d.batch_size}
            for d in content.proto.dataset
        ],
        "parameters": {p.name: list(p.value.shape) for p in content.stored},
    }
    if args.json:
        print(json.dumps(found, indent=1))
    else:
        _print_tree(found, 0)
    return 0


def _dump_variable(content: Content, args: argparse.Namespace) -> int:
    shapes = {v.name: list(v.shape.dim) for n in content.proto.network for v in n.variable}
    shapes.update({p.name: list(p.value.shape) for p in content.stored})
    name = args.dump_variable_name
    if name not in shapes:
        raise ValueError(f"{content.where}: there is no variable {name!r}")
    print(json.dumps({name: shapes[name]}) if args.json else f"{name}: {shape_text(shapes[name])}")
    return 0


def _network(content: Content, message: Any, args: argparse.Namespace) -> dict[str, Any]:
    shapes = {v.name: list(v.shape.dim) for v in message.variable}
    found: dict[str, Any] = {
        "name": message.name,
        "batch_size": message.batch_size,
        "functions": len(message.function),
        "variables": len(message.variable),
    }
    if args.dump_functions:
        functions = functions_of(content, message) if not message.repeat_info else message.function
        found["functions"] = [
            {"name": f.name, "type": f.type}
            | (
                {
                    "inputs": {n: shapes.get(n) for n in f.input},
                    "outputs": {n: shapes.get(n) for n in f.output},
                }
                if args.dump_variables
                else {}
            )
            for f in functions
        ]
    return found


def _user(content: Content, message: Any, ends: str) -> dict[str, Any]:
    network = network_of(content, message.network_name)
    shapes = {v.name: list(v.shape.dim) for v in network.variable}
    kind = {"output_variable": "outputs", "loss_variable": "losses"}.get(ends, "watched")
    return {
        "name": message.name,
        "network": message.network_name,
        "inputs": {v.variable_name: shapes.get(v.variable_name) for v in message.data_variable},
        kind: {v.variable_name: shapes.get(v.variable_name) for v in getattr(message, ends)},
    }


def _print_tree(value: Any, depth: int) -> None:
    pad = "  " * depth
    if isinstance(value, dict):
        for key, entry in value.items():
            if isinstance(entry, (dict, list)) and entry and not _is_shape(entry):
                print(f"{pad}{key}:")
                _print_tree(entry, depth + 1)
            elif entry not in ({}, [], None) or isinstance(entry, int):
                print(f"{pad}{key}: {shape_text(entry) if _is_shape(entry) else entry}")
    else:
        for entry in value:
            if isinstance(entry, dict) and "name" in entry:
                rest = {k: v for k, v in entry.items() if k != "name"}
                print(f"{pad}- {entry['name']}")
                _print_tree(rest, depth + 1)
            else:
                print(f"{pad}- {entry}")


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(n, int) for n in value)


# ---- function_info ----


def function_info(args: argparse.Namespace) -> int:
    """List functions, sorted; with a file and -f, exit code 1 if some are not supported."""
    if args.target and (args.export_format is None or not args.files):
        raise UsageError("-t needs -f FORMAT and FILE: operators depend on a function's arguments")
    if args.api is not None and args.export_format is None:
        return _levels(args)
    if args.api is not None and args.export_format != "NNB":
        raise UsageError("the option --api needs -f NNB: other formats have no API levels")
    if args.files and is_programs(args.files[0]) and (args.export_format or args.config):
        raise ValueError(f"{args.files[0]}: -f and -c are about functions, a program has steps")
    counts = _functions(args.files, not args.nnp_no_expand_network)
    names = sorted(n for n in counts if n not in args.exclude)
    if args.query is not None:
        names = fnmatch.filter(names, args.query)
        if not names:
            raise ValueError(f"there is no function {args.query!r}")
    known: set[str] | None = None
    problems: list[str] = []
    if args.export_format is not None:
        target = _target(args)
        if target.target is not None and args.files:
            problems = target.refused(read_model(args.files)[0])
        if problems or target.target is None or not args.files:
            known = target.known()
    if args.config is not None:
        known = set(names if known is None else known) & allowed_functions(args.config)
    supported = [n for n in names if known is None or n in known]
    missing = problems or [n for n in names if n not in supported]
    if args.json:
        text = json.dumps({"functions": supported, "unsupported": missing}, indent=1)
    else:
        text = "\n".join(supported)
        if args.target and not missing:
            text = "\n".join(target.parts(read_model(args.files)[0]) or supported)
        if missing and args.files:
            title = f"not supported by {args.config or args.export_format}:"
            text = "\n".join([*supported, "", title, *missing])
    _write(text, args.output)
    return 1 if missing and args.files else 0


def _levels(args: argparse.Namespace) -> int:
    """An API level of NNB's runtime, and the form that every function has in it."""
    from nnl.converters.nnb.table import FUNCTIONS, LEVEL, check_level, variant

    level = LEVEL if args.api == -1 else check_level(args.api)
    forms = [v for name in sorted(FUNCTIONS) if (v := variant(name, level))]
    codes = [f"{v.function}_{''.join(v.kinds) or 'Empty'}" for v in forms if args.api != -1]
    found = {"api_level": level, "functions": codes}
    text = "\n".join([f"API_LEVEL: {level}", *codes])
    _write(json.dumps(found, indent=1) if args.json else text, args.output)
    return 0


def _write(text: str, output: str | None) -> None:
    if output is None:
        print(text)
        return
    with replacing(output) as temporary:
        temporary.write_text(text + "\n", "utf-8")


def _target(args: argparse.Namespace) -> Format:
    """The format that is asked about, for the API level."""
    found = format_of("", args.export_format, True)
    if args.api is None:
        return found
    from nnl.converters.nnb.target import target

    return replace(found, target=partial(target, args.api))


def _functions(files: list[str], expand: bool) -> Counter[str]:
    """Types of NNabla's functions with their number in the files; all, once, without any."""
    if not files:
        return Counter(op_of_type())
    if is_programs(files[0]):
        programs = load_program(files[0])
        return Counter(op for name in programs for op, _, _ in programs.costs(name))
    model, _ = read_model(files)
    if not isinstance(model, NnpModel):
        nodes = capture([v.edge for v in model.network().outputs.values()])
        return Counter(n.op.nnp or n.op.name for n in nodes)
    content = expanded(model.content()) if expand else model.content()
    return Counter(f.type for n in content.proto.network for f in n.function)
