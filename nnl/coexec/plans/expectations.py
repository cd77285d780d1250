# SPDX-License-Identifier: Apache-2.0
"""What steps are expected to do: what they did before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnl.coexec.plans.paths import PathNode
from nnl.core.arrays.array import NdArray

TRUST = 2  # times in a row that a piece of a step was the same path, before it is expected
PROVEN = 8  # times in a row, for what was wrong before to be forgotten
MOST_REST = 64  # steps for which nothing is expected, at most, after it was wrong
MOST = 64  # pieces of a step, and paths, of which something is remembered


class Expected:
    """A path that a piece of a step is expected to be.

    Attributes:
        end: Where it ends. path: The places on the way.
        changing: {position of a given array that is another one from step to step: its position
            among the arguments of the step, None where it is none of them}.
        right: How often in a row it was right. wrong: How often it was not.
        rest: For how many steps it is not to be tried.
    """

    __slots__ = ("end", "path", "changing", "right", "wrong", "rest", "_trigger")

    def __init__(self, end: PathNode, path: Sequence[PathNode]) -> None:
        self.end, self.path = end, path
        self.changing: dict[int, int | None] = {}
        self.right = self.wrong = self.rest = 0
        self._trigger: tuple[int, PathNode | None] = -2, None  # of which position

    def compare(self, given: Sequence[NdArray], offered: Sequence[NdArray]) -> None:
        """See which arrays are others than in the latest run of the plan."""
        holes = [] if self.end.plan is None else self.end.plan.holes
        for i, (hole, nd) in enumerate(zip(holes, given, strict=False)):
            if nd.bufs is not hole.bufs or i in self.changing:
                at = next((j for j, a in enumerate(offered) if a.bufs is nd.bufs), None)
                self.changing[i] = at if self.changing.get(i, at) == at else None

    def trigger(self) -> PathNode | None:
        """The first place by which calls have used all that changes; None if that is the last."""
        last = max([i for i, at in self.changing.items() if at is None], default=-1)
        if self._trigger[0] != last:
            self._trigger = last, self._find(last)
        return self._trigger[1]

    def _find(self, last: int) -> PathNode | None:
        used = 0
        for place in self.path[:-1]:
            used = max([used, *[-1 - n for c in place.calls for n in c.numbers]])
            if used > last:
                return place
        return None

    def was_wrong(self) -> None:
        self.right = 0
        self.wrong += 1
        self.rest = min(2**self.wrong, MOST_REST)


class Expectations:
    """What the pieces of a program's steps are expected to be.

    Attributes:
        memory: Where copies are.
    """

    __slots__ = ("memory", "_pieces", "_known")

    def __init__(self) -> None:
        self.memory = np.empty(0, np.uint8)
        self._pieces: list[Expected] = []  # by position in a step
        self._known: dict[PathNode, Expected] = {}

    def of(self, piece: int) -> Expected | None:
        """What a piece is expected to be; None where that is not worth trying."""
        expected = self._pieces[piece] if piece < len(self._pieces) else None
        if expected is None or expected.right < TRUST:
            return None
        if expected.rest:
            expected.rest -= 1
            return None
        plan = expected.end.plan
        return expected if plan is not None and plan.runs_by_itself else None

    def note(self, piece: int, end: PathNode, path: Sequence[PathNode]) -> Expected:
        """A piece was this path."""
        expected = self._known.get(end)
        if expected is None:
            if len(self._known) == MOST:
                self._known.clear()
            expected = self._known[end] = Expected(end, path)
        if piece < len(self._pieces):
            again = self._pieces[piece] is expected
            expected.right = expected.right + 1 if again else 1
            self._pieces[piece] = expected
            if expected.right >= PROVEN:
                expected.wrong = 0
        elif piece == len(self._pieces) < MOST:
            self._pieces.append(expected)
        return expected

    def room(self, bufs: Sequence[Any]) -> list[Any]:
        """Arrays like these buffers, in memory that is used again."""
        sizes = [-(-buf.nbytes // 64) * 64 for buf in bufs]
        if self.memory.nbytes < sum(sizes):
            self.memory = np.empty(sum(sizes), np.uint8)
        out, begin = [], 0
        for buf, size in zip(bufs, sizes, strict=True):
            memory = self.memory[begin : begin + buf.nbytes]
            out.append(memory.view(buf.dtype).reshape(buf.shape))
            begin += size
        return out
