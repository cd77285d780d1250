# SPDX-License-Identifier: Apache-2.0
"""Let updates write a copy of weights in 16 bits, which products read instead of converting."""

from __future__ import annotations

from nnl.core.array import NdArray
from nnl.core.context import half_type
from nnl.ext.library import BFLOAT16, HOST, Library
from nnl.graph.passes.prepare import has_onednn
from nnl.graph.passes.updates import KERNEL, is_update, joined
from nnl.graph.program import SPACE, Program, Step

# Ops that multiply in bfloat16 where one input and the output are: a float32 weight is then
# converted inside, at every run. Products of float16 are computed in float32.
PRODUCTS = ("affine", "affine_fused", "batch_matmul")
LEAST = 1 << 14  # elements of a weight that is worth a copy


def copy_weights(program: Program, lib: Library) -> None:
    """Read weights of products from copies in bfloat16, and write these where weights are updated.

    The copy is a memory space of the weight's array, so it goes when anybody else writes to the
    weight. The first plan that trains makes it, the plan that updates finds it and keeps it up.
    """
    if has_onednn(lib):  # which multiplies bfloat16
        _Copier(program, lib).run()


class _Copier:
    def __init__(self, program: Program, lib: Library) -> None:
        self.program, self.lib = program, lib
        self.trained = {id(nd.bufs) for nd in program.gradients.values() if nd is not None}
        self.updated: dict[int, int] = {}  # {id of an array's memory: number of its first update}
        for t, step in enumerate(program.steps):
            for p in step.writes:
                leaf = program.slots[program.root(step.ins[p])].leaf
                if leaf is not None:
                    self.updated.setdefault(id(leaf.bufs), t)
        self.copies: dict[int, int] = {}  # {root: slot of its copy}

    def run(self) -> None:
        steps = []
        for t, step in enumerate(self.program.steps):
            if step.op in PRODUCTS and step.native:
                step = self._with_copies(step, t)
            steps.append(step)
        read = {id(self.program.slots[r].leaf.bufs) for r in self.copies}  # type: ignore[union-attr]
        self.program.steps = [self._with_results(s, read) for s in steps]

    def _with_copies(self, step: Step, t: int) -> Step:
        """The product with copies of its weights as inputs."""
        slots = self.program.slots
        if slots[step.outs[0]].spec.dtype.name != BFLOAT16:
            return step
        ins = list(step.ins)
        for p, other in ((0, 1), (1, 0)):
            if slots[step.ins[other]].spec.dtype.name == BFLOAT16 and self._has_copy(ins[p], t):
                ins[p] = self._copy(ins[p])
        if tuple(ins) == step.ins:
            return step
        new = Step.of(step.op, step.attrs, ins, step.outs, step.second, [step])
        new.native = step.native
        return new

    def _has_copy(self, slot: int, t: int) -> bool:
        root = self.program.slots[self.program.root(slot)]
        if root.leaf is None or root.spec.dtype.name != "float32" or root.order != HOST:
            return False
        memory = id(root.leaf.bufs)
        # it changes once per step, and not before this product
        trained = memory in self.trained or memory in self.updated
        if not trained or t > self.updated.get(memory, t):
            return False
        return root.spec.size >= LEAST and _stays(root.leaf)

    def _copy(self, slot: int) -> int:
        program = self.program
        root = program.root(slot)
        if root not in self.copies:
            spec = program.slots[root].spec.with_dtype(half_type(BFLOAT16))
            self.copies[root] = program.new_slot(spec, program.slots[root].leaf)
            program.copies[self.copies[root]] = BFLOAT16
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
        wanted = [self._array_read(w, read) for w in weights]
        if all(w is None for w in wanted):
            return step
        if step.op != KERNEL:
            step = joined([step])
        outs = list(step.outs)
        for k, w in enumerate(weights):
            array = wanted[k]
            if array is not None:
                program.kept.discard(outs[k])  # a view of the weight
                outs[k] = program.new_slot(slots[w].spec.with_dtype(half_type(BFLOAT16)))
                program.kept.add(outs[k])
                program.results[outs[k]] = array, BFLOAT16
        step.outs = tuple(outs)
        return step

    def _array_read(self, weight: int, read: set[int]) -> NdArray | None:
        """The array of a weight, if it is read from a copy."""
        slot = self.program.slots[weight]
        if slot.leaf is None or slot.order != HOST or slot.spec.dtype.name != "float32":
            return None
        return slot.leaf if BFLOAT16 in slot.leaf.bufs or id(slot.leaf.bufs) in read else None


def _stays(nd: NdArray) -> bool:
    """Whether nobody can go on writing to the array unseen: it is not a part of another one."""
    return SPACE not in nd.bufs or nd.bufs[SPACE].base is None
