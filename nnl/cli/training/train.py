# SPDX-License-Identifier: Apache-2.0
"""nnl train: train a network as a file of NNabla describes it."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

from nnl.cli.errors import EXPECTED, UsageError, problem_of

logger = logging.getLogger("nnl")

SETTINGS = ("max_epoch", "iter_per_epoch", "batch_size", "save_best", "monitor_interval")
UNITS = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40, "p": 2**50,
         "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}  # fmt: skip


def add_commands(commands: Any) -> None:
    """Register the command."""
    p = commands.add_parser(
        "train",
        description="Trains the networks of CONFIG with its optimizers on its data sets. OUTDIR "
        "gets results.nnp (the best, or the last), results_current_N.nnp, monitoring_report.yml "
        "and progress.txt. SIGTERM and Ctrl-C write a checkpoint first; -r continues from it. "
        "SIGTSTP (Ctrl-Z) writes one and stops the process; SIGUSR1 ends the training well. "
        "`nnl launch -n 4 train ...`, or `mpiexec -n 4 nnl -m train ...`, does it in 4 processes.",
    )
    p.add_argument("-c", "--config", required=True, metavar="CONFIG", help=".nntxt or .nnp")
    p.add_argument("-o", "--outdir", required=True, metavar="OUTDIR", help="made if missing")
    p.add_argument("-p", "--param", metavar="FILE", help="parameters to begin with (.nnp, .h5)")
    p.add_argument(
        "-r", "--resume", action="store_true", help="continue from the last checkpoint in OUTDIR"
    )
    p.add_argument(
        "-C", "--context", metavar="CONTEXT", help="cpu or cudnn[:ID] instead of CONFIG's"
    )
    p.add_argument(
        "-O", "--enable-ooc", action="store_true", help="compute again what does not fit into -m"
    )
    p.add_argument("-m", "--ooc-gpu-memory-size", metavar="SIZE", help="with -O: 1234, 4G, 512M")
    p.add_argument("-w", "--ooc-window-length", metavar="SIZE", help=argparse.SUPPRESS)
    p.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
    )
    p.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"instead of CONFIG's: {', '.join(SETTINGS)}",
    )
    p.add_argument(
        "--patience",
        type=int,
        default=0,
        metavar="N",
    )
    p.add_argument(
        "--every-row",
        action="store_true",
        help="monitors also measure the rows after the last full minibatch",
    )
    p.add_argument(
        "--events", metavar="FILE", help="write what happens as lines of JSON; - for stdout"
    )
    p.add_argument("--json", action="store_true", help="print the result as JSON")
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Train; the result goes to stdout."""
    import nnl as nn
    from nnl.core.ops import random

    settings = _settings(args.set)
    _check(args)
    random.set_function_seed(args.seed)
    random.set_parameter_seed(args.seed or random.DEFAULT_SEED)
    with nn.parameter_scope("", OrderedDict()), ExitStack() as stack:
        trainer = _trainer(args, settings, stack)
        try:
            outcome = trainer.run(args.resume)
        except (*EXPECTED, KeyboardInterrupt) as error:
            done = {"epoch": None, "iteration": trainer.iteration}
            problem = asdict(problem_of(error))
            trainer.tell("run_end", status="failed", reason=None, **done, error=problem)
            raise
    if trainer.team is not None and trainer.team.rank:  # the first process reports
        return {"failed": 1, "suspended": 130}.get(outcome.status, 0)
    return _report(args, outcome)


