# SPDX-License-Identifier: Apache-2.0
"""What `nnl bench` runs: one function per kind of benchmark, which fills a report.

A run that is interrupted keeps the rows that it has.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import Any

from nnl.deep500 import backends, gradients, network_class, operators
from nnl.deep500.cases import Case, cases
from nnl.deep500.dataset import DataSet
from nnl.deep500.report import Report, load

TESTS: dict[str, Callable[..., Iterable[operators.Result]]] = {
    "check": operators.check,
    "accuracy": operators.accuracy,
    "time": operators.timing,
    "gradient": gradients.gradients,
}

__all__ = ["chosen", "network_class", "operators_of"]


def chosen(names: str | None) -> list[str]:
    """Back ends by a text such as "nnl,torch:compiled"; all that are installed if left out.

    Raises:
        ValueError: There is no such back end. ModuleNotFoundError: One is not installed.
    """
    found = backends()
    if not names:
        return [name for name, hint in found.items() if not hint]
    wanted = [n.strip() for n in names.split(",") if n.strip()]
    if not wanted:
        raise ValueError(f"{names!r} names no back end, wanted some of {', '.join(found)}")
    for name in wanted:
        base = name.partition(":")[0]
        if base not in found:
            raise ValueError(f"there is no back end {base!r}, wanted one of {', '.join(found)}")
        if found[base]:
            raise ModuleNotFoundError(f"the back end {base} is not installed: {found[base]}")
    return wanted


def model_of(name: str) -> Any:
    """A model by its file, or one of nnl.deep500.zoo by name."""
    from nnl.converters.onnx.file.reader import read
    from nnl.deep500 import zoo

    if name in zoo.MODELS and not Path(name).exists():
        make = zoo.MODELS[name]
        return make()
    return read(name)


def operators_of(
    report: Report,
    names: Sequence[str],
    test: str = "check",
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    runs: int = 21,
    progress: bool = True,
) -> list[operators.Result]:
    """Level 0 on every back end. Gives the results, which are the report's rows too."""
    tests = tests_of(include, exclude)
    results: list[operators.Result] = []
    try:
        for backend in names:
            measure = partial(operators.timing, runs=runs) if test == "time" else TESTS[test]
            found: Iterable[operators.Result] = measure(tests, backend)
            if progress:
                from tqdm import tqdm

                found = tqdm(found, total=len(tests), desc=backend, disable=None)
            for result in found:
                results.append(result)
                report.rows.append(result.row())
    except KeyboardInterrupt:
        report.ended = "interrupted"
    return results


def tests_of(include: Sequence[str], exclude: Sequence[str]) -> list[Case]:
    """
    Raises:
        ValueError: There are none.
    """
    found = list(cases(include, exclude))
    if not found:
        raise ValueError(f"no test of ONNX has a name like {' or '.join(include)}")
    return found


def joined(report: Report, path: str | Path) -> list[operators.Result]:
    """The results in another report, whose rows and versions this one takes over.

    Raises:
        ValueError: It is not about operators.
    """
    other = load(path)
    if other.kind != report.kind:
        raise ValueError(f"{path}: a report about {other.kind}, wanted {report.kind}")
    report.rows += other.rows
    report.versions = {**other.versions, **report.versions}
    names = [f.name for f in fields(operators.Result)][:-1]
    return [
        operators.Result(
            *[row[n] for n in names], numbers={k: v for k, v in row.items() if k not in names}
        )
        for row in other.rows
    ]


def counts(results: Sequence[operators.Result]) -> list[dict[str, Any]]:
    """A row per back end: how many tests there were, and what came of them."""
    rows: dict[str, dict[str, Any]] = {}
    for r in results:
        row = rows.setdefault(r.backend, {"backend": r.backend, "tests": 0})
        row["tests"] += 1
        row[r.status] = row.get(r.status, 0) + 1
    return list(rows.values())


def coverage_page(results: Sequence[operators.Result], versions: dict[str, str]) -> str:
    """The table of operators as Markdown."""
    named = ", ".join(f"{n} {v}" for n, v in versions.items() if n not in ("mpi4py", "nnl"))
    return operators.coverage_page(results, named)


