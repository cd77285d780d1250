# SPDX-License-Identifier: Apache-2.0
"""Functions on every element, and reductions, as operators."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nnl.converters.networks.layout import held_axes
from nnl.converters.tflite.graph import FLOAT, INT, Graph, Laid, Refused, says
from nnl.core.graph.node import Node

UNARY = {
    "abs": "ABS",
    "ceil": "CEIL",
    "cos": "COS",
    "erf": "ERF",  # see fusion
    "exp": "EXP",
    "floor": "FLOOR",
    "log": "LOG",
    "relu": "RELU",
    "relu6": "RELU6",
    "sigmoid": "LOGISTIC",
    "sin": "SIN",
    "tanh": "TANH",
}
BINARY = {
    "add2": "ADD",
    "bc_add2": "ADD",
    "atan2": "ATAN2",
    "div2": "DIV",
    "maximum2": "MAXIMUM",
    "minimum2": "MINIMUM",
    "mul2": "MUL",
    "pow2": "POW",
    "squared_error": "SQUARED_DIFFERENCE",
    "sub2": "SUB",
}
SCALAR = {
    "add_scalar": "ADD",
    "maximum_scalar": "MAXIMUM",
    "minimum_scalar": "MINIMUM",
    "mul_scalar": "MUL",
}
COMPARED = {
    "equal": "EQUAL",
    "greater": "GREATER",
    "greater_equal": "GREATER_EQUAL",
    "less": "LESS",
    "less_equal": "LESS_EQUAL",
    "not_equal": "NOT_EQUAL",
}
REVERSED = {"r_sub_scalar": "SUB", "r_div_scalar": "DIV", "r_pow_scalar": "POW"}  # the number first
LOGICAL = {"logical_and": "LOGICAL_AND", "logical_or": "LOGICAL_OR", "logical_xor": "NOT_EQUAL"}
REDUCED = {
    "max": "REDUCE_MAX",
    "mean": "MEAN",
    "min": "REDUCE_MIN",
    "prod": "REDUCE_PROD",
    "sum": "SUM",
}


def _number(g: Graph, truth: Laid) -> Laid:
    return Laid(g.cast(truth.tensor, FLOAT), truth.order)


@says(*UNARY)
def _unary(g: Graph, node: Node, x: Laid) -> Laid:
    return g.unary(UNARY[node.op.name], x)


@says(*BINARY)
def _binary(g: Graph, node: Node, x: Laid, y: Laid) -> Laid:
    return g.binary(BINARY[node.op.name], x, y)


@says(*SCALAR)
def _scalar(g: Graph, node: Node, x: Laid) -> Laid:
    return g.binary(SCALAR[node.op.name], x, node.attrs.val)


@says(*REVERSED)
def _reversed(g: Graph, node: Node, x: Laid) -> Laid:
    one = g.constant(node.attrs.val, FLOAT)
    return Laid(g.op(REVERSED[node.op.name], one, x.tensor, shape=x.tensor.shape), x.order)


@says(*COMPARED, *[f"{n}_scalar" for n in COMPARED])
def _compared(g: Graph, node: Node, x: Laid, *ys: Laid) -> Laid:
    y = ys[0] if ys else node.attrs.val
    return _number(g, g.binary(COMPARED[node.op.name.removesuffix("_scalar")], x, y, dtype=bool))


@says(*LOGICAL, *[f"{n}_scalar" for n in LOGICAL])
def _logical(g: Graph, node: Node, x: Laid, *ys: Laid) -> Laid:
    x, *truths = (Laid(g.truth(v.tensor), v.order) for v in (x, *ys))
    y = truths[0] if ys else bool(node.attrs.val)
    return _number(g, g.binary(LOGICAL[node.op.name.removesuffix("_scalar")], x, y, dtype=bool))


@says(*REDUCED)
def _reduced(g: Graph, node: Node, x: Laid) -> Any:
    a = node.attrs
    axes = tuple(range(x.rank)) if a.axes is None else a.axes
    if not axes:
        return Laid(g.op("ADD", x.tensor, 0), x.order)
    if getattr(a, "only_index", False):
        return _index(g, node, x, axes)
    y = g.reduced(REDUCED[node.op.name], x, axes, a.keep_dims)
    return (y, _index(g, node, x, axes)) if getattr(a, "with_index", False) else y


def _index(g: Graph, node: Node, x: Laid, axes: Any) -> Laid:
    """Where the extremum is, along all the axes as if they were one."""
    axes = sorted(a % x.rank for a in axes)
    order = (*[a for a in range(x.rank) if a not in axes], *axes)
    t = g.held(x, order)
    lead = t.shape[: x.rank - len(axes)]
    flat = g.reshaped(t, (*lead, math.prod(t.shape[len(lead) :])))
    name = "ARG_MAX" if node.op.name == "max" else "ARG_MIN"
    found = g.op(name, flat, g.ints(len(lead)), shape=lead, dtype=np.int64, output_type=4)
    shape = node.out_specs[-1].shape
    return Laid(g.reshaped(found, shape), tuple(range(len(shape))))


@says("identity")
def _identity(g: Graph, node: Node, x: Laid) -> Laid:
    return x


@says("cast")
def _cast(g: Graph, node: Node, x: Laid) -> Laid:
    kind = node.out_specs[0].dtype.kind
    if kind not in "fiub" or node.attrs.whole:
        raise Refused(f"it gives the type {node.out_specs[0].dtype}")
    return Laid(g.cast(x.tensor, {"f": FLOAT, "b": bool}.get(kind, np.int64)), x.order)


@says("logical_not")
def _not(g: Graph, node: Node, x: Laid) -> Laid:
    return _number(g, Laid(g.op("LOGICAL_NOT", g.truth(x.tensor)), x.order))


@says("round")
def _round(g: Graph, node: Node, x: Laid) -> Laid:
    """The operator rounds halves to even numbers, the function away from 0."""
    size = g.op("ABS", x.tensor)
    whole = g.op("FLOOR", size)
    up = g.cast(g.op("GREATER_EQUAL", g.op("SUB", size, whole), 0.5, dtype=bool), FLOAT)
    return Laid(g.op("MUL", g.op("ADD", whole, up), g.op("SIGN", x.tensor)), x.order)


@says("mod2")
def _mod(g: Graph, node: Node, x: Laid, y: Laid) -> Laid:
    """With the sign of x, or for integers with that of y, which the operator gives."""
    order, dtype = g.common([x, y]), x.tensor.dtype
    inside = FLOAT if dtype.kind == "f" else INT
    p, q = (g.cast(g.held(v, order), inside) for v in (x, y))
    if dtype.kind != "f" and not node.attrs.fmod:
        z = g.broadcasting("FLOOR_MOD", [p, q])
    else:
        z = g.broadcasting("FLOOR_MOD", [g.op("ABS", p), g.op("ABS", q)])
        z = g.broadcasting("MUL", [z, g.op("SIGN", p)])
    return Laid(g.cast(z, dtype), order)


@says("sign")
def _sign(g: Graph, node: Node, x: Laid) -> Laid:
    y = g.op("SIGN", x.tensor)
    if node.attrs.alpha:
        zero = g.cast(g.op("EQUAL", x.tensor, 0, dtype=bool), FLOAT)
        y = g.op("ADD", y, g.op("MUL", zero, node.attrs.alpha))
    return Laid(y, x.order)


@says("pow_scalar")
def _pow(g: Graph, node: Node, x: Laid) -> Laid:
    """Powers that have operators of their own, which are faster and more exact."""
    p, t = node.attrs.val, x.tensor
    if p == 2:
        return Laid(g.op("MUL", t, t), x.order)
    if p in (0.5, -0.5, -1):
        y = (
            g.op("DIV", g.constant(1.0, FLOAT), t, shape=t.shape)
            if p == -1
            else g.op("SQRT" if p > 0 else "RSQRT", t)
        )
        return Laid(y, x.order)
    return g.binary("POW", x, p)


@says("leaky_relu")
def _leaky(g: Graph, node: Node, x: Laid) -> Laid:
    return g.unary("LEAKY_RELU", x, alpha=float(node.attrs.alpha))


@says("gelu")
def _gelu(g: Graph, node: Node, x: Laid) -> Laid:
    return g.unary("GELU", x, approximate=True)


@says("elu")
def _elu(g: Graph, node: Node, x: Laid) -> Laid:
    if node.attrs.alpha == 1:
        return g.unary("ELU", x)
    t = x.tensor
    low = g.op("MUL", g.op("ELU", g.op("MINIMUM", t, 0)), node.attrs.alpha)
    return Laid(g.op("ADD", g.op("RELU", t), low), x.order)


@says("selu")
def _selu(g: Graph, node: Node, x: Laid) -> Laid:
    y = _elu(g, node, x)
    return g.binary("MUL", y, node.attrs.scale)


@says("prelu")
def _prelu(g: Graph, node: Node, x: Laid, slope: Laid) -> Laid:
    """The slopes are broadcast as those of a binary operator are."""
    base = node.attrs.base_axis % x.rank
    count = math.prod(slope.shape)
    shape = [1] * x.rank
    shape[base] = count
    if count == 1 or x.shape[base] == count:
        wide = g.reshape(slope, shape)
        if wide.tensor.value is None or x.rank > 4:
            low = g.binary("MUL", Laid(g.op("MINIMUM", x.tensor, 0), x.order), wide)
            return g.binary("ADD", Laid(g.op("RELU", x.tensor), x.order), low)
        slopes = g.held(wide, x.order)
        one = Laid(g.reshaped(slopes, slopes.shape[1:]), x.order)
        return Laid(g.op("PRELU", x.tensor, one.tensor), x.order)
    raise Refused(f"it has {count} slopes for {x.shape[base]} maps")


@says("where")
def _where(g: Graph, node: Node, condition: Laid, x: Laid, y: Laid) -> Laid:
    """The condition may have fewer axes, the first ones."""
    full = g.reshape(condition, (*condition.shape, *[1] * (x.rank - condition.rank)))
    order = g.common([x, y])
    ts = [g.truth(g.held(full, order)), g.held(x, order), g.held(y, order)]
    return Laid(g.broadcasting("SELECT_V2", ts, dtype=ts[1].dtype), order)


@says("cumsum")
def _cumsum(g: Graph, node: Node, x: Laid) -> Laid:
    a = node.attrs
    (axis,) = held_axes([a.axis or 0], x.order)
    y = g.op(
        "CUMSUM", x.tensor, g.constant(axis, np.int32), exclusive=a.exclusive, reverse=a.reverse
    )
    return Laid(y, x.order)


@says("softmax", "log_softmax")
def _softmax(g: Graph, node: Node, x: Laid) -> Laid:
    axis = node.attrs.axis
    t, order = g.along(x, x.rank - 1 if axis is None else axis)
    flat = g.reshaped(t, (math.prod(t.shape[:-1]), t.shape[-1])) if len(t.shape) > 4 else t
    y = g.op("SOFTMAX", flat, beta=1.0) if node.op.name == "softmax" else g.op("LOG_SOFTMAX", flat)
    return Laid(g.reshaped(y, t.shape), order)
