# SPDX-License-Identifier: Apache-2.0
"""nnl infer and forward: run a network on files of data."""

from __future__ import annotations

import argparse
import csv
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nnl.cli.errors import UsageError
from nnl.cli.training.remote import ON, PER_WORKER, check_on, opened, row_range, run_all
from nnl.converters.formats import is_programs, read_model
from nnl.converters.networks.model import Model, Network, NnpModel
from nnl.converters.nnp.training_reader import generator
from nnl.converters.programs import ProgramNetwork
from nnl.core.parameters.atomic import replacing
from nnl.data.table import file_name, read_table, read_text

logger = logging.getLogger("nnl")


def add_commands(commands: Any) -> None:
    """Register the commands."""
    p = commands.add_parser(
        "infer",
        description="INPUT is a .npy, or raw numbers of type -t, one file per input of the "
        "network in its order. Outputs become PREFIX_0.npy ...; for raw input, those of sample 0, "
        "one after another as float32, PREFIX_0.bin ...",
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
        help="-1 for the file's (default: that, or as many as INPUT has); of programs, which one",
    )
    p.add_argument("--json", action="store_true", help="print what was written as JSON")
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
    p.add_argument(
        "-d", "--dataset", required=True, metavar="DATA", help=".csv file or .cache folder"
    )
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
    p.add_argument("-b", "--batch_size", type=int, metavar="N", help="(default: -1, the file's)")
    p.add_argument("--on", metavar="WORKERS", help=f"run pieces of the rows there: {ON}")
    p.add_argument(
        "--rows", type=row_range, metavar="FROM:TO", help=argparse.SUPPRESS
    )  # of a piece
    p.add_argument(
        "--json",
        action="store_true",
        help="print what was written as JSON, of a classifier with its confusion matrix",
    )
    p.set_defaults(run=forward)


class Ends(NamedTuple):
    """How the first executor of a file is fed.

    Attributes:
        columns: Of the data set, by input; those left out have the input's name.
        titles: The same of the outputs, in the results.
        generated: What makes the values of inputs that no column has.
        normalize: Divide images by 255.
        evaluations: How often to run; more than once, dropout and the like stay.
        kind: What the results of all are: their "mean", their "std", or the "last".
    """

    columns: dict[str, str]
    titles: dict[str, str]
    generated: dict[str, Any]
    normalize: bool = True
    evaluations: int = 1
    kind: str = "mean"


def _network(args: argparse.Namespace, batch: int | None) -> tuple[Network | ProgramNetwork, Ends]:
    files = [args.config] + ([args.param] if args.param else [])
    if batch is not None and batch < 1 and batch != -1:
        raise UsageError(f"-b is {batch}, wanted at least 1, or -1")
    batch = None if batch == -1 else batch
    if is_programs(args.config):
        if args.param:
            raise UsageError(f"{args.config} has its parameters in it: leave -p out")
        return ProgramNetwork(args.config, batch), Ends({}, {}, {})
    model, _ = read_model(files)
    ends = _ends(model, getattr(args, "dataset", ""))
    return model.network(batch, inference=ends.evaluations == 1), ends


def _ends(model: Model, dataset: str) -> Ends:
    proto = model.content().proto if isinstance(model, NnpModel) else None
    if proto is None or not proto.executor:
        return Ends({}, {}, {})
    e = proto.executor[0]
    known = [d for d in proto.dataset if dataset in (d.uri, d.cache_dir)]
    return Ends(
        {v.variable_name: v.data_name for v in e.data_variable if v.data_name},
        {v.variable_name: v.data_name for v in e.output_variable if v.data_name},
        {
            v.variable_name: generator(v.type, v.multiplier, f"{model.where}: executor {e.name!r}")
            for v in e.generator_variable
        },
        not e.no_image_normalization and not any(d.no_image_normalization for d in known),
        e.num_evaluations or 1,
        e.repeat_evaluation_type or "mean",
    )


