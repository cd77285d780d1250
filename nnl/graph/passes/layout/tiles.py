# SPDX-License-Identifier: Apache-2.0
"""Let weights of convolutions, their gradients and the states of solvers stay in tiles."""

from __future__ import annotations

from nnl.ext.library import BFLOAT16, TILE, TILED, Library
from nnl.graph.passes.fusing.updates import is_update
from nnl.graph.program.program import Program, Step


def tile_weights(program: Program, lib: Library) -> None:
    """Mark the slots of weights that are tiled from one step of training to the next.

    Tiles are the order in which the gradients come out of their kernel. An update does not mind any
    order as long as all its arrays have the same. So a weight is tiled, with its states, where its
    gradient is: made in this program, or left so by another one. Everything else that looks at the
    weight has to be a convolution, so that nothing needs it plain at every step.
    """
    _Tiler(program, lib).run()


class _Tiler:
    def __init__(self, program: Program, lib: Library) -> None:
        self.program, self.lib = program, lib
        self.makers = program.makers()
        self.readers: dict[int, list[tuple[Step, int]]] = {}  # {root: (step, place among ins)}
        for step in program.steps:
            for p, i in enumerate(step.ins):
                self.readers.setdefault(program.root(i), []).append((step, p))
        self.handles: dict[int, list[int]] = {}  # {id of an array's memory: leaves that are it}
        for i, slot in enumerate(program.slots):
            if slot.memory:
                self.handles.setdefault(slot.memory, []).append(i)

    def run(self) -> None:
        slots = self.program.slots
        updates = [s for s in self.program.steps if is_update(self.program, s, self.lib)]
        for step in updates:
            self._tile(slots[step.ins[0]].memory, step.ins[1], step)
        seen = {step.ins[1] for step in updates}
        for g, weight in self.program.gradients.items():
            if g not in seen:
                self._tile(weight, g, None)

    def _tile(self, weight: int, g: int, update: Step | None) -> None:
        """Tile a weight, its gradient g and what updates it, if all of that can be."""
        slots = self.program.slots
        if not weight or not self._is_tiled_gradient(g, update):
            return
        handles = self.handles.get(weight, [])
        for i in handles:
            if i in self.program.kept or slots[i].spec != slots[g].spec:
                return
            if not all(self._takes(s, p, i, update) for s, p in self.readers.get(i, [])):
                return
        states = []
        if update is not None:
            same = [i for i in update.ins[2:] if slots[i].spec.shape == slots[g].spec.shape]
            states = [i for i in same if i]
            if not all(self._is_state(i, update) for i in states):
                return
        for i in (*handles, g, *states):
            slots[i].order = TILED

    def _is_tiled_gradient(self, g: int, update: Step | None) -> bool:
        program, maker = self.program, self.makers.get(g)
        spec = program.slots[g].spec
        if spec.type_name != "float32" or spec.ndim not in (3, 4, 5):
            return False
        if any(s is not update for s, _ in self.readers.get(g, [])):
            return False
        if maker is None:
            return TILED in program.found.get(g, ())
        if g in program.kept and g not in program.gradients:
            return False
        made = maker.outs.index(g) in self.lib.abilities(maker.op).tiled_out
        return made and not self._is_product(maker, spec.shape) and _fits(maker, spec.shape)

    def _is_product(self, step: Step, shape: tuple[int, ...]) -> bool:
        """Whether a gradient by weights of 1 x 1 is a product of matrices, which makes it plain."""
        whole = all(k == 1 for k in (*shape[2:], *step.attrs["stride"])) and not any(
            step.attrs["pad"]
        )
        halves = all(self.program.slots[i].spec.type_name == BFLOAT16 for i in step.ins)
        return len(step.outs) == 1 and whole and halves and step.attrs.get("group", 1) == 1

    def _takes(self, step: Step, place: int, slot: int, update: Step | None) -> bool:
        if step is update:
            return place == 0
        shape = self.program.slots[slot].spec.shape
        takes = place in self.lib.abilities(step.op).tiled_in
        return takes and step.ins[place] == slot and _fits(step, shape)

    def _is_state(self, slot: int, update: Step) -> bool:
        s = self.program.slots[slot]
        handles = self.handles.get(s.memory, [])
        used = [step for step, _ in self.readers.get(slot, [])]
        return handles == [slot] and used == [update] and s.spec.type_name == "float32"


def _fits(step: Step, shape: tuple[int, ...]) -> bool:
    """Whether weights of this shape can be tiled in a convolution: no tile is padded or shared."""
    group = step.attrs.get("group", 1)
    return (
        step.native
        and not step.attrs.get("channel_last")
        and shape[0] // group % TILE == 0
        and shape[1] % TILE == 0
    )
