# SPDX-License-Identifier: Apache-2.0
"""nnl conv_dataset, create_..._dataset and create_tar: data sets for training files."""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import shutil
import tarfile
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from nnl.cli.errors import UsageError
from nnl.cli.training.remote import ON, PER_WORKER, check_on, opened, row_range, run_all
from nnl.data.settings import settings
from nnl.data.source_file_cache import write_files, write_index


def add_commands(commands: Any) -> None:
    """Register the commands."""
    p = commands.add_parser(
        "conv_dataset",
        description="Copies a data set into cache files, from which it is read faster. SOURCE is "
        "a .csv file or a .cache folder, DESTINATION a folder. `nnl forward -d` takes one whose "
        "name ends in .cache.",
    )
    p.add_argument("-F", "--force", action="store_true", help="replace DESTINATION")
    p.add_argument("-S", "--shuffle", action="store_true", help="mix the rows")
    p.add_argument("-N", "--normalize", action="store_true", help="divide images by 255")
    p.add_argument("-t", "--num_of_threads", type=int, metavar="N", help=argparse.SUPPRESS)
    p.add_argument("--on", metavar="WORKERS", help=f"read a .csv file's rows there: {ON}")
    p.add_argument("--rows", type=row_range, metavar="FROM:TO", help=argparse.SUPPRESS)
    p.add_argument("source", metavar="SOURCE")
    p.add_argument("destination", metavar="DESTINATION")
    p.add_argument("--json", action="store_true", help="print the result as JSON")
    p.set_defaults(run=conv_dataset)

    p = commands.add_parser(
        "create_image_classification_dataset",
        description="Makes a data set of SOURCEDIR, which has a folder of pictures for every "
        "class: pictures of one size in OUTDIR, and .csv files.",
    )
    _add_shared(p)
    p.set_defaults(run=create_image_classification_dataset)

    p = commands.add_parser(
        "create_object_detection_dataset",
        description="Makes a data set of the pictures in SOURCEDIR and its folders. NAME.txt "
        "beside NAME.png has a line 'class x y width height' for every box; x and y are its "
        "middle, all four shares of the picture.",
    )
    _add_shared(p)
    for letter, option, what in (
        ("-n", "--num_class", "number of classes"),
        ("-a", "--num_anchor", "number of typical boxes"),
        ("-d", "--grid_size", "pixels of a cell of the grid"),
    ):
        p.add_argument(letter, option, type=int, required=True, metavar="N", help=what)
    p.set_defaults(run=create_object_detection_dataset)

    p = commands.add_parser(
        "create_tar",
        description="Packs a .csv file and the files that it names into a .tar archive, as Neural "
        "Network Console takes it.",
    )
    p.add_argument("source", metavar="CSV")
    p.add_argument("destination", metavar="TAR")
    p.set_defaults(run=create_tar)

    p = commands.add_parser("upload", description="Is not there: it needs a service of Sony's.")
    p.add_argument("-e", "--endpoint", metavar="URI")
    p.add_argument("token", metavar="TOKEN")
    p.add_argument("filename", metavar="FILE")
    p.set_defaults(run=upload)


def _add_shared(p: argparse.ArgumentParser) -> None:
    p.add_argument("-i", "--sourcedir", required=True, metavar="SOURCEDIR")
    p.add_argument("-o", "--outdir", required=True, metavar="OUTDIR", help="made if missing")
    p.add_argument(
        "-c", "--channel", type=int, required=True, metavar="N", help="1 (grey) or 3 (colour)"
    )
    p.add_argument("-w", "--width", type=int, required=True, metavar="N", help="of the pictures")
    p.add_argument("-g", "--height", type=int, required=True, metavar="N", help="of the pictures")
    p.add_argument(
        "-m",
        "--mode",
        required=True,
        metavar="MODE",
        help="pictures of other proportions: trimming, padding or resize (stretch)",
    )
    p.add_argument("-s", "--shuffle", required=True, choices=("true", "false"), help="mix the rows")
    p.add_argument("-f1", "--file1", required=True, metavar="NAME", help="first .csv file")
    p.add_argument("-r1", "--ratio1", type=float, metavar="PERCENT", help="its share of the rows")
    p.add_argument("-f2", "--file2", metavar="NAME", help="second .csv file")
    p.add_argument("-r2", "--ratio2", type=float, metavar="PERCENT", help="its share of the rows")
    p.add_argument("--seed", type=int, default=0, metavar="N", help="of -s (default 0)")
    p.add_argument("--json", action="store_true", help="print the result as JSON")


# ---- caches ----


def conv_dataset(args: argparse.Namespace) -> int:
    """Copy a data set into cache files."""
    from nnl.core.parameters.atomic import replacing

    if args.on is not None:
        check_on("conv_dataset", args.on)
    if args.rows is not None:
        write_files(_rows_of(args), args.destination, *args.rows)
        return 0
    target = Path(args.destination)
    if target.exists() and not target.is_dir():
        raise ValueError(f"{target} is a file, wanted a folder")
    if target.exists() and not args.force:
        raise ValueError(f"{target} exists already; try: -F replaces it")
    if target.exists() and any(target.iterdir()) and not (target / "cache_info.csv").exists():
        raise ValueError(f"{target} has files that are no cache: -F leaves it alone")
    new = target.with_name(f"{target.name}.new") if target.exists() else target
    with replacing(new, folder=True) as folder:
        rows = _copy(args, str(folder))
    if new != target:
        shutil.rmtree(target)
        os.replace(new, target)
    facts = {"rows": rows, "shuffled": args.shuffle, "normalized": args.normalize}
    if args.json:
        print(json.dumps({"file": str(target), **facts}, indent=1))
    else:
        print(f"{target}: " + ", ".join(f"{k} {v}" for k, v in facts.items()))
    return 0


