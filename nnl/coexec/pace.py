# SPDX-License-Identifier: Apache-2.0
"""Whether steps end before what they have put off is done: measured, unless somebody says."""

from __future__ import annotations

from statistics import median

ROUND = 10  # steps in one way, then as many in the other
ROUNDS = 4
FIRST = 2  # steps of a round that still feel the one before
LASTS = 2000  # steps for which a result holds
LEAST = 0.05  # what it has to gain


class Pace:
    """Lets some steps run ahead and some not, and goes on in the way that takes less time.

    Args:
        ahead: 0: never. 1: always. None: measure.

    Attributes:
        ahead: Whether the next run is to be ahead.
    """

    __slots__ = ("ahead", "_rest", "_round", "_step", "_last", "_periods", "_runs")

    def __init__(self, ahead: int | None) -> None:
        self.ahead = bool(ahead)
        self._rest = -1 if ahead is not None else 0  # steps until it measures again
        self._begin()

    def _begin(self) -> None:
        self._round = self._step = 0
        self._last: float | None = None
        self._periods: tuple[list[float], list[float]] = [], []  # of steps, not ahead and ahead
        self._runs: list[float] = []  # what of the first took the run

    def next(self, now: float) -> bool:
        """A step is at its end, with a plan that may run ahead: whether it is to."""
        if self._rest:
            self._rest -= 1
            return self.ahead
        if self._last is not None and self._step > FIRST:
            self._periods[self.ahead].append(now - self._last)
        self._last = now
        self._step += 1
        if self._step > ROUND:
            self._end_round()
        return self.ahead

    def ran(self, seconds: float) -> None:
        """What a run that was not ahead took."""
        if not self._rest:
            self._runs.append(seconds)

    def interrupted(self) -> None:
        """A step was another one: what lies between two others is no measure."""
        self._last = None

    def _end_round(self) -> None:
        self._round += 1
        self._step = 0
        plain, ahead = self._periods
        if self._round < ROUNDS:
            # runs and Python take turns now; one of them has to hide the other
            period = median(plain) if plain else 0.0
            run = median(self._runs) if self._runs else 0.0
            if self.ahead or min(run, period - run) > 2 * LEAST * period:
                self.ahead = not self.ahead
                return
            self.ahead = False
        else:
            self.ahead = median(ahead) < (1 - LEAST) * median(plain) if ahead and plain else False
        self._begin()
        self._rest = LASTS
