# SPDX-License-Identifier: Apache-2.0
"""The learning-rate schedulers, which live beside the solvers so that files can hold them."""

from nnl.solvers.learning_rate_scheduler import (
    BaseLearningRateScheduler,
    CosineScheduler,
    ExponentialScheduler,
    LinearWarmupScheduler,
    PolynomialScheduler,
    StepScheduler,
    WarmupCosineScheduler,
    WarmupStableDecayScheduler,
)

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
