# SPDX-License-Identifier: Apache-2.0
"""What networks that make images are trained with: noise, penalties, augmentation, losses."""

from nnl.training.generative.adversarial import (
    AdaptiveAugmentation,
    ImagePool,
    adversarial_losses,
    augmented,
    gradient_penalty,
    path_length,
    r1_penalty,
)
from nnl.training.generative.noise import NoiseSchedule, guided, integrate

__all__ = [
    "AdaptiveAugmentation",
    "ImagePool",
    "NoiseSchedule",
    "adversarial_losses",
    "augmented",
    "gradient_penalty",
    "guided",
    "integrate",
    "path_length",
    "r1_penalty",
]
