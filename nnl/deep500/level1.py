# SPDX-License-Identifier: Apache-2.0
"""Level 1: whole networks - how fast inference and training steps are, how far results differ,
and what the layer above the back ends costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from nnl.converters.onnx.file.model import Model
from nnl.deep500 import network, timing
from nnl.deep500.contract import Network
from nnl.deep500.dataset import DataSet
from nnl.deep500.operators import plain
from nnl.deep500.optimizers import Optimizer, optimizer
from nnl.deep500.timing import Pair, beside, first, paired, summary


def batch_for(net: Network, size: int, seed: int = 0) -> dict[str, Any]:
    """Random inputs; sizes that the model leaves open are `size` in front and 1 elsewhere.
    Whole numbers are classes of the first output, ten at most."""
    rng = np.random.default_rng(seed)
    found = {}
    scores = net.graph.outputs[0].shape or ()
    classes = scores[1] if len(scores) > 1 and isinstance(scores[1], int) else 0
    for info in net.graph.inputs:
        known = [n if isinstance(n, int) and n > 0 else 0 for n in info.shape or (0,)]
        shape = [n or (size if i == 0 else 1) for i, n in enumerate(known)]
        dtype = np.dtype(np.float32) if info.dtype is None else info.dtype
        whole = dtype.kind in "iu"
        found[info.name] = (
            rng.integers(0, min(classes or 10, 10), shape) if whole else rng.normal(size=shape)
        ).astype(dtype)
    return found


def networks(
    model: Model, backends: Sequence[str], batch_size: int = 32, runs: int = 21, train: bool = False
) -> Iterator[dict[str, Any]]:
    """A row per back end and phase ("inference", "step"): seconds of the first run, median and its
    95 % interval of the others, what of it the layer above the back end is, and the largest
    difference from the first back end's results."""
    wanted: dict[str, Any] = {}
    for backend in backends:
        for phase in ("inference", "step") if train else ("inference",):
            row: dict[str, Any] = {"backend": backend, "phase": phase}
            try:
                with _opened(model, backend, phase) as net:
                    inputs = batch_for(net, batch_size)
                    run = net.inference if phase == "inference" else net.inference_and_backprop
                    row["first_s"], outs = first(lambda run=run, x=inputs: run(x))
                    if phase == "step":
                        names = [g for _, g in net.gradient()]
                        outs = {**outs, **dict(zip(names, net.fetch(names), strict=True))}
                    row["difference"] = _difference(outs, wanted.setdefault(phase, outs))
                    without, baseline = plain(net, inputs, phase == "step")
                    row |= beside(without, lambda run=run, x=inputs: run(x), runs)
                    row |= {"baseline": baseline, "status": "done"}
            except Exception as error:  # back ends raise what they like: it is a result
                row |= {"status": "failed", "reason": f"{type(error).__name__}: {error}"[:300]}
            yield row


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
) -> Iterator[dict[str, Any]]:
    """The same training as a plain program of the back end and through the runner, in turns.

    A row per epoch as in the thesis's table 6.1: seconds of `steps` steps of both; and a last row
    "all" with medians per step, the difference in microseconds and as a share, without the first
    epoch. Both train one network, as two would lie in memory differently, which is more than the
    layer; their steps alternate, so that what else the machine does falls on both.
    """
    from nnl.deep500.runner import JobSummary, Runner

    net = network(model, backend)
    net.add_loss()
    native = net.plain_training(rule, **_settings(rule))
    trained: Optimizer = optimizer(f"native:{rule}", net, **_settings(rule))
    batches = [batch_for(net, batch_size, seed) for seed in range(4)]
    if data is not None:
        batches = list(DataSet(dict(data), batch_size))[:4]
    run = Runner(DataSet(batches[0], batch_size, None), None, net, trained)
    job = JobSummary()
    pairs: list[Pair] = []
    for epoch in range(epochs):
        run._tell("before_epoch", job)
        sums = [0.0, 0.0]
        for step in range(steps):
            batch = batches[step % len(batches)]
            took = paired(
                lambda batch=batch: native(batch),
                lambda batch=batch: run._step(job, batch),
                bool(step % 2),
            )
            sums = [s + t for s, (t, _) in zip(sums, took, strict=True)]
            if epoch:
                pairs.append(took)
        yield {"backend": backend, "epoch": epoch, "native_s": sums[0], "deep500_s": sums[1]}
    yield {"backend": backend, "epoch": "all", **compared(pairs, "plain program")}


def loop_pairs(trained: Optimizer, data: DataSet, steps: int = 10) -> list[Pair]:
    """Times of an optimizer's steps in a plain loop and through a runner, in turns: what events
    and the summary cost where the back end has no program of the same training. Both call the one
    optimizer on the one network, which trains on. Without the first pair; none without data."""
    from nnl.deep500.runner import JobSummary, Runner

    run, job = Runner(data, None, trained.network, trained), JobSummary()
    run._tell("before_epoch", job)
    batches = list(islice(data, 4))
    pairs = []
    for step in range(steps + 1 if batches else 0):
        batch = batches[step % len(batches)]
        pairs.append(
            paired(
                lambda batch=batch: trained.train(batch),
                lambda batch=batch: run._step(job, batch),
                bool(step % 2),
            )
        )
    return pairs[1:]


def compared(pairs: Sequence[Pair], baseline: str) -> dict[str, Any]:
    """Median seconds of a step without and with the layer, the overhead, and what it is over."""
    native, ours = (summary([p[k][0] for p in pairs])["median_s"] for k in (0, 1))
    return {
        "native_s": native,
        "deep500_s": ours,
        **timing.overhead(pairs),
        "baseline": baseline,
    }


def _settings(rule: str) -> dict[str, float]:
    from nnl.deep500.optimizers import NATIVE

    return {**NATIVE[rule].settings, "lr": 0.01}
