# SPDX-License-Identifier: Apache-2.0
"""Fuse the gradients of batch normalization and the addition and relu after it."""

from __future__ import annotations

from nnl.ext.library import Library, kernel_names
from nnl.graph.passes.rewriting.rewriter import Rewriter
from nnl.graph.program.program import Program, Step

FORWARD = "fused_batch_normalization"
BACKWARD = "batch_normalization_backward_fused"


def fuse_normalization(program: Program, lib: Library) -> None:
    """The gradient of relu(batch_normalization(x) [+ z]) becomes one step, where that is one.

    The gradient masks what arrives by the sign of y, or of what the normalization gives for x again
    where nothing was added: then y need not be read.
    """
    if BACKWARD in kernel_names(lib):
        _Fuser(program, lib).run()


class _Fuser(Rewriter):
    def run(self) -> None:
        self.forward = {
            s.outs[0]: s
            for s in self.program.steps
            if s.op == FORWARD and s.outs[0] not in self.views
        }
        self.each(gate=self._fuse)

    def _fuse(self, gate: Step) -> None:
        gy, y = gate.ins
        forward = self.forward.get(y)
        if forward is None or gate.attrs != {"low": 0.0, "high": None, "closed": False}:
            return
        g = gate.outs[0]
        readers = self.readers.get(g, [])
        backward = next((r for r in readers if self._is_gradient(r, g, forward)), None)
        if backward is None or g in self.views:
            return
        with_z = forward.ins[5] != 0
        slots = self.program.slots
        parts, gy2 = [gate, backward], 0
        add = self.makers.get(gy)
        if add is not None and add.op == "add2" and self.only_reader(gy) is gate:
            if add not in self.gone and add.ins[0] != add.ins[1]:
                gy, gy2 = add.ins
                if all(slots[i].spec is slots[g].spec for i in (gy, gy2)):
                    parts.append(add)
                else:
                    gy, gy2 = gate.ins[0], 0
        outs = list(backward.outs)
        while len(outs) < 3:  # gradients that nobody asked for
            outs.append(self.program.new_slot(slots[forward.outs[1]].spec))
        if len(readers) > 1 or g in self.program.kept:
            outs.append(g)
        x, beta, gamma = forward.ins[:3]
        attrs = {k: forward.attrs[k] for k in ("axes", "eps", "batch_stat")}
        ins = (gy, gy2, x, y if with_z else 0, *forward.outs[1:3], gamma, beta)
        new = Step.of(BACKWARD, {**attrs, "activation": "relu"}, ins, outs, gate.second)
        self.replace(parts, gate, new)

    def _is_gradient(self, step: Step, g: int, forward: Step) -> bool:
        """Whether a step is the gradient of the fused normalization, from g alone."""
        if step.op != "normalization_backward" or step in self.gone or step.ins[0] != g:
            return False
        slots = self.program.slots
        no_other = all(slots[i].zero for i in step.ins[1:3])
        x, mean, variance = step.ins[3:6]
        return (
            no_other
            and bool(forward.attrs["batch_stat"])
            and (x, mean, variance) == (forward.ins[0], *forward.outs[1:3])
        )
