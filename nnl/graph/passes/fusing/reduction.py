# SPDX-License-Identifier: Apache-2.0
"""Let elementwise steps add up their results on the way: sums and means that read no memory."""

from __future__ import annotations

from typing import Any

from nnl.core.ops.elementwise import is_elementwise, program_of
from nnl.ext.library import PROGRAM, Library, kernel_names
from nnl.graph.passes.fusing.elementwise import FLOATS, READ
from nnl.graph.passes.rewriting.prune import prune
from nnl.graph.passes.rewriting.rewriter import Rewriter
from nnl.graph.program.program import Program, Step

NONE, SUM = 0, 1  # how an output is reduced
LEAST = 8  # elements of one sum, on average: the sums of a thread must stay in its cache


def fuse_reductions(program: Program, lib: Library) -> None:
    """A sum of what an elementwise step computes becomes an output of that step.

    The gradients of biases and of what was stretched are such sums. If the sum was the only reader,
    the array is never written. A step has room for one choice of axes.
    """
    if PROGRAM in kernel_names(lib):
        _Fuser(program, lib).run()


class _Fuser(Rewriter):
    def run(self) -> None:
        self.each(sum=self._fuse, mean=self._fuse)
        prune(self.program, self.lib)  # views of what is no longer in memory

    def _fuse(self, total: Step) -> None:
        program, x, y = self.program, total.ins[0], total.outs[0]
        source = program.root(x)
        maker = self.makers.get(source)
        if maker is None or maker in self.gone or maker.second != total.second:
            return
        attrs = self._program_of(maker)
        axes = self._axes(total, source)
        if attrs is None or not axes or not self.quiet(maker, total, {source}, set()):
            return
        shape, out = self.spec(source).shape, self.spec(y)
        least = LEAST if self.lib.traits.any_size else 0
        if out.type_name not in FLOATS or (not least and LEAST * out.size > self.spec(source).size):
            return
        if out.ndim == len(shape) and not {*range(2, len(shape))} <= {*axes}:
            return  # it would have an order in memory of its own
        position = maker.outs.index(source)
        number = attrs["outputs"][position]
        outs, outputs = list(maker.outs), list(attrs["outputs"])
        if self._needed_otherwise(source, total):
            outs.append(y)
            outputs.append(number)
        else:
            outs[position] = y
        attrs |= {
            "outputs": tuple(outputs),
            "shape": shape,
            "axes": axes,
            "least": max(least, attrs.get("least", 0)),
            "reductions": tuple(SUM if o == y else NONE for o in outs),
            "keep_dims": tuple(int(o == y and out.ndim == len(shape)) for o in outs),
        }
        if total.op == "mean":
            count = self.spec(source).size // max(out.size, 1)
            attrs["scales"] = tuple(1.0 / max(count, 1) if o == y else 1.0 for o in outs)
        new = Step.of(PROGRAM, attrs, maker.ins, outs, maker.second)
        self.replace([maker, total], maker, new)

    def _program_of(self, step: Step) -> dict[str, Any] | None:
        """The attributes of an elementwise step as a program; None for other steps."""
        if step.op == PROGRAM:
            return dict(step.attrs)
        if not is_elementwise(step.op) or not step.native or step.writes or step.view:
            return None
        specs = [self.spec(i) for i in step.ins]
        if 0 in step.ins or len(step.outs) != 1 or step.converts:
            return None
        if self.spec(step.outs[0]).type_name not in FLOATS:
            return None
        if any(s.type_name not in READ for s in specs):
            return None
        shapes = tuple([s.shape for s in specs])
        found = program_of(step.op, step.attrs, shapes)
        if found is None or found.shapes != shapes:
            return None
        last = len(specs) + len(found.code) // 4 - 1
        return {"code": found.code, "constants": found.constants, "outputs": (last,)}

    def _axes(self, total: Step, source: int) -> tuple[int, ...] | None:
        """The summed axes of the array itself, where the sum reads it as a matrix."""
        axes: tuple[int, ...] = total.attrs["axes"]
        shape, seen = self.spec(source).shape, self.spec(total.ins[0]).shape
        if shape == seen:
            return axes
        rows_only = len(seen) == 2 and axes == (0,) and not total.attrs["keep_dims"]
        if rows_only and shape and shape[-1] == seen[1]:
            return tuple(range(len(shape) - 1))
        return None

    def _needed_otherwise(self, source: int, total: Step) -> bool:
        seen = {source, *self.views.get(source, ())}
        if seen & self.program.kept:
            return True
        readers = [r for i in seen for r in self.readers.get(i, ())]
        return any(r is not total and not (r.view and r.outs[0] in seen) for r in readers)
