# SPDX-License-Identifier: Apache-2.0
"""Memory of an OpenCL device by addresses, which OpenCL itself does not have.

A buffer has a number; the number and the place in the buffer are an address. Kernels get both. So
a part of a buffer is an address too, whatever its alignment; sub-buffers begin at multiples of up
to 512 bytes only.

What is freed is kept and given out again: all work goes to one queue in its order, so nothing that
is still to run sees what a later owner writes.
"""

from __future__ import annotations

import threading
from typing import Any

SHIFT = 40  # bits of an address that are a place in a buffer: 1 TB
PLACE = (1 << SHIFT) - 1
LEAST = 256  # bytes that memory is a multiple of


def rounded(nbytes: int) -> int:
    """The size of the buffer for so many bytes: one of eight sizes between two powers of two."""
    step = max(LEAST, 1 << max(0, (max(nbytes, 1) - 1).bit_length() - 3))
    return -(-max(nbytes, 1) // step) * step


class Piece:
    """Memory, given back when this object goes."""

    __slots__ = ("memory", "address", "nbytes")

    def __init__(self, memory: Memory, address: int, nbytes: int) -> None:
        self.memory, self.address, self.nbytes = memory, address, nbytes

    def __del__(self) -> None:
        self.memory.give_back(self.address, self.nbytes)


class Memory:
    """The buffers of one device.

    Args:
        name: Of the device, for errors.
        limit: Bytes that all buffers may take together.

    Attributes:
        used: Bytes that are in use; kept: bytes of buffers that nobody uses.
    """

    def __init__(self, cl: Any, context: Any, queue: Any, name: str, limit: int) -> None:
        self._cl, self._context, self._queue = cl, context, queue
        self.name, self.limit = name, limit
        self.buffers: dict[int, Any] = {}
        self._free: dict[int, list[int]] = {}
        self._next, self.used, self.kept = 1, 0, 0
        self._lock = threading.RLock()  # a collection of garbage may give back while it is held

    def take(self, nbytes: int) -> Piece:
        """Memory of at least this size.

        Raises:
            MemoryError: There is not so much, even with what was kept given back.
        """
        size = rounded(nbytes)
        with self._lock:
            free = self._free.get(size)
            if free:
                address = free.pop()
                self.kept -= size
            else:
                address = self._create(size)
            self.used += size
        return Piece(self, address, size)

    def _create(self, size: int) -> int:
        if self.used + self.kept + size > self.limit:
            self.trim()
        if self.used + size > self.limit:
            raise self._none_left(size)
        try:
            buffer = self._buffer(size)
        except self._errors():
            self.trim()
            try:
                buffer = self._buffer(size)
            except self._errors() as e:
                raise self._none_left(size) from e
        number, self._next = self._next, self._next + 1
        self.buffers[number] = buffer
        return number << SHIFT

    def _buffer(self, size: int) -> Any:
        return self._cl.Buffer(self._context, self._cl.mem_flags.READ_WRITE, size)

    def _errors(self) -> tuple[type[Exception], ...]:
        return (self._cl.MemoryError, self._cl.RuntimeError, self._cl.LogicError)

    def _none_left(self, size: int) -> MemoryError:
        return MemoryError(
            f"{self.name}: no memory for {size} bytes more; {self.used} of {self.limit} are in use"
        )

    def give_back(self, address: int, size: int) -> None:
        """Keep memory that nobody uses any more."""
        with self._lock:
            self._free.setdefault(size, []).append(address)
            self.used -= size
            self.kept += size

    def trim(self) -> None:
        """Return to the device what is kept."""
        with self._lock:
            self._queue.finish()  # what was given to it may still use them
            for addresses in self._free.values():
                for address in addresses:
                    self.buffers.pop(address >> SHIFT).release()
            self._free.clear()
            self.kept = 0
