# SPDX-License-Identifier: Apache-2.0
"""Learning-rate schedulers in Solver messages."""

from __future__ import annotations

from typing import Any

from nnl.solvers.learning_rate_scheduler import (
    BaseLearningRateScheduler,
    CosineScheduler,
    ExponentialScheduler,
    LinearWarmupScheduler,
    PolynomialScheduler,
    StepScheduler,
)

_KINDS: dict[str, type[BaseLearningRateScheduler]] = {
    "Polynomial": PolynomialScheduler,
    "Cosine": CosineScheduler,
    "Exponential": ExponentialScheduler,
    "Step": StepScheduler,
}


def read_scheduler(message: Any, rate: float, where: str) -> BaseLearningRateScheduler:
    """The scheduler of a Solver message; without one, lr_decay every lr_decay_interval updates.

    Args:
        rate: The learning rate that it starts from.
    Raises:
        ValueError: Its type is unknown, or a number is out of range.
        NotImplementedError: It is a network of its own (Custom).
    """
    kind = message.lr_scheduler_type
    if kind in ("", "None"):
        interval = message.lr_decay_interval or 1
        found: BaseLearningRateScheduler = _made(
            ExponentialScheduler, where, rate, message.lr_decay or 1.0, interval
        )
    elif kind == "Custom":
        raise NotImplementedError(
            f"{where}: the learning-rate scheduler Custom is not supported: load the network with "
            "NnpLoader, or set another scheduler in the file"
        )
    elif kind not in _KINDS:
        raise ValueError(
            f"{where}: the learning-rate scheduler {kind!r} is unknown, known are {sorted(_KINDS)}"
        )
    else:
        part = getattr(message, f"{kind.lower()}_scheduler_param")
        values = [getattr(part, f.name) for f in part.DESCRIPTOR.fields]
        if kind == "Exponential":
            values[1] = values[1] or 1
        if kind == "Step":
            values[1] = list(values[1])
        found = _made(_KINDS[kind], where, rate, *values)
    warm = message.lr_warmup_scheduler_type
    if not warm:
        return found
    if warm != "Linear":
        raise ValueError(f"{where}: the warm-up {warm!r} is unknown, known is 'Linear'")
    steps = message.linear_warmup_scheduler_param.warmup_iter
    return _made(LinearWarmupScheduler, where, found, steps)


def _made(kind: Any, where: str, *args: Any) -> BaseLearningRateScheduler:
    try:
        made: BaseLearningRateScheduler = kind(*args)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    return made


def write_scheduler(scheduler: BaseLearningRateScheduler, message: Any, what: str) -> None:
    """Put a scheduler into a Solver message; its initial rate is the solver's.

    Raises:
        TypeError: The file has no such scheduler.
    """
    if isinstance(scheduler, LinearWarmupScheduler):
        message.lr_warmup_scheduler_type = "Linear"
        message.linear_warmup_scheduler_param.warmup_iter = scheduler.warmup_iter
        scheduler = scheduler.scheduler
    name = next((n for n, kind in _KINDS.items() if type(scheduler) is kind), "")
    if not name:
        raise TypeError(
            f"save: {what}: scheduler is {type(scheduler).__name__}, wanted one of "
            "nnl.utils.learning_rate_scheduler"
        )
    message.lr_scheduler_type = name
    part = getattr(message, f"{name.lower()}_scheduler_param")
    part.SetInParent()
    for f in part.DESCRIPTOR.fields:
        value = getattr(scheduler, f.name)
        if f.name == "iter_steps":
            part.iter_steps.extend(value)
        else:
            setattr(part, f.name, value)
