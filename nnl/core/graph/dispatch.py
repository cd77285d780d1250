# SPDX-License-Identifier: Apache-2.0
"""bind: op + specs -> a kernel ready to run; and the parts that interpreters make calls of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import ref

from nnl.core.arguments.origin import here
from nnl.core.arrays.array import NdArray
from nnl.core.arrays.device_views import Views
from nnl.core.arrays.resources import check_sizes
from nnl.core.arrays.spec import ShapeError, Spec
from nnl.core.graph.casts import cast_specs, narrowed, widened, with_casts
from nnl.core.graph.node import Node, Value, slotted
from nnl.core.graph.variable import Variable
from nnl.core.settings.context import STATE, Backend, Target, using

if TYPE_CHECKING:
    from nnl.core.ops.op import Op


@slotted
class Bound:
    """An op fixed to attributes, input specs and a backend.

    Attributes:
        call: Buffers -> buffer, or tuple of buffers if there are several outputs.
        into: Whether call accepts out=buffer.
        space: Memory space of the buffers.
        writes: Positions of the inputs that call writes in place.
        view: Whether the output is the memory of the first input.
        seconds: What a call takes, about; None: nobody has asked yet, see nnl.coexec.policy.payoff.
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
    """Apply an op to Variables, or to arrays, as the thread's interpreter does."""
    return STATE.interpreter.apply(op, attrs, inputs)


def results(node: Node | None, inputs: Any, datas: tuple[NdArray, ...], again: bool) -> list[Any]:
    """Handles on what was computed at once; a node keeps what its gradient needs."""
    if node is not None:
        node.outs, node.live = None, tuple([ref(d) for d in datas])
        keep(node, inputs, datas)
        edges = [Value.of(node, i, d.spec, True, None, again) for i, d in enumerate(datas)]
    else:
        edges = [Value.of(None, i, d.spec, False, d, again) for i, d in enumerate(datas)]
    return [Variable.of_edge(e, d) for e, d in zip(edges, datas, strict=True)]


def new_node(op: Op, attrs: Any, edges: Any, bound: Bound, state: dict[str, Any]) -> Node:
    node = Node()
    node.op, node.attrs, node.inputs = op, attrs, tuple(edges)
    node.out_specs, node.target = bound.out_specs, state["target"]
    node.need_grad = True
    node.outs = node.live = node.saved = node.grads = node.info = None
    node.origin = state["origin"] or here(state["layer"]) if state["profiled"] else None
    node.seq = Node.number()
    return node


def keep(node: Node, inputs: tuple[Any, ...], outs: tuple[NdArray, ...]) -> None:
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


def visible(op: Op, ys: Sequence[Any]) -> Any:
    n = op.visible
    if n < len(op.outputs):
        return ys[0] if n == 1 else tuple(ys[:n])
    return tuple(ys)
