# SPDX-License-Identifier: Apache-2.0
"""What the readers of weights share: arrays of numbers out of bytes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def as_array(raw: Array, dtype: np.dtype[Any] | str, shape: tuple[int, ...], where: str) -> Array:
    """Bytes as an array, without a copy where memory allows it; "bf16" widens to float32.

    Raises:
        ValueError: There are more or fewer bytes than the shape takes.
    """
    wide = dtype == "bf16"
    kind = np.dtype("<u2") if wide else np.dtype(dtype)
    if min(shape, default=0) < 0 or math.prod(shape) * kind.itemsize != raw.size:
        raise ValueError(f"{where}: {raw.size} bytes do not fit {dtype} {shape}")
    if raw.size and raw.ctypes.data % kind.itemsize:
        raw = raw.copy()
    values: Array = raw.view(kind).reshape(shape)
    if wide:
        # a bfloat16 is the upper half of a float32
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values if kind.isnative else values.astype(kind.newbyteorder("="))
