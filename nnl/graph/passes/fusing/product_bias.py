# SPDX-License-Identifier: Apache-2.0
"""Add a bias within the product of matrices before it."""

from __future__ import annotations

from nnl.ext.library import Library, kernel_names
from nnl.graph.passes.rewriting.rewriter import Rewriter
from nnl.graph.program.program import Program, Step

FUSED = "batch_matmul_bias"


def fuse_product_bias(program: Program, lib: Library) -> None:
    """a b + bias becomes one step, whose result may have other leading axes than the product.

    So scores by the rows of a table are not read and written once more: they are the largest array
    of a language model.
    """
    if FUSED in kernel_names(lib):
        _Fuser(program, lib).run()


class _Fuser(Rewriter):
    def run(self) -> None:
        self.each(batch_matmul=self._fuse)

    def _fuse(self, product: Step) -> None:
        y, parts = product.outs[0], [product]
        seen = {y}
        reader = self._alone(y)
        if reader is not None and reader.op == "reshape" and reader.view:
            parts.append(reader)
            y = reader.outs[0]
            seen.add(y)
            reader = self._alone(y)
        if reader is None or reader.op != "add2" or not self.usable(reader, product.second):
            return
        if not self.private(seen) or len(reader.ins) != 2:
            return
        bias = reader.ins[1] if reader.ins[0] == y else reader.ins[0]
        columns = self.spec(y).shape[-1]
        shape = self.spec(bias).shape
        if bias == y or not shape or shape[-1] != columns or self.spec(bias).size != columns:
            return
        reads = {self.program.root(i) for i in (*product.ins, bias)}
        if not self.quiet(product, reader, reads, set()):
            return
        attrs = {**product.attrs, "shape": self.spec(reader.outs[0]).shape}
        new = Step.of(FUSED, attrs, (*product.ins, bias), reader.outs, product.second)
        if self.has_kernel(new):
            self.replace([*parts, reader], reader, new)

    def _alone(self, slot: int) -> Step | None:
        """The step that alone reads a slot."""
        readers = self.readers.get(slot, [])
        return readers[0] if len(readers) == 1 and readers[0] not in self.gone else None
