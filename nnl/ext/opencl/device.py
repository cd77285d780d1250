# SPDX-License-Identifier: Apache-2.0
"""An OpenCL device through pyopencl: memory, a queue, compiled kernels, recorded launches."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from nnl.ext.device.arrays import ArrayModule, NotCapturable
from nnl.ext.device.kernels.gradient import program
from nnl.ext.device.kernels.module import Code, Geometry, Launch, laid_out_for
from nnl.ext.device.kernels.programs import space_of
from nnl.ext.device.registry import Kernel, Operand
from nnl.ext.library import cache_folder
from nnl.ext.opencl.arrays import OpenClArray, OpenClModule
from nnl.ext.opencl.memory import PLACE, SHIFT, Memory, Piece

MOST_THREADS = 256
CPU_PACK, GPU_PACK = 64, 16  # bytes that a thread takes at a time
MEMORY_SHARE = 0.9  # of what the device says it has, the rest is others'


class KernelError(RuntimeError):
    """A kernel does not compile on a device, or the device has stopped working."""


class Recording(threading.local):
    """What a thread that records has launched; other threads' work goes to the device meanwhile."""

    launches: list[Callable[[], object]] | None = None


class Queue:
    """Where the work of a device goes, in its order; `launch` is what kernels call."""

    def __init__(self, device: OpenClDevice) -> None:
        self.device, self.cl = device, device.cl
        self.raw = device.cl.CommandQueue(device.context)
        self.recording = Recording()
        self.programs: dict[Code, Any] = {}
        self._lock = threading.Lock()

    def launch(self, launch: Launch, addresses: Sequence[int | None]) -> None:
        """Run a kernel on arrays at these addresses, or record that."""
        recording = self.recording.launches
        with self._lock:
            found = launch.ready.get(self)
            if found is None or recording is not None:
                made = self._prepare(launch)
                if recording is None:
                    launch.ready[self] = found = made
                else:
                    found = made
            kernel, sizes, block = found
            buffers, k = self.device.memory.buffers, 0
            for a in addresses:
                if a:
                    kernel.set_arg(k, buffers[a >> SHIFT])
                    kernel.set_arg(k + 1, np.uint64(a & PLACE))
                else:
                    kernel.set_arg(k, None)
                    kernel.set_arg(k + 1, np.uint64(0))
                k += 2
            if recording is not None:
                kept = [buffers[a >> SHIFT] for a in addresses if a]
                recording.append(Recorded(self, kernel, sizes, block, kept))
            else:
                self.enqueue(kernel, sizes, block)

    def enqueue(self, kernel: Any, sizes: tuple[int, ...], block: tuple[int, ...]) -> None:
        try:
            self.cl.enqueue_nd_range_kernel(self.raw, kernel, sizes, block)
        except self.cl.Error as e:
            raise KernelError(
                f"{self.device.name}: {kernel.function_name} was refused by {self.device.info}: {e}"
            ) from e

    def finish(self) -> None:
        """Wait until the device has done all work."""
        try:
            self.raw.finish()
        except self.cl.Error as e:
            raise KernelError(
                f"{self.device.name}: {self.device.info} has stopped working: {e}"
            ) from e

    def _prepare(self, launch: Launch) -> tuple[Any, tuple[int, ...], tuple[int, ...]]:
        """(a kernel of its own with the numbers set, all threads, those of a block)."""
        code = launch.code
        program = self.programs.get(code)
        if program is None:
            program = self.programs[code] = self.device.build(code, launch.op)
        kernel = self.cl.Kernel(program, code.name)
        arrays = len(code.row) + len(code.arrays)
        if launch.rest:
            kernel.set_arg(2 * arrays, np.frombuffer(launch.rest, np.uint8))
        sizes = tuple(int(g) * b for g, b in zip(launch.grid, launch.block, strict=True))
        rank = 3 if sizes[2] > 1 else 2 if sizes[1] > 1 else 1
        return kernel, sizes[:rank], launch.block[:rank]


class Recorded:
    """A launch with all its arguments."""

    __slots__ = ("queue", "kernel", "sizes", "block", "kept")

    def __init__(
        self, queue: Queue, kernel: Any, sizes: tuple[int, ...], block: tuple[int, ...], kept: Any
    ) -> None:
        self.queue, self.kernel, self.sizes, self.block = queue, kernel, sizes, block
        self.kept = kept  # a kernel does not keep its buffers

    def __call__(self) -> None:
        self.queue.enqueue(self.kernel, self.sizes, self.block)


