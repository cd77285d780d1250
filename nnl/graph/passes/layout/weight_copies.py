# SPDX-License-Identifier: Apache-2.0
"""Let updates write a copy of weights in 16 bits, which products read instead of converting."""

from __future__ import annotations

from nnl.core.settings.context import half_type
from nnl.ext.library import BFLOAT16, HOST, Library
from nnl.graph.passes.fusing.updates import KERNEL, is_update, joined
from nnl.graph.program.program import Program, Step

LEAST = 1 << 14  # elements of a weight that is worth a copy


def copy_weights(program: Program, lib: Library) -> None:
    """Read weights of products from copies in bfloat16, and write these where weights are updated.

    The copy is a memory space of the weight's array, so it goes when anybody else writes to the
    weight. The first plan that trains makes it, the plan that updates finds it and keeps it up.
    """
    if lib.abilities(KERNEL).copies:
        _Copier(program, lib).run()


class _Copier:
    def __init__(self, program: Program, lib: Library) -> None:
        self.program, self.lib = program, lib
        self.trained = set(program.gradients.values()) - {0}
        self.updated: dict[int, int] = {}  # {memory: number of its first update}
        for t, step in enumerate(program.steps):
            for p in step.writes:
                memory = program.slots[program.root(step.ins[p])].memory
                if memory:
                    self.updated.setdefault(memory, t)
        self.copies: dict[int, int] = {}  # {root: slot of its copy}

    def run(self) -> None:
        steps = []
        for t, step in enumerate(self.program.steps):
            if step.native and self.lib.abilities(step.op).copies:
                step = self._with_copies(step, t)
            steps.append(step)
        read = {self.program.slots[r].memory for r in self.copies}
        self.program.steps = [self._with_results(s, read) for s in steps]

    def _with_copies(self, step: Step, t: int) -> Step:
        """The product with copies of its weights as inputs.

        Without, a float32 weight is converted inside, at every run. Products of float16 are
        computed in float32.
        """
        slots = self.program.slots
        if slots[step.outs[0]].spec.type_name != BFLOAT16:
            return step
        ins = list(step.ins)
        for p, other in ((0, 1), (1, 0)):
            if slots[step.ins[other]].spec.type_name == BFLOAT16 and self._has_copy(ins[p], t):
                ins[p] = self._copy(ins[p])
        if tuple(ins) == step.ins:
            return step
        new = Step.of(step.op, step.attrs, ins, step.outs, step.second, [step])
        new.native = step.native
        return new

    def _has_copy(self, slot: int, t: int) -> bool:
        at = self.program.root(slot)
        root = self.program.slots[at]
        if not root.given or root.spec.type_name != "float32" or root.order != HOST:
            return False
        memory = root.memory
        # it changes once per step, and not before this product
        trained = memory in self.trained or memory in self.updated
        if not trained or t > self.updated.get(memory, t):
            return False
        # nobody can go on writing to it unseen
        return root.spec.size >= LEAST and at not in self.program.parts_of_others

    def _copy(self, slot: int) -> int:
        program = self.program
        root = program.root(slot)
        if root not in self.copies:
            spec = program.slots[root].spec.with_dtype(half_type(BFLOAT16))
            self.copies[root] = program.new_slot(spec, role=program.slots[root].role)
            program.slots[self.copies[root]].copies = root
        if slot == root:
            return self.copies[root]
        return program.alias(self.copies[root], program.slots[slot].spec.shape)

    def _with_results(self, step: Step, read: set[int]) -> Step:
        """The update with copies of weights as results, for weights that are read from copies."""
        program, slots = self.program, self.program.slots
        if step.op != KERNEL and not is_update(program, step, self.lib):
            return step
        count = len(step.outs)
        weights = [step.ins[k * len(step.ins) // count] for k in range(count)]
        wanted = [self._is_copied(w, read) for w in weights]
        if not any(wanted):
            return step
        if step.op != KERNEL:
            step = joined([step])
        outs = list(step.outs)
        for k, w in enumerate(weights):
            if wanted[k]:
                program.kept.discard(outs[k])  # a view of the weight
                outs[k] = program.new_slot(slots[w].spec.with_dtype(half_type(BFLOAT16)))
                program.kept.add(outs[k])
                program.results[outs[k]] = w
        step.outs = tuple(outs)
        return step

    def _is_copied(self, weight: int, read: set[int]) -> bool:
        """Whether a weight is read from a copy."""
        slot = self.program.slots[weight]
        if not slot.given or slot.order != HOST or slot.spec.type_name != "float32":
            return False
        return BFLOAT16 in self.program.found.get(weight, ()) or slot.memory in read
