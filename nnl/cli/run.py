# SPDX-License-Identifier: Apache-2.0
"""nnl infer and forward: run a network on files of data."""

from __future__ import annotations

import argparse
import csv
import logging
import os
from typing import Any

import numpy as np

from nnl.converters.formats import is_programs, read_model
from nnl.converters.model import Network
from nnl.converters.programs import ProgramNetwork
from nnl.core.atomic import replacing

logger = logging.getLogger("nnl")


def add_commands(commands: Any) -> None:
    """Register the commands."""
    p = commands.add_parser(
        "infer",
        description="INPUT is a .npy, or raw numbers of type -t, one file per input of the "
        "network in its order. Outputs become PREFIX_0.npy ... (or .bin for raw input).",
    )
    p.add_argument("-c", "--config", required=True, metavar="FILE", help="the network")
    p.add_argument("-p", "--param", metavar="FILE", help="parameters (.h5, .protobuf)")
    p.add_argument("-o", "--output", default="output", metavar="PREFIX", help="of the results")
    p.add_argument("-t", "--data_type", default="float32", metavar="DTYPE", help="of raw files")
    p.add_argument(
        "-b",
        "--batch_size",
        type=int,
        metavar="N",
        help="(default: the file's); of programs, which one",
    )
    p.add_argument("inputs", nargs="+", metavar="INPUT")
    p.set_defaults(run=infer)

    p = commands.add_parser(
        "forward",
        description="Runs the first executor over the rows of a CSV data set and writes "
        "OUTDIR/NAME: the columns of the data set, and those of the outputs: one for a number, "
        "OUTPUT__0, OUTPUT__1 ... for a vector, one with names of .npy files for anything else.",
    )
    p.add_argument("-c", "--config", required=True, metavar="FILE", help="the network")
    p.add_argument("-p", "--param", metavar="FILE", help="parameters")
    p.add_argument("-d", "--dataset", required=True, metavar="CSV", help="data set")
    p.add_argument("-o", "--outdir", required=True, metavar="FOLDER", help="made if missing")
    p.add_argument(
        "-f",
        "--outfile",
        default="output_result.csv",
        metavar="NAME",
        help="(default: %(default)s)",
    )
    p.add_argument(
        "--replace_path", action="store_true", help="make names of files in the data set absolute"
    )
    p.add_argument(
        "--result_outdir",
        default="",
        metavar="FOLDER",
        help="where the .npy files go, seen from OUTDIR (default: there)",
    )
    p.add_argument("-b", "--batch_size", type=int, metavar="N", help="(default: the file's)")
    p.set_defaults(run=forward)


def _network(args: argparse.Namespace) -> Network | ProgramNetwork:
    files = [args.config] + ([args.param] if args.param else [])
    if args.batch_size is not None and args.batch_size < 1:
        raise ValueError(f"-b is {args.batch_size}, wanted at least 1")
    if is_programs(args.config):
        if args.param:
            raise ValueError(f"{args.config} has its parameters in it: leave -p out")
        return ProgramNetwork(args.config, args.batch_size)
    return read_model(files)[0].network(args.batch_size, inference=True)


def infer(args: argparse.Namespace) -> int:
    """One run; prints the name and shape of every result."""
    network = _network(args)
    if len(args.inputs) != len(network.inputs):
        raise ValueError(
            f"{args.config} has {len(network.inputs)} inputs {list(network.inputs)}, "
            f"got {len(args.inputs)} files"
        )
    values = {}
    raw = False
    for (name, v), path in zip(network.inputs.items(), args.inputs, strict=True):
        if path.endswith(".npy"):
            value = _array(path)
            # a batch of one, or a channel of one, may be left out; an order of axes may not differ
            fits = [n for n in value.shape if n != 1] == [n for n in v.shape if n != 1]
            came = f"is {value.shape}"
        else:
            raw = True
            value = np.fromfile(path, np.dtype(args.data_type))
            fits, came = value.size == v.size, f"has {value.size} numbers"
        if not fits:
            raise ValueError(
                f"{path} {came}, the input {name!r} is {v.shape}: -b sets another batch size"
            )
        values[name] = value.reshape(v.shape)
    for i, (name, y) in enumerate(network.run(values).items()):
        path = f"{args.output}_{i}.{'bin' if raw else 'npy'}"
        with replacing(path) as temporary, open(temporary, "wb") as file:
            if raw:
                file.write(np.ascontiguousarray(y).tobytes())
            else:
                np.save(file, y)
        print(f"{path}: {name} {y.dtype} {y.shape}")
    return 0


