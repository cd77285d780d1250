# SPDX-License-Identifier: Apache-2.0
"""Skeleton: the functions that a step calls are put off; its Python runs on without their values.

Every call gives Variables and nodes as in dynamic mode, only that their arrays have no value yet.
What is put off runs as soon as somebody reads or overwrites memory that it makes, reads or writes,
and at the end of the step, by the plan of exactly these calls. So values, gradients, states and
exceptions are those of dynamic mode, whatever the program does in between.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from sys import getrefcount
from typing import Any

from nnl.coexec.paths import NONE, Call, Place
from nnl.coexec.report import Report
from nnl.core.array import NdArray
from nnl.core.context import STATE, using
from nnl.core.dispatch import Bound, apply, bind, execute, new_node, results, visible
from nnl.core.op import OPS, Op
from nnl.core.origin import here
from nnl.core.record import PLAIN, Record
from nnl.core.spec import Spec
from nnl.graph.holders import is_held
from nnl.graph.program import SPACE

AT_ONCE = frozenset(["python_function"])  # what they do besides computing must happen in order
LOST = "never computed: a function that was called before it has failed"


class Skeleton:
    """What a thread has put off, in the order of the calls.

    Memory that the calls make or use is known by a number, which its record has: those that they
    make count up from 0, those that were there before count down from -2, and -1 is an input left
    out.

    Attributes:
        at: Where the calls have led to from the root of all paths.
        path: The places on the way.
        made: Arrays that calls make. A reference from elsewhere is somebody who may read them.
        given: Arrays that calls read or write.
        before: {number of a given array that calls write: its buffers before that}.
        taken: {id of an array: (number of the value that it takes, the array)}, besides `made`.
    """

    def __init__(self, root: Place, report: Report) -> None:
        self.root, self.report, self.thread = root, report, threading.get_ident()
        self._begin()

    def _begin(self) -> None:
        self.at = self.root
        self.path: list[Place] = []
        self.made: list[NdArray] = []
        self.given: list[NdArray] = []
        self.before: dict[int, dict[str, Any]] = {}
        self.taken: dict[int, tuple[int, NdArray]] = {}

    # ---- calls ----

    def apply(
        self, op: Op, attrs: Any, inputs: tuple[Any, ...], edges: Any, bound: Bound, need: bool
    ) -> Any:
        """What dispatch.apply does in dynamic mode, later."""
        datas = self._call(op, attrs, bound, [None if x is None else x._data for x in inputs])
        if datas is None:
            with using(skeleton=None):
                return apply(op, attrs, inputs)
        state = STATE.__dict__
        node = new_node(op, attrs, edges, bound, state) if need else None
        ys = results(node, inputs, datas, state["recompute"])
        return ys[0] if bound.single else visible(op, ys)

    def execute(
        self, op: Op, attrs: Any, bound: Bound, datas: Sequence[NdArray | None]
    ) -> Sequence[NdArray]:
        """What dispatch.execute does, later."""
        made = self._call(op, attrs, bound, datas)
        return execute(bound, datas) if made is None else made

    def calls(self, op: Op, attrs: Any, arrays: Sequence[tuple[NdArray | None, ...]]) -> None:
        """Apply an op that writes its inputs to each of the lists of arrays, later."""
        for datas in arrays:
            specs = tuple([None if d is None else d.spec for d in datas])
            self.execute(op, attrs, bind(op, attrs, STATE.target, specs), datas)

    def accumulate(self, into: NdArray, g: NdArray) -> bool:
        """Add a gradient to that of a leaf, later; False where it must be done at once."""
        if g.record.work is not self or g.spec.is_half or into.record.own is not None:
            return False
        if into.zeroing:
            into.spec = g.spec
            self._take(into, g.record.place)
            return True
        if is_held(into) if SPACE in into.bufs else into.record.place in self.before:
            return False
        add = OPS["add2"]
        attrs: Any = add.default_attrs
        bound = bind(add, attrs, STATE.target, (into.spec, g.spec))
        made = self._call(add, attrs, bound, (into, g))
        if made is None:
            return False
        number = into.record.place
        if number < 0:  # the call reads what the array holds until now
            old = self.given[-2 - number] = NdArray.unwritten(into.spec)
            old.bufs = dict(into.bufs)
            into.bufs.clear()
        self._take(into, made[0].record.place)
        return True

    def _take(self, nd: NdArray, number: int) -> None:
        """Let an array be the value of this number."""
        record = nd.lasting_record()
        record.fill, record.work, record.place = None, self, number
        self.taken[id(nd)] = number, nd

    def _call(
        self, op: Op, attrs: Any, bound: Bound, datas: Sequence[NdArray | None]
    ) -> tuple[NdArray, ...] | None:
        """Put a call off; None where it must be done at once."""
        if bound.space != SPACE or op.name in AT_ONCE:
            return None
        numbers = self._numbers(datas, bound)
        if numbers is None:
            return None
        at = self.at.after.get(numbers)
        if at is None:
            call = Call(op, attrs, bound, numbers[1:], STATE.target, here(STATE.layer))
            self.report.saw(self.at, call)
            at = self.at.add(numbers, call)
        self.at = at
        self.path.append(at)
        return tuple([self._new(spec) for spec in bound.out_specs])

    def _numbers(self, datas: Sequence[NdArray | None], bound: Bound) -> tuple[Any, ...] | None:
        """What tells a call from others: what is called, and the numbers of its inputs."""
        key: list[Any] = [bound]
        known = len(self.given)
        for nd in datas:
            number = NONE if nd is None else self._number(nd, bound.view)
            if number is None:
                break
            key.append(number)
        else:
            written = [nd for i in bound.writes if (nd := datas[i]) is not None]
            if all([nd.record.work is self and nd.record.place < NONE for nd in written]):
                for nd in written:
                    self._will_write(nd)
                return tuple(key)
        for nd in self.given[known:]:
            nd.record.work = None
        del self.given[known:]
        return None

    def _new(self, spec: Spec) -> NdArray:
        nd = NdArray.unwritten(spec)
        nd.record = Record(version=1, work=self, place=len(self.made))
        self.made.append(nd)
        return nd

    def _number(self, nd: NdArray, shared: bool = False) -> int | None:
        """The number of an array's memory; None where it is not the step's alone.

        Args:
            shared: Whether the result is to be the same memory.
        """
        record = nd.record
        if record.work is self:
            return record.place
        if record.work is not None or record.own is not None:
            return None
        if nd.blank:
            nd.read_early(f"NdArray {nd.spec}", "a function")
        if SPACE in nd.bufs and is_held(nd):  # the holder may write before the call is done
            if shared:
                return None
            nd = NdArray.holding(nd.spec, SPACE, nd.bufs[SPACE].copy())
        self.given.append(nd)
        record = nd.lasting_record()
        record.work, record.place = self, -1 - len(self.given)
        return record.place

    def _will_write(self, nd: NdArray) -> None:
        """Take the value away from an array that a call writes, until it is done."""
        number = nd.record.place
        if number not in self.before:
            if not nd.bufs:
                nd.record.work = None
                nd.read(SPACE)
                nd.record.work = self
            self.before[number] = dict(nd.bufs)
            nd.bufs.clear()

    # ---- running ----

    def run(self) -> None:
        """Do what has been put off.

        Raises:
            ValueError: Another thread asks for it.
        """
        if self.thread != threading.get_ident():
            raise ValueError(
                "coexecution: an array of a step that another thread co-executes was read or "
                "written before the step had computed it: read it there, or after the step"
            )
        at, path, made, given, taken = self.at, self.path, self.made, self.given, self.taken
        before = self.before
        self._begin()
        for nd in given:
            nd.record.work = None
        for number, bufs in before.items():
            given[-2 - number].bufs.update(bufs)
        held = references(made)
        live = {i for i, n in enumerate(held) if n > ALONE}
        values: dict[int, tuple[str, Any]] = {}
        try:
            if path:
                self.report.segments += 1
                with using(skeleton=None):
                    values = at.run(path, given, live | {number for number, _ in taken.values()})
        finally:
            _publish(values, made, live, taken)


def references(made: list[NdArray]) -> list[int]:
    """How often each of these arrays, and the memory of each, is referred to."""
    counts = []
    for i in range(len(made)):
        counts.append(getrefcount(made[i]) + getrefcount(made[i].bufs))
    return counts


ALONE = references([NdArray.unwritten(Spec.of(()))])[0]  # where only the list has it


def _publish(
    values: dict[int, tuple[str, Any]],
    made: list[NdArray],
    live: set[int],
    taken: dict[int, tuple[int, NdArray]],
) -> None:
    """Give arrays their values; those that have none say so."""
    for i in live:
        record = made[i].record
        record.work = None
        record.renew(PLAIN)
        if i in values:
            space, buf = values[i]
            made[i].bufs[space] = buf
        else:
            record.cleared = LOST
    handed = set(live)
    for number, nd in taken.values():
        nd.record.work = None
        if number not in values:
            nd.record.cleared = LOST
            continue
        space, buf = values[number]
        own = number not in handed and getattr(buf, "base", None) is None
        nd.write(space, buf if own else buf.copy())
        handed.add(number)