def _trainer(args: argparse.Namespace, settings: dict[str, int], stack: ExitStack) -> Any:
    """What trains, in the context and with the observers that were asked for."""
    import nnl as nn
    from nnl.converters.nnp.training_reader import context_of
    from nnl.training.checkpoints import Checkpoints, initial_parameters, restore
    from nnl.training.events import EventFile, Lines
    from nnl.training.trainer import Trainer

    content = read(args.config, settings)
    given = args.context
    context = context_of(content.proto.global_config) if given is None else _context(given)
    team = _team(context, content, settings) if args.mpi else None
    info = _built(content, context if team is None else team.comm.ctx, settings, args.seed)
    initial_parameters(content)
    if args.param:
        restore(args.param, info)
    first = team is None or team.rank == 0
    checkpoints = Checkpoints(args.outdir, args.config, info, first)
    observers: list[Callable[..., None]] = [Lines(Path(args.outdir))] if first else []
    if args.events and first:
        observers.append(EventFile(stack.enter_context(_events(args))))
    facts = {
        "format": 1,
        "config": args.config,
        "outdir": args.outdir,
        "seed": args.seed,
        "context": info.default_context.backend[0],
    }

    def tell(event: str, **more: Any) -> None:
        if event == "run_begin":
            more = facts | more
        elif event == "run_end" and "error" not in more:
            more["error"] = asdict(problem_of(_nan(more))) if more["reason"] == "nan" else None
        for observer in observers:
            observer(event, **more)

    trainer = Trainer(info, checkpoints, tell, args.patience, team, args.every_row)
    if first:
        logger.info(
            "%s: %d epochs of %d iterations, context %s, seed %d%s",
            *(args.config, trainer.max_epoch, trainer.per_epoch, facts["context"], args.seed),
            "" if team is None else f", {team.size} processes",
        )
    stack.enter_context(nn.context_scope(info.default_context))
    stack.enter_context(_memory(args))
    stack.enter_context(_signals(trainer))
    return trainer


# ---- before ----


def _check(args: argparse.Namespace) -> None:
    for flag, least, value in (("--seed", 0, args.seed), ("--patience", 0, args.patience)):
        if not least <= value < 2**32:
            raise UsageError(f"{flag} is {value}, wanted at least {least}")
    if args.param and not os.path.isfile(args.param):
        raise FileNotFoundError(f"there is no file {args.param}")
    if args.ooc_window_length is not None or (args.enable_ooc and not args.ooc_gpu_memory_size):
        logger.warning("-O needs the size -m, and -w has no effect: nothing is moved to the host")


def _settings(given: list[str]) -> dict[str, int]:
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if name not in SETTINGS or not equals:
            raise UsageError(f"--set is {text!r}, wanted NAME=VALUE with {', '.join(SETTINGS)}")
        words = {"true": 1, "false": 0}
        try:
            found[name] = words[value.lower()] if value.lower() in words else int(value)
        except ValueError:
            raise UsageError(f"--set is {text!r}, wanted a whole number") from None
        if found[name] < (1 if name in ("batch_size", "monitor_interval") else 0):
            raise UsageError(f"--set is {text!r}, wanted a larger number")
    return found


def load(
    path: str, settings: dict[str, int] | None = None, context: str | None = None, seed: int = 0
) -> tuple[Any, SimpleNamespace]:
    """The content of a training file, and the networks that it describes.

    Args:
        settings: Instead of those in the file.
        context: As -C names it.
        seed: Of initial values and the order of data.
    """
    content = read(path, settings or {})
    chosen = None if context is None else _context(context)
    return content, _built(content, chosen, settings or {}, seed)


def read(path: str, settings: dict[str, int]) -> Any:
    """The content of a training file, with some settings instead of its own."""
    from nnl.converters.nnp.archive import read_files

    if os.path.isdir(path):
        raise IsADirectoryError(f"{path} is a folder, wanted a file")
    if not os.path.isfile(path):
        raise FileNotFoundError(f"there is no file {path}")
    content = read_files(path, "", "nnl")
    for d in content.proto.dataset:
        if not d.uri.strip():
            raise ValueError(f"{path}: the data set {d.name!r} has no uri")
        beside = os.path.join(os.path.dirname(path), d.uri)
        if not os.path.exists(d.uri) and os.path.exists(beside):
            d.uri = beside  # as the file names it, seen from the file
    config = content.proto.training_config
    for name, value in settings.items():
        if name != "batch_size":
            setattr(config, name, value)
    return content


def _built(content: Any, context: Any, settings: dict[str, int], seed: int) -> SimpleNamespace:
    from nnl.converters.nnp.reader import build

    size = settings.get("batch_size")
    return build(content, exclude_parameter=True, batch_size=size, context=context, seed=seed)


