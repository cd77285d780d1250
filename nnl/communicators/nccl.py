# SPDX-License-Identifier: Apache-2.0
"""Arrays on GPUs through NCCL, which CuPy wraps. Not yet run on a GPU.

MPI carries the unique id by which the ranks of a group find each other, and the records by which
they agree on each call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from nnl.communicators.channel import Buffer, CommunicatorError, wide
from nnl.communicators.mpi import MpiChannel, World
from nnl.core.settings.context import SPACES

# Names of NCCL's constants in cupy.cuda.nccl by numpy dtype.
DTYPES = {
    "int8": "NCCL_INT8",
    "uint8": "NCCL_UINT8",
    "int32": "NCCL_INT32",
    "uint32": "NCCL_UINT32",
    "int64": "NCCL_INT64",
    "uint64": "NCCL_UINT64",
    "float16": "NCCL_FLOAT16",
    "float32": "NCCL_FLOAT32",
    "float64": "NCCL_FLOAT64",
    "bfloat16": "NCCL_BFLOAT16",
}


def dtype_name(dtype: np.dtype[Any]) -> str:
    """The name of NCCL's constant for a dtype.

    Raises:
        TypeError: NCCL has none.
    """
    name = DTYPES.get(dtype.name)
    if name is None:
        raise TypeError(f"nccl: dtype is {dtype.name}, wanted one of {', '.join(DTYPES)}")
    return name


def import_nccl() -> Any:
    """CuPy and its NCCL module.

    Raises:
        ModuleNotFoundError: One of them is missing.
    """
    try:
        import cupy
        from cupy.cuda import nccl
    except ImportError as e:
        raise ModuleNotFoundError(
            f"init: NCCL needs CuPy and nvidia-nccl-cu13 ({e}): pip install 'nnl[cuda13]'"
        ) from e
    if not getattr(nccl, "available", False):
        raise ModuleNotFoundError("init: CuPy found no NCCL library: pip install nvidia-nccl-cu13")
    return cupy, nccl


def gpu_of(world: World, count: int) -> int:
    """The number of the GPU of this rank: the k-th rank of a node has the k-th one.

    Args:
        count: GPUs that this process sees.
    Raises:
        CommunicatorError: There are more ranks than GPUs.
    """
    if world.local_rank >= count:
        raise CommunicatorError(
            f"init: rank {world.rank} has no GPU of its own: {world.local_size} ranks run on this "
            f"node, which has {count} GPUs; start at most {count} on it"
        )
    return world.local_rank


class NcclChannel(MpiChannel):
    """A group of ranks with a GPU each. Not yet run on a GPU.

    NCCL hangs where ranks run calls of two communicators in different orders. All that a process
    starts therefore runs in the order in which it was started, on whatever stream. That is the
    same on all ranks, as they have agreed on each call before.
    """

    name = "nccl"
    threaded = False  # the GPU works while Python goes on
    last: Any = None  # the stream of the last call; a process has one GPU

    def __init__(self, world: World, ranks: Sequence[int]) -> None:
        super().__init__(world, ranks)
        self.cupy, self.nccl = import_nccl()
        if self.rank >= 0:
            self.gpu: Any = SPACES[f"cuda:{world.local_rank}"]
            self.gpu.device.activate()
            unique = self.nccl.get_unique_id() if self.rank == 0 else None
            with world.watched("the set-up of NCCL"):
                unique = self.comm.bcast(unique)
                self.side = self.cupy.cuda.Stream(non_blocking=True)
                self.device = self.nccl.NcclCommunicator(self.size, unique, self.rank)

    def agree(self, call: str, extra: bytes = b"") -> list[bytes]:
        """As in any channel; not while a CUDA graph is recorded.

        Raises:
            NotImplementedError: It is. A replay would not ask the others, some of which may record
                at a time when others replay.
        """
        self.gpu.device.activate()
        if self.cupy.cuda.get_current_stream().is_capturing():
            raise NotImplementedError("the ranks agree on each call, which cannot be recorded")
        return super().agree(call, extra)

    def allocate(self, nbytes: int, call: str) -> Any:
        self.gpu.device.activate()
        return self.cupy.empty(nbytes, np.uint8)  # CuPy aligns to 512 bytes

    @contextmanager
    def _launch(self) -> Iterator[int]:
        """One launch of what is called inside, on the current stream, whose handle this gives."""
        stream = self.cupy.cuda.get_current_stream()
        if NcclChannel.last not in (None, stream):
            stream.wait_event(NcclChannel.last.record())
        NcclChannel.last = stream
        with self.world.watched(self.call):  # the first one connects the ranks
            self.nccl.groupStart()
            try:
                yield int(stream.ptr)
            finally:
                self.nccl.groupEnd()

    def _type(self, dtype: np.dtype[Any]) -> Any:
        return getattr(self.nccl, dtype_name(dtype))

    def sum(self, arrays: Sequence[Buffer], divisor: int = 1, dst: int | None = None) -> None:
        if self.size == 1 or not arrays:
            return
        mine = self.world.local_rank
        for a in arrays:
            if a.device.id != mine:
                raise ValueError(
                    f"{self.call}: an array is on GPU {a.device.id}, but rank {self.world.rank} "
                    f"has GPU {mine}: make the context with device_id=str(comm.local_rank)"
                )
        self.gpu.device.activate()
        self._sum(arrays, divisor, dst)

    def _sum(self, arrays: Sequence[Buffer], divisor: int, dst: int | None = None) -> None:
        dtype = wide(arrays[0].dtype)
        kind, add = self._type(dtype), self.nccl.NCCL_SUM
        sums = [a if a.dtype == dtype else a.astype(dtype) for a in arrays]
        with self._launch() as stream:
            for s in sums:
                at = s.data.ptr
                if dst is None:
                    self.device.allReduce(at, at, s.size, kind, add, stream)
                else:
                    self.device.reduce(at, at, s.size, kind, add, dst, stream)
        if dst is not None and self.rank != dst:
            return
        for a, s in zip(arrays, sums, strict=True):
            if divisor != 1:
                s /= divisor
            if s is not a:
                a[...] = s

    def sum_in_place(self, flat: Buffer, divisor: int = 1) -> None:
        """Queued on a stream of its own, after what has been queued so far."""
        self.gpu.device.activate()
        self.side.wait_event(self.cupy.cuda.get_current_stream().record())
        with self.side:
            self._sum([flat], divisor)

    def settle(self) -> None:
        self.gpu.device.activate()
        self.cupy.cuda.get_current_stream().wait_event(self.side.record())

    def bcast(self, arrays: Sequence[Buffer], src: int) -> None:
        self.gpu.device.activate()
        with self._launch() as stream:
            for a in arrays:
                self.device.bcast(a.data.ptr, a.nbytes, self.nccl.NCCL_UINT8, src, stream)

    def reduce_scatter(self, arrays: Sequence[Buffer], out: Buffer, divisor: int = 1) -> None:
        self.gpu.device.activate()
        flat = self.cupy.concatenate(arrays).astype(wide(out.dtype), copy=False)
        mine = self.cupy.empty(out.size, flat.dtype)
        kind, add = self._type(flat.dtype), self.nccl.NCCL_SUM
        with self._launch() as stream:
            self.device.reduceScatter(flat.data.ptr, mine.data.ptr, out.size, kind, add, stream)
        out[...] = mine if divisor == 1 else mine / divisor

    def all_gather(self, array: Buffer, outs: Sequence[Buffer]) -> None:
        self.gpu.device.activate()
        whole = self.cupy.empty((self.size, array.nbytes), np.uint8)
        with self._launch() as stream:
            self.device.allGather(
                array.data.ptr, whole.data.ptr, array.nbytes, self.nccl.NCCL_UINT8, stream
            )
        for out, row in zip(outs, whole, strict=True):
            out.view(np.uint8)[...] = row

    def gather_parts(self, wholes: Sequence[Any]) -> None:
        self.gpu.device.activate()
        kind = self.nccl.NCCL_UINT8
        with self._launch() as stream:
            for rows in wholes:
                mine = rows[self.rank]
                self.device.allGather(mine.data.ptr, rows.data.ptr, mine.nbytes, kind, stream)

    def all_to_all(self, arrays: Sequence[Buffer], outs: Sequence[Buffer]) -> None:
        self.gpu.device.activate()
        kind = self.nccl.NCCL_UINT8
        with self._launch() as stream:
            for k, (a, out) in enumerate(zip(arrays, outs, strict=True)):
                self.device.send(a.data.ptr, a.nbytes, kind, k, stream)
                self.device.recv(out.data.ptr, out.nbytes, kind, k, stream)
