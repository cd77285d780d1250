# SPDX-License-Identifier: Apache-2.0
"""What is recorded while nnl.compile calls a function: gradients, and writes to arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nnl.core.array import NdArray
from nnl.core.autodiff import backprop, start_gradient
from nnl.core.context import using
from nnl.core.graph import Node, Value
from nnl.core.op import OPS
from nnl.core.tracer import Deferring
from nnl.core.variable import Variable

INSTEAD = (
    "write with arithmetic of NdArrays, which is recorded (x.data += y.data, "
    "x.data.copy_from(y.data), x.data.fill(0)), or outside of the compiled function"
)


class Trace(Deferring):
    """What is recorded while nnl.compile calls the user's function.

    forward() computes nothing; backward() records the gradient graph; solvers record their update
    ops; functions of NdArrays become functions of the graph. Of arrays there are four kinds:

    - those with a value known in this step (gradients, arrays set to zero): a write replaces that
      value, and the array gets the last one at the end of the run,
    - results of recorded functions: nothing to read, and only what functions of NdArrays return can
      be written,
    - those that the function itself has made: constants, which numpy may write until they are read,
    - all others are state: a write is an op that writes the array.

    Attributes:
        grads: {id: (array, value)} of the first kind; None is zero.
        gradients: Arrays that are gradients, as far as the function has asked for them.
        results: {id: (array, value, whether it was made of NdArrays)} of the second.
        constants: {id: array} of the third.
        read: {id: array} of what recorded functions have read.
        effects: Results of ops that write state.
        boundary: Larger than the numbers of the nodes before the first backward(), smaller than the
            others; 0: there is none.
    """

    def __init__(self) -> None:
        self.grads: dict[int, tuple[NdArray, Variable | None]] = {}
        self.gradients: dict[int, NdArray] = {}
        self.results: dict[int, tuple[NdArray, Variable, bool]] = {}
        self.constants: dict[int, NdArray] = {}
        self.read: dict[int, NdArray] = {}
        self.effects: list[Value] = []
        self.boundary = 0

    def forward(self, outputs: Sequence[Variable]) -> None:
        """Nothing to do: what is recorded runs with the plan."""

    def backward(self, output: Variable, grad: Any) -> None:
        if not output.edge.need_grad:
            return
        self.boundary = self.boundary or Node.number()
        gy = self.variable(start_gradient(output.edge, output.shape, grad))
        with using(record=True, no_grad=False):
            found = backprop([output.edge], [gy])
            for leaf, g in found.leaves.values():
                nd = leaf.grad
                # not zeroed in this step: what the array holds at run time is added to
                before = (nd, Variable.of_edge(Value.leaf(nd), nd))
                old = self.grads.get(id(nd), before)[1]
                self.grads[id(nd)] = nd, g if old is None else OPS["add2"](old, g)

    def gradient(self, param: Variable) -> Variable | None:
        """The gradient of a parameter at this point of the step; None where it is zero."""
        nd = param.edge.grad
        if id(nd) in self.grads:
            return self.grads[id(nd)][1]
        return None if nd.zeroing else Variable.of_edge(Value.leaf(nd), nd)

    def set_gradient(self, param: Variable, value: Variable | None) -> None:
        """Replace the gradient of a parameter."""
        nd = param.edge.grad
        self.grads[id(nd)] = nd, value

    def effect(self, result: Variable) -> None:
        """Make sure that the op which computes `result` runs."""
        self.effects.append(result.edge)

    # ---- arrays ----

    def variable(self, nd: NdArray) -> Variable:
        """An array as an input of functions, with its value at this point of the step."""
        if id(nd) in self.grads:
            value = self.grads[id(nd)][1]
            return value if value is not None else _constant(nd, 0)
        if id(nd) in self.results:
            return self.results[id(nd)][1]
        return Variable.of_edge(Value.leaf(nd), nd)

    def inputs(self, xs: Sequence[Variable | None], writes: Sequence[int]) -> list[Value | None]:
        """The edges that a recorded function reads: leaves may have got another value.

        Args:
            writes: Positions of those that it writes, which must stay the leaves.
        """
        edges: list[Value | None] = []
        for i, x in enumerate(xs):
            nd = x._data if x is not None and x.edge.node is None else None
            if nd is not None and id(nd) in self.grads:
                value = self.variable(nd)
                if i in writes:
                    del self.grads[id(nd)]
                    OPS["store"](x, value)
                else:
                    x = value
            if nd is not None:
                self.read[id(nd)] = nd
                if id(nd) in self.results:  # an unlinked copy: what makes its value must run
                    self.effect(self.results[id(nd)][1])
            edges.append(None if x is None else x.edge)
        return edges

    def recorded(self, ys: Sequence[Variable]) -> None:
        """Results of a function."""
        for y in ys:
            self.results[id(y._data)] = y._data, y, False

    def of_arrays(self, ys: Sequence[Variable]) -> None:
        """Those of a function that was called with NdArrays."""
        for y in ys:
            self.results[id(y._data)] = y._data, y, True

    def called(self, module: Any, call: Callable[[], Any]) -> Any:
        """A Module is what its functions are."""
        return call()

    def made(self, nd: NdArray) -> None:
        """The function has made an array."""
        self.constants[id(nd)] = nd

    def outlives(self, nd: NdArray) -> None:
        """An array that was just made is state: a parameter."""
        self.constants.pop(id(nd), None)

    def _is_constant(self, nd: NdArray) -> bool:
        return id(nd) in self.constants and id(nd) not in self.gradients

    def check_read(self, nd: NdArray) -> None:
        """
        Raises:
            ValueError: What numpy would see is not what later runs see.
        """
        if id(nd) in self.grads or not self._is_constant(nd):
            raise ValueError(
                f"{nd.spec}: nnl.compile is recording, there are no values yet, and what .d or "
                ".data holds now would stay the same in every run: give the Variable to functions, "
                "or read it outside of the compiled function "
                "(documentation: guides/sharp_bits#what-recording-freezes)"
            )

    def check_write(self, nd: NdArray, what: str) -> None:
        """
        Raises:
            ValueError: A write would happen now only, or change what recorded functions have read.
        """
        if id(nd) in self.grads or not self._is_constant(nd) or id(nd) in self.read:
            raise ValueError(
                f"{nd.spec}: {what} while nnl.compile is recording would happen only once, not at "
                f"every run: {INSTEAD}"
            )

    def fill(self, nd: NdArray, value: Any) -> bool:
        """Record that every element gets a value; whether that was recorded."""
        if self._is_constant(nd) and id(nd) not in self.read and id(nd) not in self.grads:
            return False
        if value == 0 and id(nd) not in self.results and id(nd) not in self.read:
            self.grads[id(nd)] = nd, None
        else:
            self._set(nd, _constant(nd, value), "fill()")
        return True

    def assign(self, nd: NdArray, value: NdArray) -> None:
        """Record that an array gets the value of another one.

        Raises:
            ValueError: The array is the result of a function, or made by the compiled function.
        """
        v = self.variable(value)
        if v.edge.node is None and v._data is not nd:  # it may be written later
            v = OPS["add_scalar"](v, 0.0)
        self._set(nd, v, "writing to it")

    def _set(self, nd: NdArray, v: Variable, what: str) -> None:
        of_arrays = self.results.get(id(nd), (nd, v, False))[2]
        if id(nd) in self.grads or id(nd) in self.gradients:
            self.grads[id(nd)] = nd, v
        elif of_arrays:
            self.results[id(nd)] = nd, v, True
        elif id(nd) in self.results or id(nd) in self.constants:
            made = "the result of a function" if id(nd) in self.results else "made"
            raise ValueError(
                f"{nd.spec}: {what} while nnl.compile is recording: the array is {made} in the "
                "compiled function itself; compute a new one (y = x + 1), or keep state in an "
                "array made outside"
            )
        else:
            OPS["store"](Variable.of_edge(Value.leaf(nd), nd), v)


def _constant(like: NdArray, value: Any) -> Variable:
    y: Variable = OPS["constant"](val=float(value), shape=like.shape)
    return y
