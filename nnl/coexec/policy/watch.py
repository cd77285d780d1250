# SPDX-License-Identifier: Apache-2.0
"""Whether steps are put off: where they repeat themselves, and as far as learning them is paid for.

To put a function off for the first time takes several times as long as to compute a small one. So
steps compute at once until the functions that they call have come before in this order; and what
is learnt of them takes no more than a share of the time that steps have taken, or that it has saved
so far. All times are estimates: what is put off follows from what the steps were, not from clocks.
"""

from __future__ import annotations

import contextlib
import inspect
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from sys import _getframe
from types import FrameType
from typing import TYPE_CHECKING, Any

from nnl.coexec.policy.number_inputs import WITH_INPUT
from nnl.coexec.policy.payoff import CALL, PLAN, seconds
from nnl.core.graph.node import Node
from nnl.core.settings.context import SPACES
from nnl.graph.program.program import SPACE

if TYPE_CHECKING:
    from nnl.coexec.plans.paths import PathNode

OFTEN = 2  # how often a call comes before it is put off
SHARE = 0.5  # of the latest calls, those that came so often, for the next step to be put off
MOST = 1 << 17  # beginnings of steps that are known; of more, all are forgotten
BACKWARD = 2.0  # what a call with a gradient takes in a backward pass, of what it takes forward

LEARN = 7e-6  # seconds to put off a call for the first time, as in nnl.coexec.policy.payoff
FIRST = 3  # times as long as that takes what is learnt at first
EARN = 0.1  # the share of the time of steps that learning may take
TRUST = 3000 * LEARN  # learning that has saved nothing yet, from which on that share is less
SAVED = 0.4  # what plans save of the time of calls
UPDATES = 0.2  # of PLAN, what it takes to make the plan of an update
LOST = 0.1  # what calls lose that are put off and have no plan
LATEST = 4  # steps, about, that say what learning takes in one

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


class Counts:
    """What a step has called so far, as a number, and how often that has come. A library counts
    faster.

    Attributes:
        calls: How many functions the step has called, those of its backward pass included, about.
        work: Seconds that they take, about, without these. often: Of these, of calls that have come
            often in this order.
        rest: Seconds of the backward pass, and of updates.
        known: How many beginnings of steps are known.
    """

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self.begin(0, 0)

    @property
    def known(self) -> int:
        return len(self._seen)

    def begin(self, number: int, often: int) -> None:
        """A step begins. number: A creation number of nodes, as are all below. often: See OFTEN."""
        if len(self._seen) > MOST:
            self._seen.clear()
        self._hash, self._often_from, self._made = 0, often, [number]
        self.calls, self.work, self.often, self.rest = 0, 0.0, 0.0, 0.0
        self._seen[0] = self._seen.get(0, 0) + 1

    def call(
        self, bound: int, made_by: Sequence[int], number: int, takes: float, need: bool, known: bool
    ) -> None:
        """A function is called.

        Args:
            bound: Id of the kernel. made_by: Numbers of the nodes whose results it reads.
            takes: Seconds. need: Whether it has a gradient.
            known: Whether it has come often, which need not be counted then.
        """
        h = self._hash * 1000003 ^ bound
        for seq in made_by:
            h = h * 1000003 ^ bisect_right(self._made, seq)
        self._hash = h & MASK
        self._made.append(number)
        if not known:
            times = self._seen[self._hash] = self._seen.get(self._hash, 0) + 1
            known = times > self._often_from
        self.calls += 1 + 2 * need
        self.work += takes
        self.rest += BACKWARD * takes * need
        self.often += takes * known

    def end(self, calls: int, takes: float) -> None:
        """These come at the end, and follow from the calls before."""
        self.calls += calls
        self.rest += takes

    def came_often(self) -> bool:
        """Whether steps have often called what this one has called so far."""
        return self._seen.get(self._hash, 0) > self._often_from