class OpenClDevice:
    """A device of the machine; all its work goes to one queue.

    Attributes:
        info: What the device calls itself.
        geometry: What kernels are laid out for.
    """

    def __init__(self, number: int, device: Any) -> None:
        import pyopencl as cl

        self.cl, self.name, self.raw = cl, f"opencl:{number}", device
        self.info = f"{device.name.strip()} ({device.platform.name.strip()})"
        self.context = cl.Context([device])
        self.queue = self.stream = Queue(self)
        limit = int(device.global_mem_size * MEMORY_SHARE)
        self.memory = Memory(cl, self.context, self.queue, self.name, limit)
        self.xp = ArrayModule(OpenClModule(self))
        self.on_host = bool(device.type & cl.device_type.CPU)
        self.geometry = geometry_of(cl, device)
        options = ["-DHAS_DOUBLE"] if self.geometry.double else []
        self._sum_of = lru_cache(maxsize=256)(self._make_sum)
        self.options = [*options, "-cl-std=CL1.2"]

    def build(self, code: Code, op: str) -> Any:
        """The compiled program of a kernel; the driver or pyopencl keeps its binary on disk.

        Raises:
            KernelError: It does not compile; the text is the device's log.
        """
        try:
            program = self.cl.Program(self.context, code.source("opencl"))
            return program.build(self.options, cache_dir=self.cache_folder)
        except self.cl.Error as e:
            raise KernelError(
                f"{self.name}: the kernel {code.name} of {op or 'a copy'} does not compile on "
                f"{self.info}: {e}"
            ) from e

    @cached_property
    def cache_folder(self) -> str:
        """Where pyopencl keeps binaries, for drivers that do not; one it can write to."""
        folder = cache_folder("opencl")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError:
            return tempfile.mkdtemp(prefix="nnl-opencl-")
        return str(folder)

    # ---- a Device ----

    def activate(self) -> None:
        """All work names its queue, so there is nothing to do."""

    def allocate(self, nbytes: int) -> Piece:
        return self.memory.take(nbytes)

    def address_of(self, array: OpenClArray) -> int:
        return array.address

    def array_at(
        self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], owner: Any
    ) -> OpenClArray:
        return OpenClArray(self, owner, address, tuple(shape), np.dtype(dtype))

    def pool(self) -> Any:
        return None

    def capture(self, work: Callable[[], None], pool: Any) -> Callable[[], None]:
        """Record launches with their arguments set; to launch them again costs no more Python."""
        launches: list[Callable[[], object]] = []
        self.queue.recording.launches = launches
        try:
            work()
        finally:
            self.queue.recording.launches = None

        def run() -> None:
            for launch in launches:
                launch()

        return run

    def synchronize(self) -> None:
        self.queue.finish()

    def mark(self) -> int:
        self.synchronize()
        return time.perf_counter_ns()

    def nanoseconds(self, start: int, end: int) -> int:
        return end - start

    # ---- memory ----

    def empty(self, shape: Any, dtype: Any) -> OpenClArray:
        dtype = np.dtype(dtype)
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        piece = self.memory.take(nbytes)
        return OpenClArray(self, piece, piece.address, shape, dtype)

    def upload(self, host: np.ndarray[Any, Any]) -> OpenClArray:
        made = self.empty(host.shape, host.dtype)
        self.write(made.address, np.ascontiguousarray(host))
        return made

    def write(self, address: int, host: np.ndarray[Any, Any]) -> None:
        self._check("it copies an array of the host")
        if host.nbytes:
            buffer, place = self._buffer(address)
            self._do(self.cl.enqueue_copy, buffer, host, dst_offset=place, is_blocking=True)

    def download(self, address: int, host: np.ndarray[Any, Any]) -> None:
        self._check("it copies an array to the host")
        if host.nbytes:
            buffer, place = self._buffer(address)
            self._do(self.cl.enqueue_copy, host, buffer, src_offset=place, is_blocking=True)

    def copy(self, source: int, target: int, nbytes: int) -> None:
        self._check("it copies arrays")
        if nbytes and source != target:
            (a, i), (b, j) = self._buffer(source), self._buffer(target)
            self._do(self.cl.enqueue_copy, b, a, byte_count=nbytes, src_offset=i, dst_offset=j)

    def fill(self, address: int, pattern: bytes, nbytes: int) -> None:
        self._check("it fills an array")
        if nbytes:
            buffer, place = self._buffer(address)
            value = np.frombuffer(pattern, np.uint8)
            self._do(self.cl.enqueue_fill_buffer, buffer, value, place, nbytes)

    def add(self, y: OpenClArray, x: OpenClArray) -> None:
        """y += x, of one shape."""
        kernel = self._sum_of(Operand(y.shape, y.dtype), Operand(x.shape, x.dtype))
        if kernel is None:
            y[...] = y.get() + x.get()
        else:
            kernel.run([y.address, x.address], [y.address], 0, self.stream)

    def _make_sum(self, y: Operand, x: Operand) -> Kernel | None:
        with laid_out_for(self.geometry, "add2"):
            return program(space_of(y), [y, x], lambda w, a, b: int(w("add", a, b)), y)

    def _buffer(self, address: int) -> tuple[Any, int]:
        return self.memory.buffers[address >> SHIFT], address & PLACE

    def _check(self, why: str) -> None:
        if self.queue.recording.launches is not None:
            raise NotCapturable(why)

    def _do(self, enqueue: Callable[..., object], *args: Any, **kw: Any) -> None:
        try:
            enqueue(self.queue.raw, *args, **kw)
        except self.cl.Error as e:
            raise KernelError(f"{self.name}: {self.info} has refused a copy: {e}") from e


def geometry_of(cl: Any, device: Any) -> Geometry:
    """What kernels are laid out for on a device."""
    threads = min(MOST_THREADS, device.max_work_group_size, *device.max_work_item_sizes[:1])
    threads = 1 << (int(threads).bit_length() - 1)
    on_host = bool(device.type & cl.device_type.CPU)
    return Geometry(
        threads=threads,
        team=min(32, threads),
        pack=CPU_PACK if on_host else GPU_PACK,
        wave=max(1, device.max_compute_units * (1 if on_host else 8)),
        parameters=1,
        double="cl_khr_fp64" in device.extensions,
    )
