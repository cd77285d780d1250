# SPDX-License-Identifier: Apache-2.0
"""What the ten programs share: the loop around a step, its timing, the command line.

A program is a class: made with a size, it has a solver, `batches(rng)`, which yields the arguments
of one step after the other for ever, and `step(...)`, ordinary define-by-run code from the forward
pass to the update, which returns the loss.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import nnl as nn
from nnl.ext_utils import get_extension_context

MODES = ("eager", "coexecute")


class Run(NamedTuple):
    """What came out: losses of the steps that were looked at, seconds of each step and of the whole
    loop, what ran and whose."""

    losses: list[float]
    times: list[float]
    seconds: float
    step: Any
    program: Any


def train(
    program: Any,
    mode: str = "eager",
    steps: int = 50,
    size: str = "small",
    context: str = "cpu",
    every: int = 10,
    seed: int = 0,
) -> Run:
    """Run the steps of a program, from new parameters, and read the loss of every so many."""
    nn.clear_parameters()
    nn.seed(seed)
    with nn.context_scope(get_extension_context(context)):
        made = program(size)
        step = nn.coexecute(made.step) if mode == "coexecute" else made.step
        losses, times = [], []
        with nn.auto_forward():
            batches = made.batches(np.random.default_rng(seed))
            start = time.perf_counter()
            for i, batch in zip(range(1, steps + 1), batches, strict=False):
                begin = time.perf_counter()
                loss = step(*batch)
                if i % every == 0 or i == steps:
                    losses.append(float(loss.d))
                times.append(time.perf_counter() - begin)
            seconds = time.perf_counter() - start
    return Run(losses, times, seconds, step, made)


def main(program: Any) -> Any:
    """Train as the command line says, tell how it went, and return what was trained."""
    parser = argparse.ArgumentParser(description=sys.modules[program.__module__].__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--mode", choices=MODES, default="eager")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--size", choices=("small", "paper"), default="small")
    parser.add_argument("--context", default="cpu", help="cpu, numpy, cudnn, ...")
    parser.add_argument("--every", type=int, default=10, help="steps from one loss to the next")
    args = parser.parse_args()
    for name in ("steps", "every"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} is {getattr(args, name)}, wanted at least 1")
    run = train(program, **vars(args))
    for i, loss in enumerate(run.losses, 1):
        print(f"step {min(i * args.every, args.steps):5}  loss {loss:.4f}")
    each = run.seconds / args.steps
    print(f"{Path(sys.argv[0]).stem}, {args.size}, {args.mode}: {args.steps} steps", end="")
    print(f" in {run.seconds:.2f} s, {each * 1e3:.2f} ms a step,", end=" ")
    print(f"{run.program.items / each:.0f} {run.program.unit} a second")
    if args.mode == "coexecute":
        report = run.step.report()
        print(f"traces {report.traces}, fallbacks {len(report.fallbacks)}")
        print(*report.fallbacks, sep="\n", end="\n" if report.fallbacks else "")
    return run.program
