# SPDX-License-Identifier: Apache-2.0
"""Training as a file of NNabla describes it: its optimizers, data sets, schedules and monitors."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from nnl.core.graph.variable import Variable, forward_all
from nnl.core.ops.random import set_function_seed
from nnl.core.parameters.parameter import get_parameters
from nnl.data.iterator import DataIterator
from nnl.training.checkpoints import Checkpoints
from nnl.training.feeding import Feed, rows_of
from nnl.training.team import Team

ALWAYS_TESTED = 5  # epochs at the beginning; later ones follow monitor_interval
SUSPEND, PAUSE, STOP = "suspend", "pause", "stop"  # what may be requested of a training

# Called with the name of an event and its facts.
Tell = Callable[..., None]


class Outcome(NamedTuple):
    """How a training ended.

    Attributes:
        status: "finished", "suspended" or "failed".
        reason: Why before its time: "patience", "stop", "nan"; None otherwise.
        epoch, iteration: How many are done.
        metrics: train_loss and the monitors of the last epoch.
        best_epoch, best_value: Of results.nnp.
    """

    status: str
    reason: str | None
    epoch: int
    iteration: int
    metrics: dict[str, float]
    best_epoch: int | None
    best_value: float | None


class _Ended(Exception):
    """The training ends now: with this status and reason."""


def _mean(variables: list[Variable]) -> float:
    """The sum of the means of all."""
    values = [v.d for v in variables]
    return sum(float(d.item() if d.size == 1 else np.mean(d)) for d in values)


class _Optimizer:
    """One step of an optimizer of the file."""

    def __init__(self, optimizer: Any, feed: Feed, team: Team | None) -> None:
        self.o, self.feed, self.team = optimizer, feed, team
        self.losses: list[Variable] = [v.variable_instance for v in optimizer.loss_variables]
        if not self.losses:
            raise ValueError(f"{feed.where}: it has no loss variable")
        interval = optimizer.update_interval
        if interval < 1:
            raise ValueError(f"{feed.where}: its update_interval is {interval}, wanted 1 or more")
        self.target = self.losses[0] if len(self.losses) == 1 else optimizer.target
        # of several losses, every one has its start gradient already
        self.start = 1.0 / max(self.target.size, 1) if len(self.losses) == 1 else None
        self.rate: float | None = None  # the solver's, once it is set
        for v in self.losses:
            v.persistent = True

    def active(self, iteration: int) -> bool:
        first, last = self.o.start_iter, self.o.end_iter
        return (not first or iteration + 1 >= first) and (not last or iteration + 1 <= last)

    def step(self, iteration: int) -> float:
        """Forward, backward and, at the end of an update interval, update; returns the loss."""
        o = self.o
        place = iteration % o.update_interval
        self.target.forward(clear_no_need_grad=True)
        if place == 0:
            o.solver.zero_grad()
        if self.start is None:
            self.target.backward(clear_buffer=True)
        else:
            self.target.backward(grad=self.start, clear_buffer=True)
        if place == o.update_interval - 1:
            if self.team is not None:
                self.team.average([v.grad for v in o.solver.get_parameters().values()])
            if o.weight_decay > 0:
                o.solver.weight_decay(o.weight_decay)
            rate = o.scheduler.get_learning_rate(iteration)
            if rate != self.rate:
                o.solver.set_learning_rate(rate)
                self.rate = rate
            o.solver.update()
        return _mean(self.losses)


class _Monitor:
    """A monitor of the file.

    Args:
        every_row: Whether the rows after the last full minibatch are measured too, where the
            monitor has a value for each row. If not, they come next time, as in NNabla.
    """

    def __init__(self, name: str, monitor: Any, feed: Feed, every_row: bool = False) -> None:
        self.name, self.feed = name, feed
        self.watched: list[Variable] = [v.variable_instance for v in monitor.monitor_variables]
        if not self.watched or not feed.iterators:
            what = "data set" if self.watched else "variable to watch"
            raise ValueError(f"{feed.where}: it has no {what}")
        largest = max(it.size for it in feed.iterators)
        size = max(it.batch_size for it in feed.iterators)
        rest = largest % size
        if not every_row or any(v.shape[:1] != (size,) for v in self.watched):
            rest = 0
        # of the last minibatch only these rows count; the data set has begun again behind them
        self.rows = [size] * (largest // size) + ([rest] if rest else [])
        self.batches, self.has_rest = len(self.rows), bool(rest)

    def value(self, batch: int) -> float:
        """The mean over a minibatch's rows that count, weighed so that the mean of all minibatches
        is that of all rows."""
        forward_all(self.watched, clear_no_need_grad=True)
        if not self.has_rest:
            return _mean(self.watched)
        rows = self.rows[batch]
        share = rows * self.batches / sum(self.rows)
        return share * sum(float(np.mean(v.d[:rows])) for v in self.watched)


class Trainer:
    """A run of a training file.

    Args:
        info: What `load` gave for it. max_epoch and the like are read from its training_config.
        checkpoints: Where results go.
        tell: Told of every event of the run; see docs/training_files.md.
        patience: Epochs without a better result after which the training is done; 0 for all.
        every_row: Whether monitors measure the rows after the last full minibatch too; not of a
            team.
        team: The processes that train together, if there are several; the first one tells and
            saves.
    """

    def __init__(
        self,
        info: Any,
        checkpoints: Checkpoints,
        tell: Tell,
        patience: int = 0,
        team: Team | None = None,
        every_row: bool = False,
    ) -> None:
        config = info.training_config
        self.info, self.checkpoints, self.tell, self.patience = info, checkpoints, tell, patience
        self.team, self.every_row = team, every_row and team is None
        self.per_epoch, self.max_epoch = config.iter_per_epoch, config.max_epoch
        self.interval, self.keep_best = config.monitor_interval, config.save_best
        for name in ("max_epoch", "iter_per_epoch", "monitor_interval"):
            if getattr(config, name) < 0:
                raise ValueError(f"nnl train: {name} is {getattr(config, name)}, wanted 0 or more")
        self.total = self.per_epoch * self.max_epoch
        self.request: str | None = None  # may be set at any time, by handlers of signals too
        self.agreed: str | None = None  # what the processes of a team do after this step
        self.stopping = False  # the training ends with this epoch
        self.pause: Callable[[], None] = lambda: None  # what PAUSE does once all is saved
        self.iteration, self.first = 0, 0
        self.sum, self.count = 0.0, 0  # of the losses of this epoch
        self.test_is_due = False  # the epoch's steps are done, its test is not
        self.best_value: float | None = None
        self.best_epoch: int | None = None
        self.metrics: dict[str, float] = {}
        self.began = self.epoch_began = 0.0  # on the clock of time.perf_counter
        self.optimizers: list[_Optimizer] = []
        self.limited = False  # whether some train for a part of the iterations only
        self.monitors: list[_Monitor] = []

    def run(self, resume: bool = False) -> Outcome:
        """Train until the end, or until what is requested.

        Args:
            resume: Continue from the newest checkpoint, if there is one.
        """
        state = self.checkpoints.resume(self.per_epoch) if resume else None
        with ExitStack() as stack:
            if self.total > 0:
                self._open(stack)
            if state is None:
                self.checkpoints.begin()
            else:
                self._continue(state)
            self._fix_what_is_not_trained()
            if self.team is not None and self.team.rank:  # dropout of every share is another
                set_function_seed(2**32 * self.team.rank + self.iteration)
            self._tell_begin(state)
            try:
                self._train()
                outcome = self._outcome("finished", None)
            except _Ended as end:
                outcome = self._outcome(*end.args)
        self.tell(
            "run_end",
            **{k: v for k, v in outcome._asdict().items() if not k.startswith(("best", "metrics"))},
        )
        return outcome

    # ---- before ----

    def _open(self, stack: ExitStack) -> None:
        """Make the iterators: one for all optimizers of a data set, one for all monitors."""
        for kind, parts in (("optimizer", self.info.optimizers), ("monitor", self.info.monitors)):
            iterators: dict[Any, DataIterator] = {}
            for name, part in parts.items():
                feed = Feed(part, iterators, stack, f"nnl train: {kind} {name!r}", self.team)
                if kind == "optimizer":
                    self.optimizers.append(_Optimizer(part, feed, self.team))
                else:
                    self.monitors.append(_Monitor(name, part, feed, self.every_row))
        self.limited = any(o.o.start_iter or o.o.end_iter for o in self.optimizers)
        if not self.optimizers:
            raise ValueError("nnl train: the file has no optimizer, so there is nothing to train")

    def _fix_what_is_not_trained(self) -> None:
        """No gradients for parameters that no optimizer updates."""
        optimizers = self.info.optimizers.values()
        trained = {id(v) for o in optimizers for v in o.parameters.values()}
        for o in optimizers:
            for p in o.parameter_learning_rate_multipliers:
                if id(p.variable_instance) not in trained:
                    p.variable_instance.need_grad = False

    def _continue(self, state: dict[str, Any]) -> None:
        """Take over a checkpoint, and read again what was read before it, for the order of data."""
        self.first = self.iteration = state["iteration"]
        self.sum, self.count = state.get("sum", 0.0), state.get("count", 0)
        self.test_is_due = state.get("test_is_due", False)
        self.best_value, self.best_epoch = state.get("best_value"), state.get("best_epoch")
        self.metrics = state.get("metrics", {})
        self.checkpoints.saved = (self.iteration // max(self.per_epoch, 1), time.monotonic())
        for iteration in range(min(self.iteration, self.total)):
            batch: dict[DataIterator, tuple[Any, ...]] = {}
            for o in self._active(iteration):
                o.feed.read(batch)
            epoch, place = divmod(iteration + 1, self.per_epoch)
            due = self.test_is_due and iteration + 1 == self.iteration
            if place == 0 and self._tested(epoch) and not due:
                for m in self.monitors:
                    for _ in range(m.batches):
                        m.feed.read({})

    def _tell_begin(self, state: dict[str, Any] | None) -> None:
        epoch = self.iteration // max(self.per_epoch, 1)
        found = None if state is None else {"epoch": epoch, "iteration": self.iteration}
        self.tell(
            "run_begin",
            max_epoch=self.max_epoch,
            iterations_per_epoch=self.per_epoch,
            train_rows=rows_of(o.feed for o in self.optimizers),
            valid_rows=rows_of(m.feed for m in self.monitors),
            parameters=self._parameters(),
            monitors=[m.name for m in self.monitors],
            resumed=found,
        )

    def _parameters(self) -> int:
        trained = {
            id(v): v.size for o in self.info.optimizers.values() for v in o.parameters.values()
        }
        return sum(trained.values())

    # ---- the steps ----

    def _active(self, iteration: int) -> list[_Optimizer]:
        if not self.limited:
            return self.optimizers
        return [o for o in self.optimizers if o.active(iteration)]

    def _train(self) -> None:
        if self.total == 0:
            self.checkpoints.save_best(self._state())
            return
        self.began = self.epoch_began = time.perf_counter()
        if self.test_is_due:
            self._end_epoch()
        while self.iteration < self.total:
            self._epoch()
        self.checkpoints.save_epoch(
            self.max_epoch, self._state(), force=self.iteration > self.first
        )

    def _epoch(self) -> None:
        epoch, place = divmod(self.iteration, self.per_epoch)
        self.epoch_began = time.perf_counter()
        self.tell("epoch_begin", epoch=epoch + 1, iteration=self.iteration)
        self.tell("train_set_begin", epoch=epoch + 1, iteration=self.iteration)
        for _ in range(place, self.per_epoch):
            self._step(epoch)
            request = self.request if self.team is None else self.agreed
            if request is not None and self._honour(request, epoch + 1):
                break
        self.test_is_due = True
        mean = self.sum / self.count if self.count else 0.0
        self.tell("train_set_end", epoch=epoch + 1, iteration=self.iteration, loss=mean)
        self._end_epoch()

    def _step(self, epoch: int) -> None:
        iteration, begin = self.iteration, time.perf_counter()
        tell, epoch = self.tell, epoch + 1
        tell("step_before", epoch=epoch, iteration=iteration)
        loss, batch = 0.0, {}
        active = self._active(iteration)
        for o in active:
            o.feed.read(batch)
            o.feed.fill(batch, self._position() if o.feed.positions else {})
            loss += o.step(iteration)
        if self.team is not None:
            loss = self._agree(self.team, loss)
        self.sum += loss
        # as NNabla counts: steps in which nothing trains are none, and the first one of an epoch is
        # two where several optimizers train
        self.count += bool(active) + (len(active) > 1 and self.count == 0)
        self.iteration += 1
        rate = active[0].o.solver.learning_rate() if active else 0.0
        seconds = time.perf_counter() - begin
        tell(
            "step_after",
            epoch=epoch,
            iteration=self.iteration,
            loss=loss,
            lr=rate,
            seconds=seconds,
        )
        if not math.isfinite(loss):
            tell("abort_check", epoch=epoch, iteration=self.iteration, reason="nan")
            raise _Ended("failed", "nan")

    def _position(self) -> dict[str, float]:
        """What variables may take besides columns of data sets."""
        return {
            "%iter": self.iteration,
            "%max_iter": self.total,
            "%epoch": self.iteration // self.per_epoch,
            "%epochf": self.iteration / self.per_epoch,
            "%max_epoch": self.max_epoch,
            "%progress": self.iteration / self.total,
        }

    def _agree(self, team: Team, loss: float) -> float:
        """The mean of the losses of all processes; what one of them was asked for, all do."""
        asked, self.request = self.request, None
        total, *wanted = team.sums(loss, asked == STOP, asked in (SUSPEND, PAUSE))
        self.agreed = SUSPEND if wanted[1] else STOP if wanted[0] else None
        return total / team.size

    def _honour(self, request: str, epoch: int) -> bool:
        """Do what is requested between two steps; True if the epoch ends now."""
        if self.request == request:
            self.request = None
        if request == PAUSE:
            self.checkpoints.save_between(self._state())
            self.pause()
            return False
        self.tell("abort_check", epoch=epoch, iteration=self.iteration, reason=request)
        if request == SUSPEND:
            if self.iteration % self.per_epoch == 0:
                self.test_is_due = True
            self.checkpoints.save_between(self._state())
            raise _Ended("suspended", None)
        self.stopping = True
        return True

    # ---- the end of an epoch ----

    def _tested(self, epoch: int) -> bool:
        return epoch <= ALWAYS_TESTED or epoch % self.interval == 0

    def _end_epoch(self) -> None:
        """Test, save and report."""
        epoch = -(-self.iteration // self.per_epoch)
        self.metrics = {"train_loss": self.sum / self.count if self.count else 0.0}
        if self.team is not None:
            fixed = get_parameters(grad_only=False).values()
            self.team.average([v.data for v in fixed if not v.need_grad])
        best, tested = False, self.stopping or self._tested(epoch)
        if tested:
            for m in self.monitors:
                self.metrics[m.name] = self._test(m, epoch)
            best = self._is_best()
        stop = self.stopping = self.stopping or (self.team is None and self.request == STOP)
        self.sum, self.count, self.test_is_due = 0.0, 0, False
        if best:
            self.best_epoch = epoch
            self.checkpoints.save_best(self._state())
        cost, *errors = self.metrics.items()
        self.checkpoints.add_to_report(epoch, {"cost": cost[1], **dict(errors)})
        saved = self.checkpoints.save_epoch(epoch, self._state(), force=stop)
        now = time.perf_counter()
        per_step = (now - self.began) / max(self.iteration - self.first, 1)
        self.tell(
            "epoch_end",
            epoch=epoch,
            iteration=self.iteration,
            metrics=self.metrics,
            best=best,
            best_epoch=self.best_epoch,
            best_value=self.best_value,
            seconds=now - self.epoch_began,
            elapsed=now - self.began,
            eta_s=per_step * (self.total - self.iteration),
            file=saved,
        )
        if stop:
            raise _Ended("finished", STOP)
        if self.patience and tested and epoch - (self.best_epoch or 0) >= self.patience:
            self.checkpoints.save_epoch(epoch, self._state(), force=True)
            raise _Ended("finished", "patience")

    def _is_best(self) -> bool:
        """Whether results.nnp is to be written; without save_best it always is."""
        name = "valid_error" if "valid_error" in self.metrics else None
        name = next((m.name for m in self.monitors), None) if name is None else name
        value = self.metrics[name] if name is not None else 0.0
        if self.keep_best and self.best_value and value > self.best_value:
            return False
        self.best_value = value
        return True

    def _test(self, monitor: _Monitor, epoch: int) -> float:
        """The mean of what a monitor watches over its data set."""
        facts = {"epoch": epoch, "monitor": monitor.name}
        self.tell("test_begin", **facts, batches=monitor.batches)
        total = 0.0
        for i in range(monitor.batches):
            self.tell("infer_before", **facts, batch=i)
            batch: dict[DataIterator, tuple[Any, ...]] = {}
            monitor.feed.read(batch)
            monitor.feed.fill(batch, {})
            total += monitor.value(i)
            self.tell("infer_after", **facts, batch=i + 1)
            if self.request == SUSPEND and self.team is None:
                self.test_is_due = True
                self.tell("abort_test", **facts, reason=SUSPEND)
                self.checkpoints.save_between(self._state())
                raise _Ended("suspended", None)
        if self.team is not None:
            total = self.team.sums(total)[0] / self.team.size
        value = total / monitor.batches if monitor.batches else 0.0
        value = value if math.isfinite(value) else 0.0  # as NNabla reports it
        self.tell("test_end", **facts, value=value)
        return value

    # ---- what is known ----

    def _state(self) -> dict[str, Any]:
        return {
            "iteration": self.iteration,
            "sum": self.sum,
            "count": self.count,
            "test_is_due": self.test_is_due,
            "best_value": self.best_value,
            "best_epoch": self.best_epoch,
            "metrics": self.metrics,
        }

    def _outcome(self, status: str, reason: str | None) -> Outcome:
        epoch = self.iteration // max(self.per_epoch, 1)
        return Outcome(
            status,
            reason,
            epoch,
            self.iteration,
            self.metrics,
            self.best_epoch,
            self.best_value,
        )
