# SPDX-License-Identifier: Apache-2.0
"""nnl profile: how long the parts of a training step take."""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np

SECONDS = 0.1  # that every part is measured for, at least
RUNS = 100  # of one part, at most

Times = dict[str, float]  # milliseconds by part


def add_commands(commands: Any) -> None:
    """Register the command."""
    p = commands.add_parser(
        "profile",
        description="Runs a training step of every optimizer of CONFIG part by part and writes "
        "the milliseconds to OUTDIR/profile.csv. The functions are run one by one; forward_all "
        "and the others with that ending are what a training really runs.",
    )
    p.add_argument("-c", "--config", required=True, metavar="CONFIG", help=".nntxt or .nnp")
    p.add_argument("-o", "--outdir", required=True, metavar="OUTDIR", help="made if missing")
    p.add_argument("-C", "--context", metavar="CONTEXT", help="cpu or cudnn[:ID]")
    p.add_argument("--json", action="store_true", help="print the times as JSON")
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure, write and print, the longest first."""
    import nnl as nn
    from nnl.cli.training.train import load
    from nnl.core.parameters.atomic import replacing
    from nnl.training.checkpoints import initial_parameters

    with nn.parameter_scope("", OrderedDict()), ExitStack() as stack:
        content, info = load(args.config, context=args.context)
        initial_parameters(content)
        stack.enter_context(nn.context_scope(info.default_context))
        if not info.optimizers:
            raise ValueError(f"{args.config} has no optimizer, so there is no training step")
        columns = {
            f"optimizer '{name}' with network '{o.network.name}'": _measure(o, info, stack)
            for name, o in info.optimizers.items()
        }
    names = list(dict.fromkeys(n for times in columns.values() for n in times))
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["time in ms", *columns])
    for n in names:
        writer.writerow([n, *(f"{t[n]:.6f}" if n in t else "" for t in columns.values())])
    os.makedirs(args.outdir, exist_ok=True)
    path = os.path.join(args.outdir, "profile.csv")
    with replacing(path) as file:
        file.write_text(table.getvalue(), "utf-8")
    if args.json:
        print(json.dumps({"file": path, "unit": "ms", "optimizers": columns}, indent=1))
        return 0
    for title, times in columns.items():
        print(f"{title} (ms)")
        for name, t in sorted(times.items(), key=lambda item: -item[1]):
            print(f"  {t:10.4f}  {name}")
    return 0


def _measure(optimizer: Any, info: Any, stack: ExitStack) -> Times:
    """The times of one optimizer's step."""
    from nnl.ext import import_extension_module
    from nnl.training.feeding import Feed
    from nnl.training.profiler import GraphProfiler

    context = info.default_context
    kind = context.backend[0].partition(":")[0]
    synchronize = import_extension_module(kind).synchronize
    times: Times = {}

    def part(name: str, call: Callable[[], Any]) -> None:
        call()  # sets up
        total, runs = 0.0, 0
        while total < SECONDS and runs < RUNS:
            start = time.perf_counter()
            call()
            synchronize(device_id=context.device_id)
            total, runs = total + time.perf_counter() - start, runs + 1
        times[name] = total * 1e3 / runs

    feed = Feed(optimizer, {}, stack, f"nnl profile: optimizer {optimizer.name!r}")
    part("load_dataset", lambda: feed.read({}))
    batch: dict[Any, Any] = {}
    feed.read(batch)
    position = dict.fromkeys((name for name, _ in feed.positions), 0.0)
    part("let_data", lambda: feed.fill(batch, position))
    losses = [v.variable_instance for v in optimizer.loss_variables]
    target = losses[0] if len(losses) == 1 else optimizer.target
    profiler = GraphProfiler(target, context.device_id, kind, optimizer.solver, RUNS, SECONDS)
    profiler.run()
    found = profiler.get_result()
    for direction in ("forward", "backward"):
        seen: Counter[str] = Counter()
        for stat in found[direction]:
            place = stat.parameter_scope or stat.function_name
            seen[place] += 1
            number = f"_{seen[place] - 1}" if seen[place] > 1 else ""
            name = f"{direction}_function ({place}{number} : {stat.function_name})"
            times[name] = float(stat.mean_time)
    for name in ("forward_all", "backward_all"):
        times[name] = float(found[name])
    solver = optimizer.solver
    if optimizer.weight_decay > 0:
        part(f"weight_decay ({solver.name})", lambda: solver.weight_decay(optimizer.weight_decay))
    part(f"update ({solver.name})", solver.update)
    part("monitor_loss", lambda: [float(np.mean(v.d)) for v in losses])
    times["training_all"] = float(found["training"])
    return times
