# SPDX-License-Identifier: Apache-2.0
"""Learning rates, against NNabla 1.39 (literals that it returned) and their formulas."""

from __future__ import annotations

import math
from typing import Any

import pytest

from nnl.utils import learning_rate_scheduler as lr


def rates(scheduler: lr.BaseLearningRateScheduler, count: int) -> list[float]:
    return [scheduler.get_learning_rate(i) for i in range(count)]


def test_polynomial_falls_to_zero_at_max_iter() -> None:
    scheduler = lr.PolynomialScheduler(0.1, 10, 0.5)
    assert rates(scheduler, 4) == [
        0.1,
        0.09486832980505139,
        0.08944271909999159,
        0.08366600265340757,
    ]
    assert scheduler.get_learning_rate(10) == 0.0


def test_polynomial_stays_zero_after_max_iter() -> None:
    assert lr.PolynomialScheduler(0.1, 10, 0.5).get_learning_rate(11) == 0.0


def test_cosine_falls_along_half_a_wave() -> None:
    scheduler = lr.CosineScheduler(0.1, 10)
    assert rates(scheduler, 4) == [
        0.1,
        0.09755282581475769,
        0.09045084971874738,
        0.07938926261462366,
    ]
    assert scheduler.get_learning_rate(5) == 0.05
    assert scheduler.get_learning_rate(10) == 0.0


def test_exponential_steps_every_interval() -> None:
    assert rates(lr.ExponentialScheduler(0.1, 0.5), 4) == [0.1, 0.05, 0.025, 0.0125]
    assert rates(lr.ExponentialScheduler(0.1, 0.5, 3), 7) == [0.1] * 3 + [0.05] * 3 + [0.025]


@pytest.mark.parametrize("steps", [[2, 5, 7], [7, 2, 5]])
def test_step_multiplies_at_each_step(steps: list[int]) -> None:
    expected = [0.1, 0.1, 0.05, 0.05, 0.05, 0.025, 0.025, 0.0125, 0.0125]
    assert rates(lr.StepScheduler(0.1, 0.5, steps), 9) == expected


def test_warmup_scales_the_followed_schedule() -> None:
    scheduler = lr.LinearWarmupScheduler(lr.CosineScheduler(0.1, 10), 4)
    assert rates(scheduler, 5) == [
        0.025,
        0.048776412907378844,
        0.06783813728906053,
        0.07938926261462366,
        0.06545084971874737,
    ]


def test_warmup_rounds_as_nnabla_does() -> None:
    scheduler = lr.LinearWarmupScheduler(lr.StepScheduler(0.3, 0.7, [2, 5]), 7)
    assert rates(scheduler, 4) == [0.04285714285714285, 0.0857142857142857, 0.09, 0.12]


def test_no_warmup_changes_nothing() -> None:
    assert rates(lr.LinearWarmupScheduler(lr.ExponentialScheduler(1, 0.5), 0), 2) == [1, 0.5]


def test_lengths_must_be_positive() -> None:
    with pytest.raises(ValueError, match="PolynomialScheduler: max_iter=0 must be greater than 0"):
        lr.PolynomialScheduler(0.1, 0, 1)
    with pytest.raises(ValueError, match="CosineScheduler: max_iter=-1 must be greater than 0"):
        lr.CosineScheduler(0.1, -1)
    with pytest.raises(ValueError, match="ExponentialScheduler: iter_interval=0 must be greater"):
        lr.ExponentialScheduler(0.1, 0.5, 0)
    with pytest.raises(ValueError, match="LinearWarmupScheduler: warmup_iter=-1 is negative"):
        lr.LinearWarmupScheduler(lr.CosineScheduler(0.1, 10), -1)


def test_base_says_what_to_define() -> None:
    with pytest.raises(NotImplementedError, match=r"define get_learning_rate\(iter\)"):
        lr.BaseLearningRateScheduler().get_learning_rate(0)


def test_cosine_with_warmup_begins_at_the_top_and_stays_at_the_end() -> None:
    s = lr.WarmupCosineScheduler(2.0, 110, 10, 0.5)
    assert [s.get_learning_rate(i) for i in (0, 4, 9, 10)] == [0.2, 1.0, 2.0, 2.0]
    for i in range(10, 111):
        want = 0.5 + 1.5 * (math.cos(math.pi * (i - 10) / 100) + 1) / 2
        assert s.get_learning_rate(i) == pytest.approx(want, abs=1e-12)
    assert s.get_learning_rate(1000) == 0.5


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_a_rate_stays_between_warmup_and_decay(power: float) -> None:
    s = lr.WarmupStableDecayScheduler(2.0, 100, 10, 20, 0.5, power)
    assert [s.get_learning_rate(i) for i in (0, 9, 10, 80)] == [0.2, 2.0, 2.0, 2.0]
    for i in range(80, 101):
        want = 0.5 + 1.5 * (1 - ((i - 80) / 20) ** power)
        assert s.get_learning_rate(i) == pytest.approx(want, abs=1e-12)
    assert s.get_learning_rate(1000) == 0.5
    assert lr.WarmupStableDecayScheduler(2.0, 100, 0, 0).get_learning_rate(99) == 2.0


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: lr.WarmupCosineScheduler(1, 10, 11),
            "max_iter=10 must be at least 1, and",
        ),
        (
            lambda: lr.WarmupCosineScheduler(1, 0),
            "WarmupCosineScheduler: max_iter=0 must be",
        ),
        (lambda: lr.WarmupStableDecayScheduler(1, 10, -1, 2), "warmup_iter=-1 is negative"),
        (lambda: lr.WarmupStableDecayScheduler(1, 10, 6, 5), "what warm-up and decay take, 11"),
        (
            lambda: lr.WarmupStableDecayScheduler(1, 10, 1, 2, power=0),
            "power=0 must be greater",
        ),
    ],
)
def test_wrong_numbers_of_iterations_are_named(make: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()


@pytest.mark.long
def test_schedules_are_those_of_transformers() -> None:
    torch, o = pytest.importorskip("torch"), pytest.importorskip("transformers.optimization")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 1.0)
    cosine = o.get_cosine_schedule_with_warmup(optimizer, 10, 110).lr_lambdas[0]
    wsd = o.get_wsd_schedule(
        optimizer, 10, 20, num_training_steps=100, decay_type="linear"
    ).lr_lambdas[0]
    ours = lr.WarmupCosineScheduler(1.0, 110, 10), lr.WarmupStableDecayScheduler(1.0, 100, 10, 20)
    for i in range(10, 110):  # before, theirs begins with 0 and ours with a first step
        for s, theirs in zip(ours, (cosine, wsd), strict=True):
            assert s.get_learning_rate(i) == pytest.approx(theirs(i), abs=1e-9)
