# SPDX-License-Identifier: Apache-2.0
"""Learning rates, against NNabla 1.39 (literals that it returned) and their formulas."""

from __future__ import annotations

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
