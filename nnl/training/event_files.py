# SPDX-License-Identifier: Apache-2.0
"""Event files, which TensorBoard shows: records of protobuf messages, for which no package is
needed.
"""

from __future__ import annotations

import os
import socket
import struct
import time

import numpy as np

from nnl.data.record_files import framed

COLOURS = 3  # what a PNG file of a monitor has, at most


class EventFile:
    """A new event file in a folder, for `tensorboard --logdir`. What is written is there at once.

    Source: tensorflow/core/util/event.proto and framework/summary.proto, whose numbers of fields
        stand below.
    """

    def __init__(self, folder: str) -> None:
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self._path = os.path.join(folder, name)
        self._write(_bytes(3, b"brain.Event:2"))

    def scalar(self, name: str, value: float, step: int) -> None:
        """Write a number."""
        with np.errstate(over="ignore"):  # to infinity
            number = np.array(value, np.float64).astype("<f4").tobytes()
        self._summary(_bytes(1, name.encode()) + _tag(2, 5) + number, step)

    def image(self, name: str, path: str, shape: tuple[int, int], step: int) -> None:
        """Write the picture of a PNG file of (height, width)."""
        with open(path, "rb") as file:
            picture = b"".join(_integer(i, n) for i, n in enumerate((*shape, COLOURS), 1))
            picture += _bytes(4, file.read())
        self._summary(_bytes(1, name.encode()) + _bytes(4, picture), step)

    def _summary(self, value: bytes, step: int) -> None:
        self._write(_integer(2, step) + _bytes(5, _bytes(1, value)))

    def _write(self, event: bytes) -> None:
        event = _tag(1, 1) + struct.pack("<d", time.time()) + event
        with open(self._path, "ab") as file:
            file.write(framed(event))


def _varint(n: int) -> bytes:
    out = bytearray()
    n &= 2**64 - 1
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes((*out, n))


def _tag(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _integer(number: int, value: int) -> bytes:
    return _tag(number, 0) + _varint(int(value))


def _bytes(number: int, value: bytes) -> bytes:
    return _tag(number, 2) + _varint(len(value)) + value
