# SPDX-License-Identifier: Apache-2.0
"""Channel: how the ranks of one group exchange arrays; here also the channel of a single rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

Buffer = Any  # a one-dimensional contiguous array of the channel's memory space
ALIGN = 64  # bytes: one cache line, and one AVX-512 load


class CommunicatorError(RuntimeError):
    """A collective cannot be completed: a rank is missing, or has called something else.

    Example:
        >>> issubclass(C.CommunicatorError, RuntimeError)
        True
    """


class Channel:
    """What one group of ranks exchanges data over. This class serves a group of one rank.

    Every method is a collective: all ranks call the same ones in the same order, after `agree` has
    found that they mean the same call. Arrays are one-dimensional, contiguous and of one dtype.

    Attributes:
        name: Of the back end.
        ranks: Numbers in the world of the members. rank: this member's place among them.
        foreground: Whether the user's calls use it; else it sums while backward goes on.
        awaited_by: The thread that can make no other call before those here are done; 0 for none.
    """

    name = "local"
    foreground = True
    awaited_by = 0
    threaded = True  # sum_in_place() returns when it is done, so a thread of its own must wait

    def __init__(self, ranks: Sequence[int] = (0,), rank: int = 0) -> None:
        self.ranks, self.rank, self.size = tuple(ranks), rank, len(ranks)

    def agree(self, call: str, extra: bytes = b"") -> list[bytes]:
        """Wait for all ranks; what each has given as `extra`, by rank.

        Raises:
            CommunicatorError: A rank has given another `call`, has died or does not come.
        """
        return [extra]

    def allocate(self, nbytes: int, call: str) -> np.ndarray[Any, Any]:
        """Bytes, aligned, for arrays that sum_in_place() and gather_parts() then need not copy.

        Args:
            call: What needs them, for the other ranks to agree.
        """
        raw = np.empty(nbytes + ALIGN, np.uint8)
        start = -raw.ctypes.data % ALIGN
        return raw[start : start + nbytes]

    def place_of(self, flat: Buffer) -> str:
        """Where sum_in_place() finds an array, for the text of the call: it is the same place on
        all ranks."""
        return ""

    def sum_in_place(self, flat: Buffer, divisor: int = 1) -> None:
        """As sum(), for one array in memory of allocate(); others may read it after agree()."""
        self.sum([flat], divisor)

    def settle(self) -> None:
        """Let what the caller does next come after all sum_in_place() calls."""

    def sum(self, arrays: Sequence[Buffer], divisor: int = 1, dst: int | None = None) -> None:
        """Replace each array by its sum over the ranks over `divisor`, on rank `dst` or on all.

        Sums of 16-bit floats are taken in float32 and rounded once. All ranks get the same bits.
        """

    def bcast(self, arrays: Sequence[Buffer], src: int) -> None:
        """Copy the arrays of rank `src` to the others."""

    def reduce_scatter(self, arrays: Sequence[Buffer], out: Buffer, divisor: int = 1) -> None:
        """Write the sum over the ranks of arrays[rank], over `divisor`, to out."""
        out[...] = arrays[0]

    def all_gather(self, array: Buffer, outs: Sequence[Buffer]) -> None:
        """Write the array of rank k to outs[k]."""
        outs[0][...] = array

    def gather_parts(self, wholes: Sequence[Any]) -> None:
        """Give all ranks what rank k has as wholes[i][k], for all i and k: as all_gather, where
        the arrays lie already. What allocate() gave is read by the others and not copied before."""

    def all_to_all(self, arrays: Sequence[Buffer], outs: Sequence[Buffer]) -> None:
        """Write the array that rank k has for this one to outs[k]."""
        outs[0][...] = arrays[0]


def wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype that sums of this one are taken in: itself, or float32 for floats of 16 bits."""
    return np.dtype(np.float32) if dtype.itemsize == 2 and dtype.kind in "fV" else dtype


def rounds(arrays: Sequence[Buffer], room: int) -> Iterator[list[Buffer]]:
    """The arrays one after the other, cut into lists of pieces that fit in `room` elements."""
    pieces: list[Buffer] = []
    left = room
    for a in arrays:
        start = 0
        while start < len(a):
            n = min(len(a) - start, left)
            pieces.append(a[start : start + n])
            start, left = start + n, left - n
            if not left:
                yield pieces
                pieces, left = [], room
    if pieces:
        yield pieces
