# SPDX-License-Identifier: Apache-2.0
"""bind: op + specs -> a kernel ready to run. apply: the only place where a node is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import ref

from nnl.core.array import NdArray
from nnl.core.callback import HOOKS
from nnl.core.casts import cast_specs, narrowed, widened, with_casts
from nnl.core.context import STATE, Backend, Target, using
from nnl.core.device_views import Views
from nnl.core.graph import Node, Value, record
from nnl.core.limits import check_sizes
from nnl.core.origin import here
from nnl.core.record import PLAIN
from nnl.core.spec import ShapeError, Spec
from nnl.core.variable import Variable

if TYPE_CHECKING:
    from nnl.core.op import Op
    from nnl.core.tracer import Deferring

_new = NdArray.__new__


@record
class Bound:
    """An op fixed to attributes, input specs and a backend.

    Attributes:
        call: Buffers -> buffer, or tuple of buffers if there are several outputs.
        into: Whether call accepts out=buffer.
        space: Memory space of the buffers.
        writes: Positions of the inputs that call writes in place.
        view: Whether the output is the memory of the first input.
        seconds: What a call takes, about; None: nobody has asked yet, see nnl.coexec.worth.
    """

    call: Callable[..., Any]
    into: bool
    space: str
    out_specs: tuple[Spec, ...]
    in_specs: tuple[Spec | None, ...]
    writes: tuple[int, ...]
    view: bool
    single: bool
    backend: Backend
    seconds: float | None


def bind(op: Op, attrs: Any, target: Target, specs: tuple[Spec | None, ...]) -> Bound:
    """Infer shapes, choose a backend and set its kernel up; once per attributes, target and specs.

    A backend declines by returning None; the next one of the context is then asked.
    """
    key = (target, *specs)
    bound: Bound | None = attrs.bound.find(key)
    if bound is not None:
        return bound
    if None in specs[: op.required] and not op.variadic:
        op.check_given(specs)
    cast = cast_specs(op, attrs, specs, target)
    try:
        with using(target=target):  # functions without inputs take their dtype from it
            out = attrs.infer(*(cast if target.half is None else widened(op, cast)))
    except ShapeError as e:
        if str(e).startswith(op.name):
            raise
        raise ShapeError(f"{op.name}: {e}") from None  # of a spec that cannot be
    bound = Bound()
    bound.single, bound.seconds = not isinstance(out, tuple), None
    bound.out_specs = out if isinstance(out, tuple) else (out,)
    if target.half is not None:
        bound.out_specs = narrowed(op, cast, bound.out_specs, target.half)
    check_sizes(op.name, bound.out_specs)
    bound.in_specs = cast
    bound.writes, bound.view = op.written(attrs), op.view and getattr(attrs, "inplace", True)
    for backend in target.backends:
        made = backend.bind(op, attrs, cast, bound.out_specs)
        if made is not None:
            bound.call, bound.into = made
            bound.space, bound.backend = backend.space, backend
            break
    else:
        names = [b.name for b in target.backends]
        raise NotImplementedError(f"{op.name}: no kernel for {specs} in the backends {names}")
    if any(c is not s for c, s in zip(cast, specs, strict=True)):
        bound.call = with_casts(op, bound.call, cast, specs, bound.writes)
    attrs.bound.put(key, bound)
    return bound


def execute(bound: Bound, datas: Any) -> list[NdArray]:
    """Run a bound op on arrays; returns all outputs, hidden ones too."""
    space = bound.space
    bufs = [None if d is None else d.read(space) for d in datas]
    for i in bound.writes:
        if datas[i] is not None:
            bufs[i] = datas[i].touch(space)
    out = bound.call(*bufs)
    if bound.single:
        nd = NdArray.holding(bound.out_specs[0], space, out)
        if bound.view and space != "host" and not bound.writes:
            Views.link(datas[0], nd)
        return [nd]
    return [NdArray.holding(s, space, b) for s, b in zip(bound.out_specs, out, strict=True)]


def apply(op: Op, attrs: Any, inputs: tuple[Any, ...]) -> Any:
    """Apply an op to Variables, or to NdArrays.

    static    record a node, infer specs, compute nothing
    dynamic   (auto_forward) compute now; record a node only if some input needs a gradient
    NdArray   compute now, record nothing; this is also how backward() runs vjp rules
    """
    state = STATE.__dict__  # this thread's
    edges: list[Value | None] = []
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
            return _apply_to_arrays(op, attrs, inputs)
    bound = attrs.bound.get(tuple(specs))
    if bound is None:
        bound = bind(op, attrs, specs[0], tuple(specs[1:]))
    if need and (state["no_grad"] or not op.differentiable):
        need = False
    if not state["auto_forward"]:
        return _record(op, attrs, inputs, edges, bound, need, state)
    if state["watch"] is not None:
        state["watch"].call(op, attrs, bound, edges)
    if HOOKS.active:
        return _apply_with_hooks(op, attrs, inputs, edges, bound, need, state)
    if state["skeleton"] is not None:
        return state["skeleton"].apply(op, attrs, inputs, edges, bound, need and state["record"])
    space = bound.space
    bufs: list[Any] = []
    for x in inputs:
        if x is None:
            bufs.append(None)
        else:
            buf = x._data.bufs.get(space)
            bufs.append(_read_early(op, x).read(space) if buf is None else buf)
    if bound.writes:
        for i in bound.writes:
            if inputs[i] is not None:
                bufs[i] = inputs[i]._data.touch(space)
    out = bound.call(*bufs)
    again = state["recompute"]
    if bound.single:
        nd = _new(NdArray)
        nd.spec = spec = bound.out_specs[0]
        nd.bufs, nd.record = {space: out}, PLAIN
        if bound.view and space != "host" and not bound.writes:
            Views.link(inputs[0]._data, nd)
        if need and state["record"]:
            node = new_node(op, attrs, edges, bound, state)
            node.live = (ref(nd),)
            _save(node, inputs, (nd,))
            return Variable.of_edge(Value.of(node, 0, spec, True, None, again), nd)
        return Variable.of_edge(Value.of(None, 0, spec, False, nd, again), nd)
    datas = tuple([NdArray.holding(s, space, b) for s, b in zip(bound.out_specs, out, strict=True)])
    kept = new_node(op, attrs, edges, bound, state) if need and state["record"] else None
    return visible(op, results(kept, inputs, datas, again))


def results(node: Node | None, inputs: Any, datas: tuple[NdArray, ...], again: bool) -> list[Any]:
    """Handles on what was computed at once; a node keeps what its gradient needs."""
    if node is not None:
        node.outs, node.live = None, tuple([ref(d) for d in datas])
        _save(node, inputs, datas)
        edges = [Value.of(node, i, d.spec, True, None, again) for i, d in enumerate(datas)]
    else:
        edges = [Value.of(None, i, d.spec, False, d, again) for i, d in enumerate(datas)]
    return [Variable.of_edge(e, d) for e, d in zip(edges, datas, strict=True)]


def _read_early(op: Op, x: Variable | NdArray) -> NdArray:
    """The array of an input, with zeros in it if nothing has written it yet."""
    nd = x if isinstance(x, NdArray) else x._data
    if nd.blank:
        label = f"NdArray {nd.spec}" if isinstance(x, NdArray) else x.edge.label
        nd.read_early(label, op.name)
    return nd


def new_node(op: Op, attrs: Any, edges: Any, bound: Bound, state: dict[str, Any]) -> Node:
    node = Node()
    node.op, node.attrs, node.inputs = op, attrs, tuple(edges)
    node.out_specs, node.target = bound.out_specs, state["target"]
    node.need_grad = True
    node.outs = node.live = node.saved = node.grads = node.info = None
    node.origin = state["origin"] or here(state["layer"]) if state["profiled"] else None
    node.seq = Node.number()
    return node


def _save(node: Node, inputs: tuple[Any, ...], outs: tuple[NdArray, ...]) -> None:
    """Keep what vjp names, and nothing else."""
    op = node.op
    if not op.kept_names:
        node.saved = ()
        return
    saved: list[Any] = []
    for _, i in op.kept_inputs:
        if op.variadic and i == len(op.inputs) - 1:
            saved.append(tuple([None if x is None else x._data for x in inputs[i:]]))
        else:
            saved.append(None if inputs[i] is None else inputs[i]._data)
    for _, i in op.kept_outputs:
        saved.append(outs if op.variadic_out else outs[i])
    node.saved = tuple(saved)


def _record(
    op: Op,
    attrs: Any,
    inputs: tuple[Any, ...],
    edges: list[Value | None],
    bound: Bound,
    need: bool,
    state: dict[str, Any],
) -> Any:
    trace = state["trace"]
    if trace is not None:
        edges = trace.inputs(inputs, bound.writes)
    node = new_node(op, attrs, edges, bound, state)
    node.need_grad = None if state["no_grad"] else need
    # above this function, apply and what has called it
    node.origin = state["origin"] or here(state["layer"], 4)
    node.outs = datas = tuple([NdArray.unwritten(s) for s in bound.out_specs])
    again = state["recompute"]
    ys = [
        Variable.of_edge(Value.of(node, i, d.spec, need, d, again), d) for i, d in enumerate(datas)
    ]
    if state["tracer"] is not None:
        state["tracer"].recorded(ys)
    if trace is not None and bound.writes:
        trace.effect(ys[0])
    return ys[0] if bound.single else visible(op, ys)


def visible(op: Op, ys: list[Any]) -> Any:
    n = op.visible
    if n < len(op.outputs):
        return ys[0] if n == 1 else tuple(ys[:n])
    return tuple(ys)


def _apply_to_arrays(op: Op, attrs: Any, inputs: tuple[Any, ...]) -> Any:
    """At least one input is an NdArray: compute now; Variables give their data."""
    state = STATE.__dict__
    if state["trace"] is not None:
        return _record_arrays(op, attrs, inputs, state["trace"])
    datas: list[NdArray | None] = []
    specs: list[Any] = [state["target"]]
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
    later = state["skeleton"]
    ys = execute(bound, datas) if later is None else later.execute(op, attrs, bound, datas)
    return ys[0] if bound.single else visible(op, ys)


def _record_arrays(op: Op, attrs: Any, inputs: tuple[Any, ...], trace: Deferring) -> Any:
    """What _apply_to_arrays does, to be done when the plan that is recorded runs."""
    if not all(x is None or isinstance(x, (Variable, NdArray)) for x in inputs):
        raise op.bad_input(inputs)
    xs = tuple([trace.variable(x) if isinstance(x, NdArray) else x for x in inputs])
    with using(auto_forward=False, no_grad=True):
        y = apply(op, attrs, xs)
    trace.of_arrays(y if isinstance(y, tuple) else (y,))
    return tuple([v._data for v in y]) if isinstance(y, tuple) else y._data


def _apply_with_hooks(
    op: Op,
    attrs: Any,
    inputs: tuple[Any, ...],
    edges: list[Value | None],
    bound: Bound,
    need: bool,
    state: dict[str, Any],
) -> Any:
    node = new_node(op, attrs, edges, bound, state)
    node.need_grad = need
    HOOKS.before(node)
    datas = tuple(execute(bound, [None if x is None else _read_early(op, x) for x in inputs]))
    node.outs = datas
    HOOKS.after(node)
    kept = node if need and state["record"] else None
    ys = results(kept, inputs, datas, state["recompute"])
    return ys[0] if bound.single else visible(op, ys)
