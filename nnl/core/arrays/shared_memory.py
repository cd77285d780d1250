# SPDX-License-Identifier: Apache-2.0
"""Arrays that are parts of one memory on the host."""

from __future__ import annotations

from typing import Any
from weakref import ref

import numpy as np

from nnl.core.arrays.spec import Spec
from nnl.core.settings.context import EPOCH, SPACES


class Family:
    """An array, views of it and views of those: numpy knows their memory, this who they are.

    Args:
        root: The array that the first view was taken of.
    """

    __slots__ = ("members", "root")

    def __init__(self, root: Any) -> None:
        self.root = ref(root)
        self.members = [self.root]

    def add(self, nd: Any) -> None:
        """Take a view in."""
        self.members = [m for m in self.members if m() is not None] + [ref(nd)]
        nd.record.family = self

    def alive(self) -> list[Any]:
        """The arrays that somebody still holds and that have not become other memory."""
        found = [m() for m in self.members]
        return [nd for nd in found if nd is not None and nd.record.family is self]

    def others(self, nd: Any) -> list[Any]:
        """Those of them that are not this same array, or one that has become it."""
        return [m for m in self.alive() if m.bufs is not nd.bufs]

    def is_part(self, nd: Any) -> bool:
        """Whether it lies in memory that is another one's."""
        root = self.root()
        return bool(self.others(nd)) and (root is None or root.bufs is not nd.bufs)

    def written(self, nd: Any, space: str, buf: Any) -> tuple[str, Any]:
        """Where one of them that is written is held: on the host, where the others see it."""
        if self.others(nd):
            if space != "host":
                space, buf = "host", SPACES[space].to_host(buf)
            self.forget_copies(nd)
        return space, buf

    def check_in_place(self, nd: Any, space: str) -> None:
        """
        Raises:
            NotImplementedError: One of several is to be changed in place off the host.
        """
        if space != "host" and self.others(nd):
            raise NotImplementedError(
                f"{nd.spec} is to be changed in place on {space}, and shares its memory with "
                "other arrays (narrow, view), which is on the host: use an array of its own"
            )

    def clear(self, nd: Any) -> bool:
        """Write zeros instead of freeing memory that others are parts of; False: it is free.

        Raises:
            ValueError: The array is itself a part.
        """
        if not self.others(nd):
            return False
        if self.is_part(nd):
            raise ValueError(
                f"clear: {nd.spec} is a part of the memory of another array: clear that one, or "
                "write zeros with zero()"
            )
        nd.zero()
        return True

    def forget_copies(self, nd: Any) -> None:
        """The memory was written by way of one of them: what others have copied of it is old."""
        for m in self.others(nd):
            for space in [s for s in m.bufs if s != "host"]:
                del m.bufs[space]

    def cast(self, dtype: Any) -> None:
        """Convert the memory of all to another dtype; they stay parts of one memory."""
        members = self.alive()
        owns = [nd.record.own for nd in members]
        starts = [own.__array_interface__["data"][0] for own in owns]
        size, first = owns[0].dtype.itemsize, min(starts)
        ends = [at + own.nbytes for at, own in zip(starts, owns, strict=True)]
        memory = np.zeros((max(ends) - first) // size, dtype)
        for nd, at, own in zip(members, starts, owns, strict=True):
            begin = (at - first) // size
            part = memory[begin : begin + own.size].reshape(own.shape)
            cleared = nd.clear_called
            part[...] = own if cleared else nd.read("host")
            nd.spec = Spec.of(nd.spec.shape, memory.dtype)
            nd.record.own = part
            if not cleared:
                nd.bufs.clear()
                nd.write("host", part)
        EPOCH.advance()
