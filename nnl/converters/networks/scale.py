# SPDX-License-Identifier: Apache-2.0
"""Real numbers as whole ones of 8 bits: scale (stored - zero)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Scale(NamedTuple):
    """What the stored numbers of an array stand for."""

    scale: float
    zero: int

    @classmethod
    def of(cls, low: float, high: float) -> Scale:
        """For numbers in a range, and for 0, which is exact."""
        low, high = min(low, 0.0), max(high, 0.0)
        scale = float(np.float32(max(high - low, 1e-8) / 255))
        return cls(scale, int(np.clip(round(-128 - low / scale), -128, 127)))
