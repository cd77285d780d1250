# SPDX-License-Identifier: Apache-2.0
"""Level 1: whole networks - how fast inference and training steps are, how far results differ,
and what the layer above the back ends costs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnl.converters.onnx.model import Model
from nnl.deep500 import network
from nnl.deep500.contract import Network
from nnl.deep500.operators import summary, timed
from nnl.deep500.optimizers import Optimizer, optimizer


def batch_for(net: Network, size: int, seed: int = 0) -> dict[str, Any]:
    """Random inputs; sizes that the model leaves open are `size` in front and 1 elsewhere."""
    rng = np.random.default_rng(seed)
    found = {}
    for info in net.graph.inputs:
        known = [n if isinstance(n, int) and n > 0 else 0 for n in info.shape or (0,)]
        shape = [n or (size if i == 0 else 1) for i, n in enumerate(known)]
        dtype = np.dtype(np.float32) if info.dtype is None else info.dtype
        whole = dtype.kind in "iu"
        found[info.name] = (rng.integers(0, 10, shape) if whole else rng.normal(size=shape)).astype(
            dtype
        )
    return found


def networks(
    model: Model, backends: Sequence[str], batch_size: int = 32, runs: int = 21, train: bool = False
) -> list[dict[str, Any]]:
    """A row per back end and phase ("inference", "step"): seconds of the first run, median and its
    95 % interval of the others, and the largest difference from the first back end's results."""
    rows = []
    wanted: dict[str, Any] = {}
    for backend in backends:
        for phase in ("inference", "step") if train else ("inference",):
            row: dict[str, Any] = {"backend": backend, "phase": phase}
            rows.append(row)
            try:
                with _opened(model, backend, phase) as net:
                    inputs = batch_for(net, batch_size)
                    run = net.inference if phase == "inference" else net.inference_and_backprop
                    start = time.perf_counter()
                    outs = run(inputs)
                    row["first_s"] = time.perf_counter() - start
                    if phase == "step":
                        names = [g for _, g in net.gradient()]
                        outs = {**outs, **dict(zip(names, net.fetch(names), strict=True))}
                    row["difference"] = _difference(outs, wanted.setdefault(phase, outs))
                    row |= timed(lambda run=run, inputs=inputs: run(inputs), runs)
                    row["status"] = "done"
            except Exception as error:  # back ends raise what they like: it is a result
                row |= {"status": "failed", "reason": f"{type(error).__name__}: {error}"[:300]}
    return rows


def _opened(model: Model, backend: str, phase: str) -> Any:
    net = network(model, backend)
    if phase == "step":
        net.add_loss()
    return net


def _difference(outs: Mapping[str, Any], wanted: Mapping[str, Any]) -> float:
    """Largest difference, of the largest number in each result."""
    worst = 0.0
    for name, y in wanted.items():
        if isinstance(y, np.ndarray) and y.dtype.kind == "f" and y.size:
            scale = float(np.abs(y).max()) or 1.0
            worst = max(worst, float(np.abs(outs[name] - y).max()) / scale)
    return worst


def overhead(
    model: Model,
    backend: str,
    rule: str = "sgd",
    batch_size: int = 32,
    epochs: int = 5,
    steps: int = 20,
    data: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """The same training as a plain program of the back end and through the runner, in turns.

    A row per epoch as in the thesis's table 6.1: seconds of `steps` steps of both; and a last row
    "all" with medians per step, the difference in microseconds and as a share, without the first
    epoch. Steps of the two sides alternate, so that what else the machine does falls on both.
    """
    from nnl.deep500.dataset import DataSet
    from nnl.deep500.runner import JobSummary, Runner, SummaryTicker

    nets = [network(model, backend) for _ in range(2)]
    for net in nets:
        net.add_loss()
    native = nets[0].plain_training(rule, **_settings(rule))
    trained: Optimizer = optimizer(f"native:{rule}", nets[1], **_settings(rule))
    batches = [batch_for(nets[0], batch_size, seed) for seed in range(4)]
    if data is not None:
        batches = list(DataSet(dict(data), batch_size))[:4]
    run = Runner(DataSet(batches[0], batch_size, None), None, nets[1], trained)
    ticker, job = SummaryTicker(), JobSummary()
    rows, pairs = [], []
    for epoch in range(epochs):
        ticker.before_epoch(job, run)
        sums = [0.0, 0.0]
        for step in range(steps):
            batch = batches[step % len(batches)]

            def through(batch: Any = batch) -> None:
                run._tell("before_optimizer_step", job, batch)
                outs = trained.train(batch)
                run._tell("after_optimizer_step", job, batch, outs)
                run._asked("abort_after_optimizer", job, outs)

            sides = [lambda batch=batch: native(batch), through]
            took = [0.0, 0.0]
            for k in (0, 1) if step % 2 else (1, 0):
                start = time.perf_counter()
                sides[k]()
                took[k] = time.perf_counter() - start
            sums = [s + t for s, t in zip(sums, took, strict=True)]
            if epoch:
                pairs.append(took)
        row = {"backend": backend, "epoch": epoch, "native_s": sums[0], "deep500_s": sums[1]}
        rows.append(row)
    rows.append({"backend": backend, "epoch": "all", **_compared(pairs)})
    return rows


def _compared(pairs: Sequence[Sequence[float]]) -> dict[str, Any]:
    native, ours = ([p[k] for p in pairs] for k in (0, 1))
    middle = summary([b - a for a, b in pairs])
    base = summary(native)["median_s"]
    return {
        "native_s": base,
        "deep500_s": summary(ours)["median_s"],
        "overhead_us": middle["median_s"] * 1e6,
        "low_us": middle["low_s"] * 1e6,
        "high_us": middle["high_s"] * 1e6,
        "overhead": middle["median_s"] / base,
    }


def _settings(rule: str) -> dict[str, float]:
    from nnl.deep500.optimizers import NATIVE

    return {**NATIVE[rule].settings, "lr": 0.01}
