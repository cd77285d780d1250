# SPDX-License-Identifier: Apache-2.0
"""What is recorded while nnl.compile calls a function: gradients, and writes to arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nnl.core.arrays.array import NdArray
from nnl.core.graph.autodiff import backprop, start_gradient
from nnl.core.graph.dispatch import Bound
from nnl.core.graph.node import Node, Value
from nnl.core.graph.variable import Variable
from nnl.core.interpreters.interpreter import Edges, Inputs, Params, Static
from nnl.core.ops.op import OPS, Op
from nnl.core.settings.context import using
from nnl.graph.plan.progress import check_callbacks

INSTEAD = (
    "write with arithmetic of NdArrays, which is recorded (x.data += y.data, "
    "x.data.copy_from(y.data), x.data.fill(0)), or outside of the compiled function"
)


class Recorder(Static):
    """The interpreter of the user's function while nnl.compile calls it.

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
        seen: {id: array} of what recorded functions have read.
        effects: Results of ops that write state.
        boundary: Larger than the numbers of the nodes before the first backward(), smaller than the
            others; 0: there is none.
    """

    has_values = False

    def __init__(self) -> None:
        self.grads: dict[int, tuple[NdArray, Variable | None]] = {}
        self.gradients: dict[int, NdArray] = {}
        self.results: dict[int, tuple[NdArray, Variable, bool]] = {}
        self.constants: dict[int, NdArray] = {}
        self.seen: dict[int, NdArray] = {}
        self.effects: list[Value] = []
        self.boundary = 0

    @property
    def now(self) -> Recorder:  # type: ignore[override]
        return self

    @property
    def executor(self) -> Any:
        return self

    def switched(self, auto_forward: bool) -> Recorder:
        return self

    def forward(self, *_: Any) -> None:
        """Nothing to do: what is recorded runs with the plan."""

    def backward(
        self, output: Variable, grad: Any, clear: bool, callbacks: Sequence[Any], *_: Any
    ) -> None:
        """Record the gradients of an output."""
        check_callbacks(callbacks)
        if output.edge.need_grad:
            self._go_back(output, grad)
        for callback in callbacks:
            callback.record()

    def _go_back(self, output: Variable, grad: Any) -> None:
        self.boundary = self.boundary or Node.number()
        gy = self.variable(start_gradient(output.edge, output.shape, grad))
        with using(make_nodes=True, no_grad=False):
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

    def zero_gradients(self, entries: Sequence[Any]) -> None:
        for e in entries:
            nd = e.variable.edge.grad
            self.grads[id(nd)] = nd, None

    def change(self, params: Params, op: Op, attrs: Any, inputs: Sequence[Inputs]) -> bool:
        for param, xs in zip(params, inputs, strict=True):
            nd = param.edge.grad
            self.grads[id(nd)] = nd, self.apply(op, attrs, (self.gradient(param), *xs[1:]))
        return True

    def update(self, op: Op, attrs: Any, entries: Sequence[Any], plan: Any) -> Any:
        for w, rest in [(e.variable, e.inputs) for e in entries]:
            g = self.gradient(w)
            if g is not None:
                self.effect(self.apply(op, attrs, (w, g, *rest)))
        return plan

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
                self.seen[id(nd)] = nd
                if id(nd) in self.results:  # an unlinked copy: what makes its value must run
                    self.effect(self.results[id(nd)][1])
            edges.append(None if x is None else x.edge)
        return edges

    def call(self, op: Op, attrs: Any, xs: Inputs, edges: Edges, bound: Bound, need: bool) -> Any:
        edges = self.inputs(xs, bound.writes)
        y = super().call(op, attrs, xs, edges, bound, need)
        if bound.writes:
            self.effect(y[0] if isinstance(y, tuple) else y)
        return y

    def recorded(self, ys: Sequence[Variable]) -> None:
        for y in ys:
            self.results[id(y._data)] = y._data, y, False

    def on_arrays(self, op: Op, attrs: Any, inputs: Inputs) -> Any:
        """Apply an op to arrays when the plan that is recorded runs: its results may be written."""
        if not all(x is None or isinstance(x, (Variable, NdArray)) for x in inputs):
            raise op.bad_input(inputs)
        with using(no_grad=True):
            xs = [self.variable(x) if isinstance(x, NdArray) else x for x in inputs]
            y = self.apply(op, attrs, tuple(xs))
        ys = y if isinstance(y, tuple) else (y,)
        for v in ys:
            self.results[id(v._data)] = v._data, v, True
        return tuple([v._data for v in ys]) if isinstance(y, tuple) else y._data

    def made(self, nd: NdArray) -> None:
        """The function has made an array."""
        self.constants[id(nd)] = nd

    def outlives(self, nd: NdArray) -> None:
        """An array that was just made is state: a parameter."""
        self.constants.pop(id(nd), None)

    def _is_constant(self, nd: NdArray) -> bool:
        return id(nd) in self.constants and id(nd) not in self.gradients

    def read(self, nd: NdArray) -> None:
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

    def write(self, nd: NdArray, what: str) -> None:
        """
        Raises:
            ValueError: A write would happen now only, or change what recorded functions have read.
        """
        if id(nd) in self.grads or not self._is_constant(nd) or id(nd) in self.seen:
            raise ValueError(
                f"{nd.spec}: {what} while nnl.compile is recording would happen only once, not at "
                f"every run: {INSTEAD}"
            )

    def fill(self, nd: NdArray, value: Any) -> bool:
        """Record that every element gets a value; whether that was recorded."""
        if self._is_constant(nd) and id(nd) not in self.seen and id(nd) not in self.grads:
            return False
        if value == 0 and id(nd) not in self.results and id(nd) not in self.seen:
            self.grads[id(nd)] = nd, None
        else:
            self._set(nd, _constant(nd, value), "fill()")
        return True

    def assign(self, nd: NdArray, value: NdArray) -> bool:
        """Record that an array gets the value of another one.

        Raises:
            ValueError: The array is the result of a function, or made by the compiled function.
        """
        v = self.variable(value)
        if v.edge.node is None and v._data is not nd:  # it may be written later
            v = OPS["add_scalar"](v, 0.0)
        self._set(nd, v, "writing to it")
        return True

    def shown(self, grad: NdArray) -> None:
        self.gradients[id(grad)] = grad

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