def _copy(args: argparse.Namespace, folder: str) -> int:
    from nnl.data.source_cache import CacheDataSource
    from nnl.data.source_csv import CreateCache
    from nnl.data.source_file_cache import DataSourceWithFileCache

    kind = os.path.splitext(args.source.rstrip(os.sep))[1].lower()
    if args.on is not None:
        return _copy_on_workers(args, folder, kind)
    if kind == ".csv":
        rows = CreateCache(args.source, shuffle=args.shuffle)
        rows.create(folder, normalize=args.normalize)
        return rows.size
    if kind != ".cache":
        raise ValueError(f"{args.source} is neither a .csv file nor a .cache folder")
    with closing(CacheDataSource(args.source, args.shuffle, normalize=args.normalize)) as source:
        DataSourceWithFileCache(source, folder, shuffle=args.shuffle)
        return source.size


def _rows_of(args: argparse.Namespace) -> Any:
    from nnl.data.source_csv import CsvDataSource

    return CsvDataSource(args.source, args.shuffle, normalize=args.normalize)


def _copy_on_workers(args: argparse.Namespace, folder: str, kind: str) -> int:
    """Let workers write the cache files, some each."""
    if kind != ".csv":
        raise UsageError(f"conv_dataset: --on, but {args.source} is no .csv file")
    how = ["-S"] * args.shuffle + ["-N"] * args.normalize
    with (
        closing(_rows_of(args)) as rows,
        closing(opened(args.on)) as workers,
        tempfile.TemporaryDirectory(prefix=".pieces-", dir=".") as temporary,
    ):
        each = -(-rows.size // (workers.size * PER_WORKER))
        step = settings.file_cache_rows
        each = -(-each // step) * step
        pieces = [
            ["conv_dataset", *how, "--rows", f"{k}:{min(k + each, rows.size)}", args.source]
            + [os.path.abspath(folder)]
            for k in range(0, rows.size, each)
        ]
        run_all(workers, pieces, Path(temporary).absolute())
        write_index(rows, folder)
        return int(rows.size)


# ---- archives ----


def create_tar(args: argparse.Namespace) -> int:
    """Pack a data set: index.csv, and data/NUMBER_NAME for every file."""
    from nnl.core.parameters.atomic import replacing

    with open(args.source, encoding="utf-8-sig", newline="") as file:
        rows = [row for row in csv.reader(file) if row]
    if len({len(row) for row in rows}) != 1:
        raise ValueError(f"{args.source} has no rows, or rows of several lengths")
    files: dict[str, str] = {}
    for row in rows:
        for i, cell in enumerate(row):
            beside = os.path.join(os.path.dirname(args.source), *cell.split("\\"))
            path = next((p for p in (cell, beside) if cell and os.path.isfile(p)), None)
            if path is not None:
                row[i] = f"data/{len(files):012d}_{os.path.basename(path)}"
                files[row[i]] = path
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    index = text.getvalue().encode()
    with replacing(args.destination) as written, tarfile.open(written, "w") as tar:
        entry = tarfile.TarInfo("index.csv")
        entry.size = len(index)
        tar.addfile(entry, io.BytesIO(index))
        for name, path in files.items():
            tar.add(path, name)
    print(f"{args.destination}: {len(rows) - 1} rows, {len(files)} files")
    return 0


def upload(args: argparse.Namespace) -> int:
    """Say why not."""
    raise NotImplementedError(
        f"{args.filename} cannot be uploaded: that needs the service of Sony's Neural Network "
        "Console, and its token; try: nnl create_tar, or the upload page of nnl console"
    )


# ---- pictures ----


def create_image_classification_dataset(args: argparse.Namespace) -> int:
    """Make a data set of folders of pictures."""
    from nnl.datasets import image_classification

    built = image_classification(args.sourcedir, args.outdir, _shape(args), **_parts(args))
    return _print(args, built)


def create_object_detection_dataset(args: argparse.Namespace) -> int:
    """Make a data set of pictures with boxes."""
    from nnl.datasets import object_detection

    numbers = args.num_class, args.num_anchor, args.grid_size
    built = object_detection(args.sourcedir, args.outdir, _shape(args), *numbers, **_parts(args))
    return _print(args, built)


def _shape(args: argparse.Namespace) -> Any:
    from nnl.datasets import Shape

    return Shape(args.width, args.height, args.mode, args.channel)


def _parts(args: argparse.Namespace) -> dict[str, Any]:
    first, second = args.ratio1, args.ratio2
    if second is None:
        second = 0.0 if first is None else 100 - first
    if args.file2 and first is not None and abs(first + second - 100) > 1e-6:
        raise UsageError(f"-r1 {first:g} and -r2 {second:g} are not 100 percent together")
    files = [args.file1, *([args.file2] if args.file2 else [])]
    share = second / 100 if args.file2 else 0.0
    return {"files": files, "share": share, "shuffle": args.shuffle == "true", "seed": args.seed}


def _print(args: argparse.Namespace, built: Any) -> int:
    if args.json:
        facts = built._asdict()
        facts["anchors"] = None if built.anchors is None else built.anchors.tolist()
        print(json.dumps(facts, indent=1))
        return 0
    for name, rows in built.files.items():
        print(f"{os.path.join(args.outdir, name)}: {rows} rows")
    for label, (name, count) in enumerate(built.classes.items()):
        print(f"  {label:4} {name}: {count}")
    for width, height in [] if built.anchors is None else built.anchors:
        print(f"  anchor {width:.4f} x {height:.4f}")
    return 0
