# SPDX-License-Identifier: Apache-2.0
"""Choose a native kernel for every step, the order in memory it works on, and what converts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nnl.core.ops.op import OPS
from nnl.core.ops.schema import follows_order, zeros
from nnl.ext.library import (
    CHANNELS_LAST,
    HOST,
    LAYOUTS,
    TILED,
    Library,
    kernel_names,
    knows,
    native_spec,
    request,
)
from nnl.graph.program.program import Program, Step
from nnl.graph.program.sharing import sharing, written_by

CONVERT = "to_layout"  # the kernel that changes an array's order


def choose_kernels(program: Program, lib: Library) -> None:
    """Give steps native kernels, with steps in between that change an array's order or dtype."""
    _Chooser(program, lib).run()


class _Chooser:
    def __init__(self, program: Program, lib: Library) -> None:
        self.program, self.lib = program, lib
        self.steps: list[Step] = []
        # (slot, space, again) -> the slot with the same values in that order. The second part of a
        # plan converts images among leaves again, so that those of the first part need not be kept.
        self.forms: dict[tuple[int, str, bool], int] = {}
        self.places_last: set[int] = set()  # places of maxima, found in images channels-last
        self.names = kernel_names(lib)
        self.any_last = False  # whether images of this program are channels-last
        self.can_convert = CONVERT in self.names

    def run(self) -> None:
        todo = self.program.steps[::-1]
        while todo:
            step = todo.pop()
            if step.native and self._choose(step):
                continue
            if step.replaced:
                todo += step.replaced[::-1]
            else:
                self._leave_to_numpy(step)
        self.program.steps = self.steps

    def _choose(self, step: Step) -> bool:
        if not knows(self.lib, step.op) or (step.view and not step.writes):
            return False
        if step.converts:
            return False
        images = self._images(step)
        if step.op == "max_pooling_arg_backward":  # places are known to kernels of one order only
            return self._try(step, images if step.ins[1] in self.places_last else set())
        # the kernel of a convolution may decline weights in tiles, that of an update does not
        tiled = self._any_in(TILED, (*step.ins, *step.outs)) and not step.writes
        for tiles in (True, False) if tiled else (True,):
            if images and (self._prefers_last(step) or self._any_channels_last(step, images)):
                if self._try(step, images, tiles):
                    if step.op == "max_pooling_arg":
                        self.places_last.add(step.outs[1])
                    return True
            if self._try(step, set(), tiles):
                return True
        return False

    def _images(self, step: Step) -> set[int]:
        """Positions of inputs (from 0) and outputs (from -1 down) that may be channels-last."""
        slots, can = self.program.slots, self.lib.abilities(step.op)
        ins: Sequence[int] = can.last_in
        outs: Sequence[int] = can.last_out
        if not ins:
            if not follows_order(step.op):
                return set()
            ins, outs = range(len(step.ins)), range(len(step.outs))
        ranks = [slots[i].spec.ndim for i in step.ins if i]
        rank = max(ranks, default=0)
        if rank < 3 or not self.can_convert:
            return set()
        found = {
            p
            for p, i in enumerate(step.ins)
            if i and p in ins and p not in step.writes and slots[i].spec.ndim == rank
        }
        return found | {
            -1 - p for p, o in enumerate(step.outs) if p in outs and slots[o].spec.ndim == rank
        }

    def _prefers_last(self, step: Step) -> bool:
        return bool(self.lib.abilities(step.op).last_in)

    def _any_channels_last(self, step: Step, images: set[int]) -> bool:
        ins = [step.ins[p] for p in images if p >= 0]
        if self.any_last and all(map(self._neutral, ins)):  # one pixel becomes many
            return any(not self._neutral(step.outs[-1 - p]) for p in images if p < 0)
        return self._any_in(CHANNELS_LAST, ins)

    def _any_in(self, space: str, among: Iterable[int]) -> bool:
        slots = self.program.slots
        return any(slots[i].order == space for i in among)

    def _try(self, step: Step, images: set[int], tiles: bool = True) -> bool:
        """Make the kernel with these arrays channels-last, weights tiled, and all others plain."""
        slots, tiled = self.program.slots, self.lib.abilities(step.op).tiled_in
        spaces_in = [
            self._space(i, p in images, tiles and (p in tiled or bool(step.writes)))
            for p, i in enumerate(step.ins)
        ]
        ins = [
            native_spec(slots[i].spec, LAYOUTS[space]) if i else None
            for i, space in zip(step.ins, spaces_in, strict=True)
        ]
        spaces_out = [
            self._space(slots[o].root, -1 - p in images, tiles) for p, o in enumerate(step.outs)
        ]
        outs = [
            native_spec(slots[o].spec, LAYOUTS[space])
            for o, space in zip(step.outs, spaces_out, strict=True)
        ]
        asked = request(self.lib, step.op, step.attrs, ins, outs)
        if asked is None:
            return False
        name, attrs = asked
        if attrs.get("reductions"):  # not every output has the order that the step runs in
            attrs["channels_last"] = bool(images)
        kernel = None
        left_out = self._zeros(step)
        if left_out:
            given = [None if p in left_out else s for p, s in enumerate(ins)]
            kernel = self.lib.kernel(name, attrs, given, outs)
            if kernel is not None:
                step.ins = tuple(0 if p in left_out else i for p, i in enumerate(step.ins))
        if kernel is None:
            kernel = self.lib.kernel(name, attrs, ins, outs)
        if kernel is None:
            return False
        step.kernel = kernel
        if "channels_last" in attrs and name == step.op:  # a file says so too
            step.attrs = {**step.attrs, "channels_last": attrs["channels_last"]}
        step.ins = tuple(
            i and self._form(i, space, step) for i, space in zip(step.ins, spaces_in, strict=True)
        )
        self._append(step, spaces_out)
        return True

    def _space(self, slot: int, image: bool, tiles: bool) -> str:
        """The order that a step takes or makes a value in."""
        s = self.program.slots[slot]
        if image and not self._neutral(slot):
            return CHANNELS_LAST
        return TILED if tiles and s.order == TILED else HOST

    def _neutral(self, slot: int) -> bool:
        """Whether plain and channels-last are the same memory, at all sizes where these are open:
        one channel, or one pixel."""
        s = self.program.slots[slot]
        n, fixed = s.spec, s.stored or not self.lib.traits.any_size
        return n.ndim < 3 or n.shape[1] == 1 or (fixed and n.size == n.shape[0] * n.shape[1])

    def _zeros(self, step: Step) -> set[int]:
        """Inputs that are zero and that the kernel may do without."""
        op, slots = OPS[step.op], self.program.slots
        places = [op.inputs.index(name) for name in zeros(op)]
        return {p for p in places if p < len(step.ins) and slots[step.ins[p]].zero}

    def _append(self, step: Step, spaces: list[str]) -> None:
        """Add a step; what must end up plain is converted right after it."""
        slots = self.program.slots
        if step.view:
            slots[step.outs[0]].root = slots[step.ins[0]].root
        outs, after = list(step.outs), []
        for p, (o, space) in enumerate(zip(step.outs, spaces, strict=True)):
            if space == CHANNELS_LAST and o in self.program.plain:
                outs[p] = self.program.new_slot(slots[o].spec)
                after.append((outs[p], o))
                self.forms[o, space, False] = outs[p]
            slots[outs[p]].order = space
        self.any_last = self.any_last or CHANNELS_LAST in spaces
        step.outs = tuple(outs)
        self.steps.append(step)
        for source, o in after:
            self._convert(source, o, step.second)
        written = written_by(self.program, step) | sharing(self.program, {o for _, o in after})
        written -= {*outs, *(o for _, o in after)}
        if written:  # other forms of what it has changed are stale
            for key in [k for k in self.forms if self.program.root(k[0]) in written]:
                stale = self.forms.pop(key)
                self.program.forms.pop(key[0], None)
                self.program.forms.pop(stale, None)

    def _form(self, slot: int, space: str, step: Step) -> int:
        """A slot with the values of `slot` in this order, before `step` runs."""
        slots = self.program.slots
        if slots[slot].order == space:
            return slot
        again = step.second and space == CHANNELS_LAST and slots[slot].given
        key = slot, space, again
        found = self.forms.get(key)
        if found is None:
            found = self.forms[key] = self.program.new_slot(slots[slot].spec)
            slots[found].order = space
            self._convert(slot, found, step.second)
        return found

    def _convert(self, source: int, target: int, second: bool) -> None:
        slots = self.program.slots
        step = Step.of(CONVERT, {}, (source,), (target,), second)
        self.program.forms.setdefault(source, []).append(target)
        self.program.forms.setdefault(target, []).append(source)
        specs = [native_spec(slots[i].spec, LAYOUTS[slots[i].order]) for i in (source, target)]
        step.kernel = self.lib.kernel(CONVERT, {}, specs[:1], specs[1:])
        if step.kernel is None:
            raise NotImplementedError(f"plan: {CONVERT} has no kernel for {slots[source].spec}")
        self.steps.append(step)

    def _leave_to_numpy(self, step: Step) -> None:
        """Python computes the step, on plain arrays; an update does not mind their order."""
        spaces = [self._space(i, False, bool(step.writes)) for i in step.ins]
        step.ins = tuple(
            i and self._form(i, space, step) for i, space in zip(step.ins, spaces, strict=True)
        )
        roots = [self.program.root(o) if step.view else 0 for o in step.outs]
        self._append(step, [self._space(r, False, True) for r in roots])
