# SPDX-License-Identifier: Apache-2.0
"""Reverse-mode differentiation: one engine for arrays that compute and Variables that record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnl.core.arguments.annotations import numbers
from nnl.core.arrays.array import NdArray, Zeros
from nnl.core.arrays.spec import ShapeError, Spec
from nnl.core.graph.node import Node, Value, capture
from nnl.core.graph.variable import Variable
from nnl.core.settings.context import STATE, using
from nnl.core.settings.registry import OPS, RULES

Key = tuple[int, int]


class Gradients:
    """What one backward pass found.

    Attributes:
        leaves: id of a leaf edge (or key of an edge in `stop`) -> (edge, gradient).
        edges: node -> gradients of its outputs, None where none arrived.
    """

    def __init__(self) -> None:
        self.leaves: dict[Any, tuple[Value, Any]] = {}
        self.edges: dict[Node, list[Any]] = {}


def backprop(
    outputs: Sequence[Value],
    grads: Sequence[Any],
    *,
    stop: dict[Key, Value] | None = None,
    wrt: set[Key] | None = None,
    done: Callable[[Node, list[Any], Sequence[Any]], None] | None = None,
    before: Callable[[Node], None] | None = None,
    found: Gradients | None = None,
) -> Gradients:
    """Gradients of `outputs`, weighted by `grads`, for every edge below that needs one.

    With NdArrays in `grads` it computes; with Variables it applies functions in the current mode,
    so that the result can be differentiated again.

    Args:
        stop: Edges treated as leaves.
        wrt: Keys of the only edges of interest; everything that does not lead there is skipped.
        done: Called after each node with its output gradients and input gradients.
        before: Called before each node.
        found: Where the gradients are put as they come.
    """
    as_graph = isinstance(grads[0], Variable)
    found = found or Gradients()
    pending = found.edges
    order = capture(outputs)
    useful = None if wrt is None else _useful(order, wrt)

    def add(value: Value, g: Any) -> None:
        node = value.node
        if stop is not None and value.key in stop or node is None:
            key: Any = id(value) if node is None and stop is None else value.key
            old = found.leaves.get(key)
            found.leaves[key] = (value, g if old is None else OPS["add2"](old[1], g))
            return
        if useful is not None and node not in useful and value.key not in wrt:  # type: ignore[operator]
            return
        slots = pending.get(node)
        if slots is None:
            slots = pending[node] = [None] * len(node.out_specs)
        old_g = slots[value.index]
        slots[value.index] = g if old_g is None else OPS["add2"](old_g, g)

    for v, g in zip(outputs, grads, strict=True):
        if v.need_grad:
            add(v, g)
    state = STATE.__dict__  # this thread's
    target, origin = state["target"], state["origin"]
    try:
        for node in reversed(order):
            slots = pending.get(node)
            if slots is None or (useful is not None and node not in useful):
                continue
            state["target"], state["origin"] = node.target, node.origin
            if before is not None:
                before(node)
            gxs = _vjp(node, slots, as_graph) if node.op.differentiable else ()
            for value, gx in zip(node.inputs, gxs, strict=False):
                if gx is not None and value is not None and value.need_grad:
                    add(value, gx)
            if done is not None:
                done(node, slots, gxs)
    finally:
        state["target"], state["origin"] = target, origin
    return found


def _useful(order: Sequence[Node], wrt: set[Key]) -> set[Node]:
    """Nodes with an input that is in wrt or depends on one that is."""
    useful: set[Node] = set()
    for node in order:
        for v in node.inputs:
            if v is not None and (v.node in useful or v.key in wrt):
                useful.add(node)
                break
    return useful


def _vjp(node: Node, slots: list[Any], as_graph: bool) -> Sequence[Any]:
    op = node.op
    gys = slots  # one output: its gradient has arrived, or the node would not be visited
    if len(slots) > 1:
        gys = [
            g if g is not None else _zeros(s, as_graph) if s.is_float else None
            for g, s in zip(slots, node.out_specs, strict=True)
        ]
    kw: dict[str, Any] = {} if node.saved == () else dict(node.kept())
    if as_graph:
        for name, i in op.kept_inputs:
            kw[name] = _handles(node, i, kw[name])
        for name, i in op.kept_outputs:
            data = kw[name]
            if op.variadic_out:
                kw[name] = tuple([_output(node, k, d) for k, d in enumerate(data)])
            else:
                kw[name] = _output(node, i, data)
        if RULES:
            rule = RULES.get(getattr(node.attrs, "type_name", op.type_name))
            if rule is not None:
                return rule(node, gys, kw)  # type: ignore[no-any-return]
    if not op.has_vjp:
        return _vjp_of_decomposition(node, gys, kw, as_graph)
    if op.spec_names:
        kw.update(node.input_specs())
    if op.wants_need:
        kw["need"] = tuple([v is not None and v.need_grad for v in node.inputs])
    gxs = node.attrs.vjp(*gys, **kw)
    return gxs if isinstance(gxs, (tuple, list)) else (gxs,)


def _handles(node: Node, i: int, data: Any) -> Any:
    """Kept input i as Variable, or a tuple of them for the variadic input."""
    if isinstance(data, tuple):
        return tuple([_handle(v, d) for v, d in zip(node.inputs[i:], data, strict=True)])
    return _handle(node.inputs[i], data)


def _output(node: Node, i: int, data: NdArray) -> Variable:
    outs = node.outs
    return Variable.of_edge(
        Value.of(node, i, node.out_specs[i], True, None if outs is None else outs[i]), data
    )


def _handle(value: Value | None, data: NdArray | None) -> Variable | None:
    if value is None:
        return None
    return Variable.of_edge(value, data) if data is not None else Variable.on(value)


def _zeros(spec: Spec, as_graph: bool) -> Any:
    nd = Zeros(spec.shape)
    nd.spec = spec
    return Variable.of_edge(Value.leaf(nd), nd) if as_graph else nd


def _vjp_of_decomposition(
    node: Node, gys: list[Any], kw: dict[str, Any], as_graph: bool
) -> Sequence[Any]:
    """No rule was written: differentiate the decomposition."""
    op = node.op
    xs: list[Any] = []
    for name in op.inputs:
        xs.extend(kw[name] if op.variadic and name == op.inputs[-1] else [kw[name]])
    auto = STATE.auto_forward or not as_graph
    if not as_graph:
        needs = [v is not None and v.need_grad for v in node.inputs]
        xs = [
            None if x is None else Variable.of_edge(Value.leaf(x, n), x)
            for x, n in zip(xs, needs, strict=True)
        ]
    with using(make_nodes=True, auto_forward=auto, no_grad=False):
        ys = node.attrs.decompose(*xs)
    ys = ys if isinstance(ys, tuple) else (ys,)
    stop = {x.edge.key: x.edge for x in xs if x is not None}
    pairs = [
        (y.edge, g) for y, g in zip(ys, gys, strict=False) if g is not None and y.edge.need_grad
    ]
    if not pairs:
        return [None] * len(xs)
    found = backprop([p[0] for p in pairs], [p[1] for p in pairs], stop=stop).leaves
    out = []
    for x in xs:  # an array given twice gets its whole gradient once
        got = found.pop(x.edge.key, None) if x is not None else None
        out.append(None if got is None else got[1])
    return out


# ---- backward() of a graph that was computed already ----


def start_gradient(output: Value, shape: tuple[int, ...], grad: Any) -> NdArray:
    """The array that backward() starts from.

    Raises:
        ShapeError: An array of another shape was given.
    """
    if grad is None:
        return output.grad
    if isinstance(grad, NdArray):
        if grad.shape != shape:
            raise ShapeError(f"backward: grad is {grad.spec}, wanted the shape {shape}")
        return grad
    nd = NdArray(shape)
    nd.spec = Spec.of(shape, STATE.target.float_dtype)
    a = numbers("backward: grad", grad, "a number or an array")
    if a.ndim and a.shape != shape:
        raise ShapeError(f"backward: grad has the shape {a.shape}, wanted {shape}")
    nd.data[...] = a
    return nd


def accumulate(into: NdArray, g: NdArray, own: bool) -> None:
    """Add g to a leaf's gradient, or become it where the gradient is lazily zero.

    Args:
        own: Whether nobody else holds the memory of g.
    """
    if STATE.interpreter.now.accumulate(into, g):
        return
    space = next(iter(g.bufs or into.bufs), "host")
    buf = g.read(space)
    spec = g.spec
    if spec.is_half:  # sums of leaves are float32, whatever contributed to them
        spec = spec.with_dtype(np.float32)
        buf, own = buf.astype(np.float32), True
    if into.zeroing:
        if into.spec.dtype != spec.dtype:
            into.spec = spec
        into.write(space, buf if own and getattr(buf, "base", None) is None else buf.copy())
    else:
        if not into.spec.is_float:
            into.cast(spec.dtype)
        mine = into.touch(space)
        mine += buf
