# SPDX-License-Identifier: Apache-2.0
"""nnl compare_with_cpu: one training step in two contexts, function by function."""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import sys
from collections import OrderedDict
from contextlib import ExitStack
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def add_commands(commands: Any) -> None:
    """Register the command."""
    p = commands.add_parser(
        "compare_with_cpu",
        description="Runs one training step of every optimizer of CONFIG and of CPUCONFIG from "
        "the same parameters on the same minibatch and writes OUTDIR/compare_with_cpu.csv: for "
        "every array the deviation of the difference over the larger deviation of both. The "
        "exit code is 1 if one is above the tolerance.",
    )
    p.add_argument("-c", "--config", required=True, metavar="CONFIG", help=".nntxt or .nnp")
    p.add_argument("-c2", "--config2", required=True, metavar="CPUCONFIG", help=".nntxt or .nnp")
    p.add_argument("-o", "--outdir", required=True, metavar="OUTDIR", help="made if missing")
    p.add_argument(
        "--tolerance", type=float, default=1e-3, metavar="X", help="(default: %(default)s)"
    )
    p.add_argument("--json", action="store_true", help="print the differences as JSON")
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Compare, write and print."""
    from nnl.core.parameters.atomic import replacing

    with ExitStack() as stack:
        columns = _compare(args.config, args.config2, stack)
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["1-Correl", *columns])
    for n in dict.fromkeys(n for found in columns.values() for n in found):
        writer.writerow([n, *(f"{c[n]:.6f}" if n in c else "" for c in columns.values())])
    os.makedirs(args.outdir, exist_ok=True)
    path = os.path.join(args.outdir, "compare_with_cpu.csv")
    with replacing(path) as file:
        file.write_text(table.getvalue(), "utf-8")
    largest = max((d for found in columns.values() for d in found.values()), default=0.0)
    if args.json:
        print(json.dumps({"file": path, "largest": largest, "optimizers": columns}, indent=1))
    else:
        for title, found in columns.items():
            print(title)
            for name, difference in found.items():
                print(f"  {difference:10.2e}  {name}")
    if largest <= args.tolerance:
        return 0
    text = f"the largest difference is {largest:.3g}, more than the tolerance {args.tolerance:g}"
    print(f"nnl compare_with_cpu: error: {text}", file=sys.stderr)
    return 1


def _compare(config: str, config2: str, stack: ExitStack) -> dict[str, dict[str, float]]:
    """Differences by optimizer."""
    first, second = (_Step(path, stack) for path in (config, config2))
    names = list(first.info.optimizers)
    if names != list(second.info.optimizers) or not names:
        raise ValueError(
            f"{config} has the optimizers {names}, {config2} {list(second.info.optimizers)}, "
            "wanted the same ones"
        )
    if (values := first.parameters()).keys() != second.parameters().keys():
        raise ValueError(f"{config} and {config2} have parameters of different names")
    second.set(values)
    columns = {}
    for name in names:
        network = first.info.optimizers[name].network.name
        batch, generated = first.draw(name)
        one, two = first.run(name, batch, generated), second.run(name, batch, generated)
        if one.keys() != two.keys():
            raise ValueError(f"{config} and {config2} have different functions in {network!r}")
        columns[f"optimizer '{name}' with network '{network}'"] = {
            key: _difference(one[key], two[key], key) for key in one
        }
        second.set(first.parameters())
    return columns


class _Step:
    """Training steps of one file, in parameters of its own."""

    def __init__(self, path: str, stack: ExitStack) -> None:
        import nnl as nn
        from nnl.cli.training.train import load
        from nnl.training.checkpoints import initial_parameters

        self.path, self.stack, self.scope = path, stack, OrderedDict[str, Any]()
        with nn.parameter_scope("", self.scope):
            content, self.info = load(path)
            initial_parameters(content)
        self.feeds: dict[str, Any] = {}

    def parameters(self) -> dict[str, Array]:
        import nnl as nn

        with nn.parameter_scope("", self.scope):
            return {k: v.d.copy() for k, v in nn.get_parameters(grad_only=False).items()}

    def set(self, values: dict[str, Array]) -> None:
        import nnl as nn

        with nn.parameter_scope("", self.scope):
            for k, v in nn.get_parameters(grad_only=False).items():
                v.d[...] = values[k]

    def draw(self, name: str) -> tuple[dict[str, Array], list[Array]]:
        """A minibatch by column, and what the generators give."""
        feed = self._feed(name)
        batch: dict[Any, Any] = {}
        feed.read(batch)
        columns: dict[str, Array] = {}
        for it, arrays in batch.items():
            columns.update(zip(it.variables, arrays, strict=True))
        return columns, [generate(v.shape) for v, generate in feed.generated]

    def _feed(self, name: str) -> Any:
        from nnl.training.feeding import Feed

        if name not in self.feeds:
            where = f"{self.path}: optimizer {name!r}"
            self.feeds[name] = Feed(self.info.optimizers[name], {}, self.stack, where)
        return self.feeds[name]

    def run(self, name: str, columns: dict[str, Array], generated: list[Array]) -> dict[str, Array]:
        """A step; outputs of the functions, gradients and new parameters by name."""
        import nnl as nn
        from nnl.core.ops import random

        o, feed = self.info.optimizers[name], self._feed(name)
        found: dict[str, Array] = {}
        with nn.context_scope(self.info.default_context):
            random.set_function_seed(0)  # random functions draw the same
            for column, v, _, _ in feed.columns:
                v.d = columns[column]
            for (v, _), array in zip(feed.generated, generated, strict=True):
                v.d = array
            losses = [v.variable_instance for v in o.loss_variables]
            target = losses[0] if len(losses) == 1 else o.target
            target.forward()
            functions: list[Any] = []
            target.visit(functions.append)
            for i, f in enumerate(functions):
                for j, y in enumerate(f.outputs):
                    found[f"forward_function ({i} {f.name}, {j})"] = y.d.copy()
            o.solver.zero_grad()
            target.backward(grad=1.0 / target.size if len(losses) == 1 else None)
            for key, v in o.parameters.items():
                found[f"backward_function ({key})"] = v.g.copy()
            if o.weight_decay > 0:
                o.solver.weight_decay(o.weight_decay)
            o.solver.update()
            for key, v in o.parameters.items():
                found[f"update ({o.solver.name}, {key})"] = v.d.copy()
        return found


def _difference(a: Array, b: Array, name: str) -> float:
    """The deviation of a - b over the larger one of both."""
    if a.shape != b.shape:
        raise ValueError(f"{name} has the shape {a.shape} in one file, {b.shape} in the other")
    a, b = a.astype(np.float64), b.astype(np.float64)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return 0.0 if np.array_equal(a, b, equal_nan=True) else float("inf")
    larger = max(a.std(), b.std())
    if larger == 0:  # both constant: one number each
        scale = max(abs(a).max(initial=0), abs(b).max(initial=0))
        return float(abs(a - b).max(initial=0) / scale) if scale else 0.0
    return float((a - b).std() / larger)
