# SPDX-License-Identifier: Apache-2.0
"""Ranks of one node that add up each other's memory.

Every rank owns a region of a file in memory that all have mapped and that has no name. To sum
arrays, each rank adds up its share of the elements over all regions and writes the sums to all of
them: every byte is read and written once per rank. Arrays that lie in a region (`allocate`) are
summed where they are; lists of others are copied into a region and back, piece by piece; a single
other one is left to MPI. MPI also carries the records by which the ranks agree and wait for each
other, and its messages order the accesses to memory.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnl.communicators.channel import ALIGN, Buffer, CommunicatorError, rounds, wide
from nnl.communicators.mpi import MpiChannel, World

STAGE_BYTES = 4 << 20  # per rank, for arrays that lie elsewhere; stays in the shared cache
BLOCK_BYTES = 64 << 10  # summed at a time: stays in a core's cache between its uses
PAGE = mmap.PAGESIZE


class Segment:
    """Memory of one file, mapped by all ranks of a channel: `nbytes` for each of them.

    It goes when no array refers to it any more, and when the ranks are killed.
    """

    def __init__(self, channel: SharedChannel, nbytes: int) -> None:
        each = -(-max(nbytes, 1) // PAGE) * PAGE
        handle, path, error = -1, "", ""
        if channel.rank == 0:
            try:
                handle = os.memfd_create("nnl")
                os.posix_fallocate(handle, 0, each * channel.size)
                path = f"/proc/{os.getpid()}/fd/{handle}"
            except OSError as e:
                error = str(e)
        with channel.world.watched(channel.call):
            path, error = channel.comm.bcast((path, error))
        if error:
            if handle >= 0:
                os.close(handle)
            raise CommunicatorError(
                f"no {each * channel.size} bytes of shared memory: {error}; "
                "NNL_COMMUNICATOR=mpi does without"
            )
        if channel.rank > 0:
            handle = os.open(path, os.O_RDWR)
        memory = np.frombuffer(mmap.mmap(handle, each * channel.size), np.uint8)
        channel.exchange("a segment of shared memory")
        os.close(handle)
        self.regions = [memory[k * each : (k + 1) * each] for k in range(channel.size)]
        self.own = self.regions[channel.rank]
        self.start, self.end = self.own.ctypes.data, self.own.ctypes.data + each

    def offset(self, array: Buffer) -> int:
        """Where an array lies in this rank's region; -1 if elsewhere."""
        at = array.ctypes.data
        return at - self.start if self.start <= at < self.end else -1


