# SPDX-License-Identifier: Apache-2.0
"""Functions of the host as work of a stream, and the memory of the device as numpy sees it."""

from __future__ import annotations

import ctypes
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_driver = ctypes.CDLL("libcuda.so.1")
_driver.emulator_enqueue.argtypes = [ctypes.c_void_p, _FUNCTION, ctypes.c_void_p]
_driver.emulator_holds.argtypes = [ctypes.c_uint64, ctypes.c_size_t]

# What is queued may run at any time, and what is recorded again and again.
_alive: list[Any] = []
_texts: list[ctypes.Array[ctypes.c_char]] = []


def enqueue(stream: int, work: Callable[[], None]) -> None:
    """Let work be done when it is the stream's turn; it may touch the memory of the device.

    Raises:
        RuntimeError: CUDA would not take a launch there and then.
    """

    def run(_: Any) -> int | None:
        try:
            work()
        except BaseException:
            _texts.append(ctypes.create_string_buffer(traceback.format_exc().encode()))
            return ctypes.addressof(_texts[-1])
        return None

    function = _FUNCTION(run)
    _alive.append(function)
    error = _driver.emulator_enqueue(stream, function, None)
    if error:
        raise RuntimeError(f"the stream takes no work: CUDA's error {error}")


def bytes_at(address: int, size: int) -> np.ndarray[Any, Any]:
    """Memory of the device, within work.

    Raises:
        ValueError: Some of it is nobody's.
    """
    if size and not _driver.emulator_holds(address, size):
        raise ValueError(f"{size} bytes at {address:#x} are not memory of the device")
    return np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)