def _team(context: Any, content: Any, settings: dict[str, int]) -> Any:
    """The processes of this job of MPI. Networks become those of a share of the minibatch."""
    from nnl.training.team import Team

    team = Team(context)
    size = settings.pop("batch_size", None)
    for d in content.proto.dataset:
        d.batch_size = size or d.batch_size
    for n in content.proto.network:
        n.batch_size = size or n.batch_size
        if n.batch_size % team.size:
            raise ValueError(
                f"nnl train: the batch size {n.batch_size} of {n.name} is not divided by "
                f"{team.size} processes; try: --set batch_size={n.batch_size * team.size}"
            )
        n.batch_size //= team.size
        if not any(-1 in v.shape.dim for v in n.variable):
            raise ValueError(f"nnl train: the batch size of {n.name} is fixed in the file")
    return team


def _context(text: str) -> Any:
    from nnl.ext_utils import get_extension_context

    name, _, device = text.partition(":")
    if name not in ("cpu", "cudnn", "cuda") or (device and not device.isdigit()):
        raise UsageError(f"-C is {text!r}, wanted cpu or cudnn[:ID]")
    return get_extension_context(name, device_id=device or "0")


def _memory(args: argparse.Namespace) -> Any:
    """A limit for what a step computes, if there is one."""
    if not (args.enable_ooc and args.ooc_gpu_memory_size):
        return nullcontext()
    import nnl as nn

    return nn.memory_budget(size(args.ooc_gpu_memory_size))


def size(text: str) -> int:
    """Bytes: a number, perhaps with one of the units K, k (1024), M, m, G, g, T, t, P, p.

    Raises:
        ValueError: It is something else.
    """
    number, unit = (text[:-1], UNITS[text[-1]]) if text[-1:] in UNITS else (text, 1)
    try:
        found = int(float(number) * unit)
    except (ValueError, OverflowError):
        found = 0
    if found <= 0:
        raise UsageError(f"-m is {text!r}, wanted a size such as 1234, 512M or 4G")
    return found


@contextmanager
def _events(args: argparse.Namespace) -> Iterator[TextIO]:
    if args.events == "-":
        yield sys.stdout
    else:
        with open(args.events, "a" if args.resume else "w", encoding="utf-8") as file:
            yield file


@contextmanager
def _signals(trainer: Any) -> Iterator[None]:
    """Requests of signals, which are honoured between two steps."""
    from nnl.training.trainer import PAUSE, STOP, SUSPEND

    requests = {"SIGINT": SUSPEND, "SIGTERM": SUSPEND, "SIGTSTP": PAUSE, "SIGUSR1": STOP}
    known = [(getattr(signal, n), r) for n, r in requests.items() if hasattr(signal, n)]

    def handler(request: str) -> Callable[[int, Any], None]:
        def handle(number: int, frame: Any) -> None:
            if trainer.request == SUSPEND and number == signal.SIGINT:
                raise KeyboardInterrupt  # asked twice: now
            trainer.request = request

        return handle

    trainer.pause = lambda: os.kill(os.getpid(), signal.SIGSTOP)
    try:
        before = [(n, signal.signal(n, handler(request))) for n, request in known]
    except ValueError:  # not the main thread: no signals come here
        before = []
    try:
        yield
    finally:
        for n, old in before:
            signal.signal(n, old)


# ---- after ----


def _report(args: argparse.Namespace, outcome: Any) -> int:
    folder = args.outdir
    if outcome.status == "failed":
        raise _nan(outcome._asdict())
    if outcome.status == "suspended":
        print(
            f"nnl train: suspended after iteration {outcome.iteration}; "
            f"try: nnl train -c {args.config} -o {folder} -r",
            file=sys.stderr,
        )
        return 130
    results = os.path.join(folder, "results.nnp")
    if args.json:
        found = outcome._asdict() | {"results": results}
        print(json.dumps(found, indent=1))
    elif args.events != "-":
        metrics = ", ".join(f"{k} {v:.6g}" for k, v in outcome.metrics.items())
        best = f", best epoch {outcome.best_epoch}" if outcome.best_epoch is not None else ""
        print(f"{results}: {outcome.epoch} epochs, {metrics or 'not trained'}{best}")
    return 0


def _nan(facts: dict[str, Any]) -> ArithmeticError:
    return ArithmeticError(
        f"the loss is not a number (NaN or infinite) after iteration {facts['iteration']}; "
        "try: a smaller learning rate"
    )