def _array(path: str) -> np.ndarray[Any, Any]:
    with open(path, "rb") as file:
        try:
            value: np.ndarray[Any, Any] = np.load(file, allow_pickle=False)
        except (EOFError, ValueError) as error:
            raise ValueError(f"{path} is no .npy file of numbers: {error}") from error
    return value


def forward(args: argparse.Namespace) -> int:
    """All rows; the last batch is filled up with its first row again."""
    from tqdm import tqdm

    from nnl.data.iterator import data_iterator_csv_dataset

    network = _network(args)
    sizes = {v.shape[0] for v in network.inputs.values() if v.shape}
    if len(sizes) != 1:
        raise ValueError(f"{args.config}: its inputs have the batch sizes {sorted(sizes)}")
    (batch,) = sizes
    with open(args.dataset, encoding="utf-8-sig", newline="") as file:
        lines = [row for row in csv.reader(file) if row]
    if len(lines) < 2:
        raise ValueError(f"{args.dataset} has {len(lines)} lines, wanted a header and rows")
    header, *rows = lines
    if args.replace_path:
        folder = os.path.abspath(os.path.dirname(args.dataset))
        rows = [[_absolute(cell, folder) for cell in row] for row in rows]
    os.makedirs(os.path.join(args.outdir, args.result_outdir), exist_ok=True)
    result = os.path.join(args.outdir, args.outfile)
    with (
        data_iterator_csv_dataset(args.dataset, batch, shuffle=False) as data,
        replacing(result) as temporary,
        open(temporary, "w", encoding="utf-8", newline="") as out,
    ):
        missing = [n for n in network.inputs if n not in data.variables]
        if missing:
            raise ValueError(f"{args.dataset} has no column {missing[0]!r}: {data.variables}")
        writer = csv.writer(out)
        writer.writerow([*header, *(c for n, y in network.outputs.items() for c in _names(n, y))])
        for start in tqdm(range(0, len(rows), batch), disable=None):
            given = dict(zip(data.variables, data.next(), strict=True))
            values = {n: given[n].reshape(v.shape) for n, v in network.inputs.items()}
            results = network.run(values)
            for i, row in enumerate(rows[start : start + batch]):
                cells = [c for n, y in results.items() for c in _cells(args, start + i, n, y[i])]
                writer.writerow([*row, *cells])
    print(f"{result}: {len(rows)} rows")
    return 0


def _absolute(cell: str, folder: str) -> str:
    path = os.path.join(folder, cell)
    return path if os.path.isfile(path) else cell


def _names(name: str, y: Any) -> list[str]:
    """Columns of an output: one per number of a vector."""
    shape = y.shape[1:]
    vector = len(shape) == 1 and shape[0] != 1
    return [f"{name}__{i}" for i in range(shape[0])] if vector else [name]


def _cells(args: argparse.Namespace, row: int, name: str, value: Any) -> list[str]:
    if value.size == 1 or value.ndim == 1:
        return [repr(v) for v in value.reshape(-1).tolist()]
    safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in name)
    path = os.path.join(args.result_outdir, f"{safe}_{row}.npy")
    with replacing(os.path.join(args.outdir, path)) as temporary, open(temporary, "wb") as file:
        np.save(file, value)
    return [path]
