# SPDX-License-Identifier: Apache-2.0
"""What a call of a function means in a thread, and what reads and writes of arrays: one object,
`STATE.interpreter`, decides.

    Eager      compute now; make a node only if some input needs a gradient
    Static     make a node, infer shapes, compute nothing; what arrays do is up to its Eager
    Deferring  as Eager, but co-execution puts off what it can (nnl/core/interpreters/deferring.py)
    Recorder      make nodes, also of what arrays do (nnl/graph/recording/recorder.py)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import ref

from nnl.core.arguments.origin import here
from nnl.core.arrays.array import NdArray
from nnl.core.arrays.bulk import BULK
from nnl.core.arrays.device_views import Views
from nnl.core.arrays.memory_record import PLAIN
from nnl.core.graph.dispatch import Bound, bind, execute, keep, new_node, results, visible
from nnl.core.graph.node import Value
from nnl.core.graph.variable import Variable
from nnl.core.interpreters.callback import HOOKS
from nnl.core.settings.context import STATE, set_defaults

if TYPE_CHECKING:
    from nnl.core.ops.op import Op

Inputs = tuple[Any, ...]
Edges = list[Value | None]
Arrays = Sequence[NdArray | None]
Params = Sequence[Variable]
_new = NdArray.__new__


class Interpreter:
    """What happens at once: a base, whose methods ask nothing and record nothing.

    Those that return a bool tell whether they have seen to it, so that the caller need not.

    Attributes:
        computes: Whether functions of Variables compute when they are called.
        has_values: Whether arrays have values: not while nnl.compile records.
        executor: What runs recorded graphs; see run_by.
        now: What decides of gradients and updates of what is computed at once.
    """

    __slots__ = ("now",)
    computes = False
    has_values = True
    executor: Any
    now: Interpreter

    def switched(self, auto_forward: bool) -> Interpreter:
        """The one that computes, or does not, in place of this one."""
        raise NotImplementedError

    # ---- functions ----

    def apply(self, op: Op, attrs: Any, inputs: Inputs) -> Any:
        """Apply an op to Variables or, if one of the inputs is that, to arrays."""
        state = STATE.__dict__  # this thread's
        edges: Edges = []
        specs: list[Any] = [state["target"]]
        need = False
        for x in inputs:
            if type(x) is Variable or isinstance(x, Variable):  # the first alone is faster
                edge = x.edge
                edges.append(edge)
                specs.append(x._data.spec)
                if edge.need_grad:
                    need = True
            elif x is None:
                edges.append(None)
                specs.append(None)
            else:
                return self.on_arrays(op, attrs, inputs)
        bound = attrs.bound.get(tuple(specs))
        if bound is None:
            bound = bind(op, attrs, specs[0], tuple(specs[1:]))
        if need and (state["no_grad"] or not op.differentiable):
            need = False
        return self.call(op, attrs, inputs, edges, bound, need)

    def call(self, op: Op, attrs: Any, xs: Inputs, edges: Edges, bound: Bound, need: bool) -> Any:
        """Apply a bound op to Variables. need: Whether the result takes part in backward()."""
        raise NotImplementedError

    def on_arrays(self, op: Op, attrs: Any, inputs: Inputs) -> Any:
        """Apply an op to arrays, and Variables, which give theirs; record nothing."""
        datas: list[NdArray | None] = []
        specs: list[Any] = [STATE.target]
        for x in inputs:
            if type(x) is NdArray and x.bufs:
                nd: NdArray | None = x
            elif x is None or isinstance(x, (Variable, NdArray)):
                nd = None if x is None else _read_early(op, x)
            else:
                raise op.bad_input(inputs)
            datas.append(nd)
            specs.append(None if nd is None else nd.spec)
        bound = attrs.bound.get(tuple(specs))
        if bound is None:
            bound = bind(op, attrs, specs[0], tuple(specs[1:]))
        ys = self.execute(op, attrs, bound, datas)
        return ys[0] if bound.single else visible(op, ys)

    def execute(self, op: Op, attrs: Any, bound: Bound, datas: Arrays) -> Sequence[NdArray]:
        """Run a bound op on arrays; returns all outputs, hidden ones too."""
        return execute(bound, datas)

    def called(self, module: Any, args: tuple[Any, ...], kw: dict[str, Any]) -> Any:
        """Call a Module."""
        return module.call(*args, **kw)

    # ---- arrays ----

    def made(self, nd: NdArray) -> None:
        """An array was made."""

    def outlives(self, nd: NdArray) -> None:
        """An array that was made is a parameter."""

    def read(self, nd: NdArray) -> None:
        """Numpy is about to see an array.

        Raises:
            ValueError: It may not.
        """

    def write(self, nd: NdArray, what: str) -> None:
        """Numpy is about to write an array.

        Raises:
            ValueError: It may not.
        """

    def fill(self, nd: NdArray, value: Any) -> bool:
        """All elements get a value."""
        return False

    def assign(self, nd: NdArray, value: NdArray) -> bool:
        """An array gets the value of another."""
        return False

    # ---- gradients and updates ----

    def shown(self, grad: NdArray) -> None:
        """Somebody gets this gradient."""

    def gradient(self, param: Variable) -> Any:
        """The gradient of a parameter; None where it is lazily zero."""
        grad = param.edge.grad
        return None if grad.zeroing else grad

    def zero_gradients(self, entries: Sequence[Any]) -> None:
        """Fill the gradients of a solver's parameters with zeros, lazily."""
        BULK.zero_gradients(entries)

    def change(self, params: Params, op: Op, attrs: Any, inputs: Sequence[Inputs]) -> bool:
        """Each parameter's gradient becomes what an op makes of inputs, which begin with it."""
        return False

    def accumulate(self, into: NdArray, g: NdArray) -> bool:
        """A leaf's gradient gets this added."""
        return False

    def go_back(self, output: Value, grad: Any, clear: bool) -> bool:
        """Gradients are to go backward from what was computed at once."""
        return False

    def update(self, op: Op, attrs: Any, entries: Sequence[Any], plan: Any) -> Any:
        """Update the parameters of a solver. plan: What the update before has returned."""
        calls = BULK.to_update(entries)
        return self.executor.run_calls(op, attrs, calls, plan) if calls else plan


