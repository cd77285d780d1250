# SPDX-License-Identifier: Apache-2.0
"""What the readers of weights share: arrays of numbers out of bytes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nnl.core.settings.context import half_type

Array = np.ndarray[Any, Any]
MAX_AXES = 32  # what every numpy has room for

# numbers of PyTorch's storages
DTYPES = {
    "DoubleStorage": "f8",
    "FloatStorage": "f4",
    "HalfStorage": "f2",
    "BFloat16Storage": "bf16",
    "LongStorage": "i8",
    "IntStorage": "i4",
    "ShortStorage": "i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "?",
}


def item_size(storage: str) -> int:
    """Bytes of an element, by the name of the storage class."""
    dtype = DTYPES[storage]
    return 2 if dtype == "bf16" else np.dtype(dtype).itemsize


def check_shape(shape: Any, where: str) -> None:
    """Raise unless an array, also an empty one, may have this shape.

    Raises:
        ValueError: Too many axes, sizes that are no whole numbers >= 0, or too large ones.
    """
    if len(shape) > MAX_AXES:
        raise ValueError(f"{where}: it has {len(shape)} axes, wanted at most {MAX_AXES}")
    sizes = all(type(n) is int and 0 <= n < 2**62 for n in shape)
    if not sizes or math.prod(n or 1 for n in shape) >= 2**58:  # times 16 bytes is still a size
        raise ValueError(f"{where}: {str(tuple(shape))[:100]} is no shape of an array")


def as_array(raw: Array, dtype: np.dtype[Any] | str, shape: tuple[int, ...], where: str) -> Array:
    """Bytes as an array, without a copy where memory allows it; "bf16" is bfloat16.

    Raises:
        ValueError: There are more or fewer bytes than the shape takes, or booleans that are
            neither 0 nor 1.
    """
    wide = dtype == "bf16"
    kind = np.dtype("<u2") if wide else np.dtype(dtype)
    check_shape(shape, where)
    if math.prod(shape) * kind.itemsize != raw.size:
        raise ValueError(f"{where}: {raw.size} bytes do not fit {dtype} {shape}")
    if raw.size and raw.ctypes.data % kind.itemsize:
        raw = raw.copy()
    if kind == np.bool_ and raw.size and raw.max() > 1:
        raise ValueError(f"{where}: a boolean is {raw.max()}, wanted 0 or 1")
    values: Array = raw.view(kind).reshape(shape)
    if not kind.isnative:
        values = values.astype(kind.newbyteorder("="))
    return values.view(half_type("bfloat16")) if wide else values
