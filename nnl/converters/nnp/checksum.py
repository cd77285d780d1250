# SPDX-License-Identifier: Apache-2.0
"""CRC-32, at the speed of memory where the native engine is built."""

from __future__ import annotations

import zlib
from typing import Any

from nnl.ext.native import library


def crc32(data: Any, before: int = 0) -> int:
    """The CRC-32 of bytes that follow others whose CRC-32 is `before`."""
    native = library()
    found: int = (zlib if native is None else native).crc32(data, before)
    return found