def networks_of(
    report: Report, names: Sequence[str], model: str, batch_size: int, runs: int, train: bool
) -> None:
    """Inference, and training steps if asked for, of one model on every back end."""
    from nnl.deep500 import level1

    view = model_of(model)
    for row in level1.networks(view, names, batch_size, runs, train):
        report.rows.append({"model": model, **row})


def overheads_of(
    report: Report, names: Sequence[str], model: str, rule: str, batch_size: int, epochs: int,
    steps: int,
) -> None:  # fmt: skip
    """What the layer above the back ends costs, where there is a plain program to compare with."""
    from nnl.deep500 import level1

    view = model_of(model)
    for name in names:
        told = {"model": model, "optimizer": rule}
        try:
            for row in level1.overhead(view, name, rule, batch_size, epochs, steps):
                report.rows.append({**told, **row})
        except Exception as error:  # back ends raise what they like: it is a result
            report.rows.append({**told, "backend": name, **_ended_by(error)})


def optimizers_of(
    report: Report,
    names: Sequence[str],
    rules: Sequence[str],
    model: str,
    data: str,
    epochs: int,
    batch_size: int,
    lr: float | None,
    folder: str | Path,
    samples: int | None = None,
    target: float | None = None,
) -> list[Path]:
    """Train with every optimizer on every back end: CSV files and four pictures in a folder, a row
    per epoch in the report. What a back end does not have is a row with the reason.

    Raises:
        ValueError: There is no such optimizer, or not a batch of samples.
    """
    from nnl.deep500 import network, plots, tickers, zoo
    from nnl.deep500.optimizers import optimizer
    from nnl.deep500.runner import AbortAtAccuracy, AbortOnNan, Runner

    _need_optimizers(rules)
    folder, trained = Path(folder), False
    folder.mkdir(parents=True, exist_ok=True)
    view = zoo.MODELS[model](_shape(data)) if model in zoo.MODELS else model_of(model)
    whole = {n: v[:samples] for n, v in zoo.DATA[data]().items()}
    cut = len(whole["label"]) * 4 // 5
    if cut < batch_size:
        raise ValueError(f"{cut} samples to train on are less than a batch of {batch_size}")
    goal = [] if target is None else [AbortAtAccuracy(target)]
    for backend in names:
        for rule in rules:
            name = {"backend": backend, "optimizer": rule, "model": model}
            try:
                net = network(view, backend)
                net.add_loss()
                one = optimizer(rule, net, **({} if lr is None else {"lr": lr}))
                file = f"{backend}_{rule}.csv".replace(":", "-")
                train_set = DataSet(
                    {n: v[:cut] for n, v in whole.items()}, batch_size, shuffle=True
                )
                job = Runner(
                    train_set,
                    DataSet({n: v[cut:] for n, v in whole.items()}, batch_size),
                    net,
                    one,
                    tickers=[AbortOnNan(), *goal, tickers.CsvTicker(folder / file)],
                ).run(epochs)
            except Exception as error:  # back ends raise what they like: it is a result
                report.rows.append({**name, **_ended_by(error)})
                continue
            trained, ended_early = True, job.ended == "interrupted"
            cost = {} if ended_early else _beside(view, backend, rule, one, train_set)
            report.rows += [
                {**name, **row, **cost, "status": job.ended} for row in tickers.rows(job)
            ]
            print(f"{backend} {rule}: accuracy {job.current.accuracy:.2%}", file=sys.stderr)
            if job.ended == "interrupted":
                report.ended = job.ended
                return []
    return plots.generate_plots(folder, title=f"{Path(model).stem}_{data}") if trained else []


def _need_optimizers(rules: Sequence[str]) -> None:
    from nnl.deep500.optimizers import NATIVE, REFERENCE

    known = [*REFERENCE, *(f"native:{n}" for n in NATIVE)]
    for rule in rules:
        kind, _, own = rule.rpartition(":")
        # a native rule that no back end has is a result
        if own not in REFERENCE or kind not in ("", "native"):
            raise ValueError(f"there is no optimizer {rule!r}, wanted one of {', '.join(known)}")


def _ended_by(error: Exception) -> dict[str, str]:
    """The end of a row: what a back end does not have is missing, all else has failed."""
    if isinstance(error, NotImplementedError):  # of an operator or an optimizer
        return {"status": "missing", "reason": str(error)}
    return {"status": "failed", "reason": f"{type(error).__name__}: {error}"[:300]}


