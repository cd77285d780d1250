# SPDX-License-Identifier: Apache-2.0
"""Fuse steps with a normalization by known statistics, an addition, an activation after them."""

from __future__ import annotations

from functools import cache
from typing import Any

from nnl.core.ops.op import OPS
from nnl.core.ops.schema import extends
from nnl.ext.library import Library, kernel_names
from nnl.graph.passes.fusing.elementwise import FLOATS
from nnl.graph.passes.rewriting.rewriter import Rewriter
from nnl.graph.program.program import Program, Step

NORMALIZE, ADD, NOTHING = "batch_normalization", "add2", "identity"


def fuse_epilogues(program: Program, lib: Library) -> None:
    """activation(normalize(op(x)) + z) becomes one step, as far as kernels append that to the op.

    In training too, as far as gradients read what comes out: those of gelu and swish read what goes
    into them, which prevents fusion. Normalization only where it uses the running statistics: then
    it is a scale and a shift of every map, and the scale goes into the weights.
    """
    _Fuser(program, lib).run()


def fuse_row_gradients(program: Program, lib: Library) -> None:
    """g + the gradient of rows of a table adds these rows to g: few rows of a large table.

    So it is where the table gives scores, too, or what gradients add to has something already.
    """
    _Rows(program, lib).run()


@cache
def _appending(lib: Library) -> dict[str, str]:
    """{op with more behind it: the op that it starts with}: products first, then normalizations."""
    names = [n for n in sorted(kernel_names(lib)) if lib.abilities(n).appends]
    return {name: first for name in names if (first := extends(name)) is not None}


class _Fuser(Rewriter):
    def run(self) -> None:
        for name, first in _appending(self.lib).items():
            for step in self.program.steps:
                if step.op == first and self.usable(step, step.second):
                    self._fuse(step, name)
        self.finish()

    def _fuse(self, first: Step, name: str) -> None:
        """Let a step with what follows it be one of the op of that name, which goes on with it."""
        op, appends = OPS[name], self.lib.abilities(name).appends
        field = "activation" if "activation" in op.fields else "nonlinearity"
        y, parts, z = first.outs[0], [first], 0
        norm = self._next(y, first, [NORMALIZE] if NORMALIZE in appends else [])
        if norm is not None and self._folds(norm, y):
            parts.append(norm)
            y = norm.outs[0]
        else:
            norm = None
        add = self._next(y, first, [ADD] if ADD in appends else [])
        other = 0 if add is None else add.ins[add.ins[0] == y]
        if add is not None and other != y and self._adds(name, first, other, y):
            z = other
            parts.append(add)
            y = add.outs[0]
        last = self._next(y, first, [a for a in appends if a not in (NORMALIZE, ADD)])
        if last is not None and self.spec(last.outs[0]) is self.spec(y):
            parts.append(last)
            y = last.outs[0]
        elif op.defaults[op.fields.index(field)] != NOTHING:
            return
        else:
            last = None
        reads = {self.program.root(i) for p in parts for i in p.ins}
        makes = {self.program.root(first.ins[p]) for p in first.writes} | {*first.outs[1:]}
        if len(parts) == 1 or not self.quiet(first, parts[-1], reads, makes):
            return
        given = dict(zip(OPS[first.op].inputs, first.ins, strict=False)) | {"z": z}
        before: list[Step] = []
        if norm is not None:
            bias = given.get("bias", 0)
            given["scale"], given["bias"], before = self._scale_and_shift(norm, bias)
        attrs = {k: v for k, v in first.attrs.items() if k in op.fields}
        attrs[field] = NOTHING if last is None else last.op
        ins = [given.get(i, 0) for i in op.inputs]
        new = Step.of(name, attrs, ins, (y, *first.outs[1:]), first.second)
        new.writes = first.writes
        self.replace(parts, parts[-1], new, *before)

    def _next(self, slot: int, first: Step, ops: list[str]) -> Step | None:
        """The step of one of these ops that alone reads a slot."""
        step = self.only_reader(slot)
        found = step is not None and step.op in ops and self.usable(step, first.second)
        return step if found else None

    def _adds(self, name: str, first: Step, z: int, y: int) -> bool:
        """Whether the kernel can add z to y, and should."""
        can, a, b = self.lib.abilities(name), self.spec(z), self.spec(y)
        if can.most_rows and self.spec(first.ins[1]).shape[0] > can.most_rows:
            return False
        return a is b or (can.adds_halves and a.shape == b.shape and a.type_name in FLOATS)

    def _folds(self, norm: Step, y: int) -> bool:
        """Whether a step normalizes the maps of y by running statistics."""
        if norm.attrs["batch_stat"] or norm.writes:
            return False
        if norm.attrs["axes"] != (1,) or norm.ins[0] != y:
            return False
        if self.spec(norm.ins[3]).type_name not in FLOATS:
            return False  # only kernels compute the scale
        return not any(o in self.readers or o in self.program.kept for o in norm.outs[1:])

    def _scale_and_shift(self, norm: Step, b: int) -> tuple[int, int, list[Step]]:
        """Slots of the scale and the shift of every map, and the steps that compute them."""
        program, steps = self.program, []
        _, beta, gamma, mean, variance = norm.ins
        spec = self.spec(mean)

        def call(op: str, *ins: int, **attrs: Any) -> int:
            out = program.new_slot(spec)
            steps.append(Step.of(op, attrs, ins, (out,), norm.second))
            return out

        sum_ = call("add_scalar", variance, val=norm.attrs["eps"], inplace=False)
        scale = call("pow_scalar", sum_, val=-0.5, inplace=False)
        if gamma:
            scale = call("mul2", scale, gamma, inplace=False)
        if b:
            mean = call("sub2", mean, program.alias(b, spec.shape), inplace=False)
        shift = call(
            "mul_scalar", call("mul2", mean, scale, inplace=False), val=-1.0, inplace=False
        )
        if beta:
            shift = call("add2", shift, beta, inplace=False)
        maps = (spec.size,)
        return program.alias(scale, maps), program.alias(shift, maps), steps


class _Rows(Rewriter):
    def run(self) -> None:
        self.each(embed_backward=self._fuse)

    def _fuse(self, first: Step) -> None:
        index, gy, *added = first.ins
        y = first.outs[0]
        add = self.only_reader(y)
        if any(added) or add is None or add.op != ADD or add.writes or add.ins[0] == add.ins[1]:
            return
        z = add.ins[add.ins[0] == y]
        if not self.usable(add, first.second) or self.spec(z) is not self.spec(y):
            return
        new = Step.of(first.op, first.attrs, (index, gy, z), add.outs, first.second)
        reads = {self.program.root(i) for i in (index, gy)}
        if self.quiet(first, add, reads, set()) and self.has_kernel(new):
            self.replace([first, add], add, new)
