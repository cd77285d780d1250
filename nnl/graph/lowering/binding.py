# SPDX-License-Identifier: Apache-2.0
"""Binding: which arrays the given values of a program are. Only it knows both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from nnl.core.arrays.array import NdArray
from nnl.core.arrays.bulk import BULK
from nnl.core.graph.node import Node
from nnl.ext.library import BFLOAT16, DevicePlan, HostPlan
from nnl.graph.lowering.buffer_owners import (
    HOLDERS,
    WrittenArrays,
    count_holders,
    is_held,
    read_in_order,
)
from nnl.graph.program.program import SPACE, Program, space_of

if TYPE_CHECKING:
    from nnl.graph.plan.plan import Plan

Key = tuple[int, int]  # of an edge, see Value.key


class Binding:
    """Arrays and edges by slot, and the buffers that a plan reads and writes by them.

    Attributes:
        slot_of: {key of an edge: slot}.
        arrays: {given slot: its array}.
        nodes: What steps were recorded as: source n of the program is nodes[n - 1].
        given: (slot, array) of what the plan reads in its own memory space.
        ordered: (slot, array, space) of what it reads in another order or type.
        written: The arrays that it writes.
    """

    def __init__(self) -> None:
        self.slot_of: dict[Key, int] = {}
        self.arrays: dict[int, NdArray] = {}
        self.nodes: list[Node] = []
        self._memories: dict[int, int] = {}
        self.given: list[tuple[int, NdArray]] = []
        self.ordered: list[tuple[int, NdArray, str]] = []
        self.prepared_from: dict[int, NdArray] = {}  # by slot
        self.seen: dict[int, int] = {}  # their versions when it was done
        self.aliases: Counter[int] = Counter()
        self.held: dict[int, int] = {}  # {slot: id of its buffer}, of those that HOLDERS counts

    def memory_of(self, nd: NdArray) -> int:
        """The number of an array's memory, not 0; arrays that share it have the same one."""
        return self._memories.setdefault(id(nd.bufs), len(self._memories) + 1)

    def array(self, program: Program, slot: int) -> NdArray:
        """The array of a given slot."""
        source = program.slots[slot].copies or slot
        nd = self.arrays.get(source)
        if nd is None:  # a constant that a pass has found
            s = program.slots[source]
            nd = self.arrays[source] = NdArray.holding(s.spec, SPACE, s.data)
        return nd

    def take(self, program: Program, used: set[int]) -> None:
        """Find the arrays of a program that is to run, and the spaces it wants them in."""
        written = program.written()
        made = {o for s in program.steps if s.kernel is not None for o in s.outs}
        arrays = []
        for i, slot in enumerate(program.slots):
            if not slot.given or i not in used:
                continue
            nd = self.array(program, i)
            space = space_of(program.space, BFLOAT16 if slot.copies else slot.order)
            if space == program.space:
                self.given.append((i, nd))
            else:
                self.ordered.append((i, nd, space))
            if i in written:
                arrays.append((nd, space))
        results = [
            (self.array(program, w), BFLOAT16, o) for o, w in program.results.items() if o in made
        ]
        self.written = WrittenArrays(program.space, arrays, results)

    def find_prepared(self, program: Program, roots: Mapping[int, int]) -> None:
        """Find the arrays that the steps which run only once depend on, and count aliases.

        Constants stay as they are, though programs hold them too.
        """
        behind = {program.root(i) for s in program.steps if s.once for i in s.ins}
        behind = {i for i in behind if program.slots[i].data is None}
        self.prepared_from = {i: nd for i, nd in self.given if i in behind}
        # Aliases refer to a given buffer too. Nobody else sees those that passes have made, and of
        # a program in one part those that are not kept.
        cut = any(s.second for s in program.steps)
        seen = {o for s in program.steps for o in s.outs} if cut else program.kept
        self.aliases = Counter([r for i, r in roots.items() if i not in seen])

    # ---- before a run ----

    def prepared(self) -> bool:
        """Whether the steps that run only once need not run: nothing behind them has changed.

        Whoever writes to an array through NdArray makes another version of it. Somebody who holds
        the numpy array itself may write to it unseen; as long as there is such a holder nothing is
        trusted, nor is a buffer that is part of another array.
        """
        return BULK.unchanged(self.prepared_from, self.seen, SPACE, HOLDERS)

    def mark_prepared(self) -> None:
        """Remember that those steps have run."""
        self.seen = {
            slot: nd.lasting_record().version
            for slot, nd in self.prepared_from.items()
            if not is_held(nd)  # else the holder may write, and let go before the next run
        }

    def point(self, plan: Plan) -> None:
        """Point a plan at the buffers that its arrays have now."""
        slots, space = plan.slots, plan.space
        moved = BULK.moved(self.given, slots, space)
        if plan.native is not None and space == SPACE:
            native = cast(HostPlan, plan.native)
            moved = native.bind_arrays(moved, slots, plan.views, self.held, self.seen, HOLDERS)
        for slot, nd in moved:
            self.find(plan, slot, nd)
        for slot, nd, ordered in self.ordered:
            buf = nd.bufs.get(ordered)
            if buf is None or SPACE in nd.bufs:
                buf = read_in_order(nd, ordered)
            if slots[slot] is not buf:
                self._bind(plan, slot, nd, buf)

    def find(self, plan: Plan, slot: int, nd: NdArray) -> None:
        """Point a plan at the buffer that one array has now."""
        if nd.blank:
            nd.read_early(*self._reader_of(nd))
        try:
            if plan.space == SPACE:
                buf = nd.read(SPACE)
            else:
                buf = cast(DevicePlan, plan.native).follow(slot, nd, plan.space)
        except ValueError as e:  # it was cleared
            raise ValueError("{}, read by {}: {}".format(*self._reader_of(nd), e)) from None
        if plan.slots[slot] is not buf:
            self._bind(plan, slot, nd, buf)

    def _reader_of(self, nd: NdArray) -> tuple[str, str]:
        """Names of a given array, and of the first function that reads it."""
        for node in self.nodes:
            for v in node.inputs:
                if v is not None and v.array is nd:
                    return v.label, node.label
        return f"NdArray {nd.spec}", "a plan"

    def _bind(self, plan: Plan, slot: int, nd: NdArray, buf: Any) -> None:
        if plan.native is not None and not buf.flags.c_contiguous:
            buf = buf.copy()
            if nd in self.written:  # what the run writes must reach the array
                nd.write(plan.space, buf)
        self.seen.pop(slot, None)
        self._let_go(slot)
        self.held[slot] = id(buf)
        count_holders([id(buf)], 1 + self.aliases[slot])
        plan.point(slot, buf)

    def _let_go(self, slot: int) -> None:
        """Stop counting the references of the plan to the buffer of a given slot."""
        buf = self.held.get(slot)
        if buf is not None:
            count_holders([buf], -1 - self.aliases[slot])

    def __del__(self) -> None:
        for slot in self.held:
            self._let_go(slot)
