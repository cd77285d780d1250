# SPDX-License-Identifier: Apache-2.0
"""PythonFunction: a function written by the user in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnl.core.arrays.array import NdArray
from nnl.core.arrays.spec import Spec
from nnl.core.graph.node import Value
from nnl.core.graph.variable import Variable
from nnl.core.ops.op import OPS, op
from nnl.core.settings.context import STATE, Context

CATEGORY = "Special"


class PythonFunction:
    """Base of functions written in Python. Subclasses implement the four methods below.

    name                                  the type name, a property
    min_outputs()                         number of outputs
    setup_impl(inputs, outputs)           call outputs[i].reset_shape(shape, True)
    forward_impl(inputs, outputs)         write outputs[i].d from inputs[i].d
    backward_impl(inputs, outputs, propagate_down, accum)
                                          where propagate_down[i], write inputs[i].g from
                                          outputs[j].g, adding to it if accum[i]
    For gradients of gradients, register a rule with nnl.backward_functions.register.
    """

    def __init__(self, ctx: Context | None = None) -> None:
        self.ctx = ctx or STATE.context

    @property
    def name(self) -> str:
        """The type name; that of the class unless overridden."""
        return type(self).__name__

    def min_outputs(self) -> int:
        """Give the number of outputs."""
        raise NotImplementedError(f"{self.name}: implement min_outputs()")

    def setup_impl(self, inputs: list[Variable], outputs: list[Variable]) -> None:
        """Give the outputs their shapes."""
        raise NotImplementedError(f"{self.name}: implement setup_impl(inputs, outputs)")

    def forward_impl(self, inputs: list[Variable], outputs: list[Variable]) -> None:
        """Write the data of the outputs."""
        raise NotImplementedError(f"{self.name}: implement forward_impl(inputs, outputs)")

    def backward_impl(
        self,
        inputs: list[Variable],
        outputs: list[Variable],
        propagate_down: list[bool],
        accum: list[bool],
    ) -> None:
        """Write the gradients of the inputs that are asked for."""
        raise NotImplementedError(
            f"{self.name}: implement backward_impl(inputs, outputs, propagate_down, accum)"
        )

    def grad_depends_output_data(self, i: int, o: int) -> bool:
        """Whether backward_impl reads the data of output o for input i."""
        return True

    def grad_depends_input_data(self, i: int, j: int) -> bool:
        """Whether backward_impl reads the data of input j for input i."""
        return True

    def __call__(self, *inputs: Any, n_outputs: int = -1, outputs: Any = None) -> Any:
        y = OPS["python_function"](*inputs, function=self, outputs=outputs)
        return y[0] if isinstance(y, tuple) and len(y) == 1 else y


def _variables(arrays: Sequence[Any]) -> list[Variable]:
    out = []
    for a in arrays:
        nd = a if isinstance(a, NdArray) else NdArray.holding(Spec.of(a.shape, a.dtype), "host", a)
        out.append(Variable.of_edge(Value.leaf(nd, True), nd))
    return out


@op("python_function", outputs=("*y",))
class _Call:
    """The node of a PythonFunction."""

    function: object
    host = "it is Python code of a user"

    @property
    def type_name(self) -> str:
        return self.function.name  # type: ignore[no-any-return, attr-defined]

    def infer(self, *x: Spec) -> Any:
        f: Any = self.function
        outputs = [Variable() for _ in range(f.min_outputs())]
        f.setup_impl([Variable(s.shape) for s in x], outputs)
        return tuple(Spec.of(y.shape, STATE.target.float_dtype) for y in outputs)

    def forward(self, xp: Any, *x: Any, dtype: Any = None) -> Any:
        f: Any = self.function
        inputs = _variables(x)
        outputs = [Variable() for _ in range(f.min_outputs())]
        f.setup_impl(inputs, outputs)
        f.forward_impl(inputs, outputs)
        return tuple(np.array(y.data.read("host"), dtype) for y in outputs)

    def vjp(self, *gys: Any, x: Any, y: Any, need: Any) -> Any:
        return OPS["python_function_backward"](*x, *y, *gys, function=self.function, need=need)


@op("python_function_backward", outputs=("*gx",))
class _Backward:
    """Input gradients of a PythonFunction, all from one call of its backward_impl."""

    function: object
    need: object  # a bool for every input
    host = "it is Python code of a user"

    def infer(self, *args: Spec) -> Any:
        return args[: len(self.need)]  # type: ignore[arg-type]

    def forward(self, xp: Any, *args: Any) -> Any:
        f: Any = self.function
        need: Any = self.need
        n, m = len(need), (len(args) - len(need)) // 2
        inputs, outputs = _variables(args[:n]), _variables(args[n : n + m])
        for y, gy in zip(outputs, args[n + m :], strict=True):
            y.g = gy
        f.backward_impl(inputs, outputs, list(need), [False] * n)
        return tuple(np.array(x.g, x.spec.dtype) for x in inputs)
