# SPDX-License-Identifier: Apache-2.0
"""What is known of the memory of an array besides its buffers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

_versions = count(1)


@dataclass(slots=True, eq=False)
class MemoryRecord:
    """What an array holds where it has no buffer, and what lasts from write to write.

    Most arrays have one of the constants below, and PLAIN after the next write. One that arrays
    share, or that somebody notes something in, has a version and stays.

    Attributes:
        fill: What every element is, where there is no buffer yet; else None.
        cleared: Why there is none any more, or "".
        early: Whether the value is zeros that were read before anything was written.
        own: The host's buffer, if other arrays have parts of it: it must stay.
        views: The arrays that are this memory on a device, under several shapes.
        version: A number for this value, a new one after every write. 0: the record does not stay.
        work: What has still to run before the memory may be written; without a buffer, before it
            may be read either.
        number: A number that this work knows the memory by.
        family: Which arrays have a part of the same memory on the host, where `own` is one.
    """

    fill: Any = None
    cleared: str = ""
    early: bool = False
    own: Any = None
    views: Any = None
    version: int = 0
    work: Any = None
    number: int = 0
    family: Any = None

    def lasting(self) -> MemoryRecord:
        """One that says the same and stays; one with work does."""
        if self.version:
            return self
        # as replace() does, which takes as long as a small function
        r = MemoryRecord(self.fill, self.cleared, self.early, self.own, self.views, next(_versions))
        r.family = self.family
        return r

    def let_go(self, nd: Any) -> None:
        """The value that an array has, or is to have, is not wanted any more."""
        work = self.work
        if work is not None:
            work.let_go(nd)

    def give_up(self, nd: Any) -> None:
        """An array is to have other memory, and another record."""
        work = self.work
        if work is not None:
            work.give_up(nd)

    def renew(self, now: MemoryRecord) -> None:
        """Say what another one says, of other memory."""
        self.fill, self.cleared, self.early = now.fill, now.cleared, now.early
        self.own = self.views = None
        self.version = next(_versions)

    def say(self, now: MemoryRecord) -> None:
        """Say what another one says; what is written next is seen by all that are parts of it."""
        own = self.own
        self.renew(now)
        self.own = own

    def take(self, space: str, buf: Any) -> Any:
        """Be that of a buffer which was written, and return the one that its values must be in."""
        own = self.own if space == "host" else None
        self.renew(PLAIN)
        if own is not None and own is not buf:
            np.copyto(own, buf)
        self.own = own
        return buf if own is None else own


PLAIN, ZERO, EARLY = MemoryRecord(), MemoryRecord(0), MemoryRecord(0, early=True)
BY_HAND = MemoryRecord(cleared="cleared by clear()")
FREED = MemoryRecord(
    cleared="freed: a dynamic graph keeps what gradients need, and what you hold "
    "(documentation: guides/sharp_bits#reading-what-was-cleared)"
)
LOST = MemoryRecord(
    cleared="cleared by clear_buffer or clear_no_need_grad: set persistent=True to keep it "
    "(documentation: guides/sharp_bits#reading-what-was-cleared)"
)
