# SPDX-License-Identifier: Apache-2.0
"""nnl decode_param and encode_param: parameters as text files, and back."""

from __future__ import annotations

import argparse
import math
import os
import re
from collections import OrderedDict
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np


def add_commands(commands: Any) -> None:
    """Register the commands."""
    p = commands.add_parser(
        "decode_param",
        description="Writes every parameter to a text file of its own: the shape, then a number a "
        "line. The name of the parameter is that of the file, with ~ for /.",
    )
    p.add_argument("-p", "--param", required=True, metavar="FILE", help=".h5, .protobuf or .nnp")
    p.add_argument("-o", "--outdir", required=True, metavar="OUTDIR", help="made if missing")
    p.set_defaults(run=decode)

    p = commands.add_parser(
        "encode_param", description="Writes a file of parameters from what decode_param wrote."
    )
    p.add_argument("-i", "--indir", required=True, metavar="INDIR")
    p.add_argument("-p", "--param", required=True, metavar="FILE", help=".h5 or .protobuf")
    p.set_defaults(run=encode)


def decode(args: argparse.Namespace) -> int:
    """One text file for every parameter."""
    import nnl as nn
    from nnl.core.parameters.atomic import replacing

    with nn.parameter_scope("", OrderedDict()):
        nn.load_parameters(args.param)
        values = {k: v.d for k, v in nn.get_parameters(grad_only=False).items()}
    os.makedirs(args.outdir, exist_ok=True)
    for name, value in values.items():
        path = Path(args.outdir) / (quote(name, safe="/ ").replace("/", "~") + ".txt")
        lines = [str(value.shape), *map(repr, value.reshape(-1).tolist())]
        with replacing(path) as file:
            file.write_text("\n".join(lines) + "\n", "utf-8")
    print(f"{args.outdir}: {len(values)} parameters")
    return 0


def encode(args: argparse.Namespace) -> int:
    """One file of all parameters."""
    import nnl as nn
    from nnl.core.parameters.parameter import set_parameter

    folder = Path(args.indir)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    paths = sorted(p for p in folder.iterdir() if p.suffix == ".txt" and p.is_file())
    if not paths:
        raise ValueError(f"{folder} has no .txt files")
    with nn.parameter_scope("", OrderedDict()):
        for path in paths:
            v = nn.Variable.from_numpy_array(_read(path), need_grad=True)
            set_parameter(unquote(path.stem.replace("~", "/")), v)
        nn.save_parameters(args.param)
    print(f"{args.param}: {len(paths)} parameters")
    return 0


def _read(path: Path) -> np.ndarray[Any, Any]:
    first, *lines = path.read_text("utf-8").split("\n")
    if not re.fullmatch(r"\((\d+,)?( ?\d+,?)*\)", first.strip()):
        raise ValueError(f"{path} begins with {first[:40]!r}, wanted a shape such as (3, 4)")
    shape = tuple(int(n) for n in re.findall(r"\d+", first))
    try:
        values = [float(line) for line in lines if line.strip()]
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if len(values) != math.prod(shape):
        raise ValueError(f"{path} has {len(values)} numbers for the shape {shape}")
    return np.array(values, np.float32).reshape(shape)