def _results(
    network: Network | ProgramNetwork, ends: Ends, values: dict[str, Any]
) -> dict[str, np.ndarray[Any, Any]]:
    """The outputs, of as many runs as the executor wants."""
    runs = [network.run(values) for _ in range(ends.evaluations)]
    if ends.evaluations == 1 or ends.kind == "last":
        return runs[-1]
    summary = np.std if ends.kind == "std" else np.mean
    return {n: summary([r[n] for r in runs], axis=0) for n in runs[0]}


def infer(args: argparse.Namespace) -> int:
    """One run; prints the name and shape of every result."""
    network, ends = _network(args, args.batch_size)
    if len(args.inputs) != len(network.inputs):
        raise UsageError(
            f"{args.config} has {len(network.inputs)} inputs {list(network.inputs)}, "
            f"got {len(args.inputs)} files"
        )
    raw = not all(path.endswith(".npy") for path in args.inputs)
    arrays = [
        _array(path) if path.endswith(".npy") else np.fromfile(path, _type(args.data_type, path))
        for path in args.inputs
    ]
    batch = _batch(arrays[0], next(iter(network.inputs.values()))) if arrays else None
    if args.batch_size is None and batch is not None and not isinstance(network, ProgramNetwork):
        network, _ = _network(args, batch)
    values = {}
    for (name, v), path, value in zip(network.inputs.items(), args.inputs, arrays, strict=True):
        if isinstance(network, ProgramNetwork) and network.open:
            if not path.endswith(".npy"):
                raise ValueError(
                    f"{path} has no shape, and {args.config} takes any: give .npy files"
                )
            values[name] = value
            continue
        if path.endswith(".npy"):
            # a batch of one, or a channel of one, may be left out; an order of axes may not differ
            fits = [n for n in value.shape if n != 1] == [n for n in v.shape if n != 1]
            came = f"is {value.shape}"
        else:
            fits, came = value.size == v.size, f"has {value.size} numbers"
        if not fits:
            raise ValueError(
                f"{path} {came}, the input {name!r} is {v.shape}: -b sets another batch size"
            )
        values[name] = value.reshape(v.shape)
    results = _results(network, ends, values)
    written = (_write_samples if raw else _write_arrays)(args.output, results)
    if args.json:
        print(json.dumps({"files": written}, indent=1))
    else:
        print("\n".join(f"{path}: {text}" for path, text in written.items()))
    return 0


def _write_arrays(prefix: str, results: dict[str, np.ndarray[Any, Any]]) -> dict[str, str]:
    """A file for every output; returns what is in each, by its name."""
    written = {}
    for i, (name, y) in enumerate(results.items()):
        path = f"{prefix}_{i}.npy"
        with replacing(path) as temporary, open(temporary, "wb") as file:
            np.save(file, y)
        written[path] = f"{name} {y.dtype} {y.shape}"
    return written


def _write_samples(prefix: str, results: dict[str, np.ndarray[Any, Any]]) -> dict[str, str]:
    """As NNabla does: a file for every sample, with all its outputs."""
    rows = [np.atleast_1d(y) for y in results.values()]
    if len({len(y) for y in rows}) != 1:
        raise ValueError("the outputs have no batch axis in common: give .npy files to get them")
    written = {}
    for i in range(len(rows[0])):
        path = f"{prefix}_{i}.bin"
        numbers = np.concatenate([y[i].ravel() for y in rows])
        with replacing(path) as temporary:
            numbers.astype(np.float32).tofile(temporary)
        written[path] = f"{numbers.size} numbers"
    return written


def _type(given: str, path: str) -> np.dtype[Any]:
    """Of a raw file; NNabla takes int32 and uint8 from a name too."""
    if given == "float32":
        given = next((t for t in ("int32", "uint8") if t in os.path.basename(path)), given)
    try:
        return np.dtype(given)
    except TypeError:
        raise UsageError(f"-t is {given!r}, wanted a type such as float32 or uint8") from None


