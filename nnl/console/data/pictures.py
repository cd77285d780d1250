# SPDX-License-Identifier: Apache-2.0
"""Arrays as PNG files."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def png(image: Array) -> bytes:
    """The PNG file of a picture: (height, width) or (height, width, 3 or 4), uint8."""
    kind = {1: 0, 3: 2, 4: 6}.get(1 if image.ndim == 2 else image.shape[-1])
    if kind is None or image.ndim not in (2, 3) or image.dtype != np.uint8:
        raise ValueError(f"png: image is {image.dtype}{list(image.shape)}, wanted a picture")
    height, width = image.shape[:2]
    rows = image.reshape(height, -1)
    raw = np.concatenate([np.zeros((height, 1), np.uint8), rows], 1).tobytes()

    def chunk(name: bytes, content: bytes) -> bytes:
        check = zlib.crc32(name + content)
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", check)

    head = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(raw, 6)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def shown(value: Array) -> Array:
    """Any array as a picture: 1 or 3 channels that come first, or a plane; 0 to 1 or stretched."""
    x = np.asarray(value, np.float32)
    if x.ndim == 3 and x.shape[0] in (1, 3, 4):
        x = x.transpose(1, 2, 0)
    elif x.ndim == 3 and x.shape[2] not in (1, 3, 4):
        x = x.mean(0)
    elif x.ndim > 3:
        x = x.reshape(-1, *x.shape[-2:]).mean(0)
    elif x.ndim < 2:
        x = np.atleast_2d(x)
    if x.ndim == 3 and x.shape[2] == 1:
        x = x[..., 0]
    low, high = float(np.nanmin(x, initial=0)), float(np.nanmax(x, initial=1))
    if low < 0 or high > 255:
        x = (x - low) / max(high - low, 1e-12) * 255
    elif high <= 1:
        x = x * 255
    return np.rint(np.nan_to_num(x)).clip(0, 255).astype(np.uint8)


def thumbnail(image: Array, size: int) -> Array:
    """The picture with its larger side of this many pixels, each of them one of the picture's."""
    height, width = image.shape[:2]
    scale = size / max(height, width, 1)
    rows = (np.arange(max(round(height * scale), 1)) / scale).astype(int).clip(0, height - 1)
    columns = (np.arange(max(round(width * scale), 1)) / scale).astype(int).clip(0, width - 1)
    picked: Array = image[rows][:, columns]
    return np.ascontiguousarray(picked)
