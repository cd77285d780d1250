# SPDX-License-Identifier: Apache-2.0
"""Warnings that are given once."""

from __future__ import annotations

import logging
import threading

logger = logging.getLogger("nnl")
WARNED: set[str] = set()
_ONE_AT_A_TIME = threading.Lock()


def warn_once(text: str) -> None:
    """Log a warning the first time that it comes up."""
    with _ONE_AT_A_TIME:
        new = text not in WARNED
        WARNED.add(text)
    if new:
        logger.warning(text)
