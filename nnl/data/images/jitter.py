# SPDX-License-Identifier: Apache-2.0
"""Random brightness, contrast and saturation, as torchvision's ColorJitter makes them."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def grey_of(pixels: Array) -> Array:
    """The brightness of each pixel (ITU-R 601) in parts of 65536, rounded as Pillow does."""
    r, g, b = (pixels[..., c].astype(np.int32) for c in range(3))
    return (r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16


def blended(base: Array | float, pixels: Array, factor: float) -> Array:
    """`factor` of the way from `base` to the pixels, or beyond; fractions are cut off."""
    base = np.asarray(base, np.float32)
    away: Array = base + np.float32(factor) * (pixels - base)
    return away.clip(0, 255).astype(np.uint8)


def brightened(pixels: Array, factor: float) -> Array:
    return blended(0.0, pixels, factor)


def contrasted(pixels: Array, factor: float) -> Array:
    return blended(float(int(grey_of(pixels).mean() + 0.5)), pixels, factor)


def saturated(pixels: Array, factor: float) -> Array:
    return blended(grey_of(pixels)[..., None], pixels, factor)


def jitter(pixels: Array, strength: float, rng: np.random.Generator) -> None:
    """Change a sample, uint8 (size, size, 3), in random order by random factors, which are within
    `strength` of 1."""
    changes = (brightened, contrasted, saturated)
    factors = rng.uniform(max(0.0, 1 - strength), 1 + strength, len(changes))
    for i in rng.permutation(len(changes)).tolist():
        pixels[...] = changes[i](pixels, float(factors[i]))
