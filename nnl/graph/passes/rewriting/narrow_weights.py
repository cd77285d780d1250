# SPDX-License-Identifier: Apache-2.0
"""Let kernels read weights of 16 bits as they are where float32 is computed with."""

from __future__ import annotations

from nnl.ext.library import Library
from nnl.graph.passes.rewriting.rewriter import Rewriter
from nnl.graph.program.program import Program, Step

READERS = ("batch_matmul", "affine", "embed")  # their second inputs may have a type of their own
NARROW = ("bfloat16", "float16")


def narrow_weights(program: Program, lib: Library) -> None:
    """x cast(w) becomes x w, whose kernel converts w as it reads it: to the same numbers.

    A checkpoint of 16 bits would else be brought to float32, and take three times its memory, at
    every step. Where backward reads the cast weights too, they stay.
    """
    _Weights(program, lib).run()


class _Weights(Rewriter):
    def run(self) -> None:
        self.each(cast=self._drop)

    def _drop(self, cast: Step) -> None:
        (source,), (made,) = cast.ins, cast.outs
        if self.spec(source).type_name not in NARROW or self.spec(made).type_name != "float32":
            return
        readers = self.readers.get(made, [])
        if not self.private({made}) or made in self.views:
            return
        reads = {self.program.root(source)}
        new = []
        for reader in readers:
            fits = reader.op in READERS and reader.ins[1] == made and reader.ins.count(made) == 1
            if not fits or not self.usable(reader, cast.second) or reader.writes:
                return
            ins = tuple([source if i == made else i for i in reader.ins])
            new.append(Step.of(reader.op, reader.attrs, ins, reader.outs, reader.second))
            if not self.quiet(cast, reader, reads, set()) or not self.has_kernel(new[-1]):
                return
        for reader, step in zip(readers, new, strict=True):
            self.replace([cast, reader], reader, step)
