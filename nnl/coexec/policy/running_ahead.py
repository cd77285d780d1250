# SPDX-License-Identifier: Apache-2.0
"""Whether steps end before what they have put off is done: measured, unless somebody says."""

from __future__ import annotations

from statistics import median
from time import process_time

from nnl.core.arrays.resources import cores

ROUND = 10  # steps in one way, then as many in the other
ROUNDS = 4
FIRST = 2  # steps of a round that still feel the one before
LASTS = 2000  # steps for which a result holds
LEAST = 0.05  # what it has to gain
CORES = cores()


class Pace:
    """Lets some steps run ahead and some not, and goes on in the way that takes less time.

    Args:
        ahead: 0: never. 1: always. None: measure.

    Attributes:
        ahead: Whether the next run is to be ahead.
    """

    __slots__ = ("ahead", "_rest", "_step", "_last", "_began", "_periods", "_rounds", "_runs")

    def __init__(self, ahead: int | None) -> None:
        self.ahead = bool(ahead)
        self._rest = -1 if ahead is not None else 0  # steps until it measures again
        self._begin()

    def _begin(self) -> None:
        self._step, self._began = 0, 0.0
        self._last: float | None = None
        self._periods: list[float] = []  # of the steps of this round
        self._rounds: list[float] = []  # their medians, not ahead and ahead in turn
        self._runs: list[tuple[float, float]] = []  # not ahead: seconds, and those of processors

    def next(self, now: float) -> bool:
        """A step is at its end, with a plan that may run ahead: whether it is to."""
        if self._rest:
            self._rest -= 1
            self.ahead = self.ahead and self._rest != 0  # the first round is not ahead
            return self.ahead
        if self._last is not None and self._step > FIRST:
            self._periods.append(now - self._last)
        self._last = now
        self._step += 1
        if self._step > ROUND:
            self._end_round()
        self._began = process_time()
        return self.ahead

    def ran(self, seconds: float) -> None:
        """What a run that was not ahead took."""
        if not self._rest and self._last is not None:
            self._runs.append((seconds, process_time() - self._began))

    def interrupted(self) -> None:
        """A step was another one: what lies between two others is no measure."""
        self._last = None

    def _end_round(self) -> None:
        self._step = 0
        self._rounds.append(median(self._periods) if self._periods else 0.0)
        self._periods = []
        plain, ahead = self._rounds[::2], self._rounds[1::2]
        if ahead or self._may_gain(plain[0]):
            if len(self._rounds) < ROUNDS:
                self.ahead = not self.ahead
                return
            # in every pair of rounds: other programs may have disturbed one of them
            pairs = zip(plain, ahead, strict=True)
            self.ahead = all([0.0 < a < (1 - LEAST) * p for p, a in pairs])
        self._begin()
        self._rest = LASTS

    def _may_gain(self, period: float) -> bool:
        """Whether it is worth trying, after a round that was not ahead."""
        if not self._runs:
            return False
        run = median([seconds for seconds, _ in self._runs])
        python = period - run  # they take turns now; then one of them hides the other
        threads = median([busy / max(seconds, 1e-9) for seconds, busy in self._runs])
        if threads > CORES - 0.5:  # all cores; Python takes one of them
            run *= threads / max(threads - 1.0, 1.0)
        return max(run, python) < (1 - 2 * LEAST) * period
