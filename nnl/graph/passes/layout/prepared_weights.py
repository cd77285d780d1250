# SPDX-License-Identifier: Apache-2.0
"""Let plans for inference do once, not at every run, what depends on weights alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnl.core.arrays.spec import Spec
from nnl.core.ops.op import OPS
from nnl.ext.library import LAYOUTS, Library, kernel_names, native_spec, plain_attributes
from nnl.graph.passes.fusing.quantized import PRODUCTS
from nnl.graph.program.program import CONSTANT, PARAMETER, STATE, Program, Step

PACK, PACK_WEIGHTS = "pack_convolution", "pack_weights"
QUANTIZED = frozenset(PRODUCTS.values())
LARGE = 1 << 20  # elements of float32 weights from which oneDNN takes up to twice as long unpacked


def prepare_weights(program: Program, lib: Library) -> None:
    """Pack weights of convolutions and large products, with what these depend on, at the front.

    So goes everything that depends on weights alone, where the program tells them from inputs.
    These steps run again only when one of the leaves behind them has changed. Weights that a step
    of the plan computes from what changes at every run, or writes, are left alone; so are plans
    with a second part, whose weights change at every step.
    """
    if PACK in kernel_names(lib) and not any(s.second for s in program.steps):
        _Preparer(program, lib).run()


class _Preparer:
    def __init__(self, program: Program, lib: Library) -> None:
        self.program, self.lib = program, lib
        self.makers = program.makers()
        self.written = program.written()
        self.once: set[Step] = set()

    def run(self) -> None:
        program = self.program
        packs = [p for s in program.steps for p in self._packed(s)]
        if program.steady:
            self._add_weights_only()
        if not packs and not self.once:
            return
        front = [s for s in program.steps if s in self.once] + packs
        for step in front:
            step.once = True
        rest = [s for s in program.steps if s not in self.once]
        made = {o for s in front for o in s.outs}
        read = {i for s in rest for i in s.ins}
        # what a pass lets a step read under another shape, no step makes
        program.kept |= {n for i in read for n in (i, program.root(i)) if n in made}
        program.steps = front + rest

    def _add_weights_only(self) -> None:
        program, slots = self.program, self.program.slots
        roles = (PARAMETER, STATE, CONSTANT)
        stay = {i for i, s in enumerate(slots) if s.role in roles} - self.written
        fills: dict[int, Step] = {}  # steps that read nothing or only fills, by what they make
        for step in program.steps:
            roots = {program.root(i) for i in step.ins if i}
            fixed = roots <= stay | fills.keys() and self.written.isdisjoint(step.outs)
            if not fixed or step.kernel is None or step.writes:
                continue
            if roots <= fills.keys():
                fills |= dict.fromkeys(step.outs, step)
                continue
            self.once.add(step)
            stay.update(step.outs)
            for root in roots & fills.keys():
                self._settled(root, self.once)

    def _packed_product(self, step: Step) -> list[Step]:
        """What packs the weights of a product, which then reads them so."""
        behind: set[Step] = set()
        w = step.ins[1]
        if not self._settled(w, behind):
            return []
        op, own = step.op, step.attrs
        if op == "affine":
            op, own = "affine_fused", OPS["affine_fused"].attrs(**own).as_dict()
        ins, outs = ([self._spec(i) for i in part] for part in (step.ins, step.outs))
        attrs = plain_attributes(own)
        nbytes = self.lib.packed_bytes(op, attrs, ins, outs)
        if not nbytes:
            return []
        spec = Spec.of((nbytes,), np.uint8)
        packed = self.program.new_slot(spec)
        pack = Step.of(PACK_WEIGHTS, {"of": op, "nbytes": nbytes}, (w,), (packed,))
        called = [ins[1], *ins, *outs]
        pack.kernel = self.lib.kernel(
            PACK_WEIGHTS, {**attrs, "of": op}, called, [native_spec(spec)]
        )
        attrs = {**own, "packed": True, "w_shape": self.program.slots[w].spec.shape}
        ins[1] = native_spec(spec)
        kernel = self.lib.kernel(op, plain_attributes(attrs), ins, outs)
        if pack.kernel is None or kernel is None:
            return []
        step.op, step.attrs, step.kernel = op, attrs, kernel
        step.ins = (step.ins[0], packed, *step.ins[2:])
        for i in step.ins[2:]:  # scales that are turned with the weights, biases that are computed
            more: set[Step] = set()
            if i and self._settled(i, more):
                behind |= more
        self.once |= behind
        return [pack]

    def _is_large(self, step: Step) -> bool:
        """Whether it is a product with so many weights that packing them pays."""
        of_floats = step.op in ("affine", "affine_fused")
        return of_floats and self.program.slots[step.ins[1]].spec.size >= LARGE

    def _packed(self, step: Step) -> list[Step]:
        if step.kernel is not None and (step.op in QUANTIZED or self._is_large(step)):
            return self._packed_product(step)
        if step.kernel is None or not self.lib.abilities(step.op).packs:
            return []
        x, w, b, z, scale = (*step.ins, 0, 0, 0)[:5]
        behind: set[Step] = set()
        if not (self._settled(w, behind) and self._settled(scale, behind)):
            return []
        own = OPS["convolution_fused"].attrs(**step.attrs).as_dict()
        attrs = {k: v for k, v in own.items() if k not in ("packed", "w_shape")}
        ins = [self._spec(i) for i in (x, w, b, z, scale)]
        outs = [self._spec(o) for o in step.outs]
        nbytes = self.lib.packed_convolution_bytes(attrs, ins, outs)
        if not nbytes:
            return []
        spec = Spec.of((nbytes,), np.uint8)
        packed = self.program.new_slot(spec)
        pack = Step.of(PACK, {**attrs, "nbytes": nbytes}, (0, w, 0, 0, scale, 0), (packed,))
        pack.kernel = self.lib.kernel(PACK, attrs, [*ins, *outs], [native_spec(spec)])
        attrs |= {"packed": True, "w_shape": self.program.slots[w].spec.shape}
        ins = [ins[0], native_spec(spec), ins[2], ins[3]]
        kernel = self.lib.kernel("convolution_fused", attrs, ins, outs)
        if pack.kernel is None or kernel is None:
            return []
        step.op, step.attrs, step.kernel = "convolution_fused", attrs, kernel
        step.ins = (x, packed, b, z)
        self.once |= behind
        return [pack]

    def _spec(self, slot: int) -> Any:
        s = self.program.slots[slot]
        return native_spec(s.spec, LAYOUTS[s.order]) if slot else None

    def _settled(self, slot: int, behind: set[Step]) -> bool:
        """Whether a value depends on unwritten leaves only; adds the steps behind it."""
        todo = [slot] if slot else []
        while todo:
            root = self.program.root(todo.pop())
            if root in self.written:
                return False
            if self.program.slots[root].given:
                continue
            maker = self.makers.get(root)
            if maker is None or maker.kernel is None or maker.writes:
                return False
            if maker not in behind:
                behind.add(maker)
                todo += [i for i in maker.ins if i]
        return True
