# SPDX-License-Identifier: Apache-2.0
"""Export of steps with programs inside: If and Loop, whose subgraphs read what is around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnl.converters.onnx.exporting.nodes.context import Exporter, Refused
from nnl.converters.onnx.exporting.nodes.tensor import Call, Subgraph, Tensor
from nnl.converters.onnx.exporting.reduction import opened
from nnl.converters.onnx.file.registry import onnx_export
from nnl.core.graph.node import capture
from nnl.core.interpreters.interpreter import STATIC
from nnl.core.settings.context import using
from nnl.graph.control_flow.programs import input_specs, leaf, record
from nnl.graph.program.program import Program


@onnx_export("cast")
def cast(ctx: Exporter, call: Call) -> Tensor:
    return ctx.cast(call.x, call.attrs.dtype)


@onnx_export("switch")
def switch(ctx: Exporter, call: Call) -> tuple[Tensor, ...]:
    branches = call.attrs.branches
    if len(branches) != 2:
        raise Refused(f"ONNX chooses one of two subgraphs, and this is one of {len(branches)}")
    index, *xs = given(call)
    other, then = (subgraph(ctx, lambda p=p: _written(ctx, p, xs)) for p in branches)
    ys = ctx.emit(
        "If", ctx.cast(index, np.bool_), outputs=len(call.shapes), then_branch=then,
        else_branch=other,
    )  # fmt: skip
    return _typed(ys, call)


@onnx_export("while")
def loop(ctx: Exporter, call: Call) -> tuple[Tensor, ...]:
    a, n = call.attrs, call.attrs.carried
    if a.condition is None and a.scanned:
        return _scan(ctx, call)
    if a.condition is None and a.backwards:
        raise Refused("a Loop of ONNX has no rows that begin with the last one")
    trips, *xs = given(call)
    if a.rows is not None:
        trips = (
            ctx.emit("Min", trips, a.rows)
            if trips.value is None
            else ctx.constant(np.minimum(trips.value, a.rows))
        )
    m = a.scanned
    carried, arrays, around = xs[:n], xs[n : n + m], xs[n + m :]

    def goes(values: Sequence[Tensor]) -> Tensor:
        if a.condition is None:
            return ctx.constant(np.array(True))
        return _written(ctx, a.condition, [*values, *around])[0]

    going = goes(carried)
    turn, before, count = (_input(t) for t in (np.int64, np.bool_, np.int64))
    inside = [_input(x.dtype, x) for x in carried]

    def body() -> list[Tensor]:
        rows = [ctx.emit("Gather", x, turn, axis=0) for x in arrays]
        for row, x in zip(rows, arrays, strict=True):
            row.shape = x.sizes[1:]
        ys = _written(ctx, a.body, [*inside, *rows, *around])
        return [goes(ys[:n]), *ys[:n], ctx.emit("Add", turn, 1), *ys[n:]]

    graph = subgraph(ctx, body, [turn, before, *inside, count])
    zero = ctx.constant(np.array(0, np.int64))
    ys = ctx.emit("Loop", trips, going, *carried, zero, outputs=len(call.shapes), body=graph)
    state, done, stacks = ys[:n], ys[n], ys[n + 1 :]
    done.dtype = np.dtype(np.int64)
    rows = [_all_rows(ctx, y, done, a.rows, len(call.shapes[n + k])) for k, y in enumerate(stacks)]
    return _typed((*state, *rows, done), call)


def _all_rows(ctx: Exporter, y: Tensor, done: Tensor, most: int, rank: int) -> Tensor:
    """Rows of the trips that there were, then zeros: a row for each possible trip."""
    missing = ctx.emit("Reshape", ctx.emit("Sub", most, done, dtype=np.int64), ctx.ints(1))
    behind = [0] * (rank - 1)
    pads = [ctx.ints(*[0] * rank), missing, *([ctx.ints(*behind)] if behind else [])]
    return ctx.emit("Pad", y, ctx.emit("Concat", *pads, axis=0, dtype=np.int64))


@onnx_export("at_most")
def at_most(ctx: Exporter, call: Call) -> Tensor:
    """The entries that there are."""
    axis = call.attrs.axis
    end = ctx.emit("Reshape", call.input(1), ctx.ints(1))
    y = ctx.emit("Slice", call.input(0), ctx.ints(0), end, ctx.ints(axis))
    return opened(call, y, axis)


def _scan(ctx: Exporter, call: Call) -> tuple[Tensor, ...]:
    a, n, m = call.attrs, call.attrs.carried, call.attrs.scanned
    trips, *xs = given(call)
    if trips.value is None or int(trips.value) < a.rows:
        raise Refused("a Scan of ONNX goes over all rows")
    carried, arrays, around = xs[:n], xs[n : n + m], xs[n + m :]
    inside = [_input(x.dtype, x) for x in carried]
    for x in arrays:
        inside.append(Tensor(dtype=x.dtype, shape=x.sizes[1:]))
    graph = subgraph(ctx, lambda: _written(ctx, a.body, [*inside, *around]), inside)
    ways = {"scan_input_directions": m, "scan_output_directions": len(call.shapes) - n - 1}
    ys = ctx.emit(
        "Scan", *carried, *arrays, outputs=len(call.shapes) - 1, num_scan_inputs=m, body=graph,
        **{name: [1] * k for name, k in ways.items() if a.backwards and k},
    )  # fmt: skip
    ys = ys if isinstance(ys, tuple) else (ys,)
    return _typed((*ys, ctx.constant(np.array(a.rows, np.int64))), call)


def given(call: Call) -> list[Tensor]:
    """The inputs, none of which may be the state of a stream of random numbers."""
    found = [x for x in call.inputs if x is not None]
    if call.op.written(call.attrs):
        raise Refused("it writes state, and ONNX has none")
    return found


def subgraph(
    ctx: Exporter, write: Callable[[], list[Tensor]], inputs: Sequence[Tensor] = ()
) -> Subgraph:
    """The graph of what `write` adds, which ends in the tensors that it returns."""
    outer, casts = ctx.ops, ctx.casts
    ctx.ops, ctx.casts = [], dict(casts)
    try:
        outputs = write()
        own = {id(y) for node in ctx.ops for y in node.outs}
        made = []
        for y in outputs:  # each has a name of its own
            made.append(y if id(y) in own else ctx.emit("Identity", y))
            own.discard(id(y))
        for y, like in zip(made, outputs, strict=True):
            y.shape = like.shape
        return Subgraph(ctx.ops, list(inputs), made)
    finally:
        ctx.ops, ctx.casts = outer, casts


def _written(ctx: Exporter, program: Program, xs: Sequence[Tensor]) -> list[Tensor]:
    """The results of a program for tensors."""
    with using(interpreter=STATIC, no_grad=True):
        leaves = [leaf(s) for s in input_specs(program)]
        ys = record(program, leaves)
    for v, x in zip(leaves, xs, strict=True):
        ctx.values[v.edge.key] = x
    edges = [y.edge for y in ys]
    ctx.keep_alive(leaves, edges)
    ctx.write(capture(edges))
    return [ctx.values[e.key] for e in edges]


def _input(dtype: Any, like: Tensor | None = None) -> Tensor:
    return Tensor(dtype=np.dtype(dtype), shape=() if like is None else like.shape)


def _typed(ys: Any, call: Call) -> tuple[Tensor, ...]:
    ys = ys if isinstance(ys, tuple) else (ys,)
    for y, dtype in zip(ys, call.dtypes, strict=True):
        y.dtype = np.dtype(dtype)
    return ys
