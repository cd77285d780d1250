# SPDX-License-Identifier: Apache-2.0
"""Arrays that are one memory on a device under several shapes."""

from __future__ import annotations

from typing import Any
from weakref import ref

from nnl.core.arrays.array import NdArray


class Views:
    """Arrays that are one memory on a device under several shapes; on the host numpy knows them.

    Whoever is about to write to one takes the others along to the same buffer. An array that gets a
    buffer of its own is none of them any more.
    """

    __slots__ = ("arrays",)

    def __init__(self) -> None:
        self.arrays: list[ref[NdArray]] = []

    @staticmethod
    def link(x: NdArray, y: NdArray) -> None:
        """Let y be a view of x if its buffer is one; of what is not contiguous it may be a copy."""
        space, buf = next(iter(y.bufs.items()))
        if getattr(buf, "base", None) is None and buf is not x.bufs.get(space):
            return
        of_x, of_y = x.lasting_record(), y.lasting_record()
        views = of_x.views or Views()
        others = [r for r in views.arrays if r() is not None and r() is not x and r() is not y]
        views.arrays = [*others, ref(x), ref(y)]
        of_x.views = of_y.views = views

    def follow(self, writer: NdArray, space: str, buf: Any) -> None:
        """An array, which holds nothing but this buffer, is about to be written."""
        writer.lasting_record().views = self
        for nd in [r() for r in self.arrays]:
            if nd is not None and nd is not writer and nd.lasting_record().views is self:
                nd.write(space, buf.reshape(nd.spec.shape))
                nd.lasting_record().views = self