def _batch(value: np.ndarray[Any, Any], v: Any) -> int | None:
    """How many samples of an input there are; None if they are as many as it has, or none."""
    rows = v.shape[0] if v.shape else 0
    if not rows or value.size == v.size or value.size * rows % v.size:
        return None
    return value.size * rows // v.size or None


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

    if args.on is not None:
        check_on("forward", args.on)
    network, ends = _network(args, args.batch_size)
    inputs = {n: v for n, v in network.inputs.items() if n not in ends.generated}
    # of an executor that generates all that it takes, every row has what was generated for it
    sizes = {v.shape[0] for v in (inputs or network.inputs).values() if v.shape}
    if len(sizes) != 1:
        raise ValueError(f"{args.config}: its inputs have the batch sizes {sorted(sizes)}")
    (batch,) = sizes
    cached = args.dataset.rstrip(os.sep).endswith(".cache")
    header, rows = _rows(args.dataset, cached)
    if args.replace_path:
        folder = os.path.abspath(os.path.dirname(args.dataset))
        rows = [[_absolute(cell, folder) for cell in row] for row in rows]
    os.makedirs(os.path.join(args.outdir, args.result_outdir), exist_ok=True)
    result = os.path.join(args.outdir, args.outfile)
    columns = {n: ends.columns.get(n, n) for n in inputs}
    titles = {n: ends.titles.get(n, n) for n in network.outputs}
    names = [c for n, y in network.outputs.items() for c in _names(titles[n], y, ends.kind)]
    start, end = args.rows or (0, len(rows))
    with (
        _reader(args, cached, batch, ends) as data,
        replacing(result) as temporary,
        open(temporary, "w", encoding="utf-8", newline="") as out,
    ):
        missing = [c for c in columns.values() if c not in data.variables]
        if missing:
            raise ValueError(f"{args.dataset} has no column {missing[0]!r}: {data.variables}")
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([*header, *names])
        if args.on is not None:
            _write_pieces(args, out, batch, len(rows))
            end = start
        for at in tqdm(range(start, end, batch), disable=None if end > start else True):
            given = dict(zip(data.variables, data.next(), strict=True))
            values = {n: _shaped(given[columns[n]], v.shape, columns[n]) for n, v in inputs.items()}
            for n, generate in ends.generated.items():
                values[n] = generate(network.inputs[n].shape)
            results = _results(network, ends, values)
            for i, row in enumerate(rows[at : min(at + batch, end)]):
                cells = [
                    c for n, y in results.items() for c in _cells(args, at + i, titles[n], y[i])
                ]
                writer.writerow([*row, *cells])
    if args.json:
        found = {"file": result, "rows": len(rows), "columns": names}
        vectors = all(len(y.shape) <= 2 for y in network.outputs.values())
        labels = [c for c in data.variables if vectors and c not in columns.values()]
        found["confusion"] = _confusion(Path(result), len(header), args.dataset, labels)
        print(json.dumps(found, indent=1))
    else:
        print(f"{result}: {len(rows)} rows")
    return 0


@contextmanager
def _reader(args: argparse.Namespace, cached: bool, batch: int, ends: Ends) -> Iterator[Any]:
    """An iterator over the rows, or those of a piece."""
    from nnl.data.iterator import data_iterator_cache, data_iterator_csv_dataset

    kind = data_iterator_cache if cached else data_iterator_csv_dataset
    kept: dict[str, Any] = {"shuffle": False, "normalize": ends.normalize}
    if not cached and (args.rows or args.on):
        kept["with_file_cache"] = False  # which has all rows
    with kind(args.dataset, batch, **kept) as data:
        if not args.rows:
            yield data
            return
        start, end = args.rows
        with data.slice(None, slice_start=start, slice_end=end) as some:
            yield some