class Eager(Interpreter):
    """Compute now; record a node only if some input needs a gradient.

    Attributes:
        static: What records in place of this one.
    """

    __slots__ = ("static",)
    computes = True

    def __init__(self) -> None:
        self.now, self.static = self, Static(self)

    def switched(self, auto_forward: bool) -> Interpreter:
        return self if auto_forward else self.static

    def call(self, op: Op, attrs: Any, xs: Inputs, edges: Edges, bound: Bound, need: bool) -> Any:
        if HOOKS.active:
            return _with_hooks(op, attrs, xs, edges, bound, need)
        state, space = STATE.__dict__, bound.space
        bufs: list[Any] = []
        for x in xs:
            buf = None if x is None else x._data.bufs.get(space)
            bufs.append(buf if buf is not None or x is None else _read_early(op, x).read(space))
        for i in bound.writes:
            if xs[i] is not None:
                bufs[i] = xs[i]._data.touch(space)
        out = bound.call(*bufs)
        kept = need and state["make_nodes"]
        node = new_node(op, attrs, edges, bound, state) if kept else None
        if not bound.single:
            pairs = zip(bound.out_specs, out, strict=True)
            datas = tuple([NdArray.holding(s, space, b) for s, b in pairs])
            return visible(op, results(node, xs, datas, state["recompute"]))
        nd = _new(NdArray)
        nd.spec = spec = bound.out_specs[0]
        nd.bufs, nd.record = {space: out}, PLAIN
        if bound.view and space != "host" and not bound.writes:
            Views.link(xs[0]._data, nd)
        if node is not None:
            node.live = (ref(nd),)
            keep(node, xs, (nd,))
        value = Value.of(node, 0, spec, kept, None if kept else nd, state["recompute"])
        return Variable.of_edge(value, nd)


class Static(Interpreter):
    """Make a node, and compute nothing: forward() does."""

    __slots__ = ()

    def __init__(self, now: Interpreter) -> None:
        self.now = now

    def switched(self, auto_forward: bool) -> Interpreter:
        return self.now if auto_forward else self

    def call(self, op: Op, attrs: Any, xs: Inputs, edges: Edges, bound: Bound, need: bool) -> Any:
        state = STATE.__dict__
        node = new_node(op, attrs, edges, bound, state)
        node.need_grad = None if state["no_grad"] else need
        # above this function, apply and what has called it
        node.origin = state["origin"] or here(state["layer"], 4)
        node.outs = datas = tuple([NdArray.unwritten(s) for s in bound.out_specs])
        again = state["recompute"]
        of, edge = Variable.of_edge, Value.of
        ys = [of(edge(node, i, d.spec, need, d, again), d) for i, d in enumerate(datas)]
        self.recorded(ys)
        return ys[0] if bound.single else visible(op, ys)

    def on_arrays(self, op: Op, attrs: Any, inputs: Inputs) -> Any:
        return self.now.on_arrays(op, attrs, inputs)

    def recorded(self, ys: Sequence[Variable]) -> None:
        """A function was recorded, and these are all its results."""


def run_by(executor: Any) -> None:
    """Let this run recorded graphs, for Variable.forward() and backward() and for solvers."""
    Interpreter.executor = executor


EAGER = Eager()
STATIC = EAGER.static
set_defaults(interpreter=STATIC)


def _read_early(op: Op, x: Variable | NdArray) -> NdArray:
    """The array of an input, with zeros in it if nothing has written it yet."""
    nd = x if isinstance(x, NdArray) else x._data
    if nd.blank:
        label = f"NdArray {nd.spec}" if isinstance(x, NdArray) else x.edge.label
        nd.read_early(label, op.name)
    return nd


def _with_hooks(op: Op, attrs: Any, xs: Inputs, edges: Edges, bound: Bound, need: bool) -> Any:
    state = STATE.__dict__
    node = new_node(op, attrs, edges, bound, state)
    node.need_grad = need
    HOOKS.before(node)
    datas = [None if x is None else _read_early(op, x) for x in xs]
    node.outs = outs = tuple(execute(bound, datas))
    HOOKS.after(node)
    ys = results(node if need and state["make_nodes"] else None, xs, outs, state["recompute"])
    return ys[0] if bound.single else visible(op, ys)
