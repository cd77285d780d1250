# SPDX-License-Identifier: Apache-2.0
"""Calls of functions that were put off, and what runs them one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nnl.core.arguments.origin import Origin, at, tell
from nnl.core.arrays.array import NdArray
from nnl.core.graph.dispatch import Bound
from nnl.core.graph.node import Node, Value
from nnl.core.ops.arguments import no_memory
from nnl.core.ops.op import Op
from nnl.core.settings.context import STATE, Target
from nnl.graph.program.program import SPACE

NONE = -1  # the number of an input that is left out

New = tuple[Op, Any, Bound, tuple[int, ...]]  # the first four of a Call
Values = dict[int, tuple[str, Any]]  # {number of an array: its memory space and buffer}


@dataclass(slots=True, eq=False)
class Call:
    """A function that was called.

    Attributes:
        numbers: Of its inputs, see DeferredStep.
        origin: Where that was first seen.
        site: What tells it from calls of other lines, however often loops come there.
    """

    op: Op
    attrs: Any
    bound: Bound
    numbers: tuple[int, ...]
    target: Target
    origin: Origin
    site: Any = None

    @property
    def written(self) -> list[int]:
        """Numbers of the inputs that it writes."""
        return [self.numbers[i] for i in self.bound.writes]

    def compute(self, bufs: Sequence[Any]) -> Sequence[Any]:
        """Run its kernel; the buffers of the results."""
        STATE.origin = self.origin  # what a profile says
        try:
            out = self.bound.call(*bufs)
        except BaseException as e:
            self.tell(e)
            raise
        return (out,) if self.bound.single else out

    def tell(self, e: BaseException) -> None:
        """Let an error of its kernel say which function that was, and where it was called."""
        label = at(self.op.name, self.origin)
        if isinstance(e, MemoryError):
            raise no_memory(label, e) from None
        tell(e, self.op.name, label)

    def node(self, inputs: Sequence[Value | None]) -> Node:
        """A node that is to do the same."""
        node = Node()
        node.op, node.attrs, node.inputs = self.op, self.attrs, tuple(inputs)
        node.out_specs, node.target, node.need_grad = self.bound.out_specs, self.target, False
        node.outs = tuple([NdArray.unwritten(s) for s in self.bound.out_specs])
        node.live = node.saved = node.grads = node.info = None
        node.origin, node.seq = self.origin, Node.number()
        return node


def made_here(calls: Sequence[New], site: Any, origin: Origin) -> tuple[Call, ...]:
    """Calls that are made for the first time, at a place in the program."""
    target = STATE.target
    return tuple([Call(*c, target, origin, (site, i) if i else site) for i, c in enumerate(calls)])


def buffers(call: Call, made: Any, given: Sequence[NdArray]) -> list[Any]:
    """What a call reads and writes.

    Args:
        made: Buffers by the numbers from 0 up. given: Arrays of those from -2 down.
    """
    bufs = []
    for i, n in enumerate(call.numbers):
        if n < NONE:
            nd = given[-2 - n]
            bufs.append(nd.touch(SPACE) if i in call.bound.writes else nd.read(SPACE))
        else:
            bufs.append(None if n == NONE else made[n])
    return bufs


def run_now(
    calls: Sequence[Call], given: Sequence[NdArray], wanted: set[int], values: Values
) -> None:
    """Run calls one by one, each by its own kernel; see Paths.run."""
    last: dict[int, int] = {}
    for t, call in enumerate(calls):
        last.update(dict.fromkeys(call.numbers, t))
    made: list[Any] = []
    for t, call in enumerate(calls):
        for y in call.compute(buffers(call, made, given)):
            if len(made) in wanted:
                values[len(made)] = SPACE, y
            made.append(y)
        for n in call.numbers:
            if n >= 0 and last[n] == t:
                made[n] = None