def _write_pieces(args: argparse.Namespace, out: Any, batch: int, rows: int) -> None:
    """Let workers run over whole batches, and join what they write, in order."""
    command = ["forward", "-c", args.config, "-d", args.dataset, "-o", args.outdir]
    command += ["--result_outdir", args.result_outdir] + ["--replace_path"] * args.replace_path
    command += ["-p", args.param] if args.param else []
    command += [f"-b{args.batch_size}"] if args.batch_size is not None else []
    with (
        closing(opened(args.on)) as workers,
        tempfile.TemporaryDirectory(prefix=".pieces-", dir=args.outdir) as temporary,
    ):
        folder = Path(temporary).absolute()
        each = -(-rows // (batch * workers.size * PER_WORKER)) * batch
        starts = range(0, rows, each)
        files = [folder / f"{k}.csv" for k in range(len(starts))]
        pieces = [
            [*command, "-f", str(file), "--rows", f"{start}:{min(start + each, rows)}"]
            for start, file in zip(starts, files, strict=True)
        ]
        run_all(workers, pieces, folder)
        for file in files:
            with open(file, encoding="utf-8", newline="") as part:
                next(csv.reader(part))  # the header
                shutil.copyfileobj(part, out)


def _confusion(result: Path, given: int, dataset: str, labels: list[str]) -> Any:
    """What a classifier has mistaken; None of other networks, and without a column of labels."""
    from nnl.console.errors import Refused
    from nnl.console.trials.evaluation import confusion, label_of, read_results

    if not labels:
        return None  # and no array of the results is read
    try:
        found = read_results(result, given, dataset)
        return confusion(found, label_of(labels, next(iter(found.outputs))))
    except Refused:  # it is none
        return None


def _shaped(value: np.ndarray[Any, Any], shape: tuple[int, ...], column: str) -> Any:
    if value.size != np.prod(shape):
        raise ValueError(
            f"the column {column!r} has samples of the shape {value.shape[1:]}, the network wants "
            f"{tuple(shape[1:])}"
        )
    return value.reshape(shape)


def _rows(dataset: str, cached: bool) -> tuple[list[str], list[list[str]]]:
    """The header and the rows of a data set, of a cache those that it was made of in its order."""
    path = os.path.join(dataset, "original.csv") if cached else dataset
    with open(path, "rb") as file:
        header, rows, _ = read_table(read_text(file.read(), path), path)
    if not rows:
        raise ValueError(f"{path} has a header and no rows")
    order = os.path.join(dataset, "order.csv")
    if cached and os.path.exists(order):
        with open(order, encoding="utf-8", newline="") as file:
            moved = {int(row[0]): int(row[1]) for row in csv.reader(file) if row}
        if sorted(moved.values()) != list(range(len(rows))):
            raise ValueError(f"{order} is no order of {len(rows)} rows")
        rows = [rows[moved[i]] for i in range(len(rows))]
    return header, rows


def _absolute(cell: str, folder: str) -> str:
    path = os.path.normpath(os.path.join(folder, file_name(cell, folder)))
    return path if os.path.isfile(path) else cell


def _names(name: str, y: Any, kind: str) -> list[str]:
    """Columns of an output: one per number of a vector."""
    shape = y.shape[1:]
    vector = len(shape) == 1 and shape[0] != 1
    return (
        [f"{name}__{i}" for i in range(shape[0])]
        if vector
        else ["Uncertainty(Std)" if kind == "std" else name]
    )


def _cells(args: argparse.Namespace, row: int, name: str, value: Any) -> list[str]:
    if value.size == 1 or value.ndim == 1:
        return [str(v) for v in value.reshape(-1)]  # as few digits as tell a float32
    safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in name)
    path = os.path.join(args.result_outdir, f"{safe}_{row}.npy")
    with replacing(os.path.join(args.outdir, path)) as temporary, open(temporary, "wb") as file:
        np.save(file, value)
    return [path]
