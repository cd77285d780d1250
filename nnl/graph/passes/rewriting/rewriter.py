# SPDX-License-Identifier: Apache-2.0
"""What passes share that replace a pattern of steps by one step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nnl.ext.library import Library, native_spec
from nnl.graph.program.program import Program, Step
from nnl.graph.program.sharing import sharing, written_by


class Rewriter:
    """Finds steps by the slots between them, and puts new ones in their place.

    Attributes:
        readers, makers, views: Of every slot, before anything is replaced.
    """

    def __init__(self, program: Program, lib: Library) -> None:
        self.program, self.lib = program, lib
        self.readers, self.makers = program.readers(), program.makers()
        self.views = program.views()
        self.order = {s: t for t, s in enumerate(program.steps)}
        self.gone: set[Step] = set()
        self.placed: dict[Step, list[Step]] = {}  # a step that goes -> what stands in its place

    def each(self, **rules: Callable[[Step], None]) -> None:
        """Show usable steps to the rule for their op, which may replace them."""
        for step in self.program.steps:
            if step.op in rules and self.usable(step, step.second):
                rules[step.op](step)
        self.finish()

    def spec(self, slot: int) -> Any:
        return self.program.slots[slot].spec

    def usable(self, step: Step | None, second: bool) -> bool:
        """Whether a step of this part may be fused: native, still there, reading its own types."""
        return (
            step is not None
            and step.native
            and step.second == second
            and step not in self.gone
            and not step.converts
        )

    def only_reader(self, slot: int) -> Step | None:
        """The only step that reads a slot, if the value is not wanted otherwise."""
        readers = self.readers.get(slot, [])
        if len(readers) != 1 or slot in self.program.kept or slot in self.views:
            return None
        return None if readers[0] in self.gone else readers[0]

    def private(self, slots: set[int]) -> bool:
        """Whether nobody sees these slots, or views of them, from outside."""
        return not slots & self.program.kept and all(
            self.views.get(i, slots) <= slots for i in slots
        )

    def has_kernel(self, step: Step) -> bool:
        """Whether the library has a kernel for a step that is not in the program yet."""
        specs = [[native_spec(self.spec(i)) for i in slots] for slots in (step.ins, step.outs)]
        return self.lib.kernel(step.op, step.attrs, *specs) is not None

    def quiet(self, first: Step, last: Step, reads: set[int], makes: set[int]) -> bool:
        """Whether no step between the two uses roots that are made, or writes those that are read.

        Then the first may run where the last one stands.
        """
        root = self.program.root
        if not self.program.shared.keys().isdisjoint((*first.outs, *last.outs)):
            return False  # others see when it is written
        makes = sharing(self.program, makes)
        for t in range(self.order[first] + 1, self.order[last]):
            s = self.program.steps[t]
            if any(root(i) in makes for i in s.ins) or written_by(self.program, s) & reads:
                return False
        return True

    def replace(self, parts: list[Step], at: Step, new: Step, *before: Step) -> None:
        """Let `new`, after the steps `before`, stand for the parts at the place of one of them."""
        new.parts = tuple(sorted(parts, key=self.order.__getitem__))
        self.gone |= set(parts)
        self.placed[at] = [*before, new]

    def finish(self) -> None:
        steps: list[Step] = []
        for s in self.program.steps:
            if s in self.placed:
                steps += self.placed[s]
            elif s not in self.gone:
                steps.append(s)
        self.program.steps = steps
