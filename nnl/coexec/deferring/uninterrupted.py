# SPDX-License-Identifier: Apache-2.0
"""What an interrupt must not leave half done."""

from __future__ import annotations

import threading

# Without the enumerations of `signal`: a tenth of the time.
from _signal import SIGINT, getsignal, signal  # type: ignore[import-not-found]
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
MAIN = threading.main_thread().ident


def whole(f: Callable[..., T], *args: Any) -> T:
    """Call a function; an interrupt that comes meanwhile is raised when it has returned."""
    if threading.get_ident() != MAIN:
        return f(*args)  # interrupts are the main thread's
    handler = getsignal(SIGINT)
    if not callable(handler):
        return f(*args)
    came: list[Any] = []
    signal(SIGINT, lambda number, frame: came.append(frame))
    try:
        return f(*args)
    finally:
        signal(SIGINT, handler)
        if came:
            handler(SIGINT, came[0])
