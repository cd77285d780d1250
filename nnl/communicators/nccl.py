# SPDX-License-Identifier: Apache-2.0
"""Arrays on GPUs through NCCL, which CuPy wraps. Not yet run on a GPU.

MPI carries the unique id by which the ranks of a group find each other, and the records by which
they agree on each call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnl.communicators.channel import Buffer, wide
from nnl.communicators.mpi import MpiChannel, World

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


class NcclChannel(MpiChannel):
    """A group of ranks with a GPU each. Not yet run on a GPU."""

    name = "nccl"
    threaded = False  # the GPU works while Python goes on

    def __init__(self, world: World, ranks: Sequence[int]) -> None:
        super().__init__(world, ranks)
        self.cupy, self.nccl = import_nccl()
        if self.rank >= 0:
            unique = self.nccl.get_unique_id() if self.rank == 0 else None
            unique = self.comm.bcast(unique)
            self.cupy.cuda.Device(world.local_rank).use()  # one GPU per rank of a node
            self.side = self.cupy.cuda.Stream(non_blocking=True)
            with world.watched("the set-up of NCCL"):
                self.device = self.nccl.NcclCommunicator(self.size, unique, self.rank)

    def allocate(self, nbytes: int) -> Any:
        return self.cupy.empty(nbytes, np.uint8)  # CuPy aligns to 512 bytes

    def _stream(self) -> int:
        return int(self.cupy.cuda.get_current_stream().ptr)

    def _type(self, dtype: np.dtype[Any]) -> Any:
        return getattr(self.nccl, dtype_name(dtype))

    def sum(self, arrays: Sequence[Buffer], divisor: int = 1, dst: int | None = None) -> None:
        if self.size == 1 or not arrays:
            return
        dtype = wide(arrays[0].dtype)
        sums = [a if a.dtype == dtype else a.astype(dtype) for a in arrays]
        kind, add, stream = self._type(dtype), self.nccl.NCCL_SUM, self._stream()
        self.nccl.groupStart()  # one launch for all arrays
        for s in sums:
            at = s.data.ptr
            if dst is None:
                self.device.allReduce(at, at, s.size, kind, add, stream)
            else:
                self.device.reduce(at, at, s.size, kind, add, dst, stream)
        self.nccl.groupEnd()
        if dst is not None and self.rank != dst:
            return
        for a, s in zip(arrays, sums, strict=True):
            if divisor != 1:
                s /= divisor
            if s is not a:
                a[...] = s

    def sum_in_place(self, flat: Buffer, divisor: int = 1) -> None:
        """Queued on a stream of its own, behind what has been queued so far."""
        self.side.wait_event(self.cupy.cuda.get_current_stream().record())
        with self.side:
            self.sum([flat], divisor)

    def settle(self) -> None:
        self.cupy.cuda.get_current_stream().wait_event(self.side.record())

    def bcast(self, arrays: Sequence[Buffer], src: int) -> None:
        stream = self._stream()
        self.nccl.groupStart()
        for a in arrays:
            self.device.bcast(a.data.ptr, a.nbytes, self.nccl.NCCL_UINT8, src, stream)
        self.nccl.groupEnd()

    def reduce_scatter(self, arrays: Sequence[Buffer], out: Buffer, divisor: int = 1) -> None:
        flat = self.cupy.concatenate(arrays).astype(wide(out.dtype), copy=False)
        mine = self.cupy.empty(out.size, flat.dtype)
        kind = self._type(flat.dtype)
        self.device.reduceScatter(
            flat.data.ptr, mine.data.ptr, out.size, kind, self.nccl.NCCL_SUM, self._stream()
        )
        out[...] = mine if divisor == 1 else mine / divisor

    def all_gather(self, array: Buffer, outs: Sequence[Buffer]) -> None:
        whole = self.cupy.empty((self.size, array.nbytes), np.uint8)
        self.device.allGather(
            array.data.ptr, whole.data.ptr, array.nbytes, self.nccl.NCCL_UINT8, self._stream()
        )
        for out, row in zip(outs, whole, strict=True):
            out.view(np.uint8)[...] = row
