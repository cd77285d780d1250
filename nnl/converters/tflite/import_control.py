# SPDX-License-Identifier: Apache-2.0
"""Importers of operators that run other graphs of the file, and of states.

What values of the run decide becomes steps that choose (`switch`) and repeat (`while_loop`); what
is known when the file is read is decided then.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.tflite.building import Builder, Handle, Value, computed, reads
from nnl.converters.tflite.flatbuffer import Damaged
from nnl.core.graph.variable import Variable
from nnl.core.ops.op import OPS
from nnl.graph import switch, while_loop

MAX_TRIPS = 4096  # of a loop that is written out


@reads("VAR_HANDLE")
def _handle(b: Builder) -> Handle:
    o = b.op.options
    return Handle(o["shared_name"] or o["container"] or "state")


@reads("READ_VARIABLE", takes=Handle)
def _read(b: Builder, handle: Any) -> Value:
    return b.read(_name(handle))


@reads("ASSIGN_VARIABLE", takes=Handle)
def _assign(b: Builder, handle: Any, v: Value) -> list[Value]:
    b.assign(_name(handle), v)
    return []


def _name(handle: Any) -> str:
    if not isinstance(handle, Handle):
        raise Damaged("it reads no handle of a state")
    return handle.name


@reads("CALL_ONCE")
def _once(b: Builder) -> list[Value]:
    """Gives states their first values, before anything runs."""
    b.starting = True
    try:
        b.inside(b.op.options["graph"], ())
    finally:
        b.starting = False
    return []


@reads("CALL", takes=Handle)
def _call(b: Builder, *vs: Any) -> list[Any]:
    return b.inside(b.op.options["subgraph"], vs)


@reads("STABLEHLO_COMPOSITE")
def _composite(b: Builder, *vs: Any) -> list[Any]:
    """What it is made of stands in a graph of the file."""
    return b.inside(b.op.options["graph"], vs)


@reads("IF")
def _if(b: Builder, condition: Value, *vs: Any) -> list[Any]:
    graphs = [b.op.options[k] for k in ("else_graph", "then_graph")]
    if condition.known:
        return b.inside(graphs[_truth(b, condition)], vs)
    _check_values(vs)

    def branch(n: int) -> Any:
        def run() -> list[Variable]:
            with b.apart():
                return _as_floats(b, b.inside(n, vs))

        return run

    ys = switch(_number(b, condition), [branch(n) for n in graphs])
    return [computed(y) for y in (ys if isinstance(ys, (list, tuple)) else [ys])]


@reads("WHILE")
def _while(b: Builder, *vs: Any) -> list[Any]:
    """As long as the condition is known, trips are written out one after the other."""
    test, body = (b.op.options[k] for k in ("condition_graph", "body_graph"))
    for _ in range(MAX_TRIPS):
        (goes_on,) = b.inside(test, vs)
        if not goes_on.known:
            return _looped(b, test, body, vs)
        if not _truth(b, goes_on):
            return list(vs)
        vs = tuple(b.inside(body, vs))
    raise Damaged(f"its loop has more than {MAX_TRIPS} trips")


def _looped(b: Builder, test: int, body: int, vs: Any) -> list[Any]:
    _check_values(vs)

    def goes_on(*xs: Variable) -> Variable:
        with b.apart():
            return _number(b, b.inside(test, [computed(x) for x in xs])[0])

    def once(*xs: Variable) -> list[Variable]:
        with b.apart():
            return _as_floats(b, b.inside(body, [computed(x) for x in xs]))

    ys = while_loop(goes_on, once, *_as_floats(b, vs))
    return [computed(y) for y in (ys if isinstance(ys, (list, tuple)) else [ys])]


def _check_values(vs: Any) -> None:
    if not all(isinstance(v, Value) for v in vs):
        raise Damaged("it hands on complex numbers or states, and only values of the run decide")


def _as_floats(b: Builder, vs: Any) -> list[Variable]:
    """Values as numbers of the type that functions give."""
    _check_values(vs)
    xs = [b.held(v) for v in vs]
    return [x if x.spec.dtype.kind == "f" else OPS["cast"](x, dtype="float32") for x in xs]


def _truth(b: Builder, v: Value) -> bool:
    found = b.array(v, "the condition")
    if found.size != 1:
        raise Damaged(f"its condition is {list(found.shape)}, wanted one number")
    return bool(np.reshape(found, -1)[0])


def _number(b: Builder, v: Value) -> Variable:
    x = b.held(v)
    if x.size != 1:
        raise Damaged(f"its condition is {list(x.shape)}, wanted one number")
    x = x if x.shape == () else F.reshape(x, ())
    return F.not_equal_scalar(x, 0.0)
