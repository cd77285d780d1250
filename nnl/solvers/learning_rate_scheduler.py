# SPDX-License-Identifier: Apache-2.0
"""Learning rates as functions of the iteration number.

Each scheduler answers `get_learning_rate(iter)` and keeps no state, so a training run may resume
at any iteration: `solver.set_learning_rate(scheduler.get_learning_rate(i))`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = [
    "BaseLearningRateScheduler",
    "CosineScheduler",
    "ExponentialScheduler",
    "LinearWarmupScheduler",
    "PolynomialScheduler",
    "StepScheduler",
    "WarmupCosineScheduler",
    "WarmupStableDecayScheduler",
]


class BaseLearningRateScheduler:
    """What every scheduler is. A subclass defines `get_learning_rate`.

    Example:
        >>> from nnl.utils.learning_rate_scheduler import BaseLearningRateScheduler
        >>> class Halves(BaseLearningRateScheduler):
        ...     def get_learning_rate(self, iter):
        ...         return 0.1 / 2 ** (iter // 100)
        >>> Halves().get_learning_rate(250)
        0.025
    """

    def get_learning_rate(self, iter: int) -> float:
        """Return the learning rate of iteration `iter`, counted from 0.

        Raises:
            NotImplementedError: the subclass does not define it.
        """
        raise NotImplementedError(
            f"{type(self).__name__}: define get_learning_rate(iter) to return the learning rate"
        )


def _positive(scheduler: BaseLearningRateScheduler, name: str, value: int) -> int:
    if not value > 0:
        raise ValueError(f"{type(scheduler).__name__}: {name}={value} must be greater than 0")
    return value


class PolynomialScheduler(BaseLearningRateScheduler):
    r"""Fall from init_lr at iteration 0 to 0 at max_iter, and stay there.

    $$\eta(i) = \eta_0 \, (1 - \min(i, N) / N)^p$$

    Args:
        init_lr: $\eta_0$.
        max_iter: $N$, in iterations.
        power: $p$; 1 is a straight line.
    Raises:
        ValueError: max_iter is not positive.
    Example:
        >>> from nnl.utils.learning_rate_scheduler import PolynomialScheduler
        >>> s = PolynomialScheduler(0.1, 100, 1)
        >>> [round(s.get_learning_rate(i), 4) for i in (0, 50, 100)]
        [0.1, 0.05, 0.0]
    """

    def __init__(self, init_lr: float, max_iter: int, power: float) -> None:
        self.init_lr = init_lr
        self.max_iter = _positive(self, "max_iter", max_iter)
        self.power = power

    def get_learning_rate(self, iter: int) -> float:
        done = min(iter, self.max_iter) / self.max_iter
        return float(self.init_lr * (1.0 - done) ** self.power)


class CosineScheduler(BaseLearningRateScheduler):
    r"""Fall from init_lr at iteration 0 to 0 at max_iter along half a cosine; rise again after.

    $$\eta(i) = \eta_0 \, (\cos(\pi i / N) + 1) / 2$$

    Args:
        init_lr: $\eta_0$.
        max_iter: $N$, in iterations.
    Raises:
        ValueError: max_iter is not positive.
    Source: Loshchilov and Hutter, SGDR, arXiv:1608.03983, eq. 5 without restarts.
    Example:
        >>> from nnl.utils.learning_rate_scheduler import CosineScheduler
        >>> s = CosineScheduler(0.1, 100)
        >>> [round(s.get_learning_rate(i), 4) for i in (0, 50, 100)]
        [0.1, 0.05, 0.0]
    """

    def __init__(self, init_lr: float, max_iter: int) -> None:
        self.init_lr = init_lr
        self.max_iter = _positive(self, "max_iter", max_iter)

    def get_learning_rate(self, iter: int) -> float:
        return self.init_lr * ((math.cos(iter * 1.0 / self.max_iter * math.pi) + 1.0) * 0.5)


class ExponentialScheduler(BaseLearningRateScheduler):
    r"""Multiply the learning rate by gamma every `iter_interval` iterations.

    $$\eta(i) = \eta_0 \, \gamma^{\lfloor i / k \rfloor}$$

    Args:
        init_lr: $\eta_0$.
        gamma: $\gamma$.
        iter_interval: $k$, in iterations.
    Raises:
        ValueError: iter_interval is not positive.
    Example:
        >>> from nnl.utils.learning_rate_scheduler import ExponentialScheduler
        >>> s = ExponentialScheduler(0.1, 0.5, 10)
        >>> [s.get_learning_rate(i) for i in (0, 10, 20)]
        [0.1, 0.05, 0.025]
    """

    def __init__(self, init_lr: float, gamma: float, iter_interval: int = 1) -> None:
        self.init_lr = init_lr
        self.gamma = gamma
        self.iter_interval = _positive(self, "iter_interval", iter_interval)

    def get_learning_rate(self, iter: int) -> float:
        return self.init_lr * self.gamma ** (iter // self.iter_interval)


class StepScheduler(BaseLearningRateScheduler):
    r"""Multiply the learning rate by gamma at each of the given iterations.

    $$\eta(i) = \eta_0\,\gamma^n$$ with n the number of iter_steps that are at most i.

    Args:
        init_lr: Learning rate before the first step.
        gamma: Factor of each step.
        iter_steps: Iterations from which the next factor counts, in any order.
    Example:
        >>> from nnl.utils.learning_rate_scheduler import StepScheduler
        >>> s = StepScheduler(0.1, 0.5, [10, 20])
        >>> [s.get_learning_rate(i) for i in (0, 10, 20)]
        [0.1, 0.05, 0.025]
    """

    def __init__(self, init_lr: float, gamma: float, iter_steps: Sequence[int]) -> None:
        self.init_lr = init_lr
        self.gamma = gamma
        self.iter_steps = iter_steps

    def get_learning_rate(self, iter: int) -> float:
        rate = self.init_lr
        for step in self.iter_steps:
            if iter >= step:
                rate *= self.gamma
        return rate


class LinearWarmupScheduler(BaseLearningRateScheduler):
    r"""Scale another scheduler's learning rate up linearly, then follow that scheduler.

    $$\eta(i) = \eta_s(i)\,(i + 1) / W$$ for $i < W$, else $\eta_s(i)$.

    Args:
        scheduler: The scheduler $\eta_s$ to follow. It sees the same iteration numbers, so it is
            $W$ iterations in when the warm-up ends.
        warmup_iter: $W$, in iterations; 0 means no warm-up.
    Raises:
        ValueError: warmup_iter is negative.
    Source: Goyal et al., Accurate, Large Minibatch SGD, arXiv:1706.02677, section 2.2.
    Example:
        >>> from nnl.utils.learning_rate_scheduler import CosineScheduler, LinearWarmupScheduler
        >>> s = LinearWarmupScheduler(CosineScheduler(0.1, 100), 4)
        >>> [round(s.get_learning_rate(i), 4) for i in (0, 2, 4)]
        [0.025, 0.0749, 0.0996]
    """

    def __init__(self, scheduler: BaseLearningRateScheduler, warmup_iter: int) -> None:
        if warmup_iter < 0:
            raise ValueError(f"LinearWarmupScheduler: warmup_iter={warmup_iter} is negative")
        self.scheduler = scheduler
        self.warmup_iter = warmup_iter

    def get_learning_rate(self, iter: int) -> float:
        rate = self.scheduler.get_learning_rate(iter)
        return rate * ((iter + 1) / self.warmup_iter) if iter < self.warmup_iter else rate


class _Warmed(BaseLearningRateScheduler):
    """What rises to init_lr in warmup_iter iterations, and has fallen to final_lr at max_iter."""

    def __init__(
        self, init_lr: float, max_iter: int, warmup_iter: int, decay_iter: int, final_lr: float
    ) -> None:
        name = type(self).__name__
        for key, value in (("warmup_iter", warmup_iter), ("decay_iter", decay_iter)):
            if value < 0:
                raise ValueError(f"{name}: {key}={value} is negative")
        if warmup_iter + decay_iter > max_iter or max_iter < 1:
            raise ValueError(
                f"{name}: max_iter={max_iter} must be at least 1, and what warm-up and decay take, "
                f"{warmup_iter + decay_iter}"
            )
        self.init_lr, self.max_iter, self.final_lr = init_lr, max_iter, final_lr
        self.warmup_iter, self.decay_iter = warmup_iter, decay_iter

    def get_learning_rate(self, iter: int) -> float:
        if iter < self.warmup_iter:
            return self.init_lr * ((iter + 1) / self.warmup_iter)
        left = self.max_iter - min(iter, self.max_iter)
        if left >= self.decay_iter:
            return self.init_lr if left else self.final_lr
        share = self._share(1 - left / self.decay_iter)
        return self.final_lr + (self.init_lr - self.final_lr) * share

    def _share(self, done: float) -> float:
        """What is left when this share of the decay is done."""
        raise NotImplementedError


class WarmupCosineScheduler(_Warmed):
    r"""Rise in a line to init_lr, then fall along half a cosine to final_lr at max_iter.

    $$\eta(i) = \eta_0 (i + 1) / W$$ for $i < W$, then
    $$\eta(i) = \eta_1 + (\eta_0 - \eta_1) (\cos(\pi (i - W) / (N - W)) + 1) / 2,$$
    and $\eta_1$ from $N$ on.

    Args:
        init_lr, final_lr: $\eta_0$ and $\eta_1$.
        max_iter, warmup_iter: $N$ and $W$, in iterations.
    Raises:
        ValueError: warmup_iter is negative, or more than max_iter.
    Source: Loshchilov and Hutter, SGDR, arXiv:1608.03983, eq. 5 without restarts.
    Example:
        >>> from nnl.utils.learning_rate_scheduler import WarmupCosineScheduler
        >>> s = WarmupCosineScheduler(0.1, 100, 10, final_lr=0.01)
        >>> [round(s.get_learning_rate(i), 4) for i in (0, 9, 10, 55, 100)]
        [0.01, 0.1, 0.1, 0.055, 0.01]
    """

    def __init__(
        self, init_lr: float, max_iter: int, warmup_iter: int = 0, final_lr: float = 0.0
    ) -> None:
        super().__init__(init_lr, max_iter, warmup_iter, max(max_iter - warmup_iter, 0), final_lr)

    def _share(self, done: float) -> float:
        return (math.cos(math.pi * done) + 1) / 2


class WarmupStableDecayScheduler(_Warmed):
    r"""Rise in a line to init_lr, stay there, and fall at the end.

    $$\eta(i) = \eta_0 (i + 1) / W$$ for $i < W$, $\eta_0$ up to $N - D$, then
    $$\eta(i) = \eta_1 + (\eta_0 - \eta_1) (1 - ((i - N + D) / D)^p),$$ and $\eta_1$ from $N$ on.
    A run may go on from before the decay with a larger $N$.

    Args:
        init_lr, final_lr: $\eta_0$ and $\eta_1$.
        max_iter, warmup_iter, decay_iter: $N$, $W$ and $D$, in iterations.
        power: $p$; 1 is a straight line, 0.5 falls faster at first.
    Raises:
        ValueError: warmup_iter or decay_iter is negative, together they are more than max_iter, or
            power is not positive.
    Source: Hu et al., MiniCPM, arXiv:2404.06395, section 4; Haegele et al., arXiv:2405.18392, for
        the power 0.5.
    Example:
        >>> from nnl.utils.learning_rate_scheduler import WarmupStableDecayScheduler
        >>> s = WarmupStableDecayScheduler(0.1, 100, warmup_iter=10, decay_iter=20)
        >>> [round(s.get_learning_rate(i), 4) for i in (0, 10, 80, 90, 100)]
        [0.01, 0.1, 0.1, 0.05, 0.0]
    """

    def __init__(
        self,
        init_lr: float,
        max_iter: int,
        warmup_iter: int,
        decay_iter: int,
        final_lr: float = 0.0,
        power: float = 1.0,
    ) -> None:
        super().__init__(init_lr, max_iter, warmup_iter, decay_iter, final_lr)
        if not power > 0:
            raise ValueError(f"WarmupStableDecayScheduler: power={power} must be greater than 0")
        self.power = power

    def _share(self, done: float) -> float:
        return 1 - float(done**self.power)
