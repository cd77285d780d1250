# SPDX-License-Identifier: Apache-2.0
"""Memory that calls which were put off will read or write, and those who want it meanwhile."""

from __future__ import annotations

import threading
from abc import abstractmethod
from dataclasses import replace
from typing import Any

from nnl.coexec.deferring.backward import Edges
from nnl.coexec.deferring.running import Running
from nnl.coexec.plans.calls import NONE
from nnl.coexec.plans.paths import PathNode
from nnl.core.arrays.array import NdArray
from nnl.core.arrays.bulk import BULK


class Memory:
    """What a thread has put off, as the records of arrays know it: their `work`.

    Memory that the calls make or use is known by a number, which its record has: those that they
    make count up from 0, those that were there before count down from -2, and -1 is an input left
    out.

    Attributes:
        made: Arrays that calls make; None for one that nobody has asked for. A reference from
            elsewhere is somebody who may read it.
        given: Arrays that calls read or write.
        before: {number of a given array that calls write: its buffers before that}.
        taken: {id of an array: (number of the value that it takes, the array)}, besides `made`.
        behind: What the step before has left to run, until that is over.
        adopted: Numbers of given arrays that it uses, or makes: then they have no buffer yet.
        edges: What there is to know about gradients.
        trigger: The place at which what is expected to follow begins to run, see `speculation`.
    """

    __slots__ = (
        "thread", "made", "given", "before", "taken", "behind", "adopted", "edges", "trigger",
    )  # fmt: skip

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.behind: Running | None = None
        self.begin()

    def begin(self) -> None:
        """Begin with nothing."""
        self.made: list[NdArray | None] = []
        self.given: list[NdArray] = []
        self.before: dict[int, dict[str, Any]] = {}
        self.taken: dict[int, tuple[int, NdArray]] = {}
        self.adopted: set[int] = set()
        self.edges = Edges()
        self.trigger: PathNode | None = None

    @abstractmethod
    def run(self) -> None:
        """Do what has been put off."""

    # ---- what arrays ask for ----

    def fetch(self, nd: NdArray) -> None:
        """Let an array without a buffer have one."""
        number = nd.record.number
        if number in self.adopted and number not in self.before:
            self.arrive(number)
        else:
            self.run()

    def settle(self, nd: NdArray) -> None:
        """Do what has been put off before somebody gets an array's memory.

        What another thread does with a value that nothing here writes is its own affair, as it
        always is: a logger looks at parameters.
        """
        number = nd.record.number
        has_value = number < NONE and number not in self.before and id(nd) not in self.taken
        if self.thread == threading.get_ident() or not has_value:
            self.run()
        else:
            self.arrive(number)

    def let_go(self, nd: NdArray) -> None:
        """Let an array be overwritten: calls that read it keep the value that it had."""
        number = nd.record.number
        if self.thread != threading.get_ident() or number in self.before:
            self.run()
        elif id(nd) in self.taken:
            del self.taken[id(nd)]
            nd.record.work = None
        elif number < NONE:
            self.keep_value(nd)
            nd.record.work = None
        else:
            self.run()

    def give_up(self, nd: NdArray) -> None:
        """Let an array be other memory: who shares what it has been keeps that."""
        number = nd.record.number
        arrays, at = (self.made, number) if number >= 0 else (self.given, -2 - number)
        is_taken = id(nd) in self.taken
        self.arrive(number)
        if self.thread != threading.get_ident():
            self.run()
        elif is_taken or (at < len(arrays) and arrays[at] is nd):
            self.edges.plain = False
            other = NdArray.unwritten(nd.spec)
            other.bufs, other.record = nd.bufs, nd.record
            if is_taken:
                self.taken[id(other)] = self.taken.pop(id(nd))[0], other
            else:
                arrays[at] = other

    def keep_value(self, nd: NdArray) -> None:
        """Let the calls that read a given array read what it holds now, whatever becomes of it."""
        self.arrive(nd.record.number)
        self.edges.plain = False  # functions keep the array itself for their gradients
        old = self.given[-2 - nd.record.number] = NdArray.unwritten(nd.spec)
        old.bufs = dict(nd.bufs)
        old.record = replace(nd.record, version=0, work=None)
        nd.bufs.clear()

    def give_back(self, work: Running | None) -> None:
        """Let given arrays have the values that calls were to write over.

        Args:
            work: Theirs from now on.
        """
        BULK.give_back(self.given, self.before, work)

    # ---- what the step before has left to run ----

    def arrive(self, number: int) -> None:
        """Wait for what the step before does with an array, if it does."""
        running = Running.now  # which another thread may be about to publish
        if number in self.adopted and running is not None:
            running.stall()

    def suspend(self) -> list[tuple[NdArray, dict[str, Any]]]:
        """Let arrays that calls will write have their buffers for a moment; see `resume`."""
        taken = [(self.given[-2 - number], bufs) for number, bufs in list(self.before.items())]
        for nd, bufs in taken:
            nd.bufs.update(bufs)
        return taken

    def resume(self, taken: list[tuple[NdArray, dict[str, Any]]]) -> None:
        """Take these away again; all of the step before has arrived."""
        for nd, bufs in taken:
            bufs.clear()
            bufs.update(nd.bufs)
            nd.bufs.clear()
        self.adopted.clear()
        self.behind = None