class SharedChannel(MpiChannel):
    """A group of ranks of one node. Every member holds `STAGE_BYTES` of shared memory."""

    name = "shared"

    def __init__(self, world: World, ranks: Sequence[int]) -> None:
        super().__init__(world, ranks)
        self.stage: Segment | None = None
        self.segments: dict[int, weakref.ref[Segment]] = {}
        self.owners: dict[int, Any] = {}
        self.made = 0

    # ---- memory ----

    def allocate(self, nbytes: int, call: str) -> np.ndarray[Any, Any]:
        if self.size == 1:
            return super().allocate(nbytes, call)
        self.agree(f"{call}({nbytes} bytes of shared memory)")
        segment = Segment(self, nbytes)
        self.made += 1
        self.segments[self.made] = weakref.ref(segment)
        return np.asarray(_Owned(segment, nbytes))

    def _find(self, array: Buffer) -> tuple[Segment, int, int] | None:
        """The segment that an array lies in, its number, and where."""
        for number, ref in list(self.segments.items()):
            segment = ref()
            if segment is None:
                del self.segments[number]
            elif (at := segment.offset(array)) >= 0:
                return segment, number, at
        return None

    def place_of(self, flat: Buffer) -> str:
        found = self._find(flat)
        return "" if found is None else f", at {found[2]} of segment {found[1]}"

    def _staged(self) -> Segment:
        if self.stage is None:
            self.stage = Segment(self, STAGE_BYTES)
        return self.stage

    def barrier(self) -> None:
        """Wait for the others inside a collective; what they have written can be read then."""
        self.exchange(f"the middle of {self.call}")

    # ---- collectives ----

    def sum(self, arrays: Sequence[Buffer], divisor: int = 1, dst: int | None = None) -> None:
        if self.size == 1 or not arrays:
            return
        dtype = arrays[0].dtype
        if len(arrays) == 1 and wide(dtype) == dtype:  # MPI copies less: it reads both at once
            super().sum(arrays, divisor, dst)
            return
        regions = [r.view(dtype) for r in self._staged().regions]
        for pieces in rounds(arrays, len(regions[0])):
            n = sum([len(p) for p in pieces])
            _copy_in(pieces, regions[self.rank])
            self.barrier()
            views = [r[:n] for r in regions]
            self._add_up(views, views if dst is None else [views[dst]], divisor)
            self.barrier()
            if dst is None or dst == self.rank:
                _copy_out(regions[self.rank], pieces)

    def sum_in_place(self, flat: Buffer, divisor: int = 1) -> None:
        found = self._find(flat)
        if found is None:
            super().sum_in_place(flat, divisor)
            return
        segment, _, at = found
        views = [r[at : at + flat.nbytes].view(flat.dtype) for r in segment.regions]
        self._add_up(views, views, divisor)
        self.barrier()

    def _add_up(self, views: list[Buffer], into: list[Buffer], divisor: int) -> None:
        """Write this rank's share of the sum of views to all of `into`."""
        dtype = views[0].dtype
        exact = divisor & (divisor - 1) == 0  # then a product gives the same bits, faster
        n, step = len(views[0]), ALIGN // dtype.itemsize
        share = -(-n // (self.size * step)) * step  # no two ranks write to one cache line
        lo, hi = min(self.rank * share, n), min((self.rank + 1) * share, n)
        block = BLOCK_BYTES // dtype.itemsize
        total = np.empty(min(block, hi - lo), wide(dtype))
        with np.errstate(all="ignore"):  # a gradient may well be inf: loss scaling looks for it
            for start in range(lo, hi, block):
                part = slice(start, min(start + block, hi))
                acc = total[: part.stop - start]
                np.add(views[0][part], views[1][part], out=acc, dtype=acc.dtype)
                for view in views[2:]:
                    acc += view[part]
                if divisor != 1:
                    acc = np.multiply(acc, 1 / divisor, out=acc) if exact else acc / divisor
                for view in into:
                    view[part] = acc

    def bcast(self, arrays: Sequence[Buffer], src: int) -> None:
        region = self._staged().regions[src]
        for pieces in rounds([a.view(np.uint8) for a in arrays], len(region)):
            if self.rank == src:
                _copy_in(pieces, region)
            self.barrier()
            if self.rank != src:
                _copy_out(region, pieces)
            self.barrier()

    def reduce_scatter(self, arrays: Sequence[Buffer], out: Buffer, divisor: int = 1) -> None:
        regions = [r.view(out.dtype) for r in self._staged().regions]
        width = len(regions[0]) // self.size
        for start in range(0, len(out), width):
            part = out[start : start + width]
            n = len(part)
            _copy_in([a[start : start + n] for a in arrays], regions[self.rank])
            self.barrier()
            acc = np.zeros(n, wide(out.dtype))
            for r in regions:
                acc += r[self.rank * n : (self.rank + 1) * n]
            part[...] = acc if divisor == 1 else acc / divisor
            self.barrier()

    def all_gather(self, array: Buffer, outs: Sequence[Buffer]) -> None:
        outs[self.rank][...] = array
        self._exchange([outs])

    def gather_parts(self, wholes: Sequence[Any]) -> None:
        if self.size == 1:
            return
        apart = []
        for rows in wholes:
            found = self._find(rows)
            if found is None:
                apart.append(rows)
                continue
            segment, _, at = found
            n = rows[0].nbytes
            for k in self.others:
                start = at + k * n
                rows[k] = segment.regions[k][start : start + n].view(rows.dtype)
        self._exchange(apart)
        if len(apart) < len(wholes):
            self.barrier()  # the others have read this rank's parts

    def _exchange(self, wholes: Sequence[Any]) -> None:
        """As gather_parts, of arrays that lie elsewhere."""
        regions = self._staged().regions if wholes else []
        every = [[rows[k].view(np.uint8) for rows in wholes] for k in range(self.size)]
        for parts in zip(*[rounds(a, STAGE_BYTES) for a in every], strict=True):
            _copy_in(parts[self.rank], regions[self.rank])
            self.barrier()
            for k in self.others:
                _copy_out(regions[k], parts[k])
            self.barrier()


class _Owned:
    """An array over a segment's own region that keeps the segment: numpy holds it as its base."""

    def __init__(self, segment: Segment, nbytes: int) -> None:
        self.segment = segment
        self.__array_interface__ = segment.own[:nbytes].__array_interface__


def _copy_in(pieces: Sequence[Buffer], region: Buffer) -> None:
    at = 0
    for p in pieces:
        region[at : at + len(p)] = p
        at += len(p)


def _copy_out(region: Buffer, pieces: Sequence[Buffer]) -> None:
    at = 0
    for p in pieces:
        p[...] = region[at : at + len(p)]
        at += len(p)
