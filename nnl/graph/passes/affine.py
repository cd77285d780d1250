# SPDX-License-Identifier: Apache-2.0
"""Fuse affine with an addition of the same shape and an activation after it."""

from __future__ import annotations

from nnl.ext.library import Library, kernel_names
from nnl.graph.passes.elementwise import FLOATS
from nnl.graph.passes.rewriter import Rewriter
from nnl.graph.program import Program, Step

FUSED = "affine_fused"
# Ops that are what the kernel computes, whatever their attributes.
ACTIVATIONS = frozenset(["relu", "gelu", "tanh", "sigmoid", "swish"])


def fuse_affine(program: Program, lib: Library) -> None:
    """activation(x W + b + z) becomes one step.

    In training too, as far as gradients read what comes out: those of gelu and swish read what goes
    into them, which prevents fusion.
    """
    if FUSED in kernel_names(lib):
        _Fuser(program, lib).run()


class _Fuser(Rewriter):
    def __init__(self, program: Program, lib: Library) -> None:
        super().__init__(program, lib)
        self.most_rows = lib.abilities(FUSED).most_rows or 1 << 62

    def run(self) -> None:
        for step in self.program.steps:
            if step.op == "affine" and self.usable(step, step.second):
                self._fuse(step)
        self.finish()

    def _fuse(self, affine: Step) -> None:
        y, parts, z, activation = affine.outs[0], [affine], 0, "identity"
        reader = self.only_reader(y)
        few = self.spec(affine.ins[1]).shape[0] <= self.most_rows
        if (
            few
            and reader is not None
            and reader.op == "add2"
            and self.usable(reader, affine.second)
        ):
            a, b = reader.ins
            other = b if a == y else a
            if a != b and self._adds(other, y):
                z = other
                parts.append(reader)
                y = reader.outs[0]
                reader = self.only_reader(y)
        if (
            reader is not None
            and reader.op in ACTIVATIONS
            and self.usable(reader, affine.second)
            and self.spec(reader.outs[0]) is self.spec(y)
        ):
            activation = reader.op
            parts.append(reader)
            y = reader.outs[0]
        last = parts[-1]
        reads = {self.program.root(i) for p in parts for i in p.ins}
        if len(parts) == 1 or not self.quiet(affine, last, reads, set()):
            return
        x, w, b = (*affine.ins, 0)[:3]
        attrs = {"base_axis": affine.attrs["base_axis"], "activation": activation}
        self.replace(parts, last, Step.of(FUSED, attrs, (x, w, b, z), (y,), affine.second))

    def _adds(self, z: int, y: int) -> bool:
        """Whether z can be added in the kernel: element types may differ, shapes may not."""
        a, b = self.spec(z), self.spec(y)
        return a.shape == b.shape and a.dtype.name in FLOATS
