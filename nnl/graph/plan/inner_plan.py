# SPDX-License-Identifier: Apache-2.0
"""InnerPlan: the plan of a program that stands inside a step of another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nnl.core.arrays.array import NdArray
from nnl.graph.lowering.binding import Binding
from nnl.graph.program.program import Program

if TYPE_CHECKING:
    from nnl.graph.plan.plan import Plan


class InnerPlan:
    """Runs a program on buffers that are given at every call.

    Args:
        make: (program, binding, whether it stands inside a step) -> its plan.
    """

    def __init__(self, program: Program, make: Callable[[Program, Binding, bool], Plan]) -> None:
        binding, inputs = Binding(), program.inputs
        self.arrays = [NdArray.unwritten(program.slots[i].spec) for i in inputs]
        binding.arrays.update(zip(inputs, self.arrays, strict=True))
        self.plan = make(program, binding, True)
        self.outs = list(self.plan.program.outputs.values())

    def __call__(self, *bufs: Any) -> list[Any]:
        """The outputs, in memory of the plan: the next call writes over them."""
        plan = self.plan
        for nd, buf in zip(self.arrays, bufs, strict=True):
            if nd.bufs.get(plan.space) is not buf:
                nd.write(plan.space, buf)
        plan.run()
        return [plan.slots[o] for o in self.outs]
