# SPDX-License-Identifier: Apache-2.0
"""nnl nnb_template: the types of a network's variables as a file to edit."""

from __future__ import annotations

import argparse
from typing import Any

from nnl.cli.errors import UsageError
from nnl.converters.formats import FORMATS, read_model
from nnl.converters.networks.model import NnpModel
from nnl.converters.nnp.content import expanded, with_executor


def add_commands(commands: Any) -> None:
    """Register the command."""
    p = commands.add_parser(
        "nnb_template",
        description="Writes the type of every variable that the .nnb file of a network has. Edit "
        "the types, then: nnl convert -s OUTPUT FILE... net.nnb",
    )
    p.add_argument("files", nargs="+", metavar="FILE... OUTPUT")
    p.add_argument("-b", "--batch-size", type=int, default=1, metavar="N", help="(default: 1)")
    p.add_argument(
        "-T",
        "--default-variable-type",
        default="FLOAT32",
        metavar="TYPE",
        help="FLOAT32, FIXED16_N or FIXED8_N with N bits after the point (default: FLOAT32)",
    )
    p.add_argument(
        "-I",
        "--import-format",
        choices=sorted(FORMATS),
        metavar="FORMAT",
        help=f"format of the files: {', '.join(sorted(FORMATS))}",
    )
    p.add_argument("-E", "--nnp-import-executor-index", type=int, metavar="I", help="of executor I")
    for flag in ("--nnp-no-expand-network", "--nnp-exclude-preprocess"):  # without effect here
        p.add_argument(flag, action="store_true", help=argparse.SUPPRESS)
    p.add_argument("--api", type=int, metavar="LEVEL", help="of the runtime (default: 44)")
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the file."""
    from nnl.converters.nnb.types import write_settings
    from nnl.converters.nnb.writer import types_of

    *files, output = args.files
    if not files:
        raise UsageError(f"wanted FILE... OUTPUT, got only {output}")
    if args.batch_size < 1:
        raise UsageError(f"-b is {args.batch_size}, wanted at least 1")
    model, _ = read_model(files, args.import_format)
    if args.nnp_import_executor_index is not None:
        content = expanded(model.content())
        model = NnpModel(with_executor(content, args.nnp_import_executor_index))
    network = model.network(args.batch_size, inference=True)
    types = types_of(network, args.api, args.default_variable_type)
    write_settings(output, types)
    print(f"{output}: {len(types)} variables")
    return 0
