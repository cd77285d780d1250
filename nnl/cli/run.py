# SPDX-License-Identifier: Apache-2.0
"""nnl infer and forward: run a network on files of data."""

from __future__ import annotations

import argparse
import csv
import logging
import os
from typing import Any

import numpy as np

from nnl.converters.atomic import replacing
from nnl.converters.formats import Network, read_model

logger = logging.getLogger("nnl")


def add_commands(commands: Any) -> None:
    """Register the commands."""
    p = commands.add_parser(
        "infer",
        help="run a network on arrays",
        description="INPUT is a .npy, or raw numbers of type -t, one file per input of the "
        "network in its order. Outputs become PREFIX_0.npy ... (or .bin for raw input).",
    )
    p.add_argument("-c", "--config", required=True, metavar="FILE", help="the network")
    p.add_argument("-p", "--param", metavar="FILE", help="parameters (.h5, .protobuf)")
    p.add_argument("-o", "--output", default="output", metavar="PREFIX", help="of the results")
    p.add_argument("-t", "--data_type", default="float32", metavar="DTYPE", help="of raw files")
    p.add_argument("-b", "--batch_size", type=int, metavar="N", help="(default: the file's)")
    p.add_argument("inputs", nargs="+", metavar="INPUT")
    p.set_defaults(run=infer)

    p = commands.add_parser(
        "forward",
        help="run a network over a CSV data set",
        description="Runs the first executor over the rows of a CSV data set and writes "
        "OUTDIR/NAME: the columns of the data set and one per output, "
        "whose cells name .npy files or hold the number.",
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
    p.add_argument("-b", "--batch_size", type=int, metavar="N", help="(default: the file's)")
    p.set_defaults(run=forward)


def _network(args: argparse.Namespace) -> Network:
    files = [args.config] + ([args.param] if args.param else [])
    if args.batch_size is not None and args.batch_size < 1:
        raise ValueError(f"-b is {args.batch_size}, wanted at least 1")
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
            with open(path, "rb") as file:
                value = np.load(file, allow_pickle=False)
        else:
            raw = True
            value = np.fromfile(path, np.dtype(args.data_type))
        if value.size != v.size:
            raise ValueError(f"{path} has {value.size} numbers, the input {name!r} is {v.shape}")
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


def forward(args: argparse.Namespace) -> int:
    """All rows; the last batch is filled up with its first row again."""
    from tqdm import tqdm

    from nnl.data.iterator import data_iterator_csv_dataset

    network = _network(args)
    sizes = {v.shape[0] for v in network.inputs.values() if v.shape}
    if len(sizes) != 1:
        raise ValueError(f"{args.config}: its inputs have the batch sizes {sorted(sizes)}")
    (batch,) = sizes
    os.makedirs(args.outdir, exist_ok=True)
    with open(args.dataset, encoding="utf-8-sig", newline="") as file:
        header, *rows = list(csv.reader(file))
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
        writer.writerow([*header, *network.outputs])
        for start in tqdm(range(0, len(rows), batch), disable=None):
            given = dict(zip(data.variables, data.next(), strict=True))
            values = {n: given[n].reshape(v.shape) for n, v in network.inputs.items()}
            results = network.run(values)
            for i, row in enumerate(rows[start : start + batch]):
                cells = [_cell(args.outdir, start + i, n, y[i]) for n, y in results.items()]
                writer.writerow([*row, *cells])
    print(f"{result}: {len(rows)} rows")
    return 0


def _cell(folder: str, row: int, name: str, value: Any) -> str:
    if value.size == 1:
        return repr(float(value.reshape(())))
    safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in name)
    path = f"{safe}_{row}.npy"
    np.save(os.path.join(folder, path), value)
    return path
