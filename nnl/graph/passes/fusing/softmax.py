# SPDX-License-Identifier: Apache-2.0
"""Let softmax along the last axis scale its input and add a mask, in one pass over memory."""

from __future__ import annotations

from nnl.ext.library import Library, kernel_names
from nnl.graph.passes.fusing.elementwise import FLOATS
from nnl.graph.passes.rewriting.rewriter import Rewriter
from nnl.graph.program.program import Program, Step

FORWARD, BACKWARD = "softmax_fused", "softmax_fused_backward"


def fuse_softmax(program: Program, lib: Library) -> None:
    """softmax(scale x + mask) becomes one step, and so do its gradient and the scale's.

    The gradient by the mask stays as it is: it is made from that of softmax, which then has a
    second reader, and prevents only the fusion of the gradient.
    """
    if {FORWARD, BACKWARD} <= kernel_names(lib):
        _Fuser(program, lib).run()


class _Fuser(Rewriter):
    def run(self) -> None:
        self.each(softmax=self._forward, softmax_backward=self._backward)

    def _forward(self, softmax: Step) -> None:
        x = softmax.ins[0]
        if softmax.attrs["axis"] != self.spec(x).ndim - 1:
            return
        parts, mask, scale = [softmax], 0, 1.0
        add = self._maker(x, parts[-1], "add2")
        if add is not None:
            a, b = add.ins
            if self.spec(a) is not self.spec(x) or (
                self.spec(b) is self.spec(x) and self._maker(a, add, "mul_scalar") is None
            ):
                a, b = b, a
            if a != b and self.spec(a) is self.spec(x):
                parts.append(add)
                x, mask = a, b
        mul = self._maker(x, parts[-1], "mul_scalar")
        if mul is not None:
            parts.append(mul)
            x, scale = mul.ins[0], mul.attrs["val"]
        if len(parts) == 1 or self.spec(x) is not self.spec(softmax.ins[0]):
            return
        reads = {self.program.root(i) for i in (x, mask)}
        if not self.quiet(parts[-1], softmax, reads, set()):
            return
        new = Step.of(FORWARD, {"scale": float(scale)}, (x, mask), softmax.outs, softmax.second)
        self.replace(parts, softmax, new)

    def _backward(self, slope: Step) -> None:
        g = slope.outs[0]
        mul = self.only_reader(g)
        if slope.attrs["axis"] != self.spec(g).ndim - 1 or mul is None or mul.op != "mul_scalar":
            return
        if not self.usable(mul, slope.second) or self.spec(mul.outs[0]) is not self.spec(g):
            return
        attrs = {"scale": float(mul.attrs["val"])}
        new = Step.of(BACKWARD, attrs, slope.ins, mul.outs, slope.second)
        if self.quiet(slope, mul, {self.program.root(i) for i in slope.ins}, set()):
            self.replace([slope, mul], mul, new)

    def _maker(self, slot: int, reader: Step, op: str) -> Step | None:
        """The step of this op that makes a slot, if nothing but `reader` needs the value."""
        step = self.makers.get(slot)
        if step is None or step.op != op or self.only_reader(slot) is not reader:
            return None
        if not self.usable(step, reader.second) or step.outs[0] != slot:
            return None
        return step if all(self.spec(i).type_name in FLOATS for i in step.ins) else None
