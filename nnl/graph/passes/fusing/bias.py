# SPDX-License-Identifier: Apache-2.0
"""Let a bias that is added behind a product or a convolution be their own."""

from __future__ import annotations

from nnl.ext.library import Library, kernel_names
from nnl.graph.passes.rewriting.rewriter import Rewriter
from nnl.graph.program.program import Program, Step

FUSED = "batch_matmul_bias"


def fuse_biases(program: Program, lib: Library) -> None:
    """affine(x, W) + b becomes affine(x, W, b), and a convolution plus a number for each map too.

    So frameworks that write a bias as an addition get the programs of those that do not.
    """
    _Biases(program, lib).run()


def fuse_product_bias(program: Program, lib: Library) -> None:
    """a b + bias becomes one step, whose result may have other leading axes than the product.

    So scores by the rows of a table are not read and written once more: they are the largest array
    of a language model.
    """
    if FUSED in kernel_names(lib):
        _Products(program, lib).run()


class _Biases(Rewriter):
    def run(self) -> None:
        rule = self._fuse
        self.each(affine=rule, convolution=rule, deconvolution=rule)

    def _fuse(self, product: Step) -> None:
        x, weight, *bias = product.ins
        y = product.outs[0]
        add = self.only_reader(y)
        if any(bias) or add is None or add.op != "add2" or add.writes or add.ins[0] == add.ins[1]:
            return
        if not self.usable(add, product.second) or self.spec(add.outs[0]) is not self.spec(y):
            return
        b = self._as_bias(add.ins[add.ins[0] == y], product)
        if b == 0:
            return
        new = Step.of(product.op, product.attrs, (x, weight, b), add.outs, product.second)
        reads = {self.program.root(i) for i in (x, weight)}
        if self.quiet(product, add, reads, set()) and self.has_kernel(new):
            self.replace([product, add], add, new)

    def _as_bias(self, slot: int, product: Step) -> int:
        """The slot of what is added as the function takes it; 0 where it is something else."""
        y, shape = self.spec(product.outs[0]), self.spec(slot).shape
        if product.op == "affine":
            axes = range(product.attrs["base_axis"], y.ndim)
        else:
            last = product.attrs["channel_last"]
            at = y.ndim - 1 if last else product.attrs["base_axis"]
            axes = range(at, at + 1)
        wanted = tuple([y.shape[i] for i in axes])
        spread = tuple([n if i in axes else 1 for i, n in enumerate(y.shape)])
        if tuple(shape) != spread:
            return 0
        maker = self.makers.get(slot)
        if maker is not None and maker.op == "reshape" and maker.view:
            slot = maker.ins[0]
        found = self.spec(slot)
        types = y.type_name, self.spec(product.ins[1]).type_name
        return slot if tuple(found.shape) == wanted and found.type_name in types else 0


class _Products(Rewriter):
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
