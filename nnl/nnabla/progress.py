# SPDX-License-Identifier: Apache-2.0
"""How far a program has come, in a file and for a callback."""

from __future__ import annotations

import time
from collections.abc import Callable

state_file_name = ""
state_callback: Callable[[str | None, float], None] | None = None
_written = 0.0  # when the file was written last
_LEAST_SECONDS = 1.0  # between two writes


def configure_progress(
    file_name: str | None, cb: Callable[[str | None, float], None] | None = None
) -> None:
    """Set the file and the callback; None leaves what was set before."""
    global state_file_name, state_callback
    if file_name is not None:
        state_file_name = file_name
    if cb is not None:
        state_callback = cb
    progress(None)


def progress(state: str | None, progress: float = 0.0) -> None:
    """Write "state (12.50%)" to the file, at most once a second, and call the callback.

    Args:
        state: What is being done; None empties the file at once.
        progress: From 0 to 1.
    """
    global _written
    now = time.monotonic()
    if state_file_name and (state is None or now - _written > _LEAST_SECONDS):
        _written = now
        with open(state_file_name, "w") as f:
            f.write("" if state is None else f"{state} ({progress * 100:3.2f}%)")
    if state_callback is not None:
        state_callback(state, progress)
