# SPDX-License-Identifier: Apache-2.0
"""Warnings that are given once."""

from __future__ import annotations

import logging

logger = logging.getLogger("nnl")
WARNED: set[str] = set()


def warn_once(text: str) -> None:
    """Log a warning the first time that it comes up."""
    if text not in WARNED:
        WARNED.add(text)
        logger.warning(text)