class Watch:
    """What steps call, and what may be learnt of them.

    The number of `counts` follows from the functions of Variables, their shapes and attributes, and
    which of their inputs are results of which other ones: backward passes and updates follow from
    these.

    Attributes:
        active: Whether the present step tells its calls: it computes at once, or has met what is
            new. A library takes these calls faster.
        frame: That of the step. end: What ends the step.
        credit: Seconds that learning may take.
    """

    __slots__ = (
        "active", "frame", "end", "counts", "credit", "_began", "_takes", "_spent", "_all",
        "_saved", "_ran", "_gained", "_usual", "_calls", "_latest", "_latest_often",
    )  # fmt: skip

    def __init__(self) -> None:
        self.active = False
        self.frame: FrameType | None = None
        self.end: Callable[[], None] | None = None
        lib = SPACES[SPACE].library()
        self.counts: Any = Counts() if lib is None else lib.Counts()
        self.credit = 0.0
        self._spent = self._all = self._saved = 0.0  # on learning in the step, in all, and by plans
        self._ran = self._gained = 0.0  # what a step takes that is put off, and less than at once
        self._usual = 0.0  # those of a step that is not, and `_calls` how many these are
        self._takes = -1.0  # seconds of learning in a step that is put off; none was yet
        self._began, self._calls = 0, 0.0
        self._latest = self._latest_often = 0.0  # of the latest steps, and of calls come often

    def follows(self) -> bool:
        """Whether the next step is to be put off: half of the latest calls came often, and to learn
        what may be new in it is paid for.

        Backward passes are the same only where all that led to them was.
        """
        takes = self._takes if self._takes >= 0 else FIRST * LEARN * self._calls
        if OFTEN and not (0 < self._latest and self.credit >= takes):
            return False
        return self._latest_often >= SHARE * self._latest

    def begin(self, frame: FrameType, end: Callable[[], None]) -> None:
        """A step begins."""
        self.frame, self.end, self.active = frame, end, False
        self._spent = self._ran = self._gained = 0.0
        self._began = Node.number()
        self.counts.begin(self._began, OFTEN)

    def end_step(self, was_put_off: bool) -> None:
        """The step is over; whether all of it was put off."""
        self.frame = self.end = None
        counts = self.counts
        if self.active:
            took = counts.work + counts.rest
            often = counts.often + (counts.rest if counts.came_often() else 0)
            self._latest = self._latest / 2 + took
            self._latest_often = self._latest_often / 2 + often
            earned = min(1.0, (TRUST + self._saved) / max(self._all, TRUST))
            self.credit += EARN * earned * took
            if not was_put_off:
                self.credit += self._gained
                self._saved += max(self._gained, 0.0)
                new = 1 / (LATEST if self._usual else 1)
                self._usual += new * (took - self._usual)
                self._calls += new * (counts.calls - self._calls)
        if was_put_off or self._spent or (self._ran and self._takes >= 0):
            self._takes += (self._spent - self._takes) / (LATEST if self._takes >= 0 else 1)
        if was_put_off:
            gained = max(self._usual - self._ran, 0.0)  # less than nothing is an estimate's error
            self.credit += gained
            self._saved += gained

    def spend(self, seconds: float) -> None:
        """So much was spent on learning."""
        self.credit -= seconds
        self._spent += seconds
        self._all += seconds

    def ran(self, work: float, planned: float) -> None:
        """Calls that take so long have run, and this share of them by plans."""
        gained = work * (SAVED * planned - LOST * (1 - planned))
        self._gained += gained
        self._ran += work - gained

    def is_over(self) -> bool:
        """Whether an interrupt has left the step without its end."""
        return self.frame is None or is_left(self.frame)

    def call(self, op: Any, attrs: Any, bound: Any, edges: Iterable[Any]) -> None:
        """A function of Variables is called."""
        if op.name in PASSED:
            return
        need = [v for v in edges if v is not None and v.need_grad]
        made_by = [v.node.seq for v in need if v.node is not None]
        takes = seconds(attrs, bound)
        self.counts.call(id(bound), made_by, Node.number(), takes, bool(need), False)

    def wrote(self, calls: int, recorded: bool) -> None:
        """So many arrays were updated. recorded: Whether by a plan that was made for that."""
        self.counts.end(calls, calls * (CALL + UPDATES * PLAN * recorded))

    def catch_up(self, pieces: Iterable[tuple[Mapping[int, int], Sequence[PathNode]]]) -> None:
        """Be told from now on what a step calls.

        Args:
            pieces: (creation numbers of nodes, by the numbers of their arrays, and path) of what it
                has called so far.
        """
        self.active, last = True, self._began
        for makers, path in pieces:
            first = 0  # number of the next array
            for place in path:
                for call in place.calls:
                    if place.of_variables and call.op.name not in PASSED:
                        made_by = [makers[n] for n in call.numbers if n in makers]
                        need, last = first in makers, makers.get(first, last)
                        takes = seconds(call.attrs, call.bound)
                        self.counts.call(id(call.bound), made_by, last, takes, need, True)
                    first += len(call.bound.out_specs)
