# SPDX-License-Identifier: Apache-2.0
"""Memory of an OpenCL device in which kernels that leave their arrays are noticed.

Every array lies between two zones of 0xFF bytes and is full of them itself at first: NaN in all
floating-point types, so that what a kernel reads there spoils its result, and what it writes there
is found.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nnl.ext.opencl.memory import PLACE, SHIFT, Memory, Piece

ZONE = 4096
PATTERN = np.uint8(0xFF)


class GuardedMemory(Memory):
    """Memory with a zone before and behind each array.

    Attributes:
        broken: Sizes of the arrays outside of which something has been written.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.taken: dict[int, int] = {}  # bytes that were asked for, by address
        self.broken: list[int] = []

    def _create(self, size: int) -> int:
        return super()._create(size + 2 * ZONE) + ZONE

    def take(self, nbytes: int) -> Piece:
        piece = super().take(nbytes)
        buffer = self.buffers[piece.address >> SHIFT]
        whole = piece.nbytes + 2 * ZONE
        self._cl.enqueue_fill_buffer(self._queue.raw, buffer, PATTERN, 0, whole)
        self.taken[piece.address] = nbytes
        return piece

    def give_back(self, address: int, size: int) -> None:
        self._look(address, self.taken.pop(address))
        super().give_back(address, size)

    def _look(self, address: int, nbytes: int) -> None:
        buffer = self.buffers[address >> SHIFT]
        memory = np.empty(buffer.size, np.uint8)
        self._cl.enqueue_copy(self._queue.raw, memory, buffer)
        start = address & PLACE
        if (memory[:start] != PATTERN).any() or (memory[start + nbytes :] != PATTERN).any():
            self.broken.append(nbytes)
            self._cl.enqueue_fill_buffer(self._queue.raw, buffer, PATTERN, 0, start)
            behind = start + nbytes, buffer.size - start - nbytes
            self._cl.enqueue_fill_buffer(self._queue.raw, buffer, PATTERN, *behind)

    def check(self) -> None:
        """Fail if a kernel has written outside of an array since the last call."""
        for address, nbytes in list(self.taken.items()):
            self._look(address, nbytes)
        broken, self.broken = self.broken, []
        assert not broken, f"kernels have written outside of arrays of {broken} bytes"
