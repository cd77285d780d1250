# SPDX-License-Identifier: Apache-2.0
"""Fuse chains of elementwise steps: one loop over memory instead of one for every step."""

from __future__ import annotations

from nnl.core.ops import elementwise
from nnl.core.ops.elementwise import program_of
from nnl.ext.library import PROGRAM, Library, kernel_names
from nnl.graph.program.program import Program, Step
from nnl.graph.program.sharing import written_by

MOST_STEPS = 128  # in one loop; the kernel has a limit on values, and compiling must stay linear
FLOATS = frozenset(["float32", "float16", "bfloat16"])
WRITTEN, READ = FLOATS | {"int8", "uint8"}, FLOATS | {"int8", "uint8", "int32"}


class Group:
    """Steps over arrays of one shape that will become one.

    Attributes:
        reads: Roots of the slots they read from outside.
    """

    __slots__ = ("steps", "shape", "second", "reads")

    def __init__(self, step: Step, shape: tuple[int, ...]) -> None:
        self.steps: list[Step] = []
        self.shape, self.second = shape, step.second
        self.reads: set[int] = set()


def fuse_elementwise(program: Program, lib: Library) -> None:
    """Let every elementwise step join the steps of its shape that feed it.

    A group runs where the first step stands that needs one of its results and cannot join, so all
    its inputs are there by then. A step that writes what a group reads makes it run before.
    """
    if PROGRAM in kernel_names(lib):
        _Fuser(program).run()


class _Fuser:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.readers = program.readers()
        self.viewed = program.views()
        self.steps: list[Step] = []
        self.open: dict[Group, None] = {}  # in the order in which they were opened
        self.group_of: dict[int, Group] = {}  # slot -> the open group that makes it
        self.codes: dict[Step, elementwise.Program] = {}

    def run(self) -> None:
        second = False
        for step in self.program.steps:
            if step.second and not second:
                second = True
                for group in list(self.open):
                    self._close(group)
            code = self._code(step)
            if code is None:
                self._pass_by(step)
            else:
                self._join(step, code)
        for group in list(self.open):
            self._close(group)
        self.program.steps = self.steps

    def _code(self, step: Step) -> elementwise.Program | None:
        """The program of a step; None for one that must stay alone."""
        if not step.native or step.writes or step.view or len(step.outs) != 1:
            return None
        slots = self.program.slots
        specs = [slots[i].spec for i in step.ins]
        out = slots[step.outs[0]].spec
        if 0 in step.ins or out.type_name not in WRITTEN or step.outs[0] in self.program.shared:
            return None
        if any(s.type_name not in READ for s in specs):
            return None
        shapes = tuple([s.shape for s in specs])
        found = program_of(step.op, step.attrs, shapes)
        if found is None or found.shapes != shapes:
            return None  # an input would have to be seen under another shape
        return found

    def _maker(self, slot: int) -> Group | None:
        """The open group that makes a slot, or what the slot is another shape of."""
        return self.group_of.get(slot) or self.group_of.get(self.program.root(slot))

    def _pass_by(self, step: Step) -> None:
        """A step that joins no group: what it needs runs first, and what it would overwrite."""
        for i in step.ins:
            group = self._maker(i)
            if group is not None:
                self._close(group)
        written = written_by(self.program, step)
        if written:
            for group in [g for g in self.open if g.reads & written]:
                self._close(group)
        self.steps.append(step)

    def _join(self, step: Step, code: elementwise.Program) -> None:
        shape = self.program.slots[step.outs[0]].spec.shape
        feeding: dict[Group, None] = {}
        for i in step.ins:
            group = self._maker(i)
            if group is None:
                continue
            if group.shape == shape and i in self.group_of and not self._is_stored(i):
                feeding[group] = None
            else:
                self._close(group)
        size = sum(len(g.steps) for g in feeding)
        if not feeding or size >= MOST_STEPS:
            for g in list(feeding):
                self._close(g)
            feeding = {Group(step, shape): None}
        group = next(iter(feeding))
        self.open[group] = None
        # Merging brings steps in blocks: each is in order, and blocks that feed a common step do
        # not depend on each other.
        for other in feeding:
            if other is not group:
                group.steps += other.steps
                group.reads |= other.reads
                del self.open[other]
                for s in other.steps:
                    self.group_of[s.outs[0]] = group
        group.steps.append(step)
        self.codes[step] = code
        group.reads |= {self.program.root(i) for i in step.ins if self.group_of.get(i) is not group}
        self.group_of[step.outs[0]] = group

    def _is_stored(self, slot: int) -> bool:
        """Whether a slot holds whole numbers of 8 bits: reading them again is cheaper than to write
        floats for others, and what is between two of them may be looked up."""
        return self.program.slots[slot].spec.type_name in ("int8", "uint8")

    def _close(self, group: Group) -> None:
        if group not in self.open:
            return
        del self.open[group]
        for s in group.steps:
            self.group_of.pop(s.outs[0], None)
        self.steps.append(group.steps[0] if len(group.steps) == 1 else self._fused(group))

    def _fused(self, group: Group) -> Step:
        members = set(group.steps)
        made = {s.outs[0] for s in group.steps}
        ins: list[int] = []
        for s in group.steps:
            ins += [i for i in s.ins if i not in made and i not in ins]
        number = {slot: n for n, slot in enumerate(ins)}
        code: list[int] = []
        constants: list[float] = []
        for s in group.steps:
            ops, values, _ = self.codes[s]
            first = len(ins) + len(code) // 4  # number of this step's first result
            for k in range(0, len(ops), 4):
                code.append(ops[k])
                for v in ops[k + 1 : k + 4]:
                    if v < 0:
                        code.append(v - len(constants))
                    elif v < len(s.ins):
                        code.append(number[s.ins[v]])
                    else:
                        code.append(first + v - len(s.ins))
            constants += values
            number[s.outs[0]] = len(ins) + len(code) // 4 - 1
        outs = [s.outs[0] for s in group.steps if self._needed(s.outs[0], members)]
        attrs = {
            "code": tuple(code),
            "constants": tuple(constants),
            "outputs": tuple(number[o] for o in outs),
            "shape": group.shape,
        }
        return Step.of(PROGRAM, attrs, ins, outs, group.second, group.steps)

    def _needed(self, slot: int, members: set[Step]) -> bool:
        if slot in self.program.kept or slot in self.viewed:
            return True
        return any(r not in members for r in self.readers.get(slot, ()))
