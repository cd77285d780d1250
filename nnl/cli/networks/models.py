# SPDX-License-Identifier: Apache-2.0
"""nnl models: the networks for ImageNet that nnl.models.build knows."""

from __future__ import annotations

import argparse
import json
from collections import OrderedDict
from typing import Any

import nnl as nn
from nnl.cli.errors import UsageError
from nnl.cli.networks.view import table
from nnl.core.graph.node import capture
from nnl.core.parameters.parameter import without_values
from nnl.graph.program.costs import multiply_adds
from nnl.models import NETWORKS, build


def add_commands(commands: Any) -> None:
    """Register the command."""
    p = commands.add_parser(
        "models",
        description="The names that nnl.models.build takes. Parameters are for 1,000 classes, "
        "multiply-adds for one image of the size shown.",
    )
    p.add_argument("names", nargs="*", metavar="NAME", help="only these (all)")
    p.add_argument("--size", type=int, metavar="N", help="height and width (the published ones)")
    p.add_argument("--json", action="store_true", help="as JSON")
    p.set_defaults(run=models)


def models(args: argparse.Namespace) -> int:
    """Print the table."""
    if args.size is not None and args.size < 32:
        raise UsageError(f"--size is {args.size}, wanted at least 32")
    rows = [count(name, args.size) for name in args.names or NETWORKS]
    if args.json:
        print(json.dumps(rows, indent=1))
        return 0
    titles = ("network", "size", "parameters", "multiply-adds")
    text = [tuple(str(v) if i < 2 else f"{v:,}" for i, v in enumerate(r.values())) for r in rows]
    print("\n".join(table([titles, *text], 1)))
    return 0


def count(name: str, size: int | None = None) -> dict[str, Any]:
    """Parameters of a network, and multiply-adds for one image, by building it."""
    if name not in NETWORKS:
        raise ValueError(f"there is no network {name!r}, wanted one of {', '.join(NETWORKS)}")
    size = NETWORKS[name].size if size is None else size
    with nn.parameter_scope("", OrderedDict()), without_values():
        y = build(name, nn.Variable((1, 3, size, size)), test=True)
        parameters = sum(v.size for v in nn.get_parameters().values())
    products = sum(multiply_adds(node) for node in capture([y.edge]))
    return {"name": name, "size": size, "parameters": parameters, "multiply_adds": products}
