# SPDX-License-Identifier: Apache-2.0
"""Who holds the buffers of arrays that plans read and write, and what follows from it.

Everything that writes through NdArray drops what was derived from the old value. Somebody who keeps
the numpy array of `.d` can write to it without that. So as long as there may be such a holder,
nothing derived from that numpy array is trusted, and what a plan writes must arrive in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from threading import RLock
from typing import Any, cast

import numpy as np

from nnl.core.arrays.array import NdArray
from nnl.core.arrays.bulk import BULK
from nnl.core.settings.context import SPACES
from nnl.ext.library import BFLOAT16, TILED
from nnl.graph.program.program import SPACE

HOLDERS: Counter[int] = Counter()  # {id of a buffer: references of plans to it}
_COUNTING = RLock()  # plans of several threads may use one array, and be freed at any time


def count_holders(bufs: Iterable[int], more: int) -> None:
    """Plans have that many references more to each of the buffers of these ids."""
    with _COUNTING:
        BULK.count(HOLDERS, bufs, more)


def is_held(nd: NdArray) -> bool:
    """Whether somebody besides the array and plans may hold its host buffer, or memory of it."""
    return BULK.is_held(nd, SPACE, HOLDERS)


def read_in_order(nd: NdArray, space: str) -> Any:
    """The buffer of an array in another order than the plain one.

    Weights and states of solvers move to that order as a whole where nobody holds the plain buffer:
    one copy is enough.
    """
    if SPACE in nd.bufs and is_held(nd):
        nd.bufs.pop(space, None)
        # not kept: the holder may write to his array and then let it go
        return SPACES[space].from_host(nd.bufs[SPACE])
    if space == BFLOAT16:
        nd.read(SPACE)  # which stays what counts
    if space == TILED and space not in nd.bufs:
        host, tiles = nd.read(SPACE), cast(Any, SPACES[space])
        # the memory of a plan may be that of an array that it has published
        alone = not HOLDERS[id(host)] and host.flags.carray
        nd.write(space, tiles.move(host) if alone else tiles.from_host(host))
    return nd.read(space)


class WrittenArrays:
    """The arrays that a plan writes.

    Args:
        space: The memory space of the plan.
        arrays: With the memory space that each is written in.
        results: Copies that the plan makes in other spaces, with the slots they lie in.
    """

    def __init__(
        self,
        space: str,
        arrays: Sequence[tuple[NdArray, str]],
        results: Sequence[tuple[NdArray, str, int]],
    ) -> None:
        self.space, self.arrays, self.results = space, arrays, results
        self.elsewhere = [(nd, other) for nd, other in arrays if other != space]
        self.held: list[tuple[NdArray, str, np.ndarray[Any, Any]]] = []

    def __contains__(self, nd: NdArray) -> bool:
        return any(nd is x for x, _ in self.arrays)

    def before_run(self) -> None:
        """Let the buffers that the run writes be the only ones of their arrays."""
        self.held.clear()
        for nd, space in BULK.renewed(self.arrays, self.space):
            if space == self.space:
                nd.touch(space)
                continue
            if SPACE in nd.bufs and is_held(nd):
                self.held.append((nd, space, nd.bufs[SPACE]))
            nd.write(space, read_in_order(nd, space))

    def after_run(self, slots: Sequence[Any]) -> None:
        """Bring new values to the numpy arrays that somebody holds; replace old copies."""
        for nd, space in self.elsewhere:
            if len(nd.bufs) > 1:
                nd.write(space, nd.bufs[space])
        for nd, space, host in self.held:
            host[...] = SPACES[space].to_host(nd.bufs[space])
            nd.write(SPACE, host)
        self.held.clear()
        for nd, space, slot in self.results:
            if not is_held(nd):
                nd.bufs[space] = slots[slot]
