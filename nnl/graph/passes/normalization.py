# SPDX-License-Identifier: Apache-2.0
"""Fuse batch normalization with the addition and relu after it, forward and backward."""

from __future__ import annotations

from nnl.ext.library import Library, kernel_names
from nnl.graph.passes.rewriter import Rewriter
from nnl.graph.program import Program, Step

FORWARD = "fused_batch_normalization"
BACKWARD = "batch_normalization_backward_fused"


def fuse_normalization(program: Program, lib: Library) -> None:
    """relu(batch_normalization(x) [+ z]) becomes one step, and so does its gradient.

    The fused gradient masks what arrives by the sign of y, or of what the normalization gives for x
    again where nothing was added: then y need not be read.
    """
    if FORWARD in kernel_names(lib):
        _Forward(program, lib).run()
    if BACKWARD in kernel_names(lib):
        _Backward(program, lib).run()


class _Forward(Rewriter):
    def run(self) -> None:
        for step in self.program.steps:
            if step.op == "batch_normalization" and step.native and not step.converts:
                self._fuse(step)
        self.finish()

    def _fuse(self, bn: Step) -> None:
        y, mean, variance = bn.outs
        parts, z = [bn], 0
        reader = self.only_reader(y)
        if reader is not None and reader.op == "add2":
            a, b = reader.ins
            z = b if a == y else a
            if a == b or self.spec(z) is not self.spec(y):
                return
            parts.append(reader)
            reader = self.only_reader(reader.outs[0])
        if reader is None or reader.op != "relu" or reader.second != bn.second:
            return
        parts.append(reader)
        reads = {self.program.root(i) for i in bn.ins}
        makes = {self.program.root(bn.ins[p]) for p in bn.writes} | {mean, variance}
        if not self.quiet(bn, reader, reads, makes):
            return
        attrs = {k: bn.attrs[k] for k in ("axes", "decay_rate", "eps", "batch_stat")}
        ins = [*bn.ins, *[0] * (5 - len(bn.ins)), z]
        new = Step.of(
            FORWARD,
            {**attrs, "nonlinearity": "relu"},
            ins,
            (reader.outs[0], mean, variance),
            bn.second,
        )
        new.writes = bn.writes
        self.replace(parts, reader, new)


class _Backward(Rewriter):
    def run(self) -> None:
        self.forward = {
            s.outs[0]: s
            for s in self.program.steps
            if s.op == FORWARD and s.outs[0] not in self.views
        }
        for step in self.program.steps:
            if step.op == "gate" and step.attrs == {"low": 0.0, "high": None, "closed": False}:
                self._fuse(step)
        self.finish()

    def _fuse(self, gate: Step) -> None:
        gy, y = gate.ins
        forward = self.forward.get(y)
        if forward is None or gate in self.gone:
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
