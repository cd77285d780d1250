# SPDX-License-Identifier: Apache-2.0
"""What `nnl bench distributed` starts in several processes: train by a scheme, report once.

python -m nnl.launch -n 2 job.py '{"scheme": "decentralized", ...}' rows.json
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from nnl.deep500 import level1, network, zoo
from nnl.deep500.dataset import DataSet
from nnl.deep500.distributed.communication import Communication
from nnl.deep500.distributed.native import NATIVE_SCHEMES
from nnl.deep500.distributed.schemes import SCHEMES, InconsistentParameterServer
from nnl.deep500.optimizers import optimizer
from nnl.deep500.runner import JobSummary, Runner, Ticker


class GlobalTicker(Ticker):
    """Rows of the whole job, on the root: losses averaged, samples of all and seconds of the
    slowest rank, both counted from the start. Other ranks take part and keep nothing, so that every
    number is reported once."""

    def __init__(self, communication: Communication) -> None:
        self.communication = communication
        self.rows: list[dict[str, Any]] = []

    def after_epoch(self, job: JobSummary, runner: Runner) -> None:
        e = job.current
        mine = np.array([e.loss, e.samples, e.train_s, e.right, e.tested], np.float64)
        gathered = self.communication.gather_at_ps(mine)
        if gathered is None:
            return
        each = np.stack(gathered)
        before = self.rows[-1] if self.rows else {"samples": 0, "train_s": 0.0}
        self.rows.append(
            {
                "epoch": e.epoch,
                "loss": float(each[:, 0].mean()),
                "samples": before["samples"] + int(each[:, 1].sum()),
                "train_s": before["train_s"] + float(each[:, 2].max()),
                "accuracy": float(each[:, 3].sum() / max(each[:, 4].sum(), 1)),
            }
        )


def train(settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Train on this rank; gives the rows on the root."""
    kind, _, scheme = settings["scheme"].rpartition(":")
    native = kind == "native"
    data = zoo.DATA[settings["data"]]()
    data = {n: v[: settings["samples"]] for n, v in data.items()}
    cut = len(data["label"]) * 4 // 5
    net = network(zoo.MODELS[settings["model"]](data["x"].shape[1:]), settings["backend"])
    net.add_loss()
    c = talking(net)
    rule = settings["optimizer"]
    kept = {} if settings["lr"] is None else {"lr": settings["lr"]}
    base = optimizer(f"native:{rule}" if native else rule, net, **kept)
    wrapped: Any = (NATIVE_SCHEMES if native else SCHEMES)[scheme](base, c)  # type: ignore[arg-type, operator]
    serves = isinstance(wrapped, InconsistentParameterServer) and c.size > 1
    working = c.size - 1 if serves else c.size
    place = c.rank - 1 if serves else c.rank
    train_set = DataSet({n: v[:cut] for n, v in data.items()}, settings["batch_size"])
    test_set = DataSet({n: v[cut:] for n, v in data.items()}, settings["batch_size"])
    if len(train_set) < working:
        raise ValueError(
            f"{cut} samples to train on are less than a batch of {settings['batch_size']} for each "
            f"of {working} ranks"
        )
    if serves and c.is_root:
        start = time.perf_counter()
        served = wrapped.serve()
        train_s = time.perf_counter() - start
        run = Runner(train_set, test_set, net, base)
        right = JobSummary()
        run._tell("before_epoch", right)
        for inputs in test_set:
            run._tell("after_inference", right, inputs, net.inference(inputs))
        return [
            {
                "epoch": settings["epochs"] - 1,
                "loss": float(np.mean(right.current.test_losses)),
                "samples": len(served) * settings["batch_size"],
                "train_s": train_s,
                "accuracy": right.current.accuracy,
                **overhead(wrapped, train_set),
            }
        ]
    ticker = GlobalTicker(c)
    tickers = [] if serves else [ticker]
    part = train_set.part(place, working)
    runner = Runner(part, None if serves else test_set, net, wrapped, tickers=tickers)
    if serves:
        wrapped.run(lambda: runner.run(settings["epochs"]))
    else:
        runner.run(settings["epochs"])
    cost = overhead(wrapped, part)
    return [{**row, **cost} for row in ticker.rows]


def talking(net: Any) -> Communication:
    """The ranks for a network. One on a GPU context of nnl is exchanged by NCCL, and moves to the
    GPU of its rank; this has not yet been run on a GPU."""
    context = getattr(net, "context", None)
    c = Communication(context)
    if context is not None:
        net.context = c.communicator.ctx
    return c


def overhead(wrapped: Any, part: DataSet, steps: int = 10) -> dict[str, Any]:
    """What the runner adds to the same scheme in a plain loop: from steps of all ranks that train,
    after the job, whose numbers they leave alone. Waiting for others is in both."""
    c = wrapped.communication
    pairs = np.full((steps, 2, 2), np.nan)

    def training() -> None:
        for step, pair in enumerate(level1.loop_pairs(wrapped, part, steps)):
            pairs[step] = pair

    c.sync_all(np.zeros(1))  # a server has served the job before it serves these steps
    if isinstance(wrapped, InconsistentParameterServer):
        wrapped.run(training)
    else:
        training()
    each = [p for p in c.all_gather(pairs).reshape(-1, 2, 2) if np.isfinite(p).all()]
    return level1.compared(each, "plain loop") if each else {}


def main() -> None:
    settings, path = json.loads(sys.argv[1]), Path(sys.argv[2])
    rows = train(settings)
    if rows:
        path.write_text(json.dumps(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
