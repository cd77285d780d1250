# SPDX-License-Identifier: Apache-2.0
"""Let max pooling remember where its maxima are: its gradient then need not read the input."""

from __future__ import annotations

import numpy as np

from nnl.core.arrays.spec import Spec
from nnl.ext.library import Library, kernel_names
from nnl.graph.passes.rewriting.rewriter import Rewriter
from nnl.graph.program.program import Program, Step

FORWARD, BACKWARD = "max_pooling_arg", "max_pooling_arg_backward"


def fuse_pooling(program: Program, lib: Library) -> None:
    """max_pooling and max_pooling_backward of one x become steps that share 16-bit places."""
    if {FORWARD, BACKWARD} <= kernel_names(lib):
        _Fuser(program, lib).run()


class _Fuser(Rewriter):
    def run(self) -> None:
        self.each(max_pooling=self._fuse)

    def _fuse(self, pooling: Step) -> None:
        (x,), (y,) = pooling.ins, pooling.outs
        backwards = [
            s
            for s in self.readers[x]
            if s.op == "max_pooling_backward"
            and self.usable(s, s.second)
            and s.ins[1] == x
            and s.ins[0] != x
            and s.attrs == pooling.attrs
            and self.order[s] > self.order[pooling]
            and self.quiet(pooling, s, {self.program.root(x)}, set())
        ]
        if not backwards:
            return
        arg = self.program.new_slot(Spec.of(self.spec(y).shape, np.int16))
        attrs = dict(pooling.attrs)
        forward = Step.of(FORWARD, attrs, (x,), (y, arg), pooling.second)
        back = {**attrs, "shape": self.spec(x).shape}
        news = [Step.of(BACKWARD, back, (s.ins[0], arg), s.outs, s.second) for s in backwards]
        # both or neither: without a kernel a step becomes the parts it was made from
        if not all(self.has_kernel(s) for s in (forward, *news)):
            return
        self.replace([pooling], pooling, forward)
        for s, new in zip(backwards, news, strict=True):
            self.replace([s], s, new)