def _beside(view: Any, backend: str, rule: str, trained: Any, train_set: DataSet) -> dict[str, Any]:
    """What of a step the layer is: over the plain program where the optimizer is the back end's and
    there is one with it, else over the same optimizer in a plain loop."""
    from nnl.deep500 import level1

    kind, _, own = rule.rpartition(":")
    if kind == "native":
        try:
            size, data = train_set.batch_size, train_set.data
            *_, found = level1.overhead(view, backend, own, size, 2, 10, data)
            return {k: v for k, v in found.items() if k not in ("backend", "epoch")}
        except NotImplementedError:
            pass
    pairs = level1.loop_pairs(trained, train_set)
    return level1.compared(pairs, "plain loop") if pairs else {}


def steps_of(
    report: Report, names: Sequence[str], rules: Sequence[str], model: str, data: str, steps: int,
    batch_size: int, lr: float | None,
) -> None:  # fmt: skip
    """The first optimizer on the first back end beside every other one, step by step on the same
    batches: a row per step and parameter with the norm of the difference (table 5.4).

    Raises:
        ValueError: There is nothing to compare with, or less data than steps.
    """
    from nnl.deep500 import network, zoo
    from nnl.deep500.optimizers import Optimizer, compare, optimizer

    _need_optimizers(rules)
    view = zoo.MODELS[model](_shape(data)) if model in zoo.MODELS else model_of(model)
    batches = list(DataSet(zoo.DATA[data](), batch_size))[:steps]
    pairs = [(backend, rule) for rule in rules for backend in names]
    if len(pairs) < 2 or len(batches) < steps:
        raise ValueError(
            f"--steps: {len(pairs)} optimizers and {len(batches)} batches, wanted 2 and {steps}"
        )

    def made(backend: str, rule: str) -> Optimizer:
        net = network(view, backend)
        net.add_loss()
        return optimizer(rule, net, **({} if lr is None else {"lr": lr}))

    for backend, rule in pairs[1:]:
        name = {"backend": backend, "optimizer": rule, "model": model}
        try:
            one, other = made(*pairs[0]), made(backend, rule)
            rows = compare(one, other, batches)
        except Exception as error:  # back ends raise what they like: it is a result
            report.rows.append({**name, **_ended_by(error)})
            continue
        report.rows += [
            {**name, "step": row["step"], "parameter": p, "distance": row[p], "status": "done"}
            for row in rows
            for p in one.network.parameters()
        ]


def _shape(data: str) -> tuple[int, int, int]:
    return (1, 8, 8) if data == "digits" else (3, 32, 32)


def distributed_of(
    report: Report,
    names: Sequence[str],
    schemes: Sequence[str],
    ranks: Sequence[int],
    **settings: Any,
) -> None:
    """Train by every scheme on every number of ranks: a row per epoch of the whole job.

    Args:
        schemes: Names of nnl.deep500.distributed.schemes.SCHEMES; "native:" of them for the back
            end's own optimizer.
    Raises:
        ValueError: There is no such scheme.
    """
    from nnl.deep500.distributed import job
    from nnl.deep500.distributed.native import NATIVE_SCHEMES
    from nnl.deep500.distributed.schemes import SCHEMES

    known = [*SCHEMES, *(f"native:{s}" for s in NATIVE_SCHEMES)]
    for scheme in schemes:
        if scheme not in known:
            raise ValueError(f"there is no scheme {scheme!r}, wanted one of {', '.join(known)}")
    for backend in names:
        for scheme in schemes:
            for n in ranks:
                row = {"backend": backend, "scheme": scheme, "ranks": n}
                asked = {**settings, "backend": backend, "scheme": scheme}
                with tempfile.TemporaryDirectory() as folder:
                    path = Path(folder) / "rows.json"
                    command = [sys.executable, "-m", "nnl.launch", "-n", str(n), job.__file__]
                    done = subprocess.run(
                        [*command, json.dumps(asked), str(path)], stderr=PIPE, text=True
                    )
                    if done.returncode or not path.exists():
                        lines = done.stderr.strip().splitlines() or ["it gave nothing"]
                        reason = next((s for s in lines if "Error: " in s), lines[0])
                        report.rows.append({**row, "status": "failed", "reason": reason})
                        continue
                    found = json.loads(path.read_text(encoding="utf-8"))
                report.rows += [{**row, **one, "status": "done"} for one in found]
