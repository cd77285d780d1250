# SPDX-License-Identifier: Apache-2.0
"""Runner: trains and tests a network, and tells tickers what happens, when, and in which order."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nnl.deep500.contract import Network
from nnl.deep500.dataset import DataSet
from nnl.deep500.optimizers import Optimizer

EVENTS = (
    "before_epochs",
    "before_epoch",
    "before_training_set",
    "before_optimizer_step",
    "after_optimizer_step",
    "abort_after_optimizer",
    "after_training_set",
    "before_test_set",
    "before_inference",
    "after_inference",
    "after_test_set",
    "after_epoch",
    "abort_after_test",
    "after_epochs",
)


@dataclass
class EpochSummary:
    """What happened in one epoch.

    Attributes:
        losses: Of every training step. step_s, inference_s: Seconds of every step, where a ticker
            records them. train_s, test_s: Seconds in the optimizer and in inference, and all else
            between: what the epoch took.
    """

    epoch: int
    losses: list[float] = field(default_factory=list)
    samples: int = 0
    right: int = 0
    tested: int = 0
    test_losses: list[float] = field(default_factory=list)
    train_s: float = 0.0
    test_s: float = 0.0
    step_s: list[float] = field(default_factory=list)
    inference_s: list[float] = field(default_factory=list)

    @property
    def accuracy(self) -> float:
        """Share of the test samples that were classified right; nan without a test set."""
        return self.right / self.tested if self.tested else math.nan

    @property
    def loss(self) -> float:
        """Mean loss over the training steps; nan without any."""
        return float(np.mean(self.losses)) if self.losses else math.nan


@dataclass
class JobSummary:
    """What happened in a run: one entry per epoch, and why it ended.

    Attributes:
        ended: "done", "aborted" (by a ticker), or "interrupted".
    """

    epochs: list[EpochSummary] = field(default_factory=list)
    ended: str = "done"
    reason: str = ""

    @property
    def current(self) -> EpochSummary:
        """The epoch that is under way, or was the last."""
        return self.epochs[-1]

    @property
    def samples(self) -> int:
        """Samples trained on in all."""
        return sum(e.samples for e in self.epochs)


class Ticker:
    """Base of all tickers: one method per event, in the order in which they come.

    The two abort events end the run gracefully if a ticker gives a reason, a text.
    """

    def before_epochs(self, job: JobSummary, runner: Runner) -> None: ...
    def before_epoch(self, job: JobSummary, runner: Runner) -> None: ...
    def before_training_set(self, job: JobSummary, runner: Runner) -> None: ...
    def before_optimizer_step(self, job: JobSummary, runner: Runner, inputs: Any) -> None: ...
    def after_optimizer_step(
        self, job: JobSummary, runner: Runner, inputs: Any, outputs: Any
    ) -> None: ...
    def abort_after_optimizer(self, job: JobSummary, runner: Runner, outputs: Any) -> str:
        return ""

    def after_training_set(self, job: JobSummary, runner: Runner) -> None: ...
    def before_test_set(self, job: JobSummary, runner: Runner) -> None: ...
    def before_inference(self, job: JobSummary, runner: Runner, inputs: Any) -> None: ...
    def after_inference(
        self, job: JobSummary, runner: Runner, inputs: Any, outputs: Any
    ) -> None: ...
    def after_test_set(self, job: JobSummary, runner: Runner) -> None: ...
    def after_epoch(self, job: JobSummary, runner: Runner) -> None: ...
    def abort_after_test(self, job: JobSummary, runner: Runner) -> str:
        return ""

    def after_epochs(self, job: JobSummary, runner: Runner) -> None: ...


class SummaryTicker(Ticker):
    """Makes the data of a run: losses, accuracy, and the seconds of epochs. Others present them."""

    def before_epoch(self, job: JobSummary, runner: Runner) -> None:
        job.epochs.append(EpochSummary(len(job.epochs)))

    def before_training_set(self, job: JobSummary, runner: Runner) -> None:
        self._start = time.perf_counter()

    def after_optimizer_step(
        self, job: JobSummary, runner: Runner, inputs: Any, outputs: Any
    ) -> None:
        now = job.current
        now.losses.append(float(outputs[runner.network.loss]))
        now.samples += runner.train_set.batch_size

    def after_training_set(self, job: JobSummary, runner: Runner) -> None:
        job.current.train_s = time.perf_counter() - self._start

    def before_test_set(self, job: JobSummary, runner: Runner) -> None:
        self._start = time.perf_counter()

    def after_inference(self, job: JobSummary, runner: Runner, inputs: Any, outputs: Any) -> None:
        now, test = job.current, runner.test_set
        if runner.network.loss in outputs:
            now.test_losses.append(float(outputs[runner.network.loss]))
        if test is not None and test.label is not None and runner.output in outputs:
            best = np.argmax(outputs[runner.output], axis=1)
            wanted = np.asarray(inputs[test.label])
            if wanted.shape == best.shape:
                now.right += int((best == wanted).sum())
                now.tested += len(best)

    def after_test_set(self, job: JobSummary, runner: Runner) -> None:
        job.current.test_s = time.perf_counter() - self._start


class TimingSummaryTicker(SummaryTicker):
    """Also records the seconds of every step, which costs a little."""

    def before_optimizer_step(self, job: JobSummary, runner: Runner, inputs: Any) -> None:
        self._step = time.perf_counter()

    def after_optimizer_step(
        self, job: JobSummary, runner: Runner, inputs: Any, outputs: Any
    ) -> None:
        job.current.step_s.append(time.perf_counter() - self._step)
        super().after_optimizer_step(job, runner, inputs, outputs)

    def before_inference(self, job: JobSummary, runner: Runner, inputs: Any) -> None:
        self._step = time.perf_counter()

    def after_inference(self, job: JobSummary, runner: Runner, inputs: Any, outputs: Any) -> None:
        job.current.inference_s.append(time.perf_counter() - self._step)
        super().after_inference(job, runner, inputs, outputs)


class Runner:
    """Trains and tests.

    Args:
        train_set, test_set: Data; no test set leaves the test events out.
        network, optimizer: Of one back end.
        output: The network's output that test accuracy is taken from; its first one if left out.
        tickers: What presents the data, in this order, after the summary ticker.
        summary: What makes the data.
    """

    def __init__(
        self,
        train_set: DataSet,
        test_set: DataSet | None,
        network: Network,
        optimizer: Optimizer,
        output: str = "",
        tickers: Sequence[Ticker] = (),
        summary: SummaryTicker | None = None,
    ) -> None:
        self.train_set, self.test_set = train_set, test_set
        self.network, self.optimizer = network, optimizer
        self.output = output or network.graph.outputs[0].name
        self.tickers = (summary or SummaryTicker(), *tickers)
        self._listening = {event: self._methods(event) for event in EVENTS}
        self._before_step = self._listening["before_optimizer_step"]
        self._after_step = self._listening["after_optimizer_step"]
        self._may_abort = bool(self._listening["abort_after_optimizer"])

    def _methods(self, event: str) -> list[Any]:
        """What the tickers do at an event; those that do nothing are not called in every step."""
        nothing = getattr(Ticker, event)
        found = [getattr(ticker, event) for ticker in self.tickers]
        return [m for m in found if getattr(m, "__func__", None) is not nothing]

    def run(self, epochs: int) -> JobSummary:
        """Run for some epochs. Ctrl-C ends the run like an abort: reports are written."""
        job = JobSummary()
        self._tell("before_epochs", job)
        try:
            for _ in range(epochs):
                if self._epoch(job):
                    break
        except KeyboardInterrupt:
            job.ended, job.reason = "interrupted", "interrupted by the user"
            if job.epochs:
                self._tell("after_epoch", job)
        self._tell("after_epochs", job)
        return job

    def _epoch(self, job: JobSummary) -> bool:
        """One epoch; whether the run ends with it."""
        self._tell("before_epoch", job)
        self.train_set.shuffle()
        self._tell("before_training_set", job)
        ended = False
        for inputs in self.train_set:
            ended = self._step(job, inputs)
            if ended:
                break
        self._tell("after_training_set", job)
        if self.test_set is not None and not ended:
            self._tell("before_test_set", job)
            for inputs in self.test_set:
                self._tell("before_inference", job, inputs)
                outputs = self.network.inference(inputs)
                self._tell("after_inference", job, inputs, outputs)
            self._tell("after_test_set", job)
        self._tell("after_epoch", job)
        return ended or self._asked("abort_after_test", job)

    def _step(self, job: JobSummary, inputs: Mapping[str, Any]) -> bool:
        """One training step with its events; whether the run ends with it."""
        for method in self._before_step:
            method(job, self, inputs)
        outputs = self.optimizer.train(inputs)
        for method in self._after_step:
            method(job, self, inputs, outputs)
        return self._may_abort and self._asked("abort_after_optimizer", job, outputs)

    def _tell(self, event: str, job: JobSummary, *more: Mapping[str, Any]) -> None:
        for method in self._listening[event]:
            method(job, self, *more)

    def _asked(self, event: str, job: JobSummary, *more: Mapping[str, Any]) -> bool:
        methods = self._listening[event]
        if not methods:
            return False
        reasons = [method(job, self, *more) for method in methods]
        reason = next((r for r in reasons if r), "")
        if reason:
            job.ended, job.reason = "aborted", reason
        return bool(reason)


class AbortOnNan(Ticker):
    """Ends the run when the loss is no number any more."""

    def abort_after_optimizer(self, job: JobSummary, runner: Runner, outputs: Any) -> str:
        loss = job.current.losses[-1] if job.current.losses else 0.0
        return "" if math.isfinite(loss) else f"the loss is {loss} after {job.samples} samples"


class AbortAtAccuracy(Ticker):
    """Ends the run when the test accuracy is reached: time to accuracy."""

    def __init__(self, target: float) -> None:
        self.target = target

    def abort_after_test(self, job: JobSummary, runner: Runner) -> str:
        reached = job.current.accuracy >= self.target
        return f"accuracy {job.current.accuracy:.4f} >= {self.target}" if reached else ""
