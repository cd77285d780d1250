# SPDX-License-Identifier: Apache-2.0
"""Whether steps repeat themselves: asked before anything is put off, as what is new costs more.

To put a function off for the first time takes five times as long as to compute a small one. So
steps compute at once until the functions that they call have come often enough in this order.
"""

from __future__ import annotations

import contextlib
import inspect
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from sys import _getframe
from types import FrameType
from typing import TYPE_CHECKING, Any

from nnl.coexec.with_input import WITH_INPUT
from nnl.core.graph import Node

if TYPE_CHECKING:
    from nnl.coexec.paths import Place

OFTEN = 4  # how often a call comes before it is put off
SHARE = 0.5  # of the latest calls, those that came so often, for the next step to be put off
MOST = 1 << 17  # beginnings of steps that are known; of more, all are forgotten

# Their numbers may vary: they are called as either of two functions.
PASSED = frozenset([*WITH_INPUT, *WITH_INPUT.values()])
MASK = (1 << 64) - 1

# Frames of generators and coroutines are not always on the stack.
WAITING = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def is_left(frame: FrameType) -> bool:
    """Whether a frame that was on the stack of this thread is there no more."""
    code = frame.f_code
    if code.co_flags & WAITING or code.co_filename == contextlib.__file__:
        return False
    at: FrameType | None = _getframe(1)
    while at is not None and at is not frame:
        at = at.f_back
    return at is None


class Watch:
    """What the calls of a step have been so far, as a number, and how often that has come.

    The number follows from the functions of Variables, their shapes and attributes, and which of
    their inputs are results of which other ones: backward passes and updates follow from these.

    Attributes:
        active: Whether the present step tells its calls: it computes at once, or has met what is
            new. A library takes these calls faster.
        frame: That of the step. end: What ends the step.
    """

    __slots__ = (
        "active", "frame", "end", "_seen", "_hash", "_made", "_calls", "_often", "_rest",
        "_latest", "_latest_often",
    )  # fmt: skip

    def __init__(self) -> None:
        self.active = False
        self.frame: FrameType | None = None
        self.end: Callable[[], None] | None = None
        self._seen: dict[int, int] = {}
        self._hash = self._calls = self._often = 0
        self._rest = 0  # calls of the backward pass, about
        self._made: list[int] = []  # numbers of nodes, one that was free at each call
        self._latest = self._latest_often = 0.0  # calls of the latest steps, and those come often

    def follows(self) -> bool:
        """Whether the next step is to be put off: half of the latest calls came often.

        A call with a gradient counts for three, two of them in a backward pass, which is the same
        only where all that led to it was.
        """
        return self._latest_often >= SHARE * self._latest

    def begin(self, frame: FrameType, end: Callable[[], None]) -> None:
        """A step begins."""
        self.frame, self.end, self.active = frame, end, False
        if len(self._seen) > MOST:
            self._seen.clear()
        self._hash = self._calls = self._often = self._rest = 0
        self._made = [Node.number()]
        self._seen[0] = self._seen.get(0, 0) + 1

    def end_step(self) -> None:
        """The step is over."""
        self.frame = self.end = None
        if self.active:
            often = self._often + (self._rest if self.came_often() else 0)
            self._latest = self._latest / 2 + self._calls + self._rest
            self._latest_often = self._latest_often / 2 + often

    def is_over(self) -> bool:
        """Whether an interrupt has left the step without its end."""
        return self.frame is None or is_left(self.frame)

    def call(self, op: Any, bound: Any, edges: Iterable[Any]) -> None:
        """A function of Variables is called."""
        if op.name in PASSED:
            return
        need = [v for v in edges if v is not None and v.need_grad]
        self._mix(bound, [v.node.seq for v in need if v.node is not None])
        self._rest += 2 * bool(need)
        self._made.append(Node.number())
        times = self._seen[self._hash] = self._seen.get(self._hash, 0) + 1
        self._calls += 1
        self._often += times > OFTEN

    def came_often(self) -> bool:
        """Whether steps have often called what this one has called so far."""
        return self._seen.get(self._hash, 0) > OFTEN

    def catch_up(self, pieces: Iterable[tuple[Mapping[int, int], Sequence[Place]]]) -> None:
        """Be told from now on what a step calls, whose calls have come often until here.

        Args:
            pieces: (creation numbers of nodes, by the numbers of their arrays, and path) of these.
        """
        self.active = True
        for makers, path in pieces:
            first = 0  # number of the next array
            for place in path:
                for call in place.calls:
                    if place.of_variables and call.op.name not in PASSED:
                        self._mix(call.bound, [makers[n] for n in call.numbers if n in makers])
                        self._made.append(makers.get(first, self._made[-1]))
                        self._calls += 1
                        self._rest += 2 * (first in makers)
                    first += len(call.bound.out_specs)
        self._often = self._calls

    def _mix(self, bound: Any, inputs: Iterable[int]) -> None:
        h = self._hash * 1000003 ^ id(bound)
        for seq in inputs:
            h = h * 1000003 ^ bisect_right(self._made, seq)
        self._hash = h & MASK
