# SPDX-License-Identifier: Apache-2.0
"""nnl bench: operators, networks, optimizers and whole frameworks compared on equal terms."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from nnl.cli.training.remote import ON, check_on, opened, run_all


def at_least(least: int) -> Callable[[str], int]:
    """A type of options: whole numbers from here on."""

    def number(text: str) -> int:
        try:
            found = int(text)
        except ValueError:
            found = least - 1
        if found < least:
            raise argparse.ArgumentTypeError(f"{text!r}, wanted a whole number from {least} on")
        return found

    return number


def numbers(text: str) -> list[int]:
    """A type of options: whole numbers from 1 on, with commas."""
    return [at_least(1)(part) for part in text.split(",")]


def words(text: str) -> list[str]:
    """A type of options: names with commas."""
    found = [w.strip() for w in text.split(",") if w.strip()]
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} names nothing")
    return found


def add_commands(commands: Any) -> None:
    """Register the command."""
    p = commands.add_parser("bench", description=__doc__)
    kinds = p.add_subparsers(dest="kind", metavar="KIND", required=True)

    op = kinds.add_parser("op", help="single operators: right, exact, fast, with right gradients")
    op.add_argument("tests", nargs="*", metavar="PATTERN", help="names of ONNX tests (all)")
    op.add_argument("--exclude", action="append", default=[], metavar="PATTERN", help="leave out")
    op.add_argument(
        "--test",
        choices=("check", "accuracy", "time", "gradient"),
        default="check",
        help="check: pass or fail; accuracy: errors and units of the last place; time: median and "
        "its 95 %% interval; gradient: against numeric ones (check)",
    )
    op.add_argument("--runs", type=at_least(1), default=21, metavar="N", help="of a timing (21)")
    op.add_argument("--table", metavar="FILE", help="write the table of operators as Markdown")
    op.add_argument(
        "--join",
        action="append",
        default=[],
        metavar="REPORT",
        help="add the rows of a report, of back ends in another environment",
    )
    op.add_argument("--failures", action="store_true", help="list what did not pass")
    op.add_argument("--on", metavar="WORKERS", help=f"run pieces there: {ON}")
    _shared(op)

    net = kinds.add_parser("network", help="a whole network: inference and training steps")
    net.add_argument("model", help="an ONNX file, lenet or resnet")
    net.add_argument("--batch-size", type=at_least(1), default=32, metavar="N", help="samples (32)")
    net.add_argument("--runs", type=at_least(1), default=21, metavar="N", help="timed runs (21)")
    net.add_argument("--train", action="store_true", help="training steps, too")
    _shared(net)

    opt = kinds.add_parser("optimizer", help="train with optimizers: accuracy and loss over time")
    opt.add_argument("model", nargs="?", default="lenet", help="an ONNX file, lenet or resnet")
    opt.add_argument("--data", choices=("digits", "pictures"), default="digits")
    opt.add_argument(
        "--optimizers",
        type=words,
        default="momentum,native:momentum",
        metavar="LIST",
        help="sgd, momentum, nesterov, adagrad, adam, accelegrad, and native: of them",
    )
    opt.add_argument("--epochs", type=at_least(1), default=5, metavar="N", help="(5)")
    opt.add_argument("--batch-size", type=at_least(1), default=32, metavar="N", help="samples (32)")
    opt.add_argument("--lr", type=float, metavar="X", help="learning rate of all")
    opt.add_argument(
        "--target",
        type=float,
        metavar="X",
        help="end a run at this test accuracy: time to accuracy",
    )
    opt.add_argument(
        "--steps",
        type=at_least(1),
        metavar="N",
        help="no epochs: how far all others get from the first within N steps, step by step",
    )
    opt.add_argument("--samples", type=at_least(1), metavar="N", help="use the first N samples")
    opt.add_argument("-o", "--out", default="bench", metavar="FOLDER", help="CSV and plots (bench)")
    _shared(opt)

    dist = kinds.add_parser("distributed", help="train in several processes, by schemes")
    dist.add_argument("model", nargs="?", choices=("lenet", "resnet"), default="lenet")
    dist.add_argument(
        "-n", "--ranks", type=numbers, default="1,2", metavar="LIST", help="processes (1,2)"
    )
    dist.add_argument(
        "--schemes",
        type=words,
        default="decentralized,server,neighbors,async-server,native:decentralized",
        metavar="LIST",
        help="these, native:server and native:neighbors",
    )
    dist.add_argument("--optimizer", default="momentum", metavar="RULE", help="(momentum)")
    dist.add_argument("--data", choices=("digits", "pictures"), default="digits")
    dist.add_argument("--epochs", type=at_least(1), default=3, metavar="N", help="(3)")
    dist.add_argument(
        "--batch-size", type=at_least(1), default=32, metavar="N", help="per process (32)"
    )
    dist.add_argument("--lr", type=float, metavar="X", help="learning rate")
    dist.add_argument("--samples", type=at_least(1), metavar="N", help="use the first N samples")
    _shared(dist)

    over = kinds.add_parser("overhead", help="what the layer above the frameworks costs")
    over.add_argument("model", nargs="?", default="resnet", help="an ONNX file, lenet or resnet")
    over.add_argument(
        "--optimizer",
        choices=("sgd", "momentum", "nesterov", "adagrad", "adam"),
        default="sgd",
        help="(sgd)",
    )
    over.add_argument(
        "--batch-size", type=at_least(1), default=32, metavar="N", help="samples (32)"
    )
    over.add_argument(
        "--epochs", type=at_least(2), default=10, metavar="N", help="rows of the table (10)"
    )
    over.add_argument(
        "--steps", type=at_least(1), default=20, metavar="N", help="steps of an epoch (20)"
    )
    _shared(over)

    figs = kinds.add_parser("experiments", help="the figures of the Deep500 thesis, in small")
    figs.add_argument(
        "-n", "--ranks", type=at_least(1), default=2, metavar="N", help="processes (2)"
    )
    figs.add_argument("--epochs", type=at_least(1), default=8, metavar="N", help="(8)")
    figs.add_argument("--samples", type=at_least(1), metavar="N", help="use the first N samples")
    figs.add_argument("-o", "--out", default="bench", metavar="FOLDER", help="figures (bench)")
    _shared(figs)

    both = kinds.add_parser("compare", help="two reports: what has changed")
    both.add_argument("first", help="a file that --json has written")
    both.add_argument("second", help="another one")
    both.add_argument(
        "--least", type=float, default=1.1, metavar="RATIO", help="changes to show (1.1)"
    )
    _files(both)
    both.set_defaults(run=_compare)


def _shared(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--backends", metavar="LIST", help="as in nnl,nnl:numpy,torch:compiled (all installed)"
    )
    _files(p)
    p.set_defaults(run=_bench)


def _files(p: argparse.ArgumentParser) -> None:
    p.add_argument("--json", metavar="FILE", help="write the report")
    p.add_argument("--csv", metavar="FILE", help="write its rows")


def _bench(args: argparse.Namespace) -> int:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow greets on stderr
    from nnl.deep500 import bench
    from nnl.deep500.report import Report

    names = bench.chosen(args.backends)
    if getattr(args, "on", None) is not None:
        check_on("bench", args.on)
    for path in (args.json, args.csv, getattr(args, "table", None)):
        if path and not Path(path).absolute().parent.is_dir():  # before hours of work
            raise FileNotFoundError(f"{path}: there is no folder {Path(path).absolute().parent}")
    kept = {k: v for k, v in vars(args).items() if isinstance(v, (str, int, float, list))}
    report = Report(args.kind, settings=kept)
    try:
        _RUN[args.kind](args, bench, report, names)
    except KeyboardInterrupt:
        report.ended = "interrupted"
    _write(args, report)
    return 130 if report.ended == "interrupted" else 0


def _op(args: argparse.Namespace, bench: Any, report: Any, names: list[str]) -> None:
    from nnl.deep500.report import table

    if args.on is None:
        found = bench.operators_of(report, names, args.test, args.tests, args.exclude, args.runs)
    else:
        found = _op_on_workers(args, bench, report, names)
    for path in args.join:
        found += bench.joined(report, path)
    print(table(bench.counts(found)))
    measured = args.test in ("accuracy", "time") or (args.failures and args.test == "gradient")
    if measured:
        print(table([{k: v for k, v in r.row().items() if k != "operator"} for r in found]))
    elif args.failures:
        for r in found:
            if r.status != "pass":
                print(f"{r.backend} {r.test}: {r.status}: {r.reason}")
    if args.table:
        from nnl.core.parameters.atomic import replacing

        with replacing(args.table) as path:
            path.write_text(bench.coverage_page(found, report.versions), encoding="utf-8")


def _op_on_workers(args: argparse.Namespace, bench: Any, report: Any, names: list[str]) -> Any:
    """Each worker takes some of the tests on one back end; results are in the usual order."""
    tests = [case.name for case in bench.tests_of(args.tests, args.exclude)]
    with (
        closing(opened(args.on)) as workers,
        tempfile.TemporaryDirectory(prefix=".pieces-", dir=".") as temporary,
    ):
        folder = Path(temporary).absolute()
        each = -(-len(tests) * len(names) // workers.size)  # a start takes seconds: they are read
        parts = [(n, tests[k : k + each]) for n in names for k in range(0, len(tests), each)]
        files = [str(folder / f"{k}.json") for k in range(len(parts))]
        how = ["--test", args.test, "--runs", str(args.runs)]
        pieces = [
            ["bench", "op", *some, *how, "--backends", name, "--json", file]
            for (name, some), file in zip(parts, files, strict=True)
        ]
        run_all(workers, pieces, folder)
        return [result for file in files for result in bench.joined(report, file)]


def _network(args: argparse.Namespace, bench: Any, report: Any, names: list[str]) -> None:
    from nnl.deep500.report import table

    bench.networks_of(report, names, args.model, args.batch_size, args.runs, args.train)
    print(table(report.rows))


def _optimizer(args: argparse.Namespace, bench: Any, report: Any, names: list[str]) -> None:
    from nnl.deep500.report import table

    trained = _trained(bench, report, names)
    if args.steps:
        bench.steps_of(
            report,
            trained,
            args.optimizers,
            args.model,
            args.data,
            args.steps,
            args.batch_size,
            args.lr,
        )
        print(table(report.rows))
        return
    made = bench.optimizers_of(
        report, trained, args.optimizers, args.model, args.data, args.epochs, args.batch_size,
        args.lr, args.out, args.samples, args.target,
    )  # fmt: skip
    print(table(report.rows))
    for path in made:
        print(path, file=sys.stderr)


def _trained(bench: Any, report: Any, names: list[str]) -> list[str]:
    """Those that train; the others are rows with what they want for it."""
    from nnl.deep500 import backends

    hints = backends(training=True)
    found = [n for n in names if bench.network_class(n).trains]
    for name in [n for n in names if n not in found]:
        reason = hints[name.partition(":")[0]]
        report.rows.append({"backend": name, "status": "missing", "reason": reason})
    return found


def _overhead(args: argparse.Namespace, bench: Any, report: Any, names: list[str]) -> None:
    from nnl.deep500.report import table

    bench.overheads_of(
        report, names, args.model, args.optimizer, args.batch_size, args.epochs, args.steps
    )
    print(table(report.rows))


def _distributed(args: argparse.Namespace, bench: Any, report: Any, names: list[str]) -> None:
    from nnl.deep500.report import table

    asked = ("model", "optimizer", "data", "epochs", "batch_size", "lr", "samples")
    trained = _trained(bench, report, names)
    bench.distributed_of(
        report, trained, args.schemes, args.ranks, **{k: getattr(args, k) for k in asked}
    )
    print(table(report.rows))


def _experiments(args: argparse.Namespace, bench: Any, report: Any, names: list[str]) -> None:
    from nnl.deep500.experiments import figures

    trained = [n for n in names if n != "reference" and bench.network_class(n).trains]
    _, pictures = figures(args.out, trained, args.ranks, args.epochs, args.samples, report)
    for path in pictures:
        print(path)


_RUN = {
    "experiments": _experiments,
    "distributed": _distributed,
    "op": _op,
    "network": _network,
    "optimizer": _optimizer,
    "overhead": _overhead,
}


def _write(args: argparse.Namespace, report: Any) -> None:
    from nnl.deep500.tickers import write_csv

    if args.json:
        report.write(args.json)
    if args.csv:
        write_csv(args.csv, report.rows)


def _compare(args: argparse.Namespace) -> int:
    from nnl.deep500.report import Report, compare, load, table

    first, second = load(args.first), load(args.second)
    report = Report("compare", compare(first, second), {"first": first.id, "second": second.id})
    shown = [r for r in report.rows if _changed(r, args.least)]
    print(table(shown) if shown else "nothing has changed")
    _write(args, report)
    return 0


def _changed(row: dict[str, Any], least: float) -> bool:
    ratio = row.get("ratio")
    if ratio is None:
        return bool(row["first"] != row["second"])
    return bool(ratio >= least or ratio <= 1 / least)
