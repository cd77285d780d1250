# SPDX-License-Identifier: Apache-2.0
"""A GPU through CuPy: memory, a stream, graphs. Not yet run on a GPU."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np

from nnl.ext.cuda.compiler import CudaStream
from nnl.ext.cuda.products import Products
from nnl.ext.device.arrays import ArrayModule
from nnl.ext.device.kernels.module import CUDA

MEMORY_ALLOCATION = 2  # cudaErrorMemoryAllocation


class _Piece:
    """Memory of a CUDA device."""

    def __init__(self, pointer: Any) -> None:
        self.pointer = pointer
        self.address = int(pointer.ptr)


class CupyDevice:
    """A GPU through CuPy.

    All work goes to one stream of its own, since the default stream cannot be captured. It is a
    blocking one: what other libraries put on the default stream keeps its order with it. While a
    graph is captured, a few milliseconds, no thread may use that default stream: the capture then
    fails, and is tried again in two halves.
    """

    def __init__(self, number: int) -> None:
        import cupy

        self.cupy, self.number, self.name = cupy, number, f"cuda:{number}"
        self.xp = ArrayModule(cupy, Products(self))
        self._gpu = cupy.cuda.Device(number)
        self._gpu.use()
        self._stream = cupy.cuda.Stream()
        self.stream = CudaStream(self._stream.ptr)
        self.geometry = CUDA
        self.activate()

    def activate(self) -> None:
        self._gpu.use()
        self._stream.use()

    def allocate(self, nbytes: int) -> _Piece:
        self.activate()
        return _Piece(self._fresh(max(nbytes, 1)))

    def _fresh(self, nbytes: int) -> Any:
        """Memory from the driver, to which it returns; pools would keep that of plans long gone."""
        cuda = self.cupy.cuda
        try:
            return cuda.MemoryPointer(cuda.Memory(nbytes), 0)
        except cuda.runtime.CUDARuntimeError as e:
            if e.status != MEMORY_ALLOCATION:
                raise
            self.cupy.get_default_memory_pool().free_all_blocks()
            return cuda.MemoryPointer(cuda.Memory(nbytes), 0)

    def address_of(self, array: Any) -> int:
        return int(array.data.ptr)

    def array_at(self, address: int, shape: Any, dtype: Any, owner: Any) -> Any:
        cuda, nbytes = self.cupy.cuda, int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        memory = cuda.UnownedMemory(address, nbytes, owner, self.number)
        return self.cupy.ndarray(shape, dtype, cuda.MemoryPointer(memory, 0))

    def pool(self) -> Any:
        return self.cupy.cuda.MemoryPool(self._fresh)

    def capture(self, work: Callable[[], None], pool: Any) -> Callable[[], None]:
        stream, collecting = self._stream, gc.isenabled()
        gc.disable()  # to free memory of the device would wait for it
        try:
            with self.cupy.cuda.using_allocator(pool.malloc):
                stream.begin_capture()  # in relaxed mode: pools may ask for memory
                try:
                    work()
                except BaseException:
                    self._abandon(stream)
                    raise
                graph = stream.end_capture()
        finally:
            if collecting:
                gc.enable()
        return lambda: graph.launch(stream)

    def _abandon(self, stream: Any) -> None:
        """End a recording that went wrong; CUDA may say so once more."""
        try:
            stream.end_capture()
        except self.cupy.cuda.runtime.CUDARuntimeError:
            pass

    def synchronize(self) -> None:
        self._stream.synchronize()

    def mark(self) -> Any:
        event = self.cupy.cuda.Event()
        event.record(self._stream)
        return event

    def nanoseconds(self, start: Any, end: Any) -> int:
        return int(self.cupy.cuda.get_elapsed_time(start, end) * 1e6)
