# SPDX-License-Identifier: Apache-2.0
"""Importers of operators on elements, and of reductions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.networks.layout import held_axes, plain, without
from nnl.converters.onnx.importing.arithmetic import floor_mod, half_to_even
from nnl.converters.tflite.building import (
    ACTIVATION,
    Builder,
    Complex,
    Value,
    check_size,
    clipped,
    computed,
    reads,
)
from nnl.converters.tflite.flatbuffer import Damaged
from nnl.core.graph.variable import Variable
from nnl.core.ops.op import OPS

MAX_LIMITS = 1024  # of buckets


UNARY: dict[str, Callable[[Any], Any]] = {
    **{n: f for n, f in ACTIVATION.items() if n not in ("NONE", "SIGN_BIT")},
    "ABS": F.abs,
    "CEIL": F.ceil,
    "COS": F.cos,
    "ELU": F.elu,
    "EXP": F.exp,
    "FLOOR": F.floor,
    "HARD_SWISH": lambda x: x * F.relu6(x + 3.0) * (1 / 6),
    "LOG": F.log,
    "LOGICAL_NOT": F.logical_not,
    "LOGISTIC": F.sigmoid,
    "NEG": lambda x: x * -1.0,
    "ROUND": half_to_even,
    "RSQRT": lambda x: x**-0.5,
    "SIGN": lambda x: F.sign(x, alpha=0.0),
    "SIN": F.sin,
    "SQRT": lambda x: x**0.5,
    "SQUARE": lambda x: x * x,
    "TANH": F.tanh,
    "ZEROS_LIKE": lambda x: x * 0.0,
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "ADD": F.add2,
    "DIV": F.div2,
    "EQUAL": F.equal,
    "FLOOR_DIV": lambda x, y: F.floor(x / y),
    "FLOOR_MOD": floor_mod,
    "GREATER": F.greater,
    "GREATER_EQUAL": F.greater_equal,
    "LESS": F.less,
    "LESS_EQUAL": F.less_equal,
    "LOGICAL_AND": F.logical_and,
    "LOGICAL_OR": F.logical_or,
    "MAXIMUM": F.maximum2,
    "MINIMUM": F.minimum2,
    "MUL": F.mul2,
    "NOT_EQUAL": F.not_equal,
    "POW": F.pow2,
    "SQUARED_DIFFERENCE": F.squared_error,
    "SUB": F.sub2,
}


def _unary(f: Callable[[Any], Any]) -> Callable[..., Value]:
    return lambda b, x: Value(f(_number(b, x, x.order)), x.order)


def _number(b: Builder, v: Value, order: Any) -> Any:
    """As floating-point numbers, which functions compute with."""
    x = b.held(v, order)
    return x if x.spec.dtype.kind == "f" else OPS["cast"](x, dtype="float32")


def _binary(f: Callable[[Any, Any], Any]) -> Callable[..., Value]:
    def importer(b: Builder, x: Value, y: Value) -> Value:
        ts, order = b.together(x, y)
        p, q = (t if t.spec.dtype.kind == "f" else OPS["cast"](t, dtype="float32") for t in ts)
        return b.activated(Value(f(p, q), order))

    return importer


for _name, _function in UNARY.items():
    reads(_name)(_unary(_function))
for _name, _pair in BINARY.items():
    reads(_name)(_binary(_pair))


@reads("ATAN2")
def _atan2(b: Builder, y: Value, x: Value) -> Value:
    (p, q), order = b.together(y, x)
    return Value(F.atan2(p, q), order)


@reads("GELU")
def _gelu(b: Builder, v: Value) -> Value:
    x = b.held(v, v.order)
    if b.op.options["approximate"]:
        return Value(F.gelu(x), v.order)
    return Value(x * (F.erf(x * math.sqrt(0.5)) + 1.0) * 0.5, v.order)


@reads("LEAKY_RELU")
def _leaky(b: Builder, v: Value) -> Value:
    return Value(F.leaky_relu(b.held(v, v.order), alpha=b.op.options["alpha"]), v.order)


@reads("PRELU")
def _prelu(b: Builder, v: Value, slope: Value) -> Value:
    (x, w), order = b.together(v, slope)
    return Value(F.relu(x) + F.minimum_scalar(x, 0.0) * w, order)


@reads("ADD_N")
def _add_n(b: Builder, *vs: Value) -> Value:
    xs, order = b.together(*vs)
    return Value(F.add_n(*xs), order)


@reads("CAST", takes=Complex)
def _cast(b: Builder, v: Any) -> Any:
    """The imaginary part goes, as in LiteRT."""
    if b.outs[0].dtype.kind == "c":
        zeros = Value(np.zeros(v.shape, np.float32), plain(v.rank))
        return v if isinstance(v, Complex) else Complex(v, zeros)
    if isinstance(v, Complex):
        return v.real
    before, after = b.ins[0].dtype, b.outs[0].dtype  # type: ignore[union-attr]
    if v.known:
        return Value(v.x.astype(after), v.order)
    x = _number(b, v, v.order)
    if before.kind == "f" and after.kind in "iu":
        x = F.sign(x, alpha=0.0) * F.floor(F.abs(x))
    elif after.kind == "b" and before.kind != "b":
        x = F.not_equal_scalar(x, 0.0)
    return Value(x, v.order)


@reads("QUANTIZE", "DEQUANTIZE", "DENSIFY")
def _quantize(b: Builder, v: Value) -> Value:
    return v


@reads("FAKE_QUANT")
def _fake_quant(b: Builder, v: Value) -> Value:
    """The nearest of the numbers that bits hold, 0 being one of them."""
    o = b.op.options
    low, high, bits = o["min"], o["max"], int(o["num_bits"])
    first, last = int(o["narrow_range"]), 2**bits - 1
    if not 2 <= bits <= 16 or not low < high:
        raise Damaged(f"its range is from {low} to {high} in {bits} bits")
    scale = (high - low) / (last - first)
    zero = min(max(math.floor(first - low / scale + 0.5), first), last)
    x = b.held(v, v.order)
    x = clipped(x, (first - zero) * scale, (last - zero) * scale)
    steps = F.floor((x - (first - zero) * scale) * (1 / scale) + 0.5)
    return Value(steps * scale + (first - zero) * scale, v.order)


@reads("BUCKETIZE")
def _bucketize(b: Builder, v: Value) -> Value:
    """How many of the boundaries are not above."""
    x = _number(b, v, v.order)
    y = x * 0.0
    for limit in b.op.options["boundaries"][:MAX_LIMITS]:
        y = y + F.greater_equal_scalar(x, limit)
    return Value(y, v.order)


@reads("RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL")
def _random(b: Builder, shape: Value) -> Value:
    """From the same distribution; other numbers than LiteRT's."""
    wanted = tuple(b.ints(shape, "the shape"))
    check_size(wanted)
    seed = int(b.op.options["seed"]) % 2**31 or -1
    f = F.rand if b.op.name == "RANDOM_UNIFORM" else F.randn
    return computed(f(shape=wanted, seed=seed))


@reads(*[f"UNSORTED_SEGMENT_{k}" for k in ("SUM", "PROD", "MAX", "MIN")], "SEGMENT_SUM")
def _segments(b: Builder, v: Value, ids: Value, count: Value | None = None) -> Value:
    """Rows with one number together; LiteRT's numbers are constants in most files."""
    name = b.op.name.rsplit("_", 1)[1]
    at = b.array(ids, "the segments")
    n = int(at.max(initial=-1)) + 1 if count is None else b.ints(count, "the count")[0]
    if at.shape != v.shape[: at.ndim] or n < 1 or at.max(initial=0) >= n:
        raise Damaged(f"its segments are {list(at.shape)} below {n}, of {list(v.shape)}")
    rows = b.held(b.reshaped(v, (at.size, *v.shape[at.ndim :])))
    f = {"SUM": F.sum, "PROD": F.prod, "MAX": F.max, "MIN": F.min}[name]
    limit = float(np.finfo(np.float32).max)
    empty = {"SUM": 0.0, "PROD": 1.0, "MAX": -limit, "MIN": limit}[name]
    found = []
    for k in range(n):
        places = np.flatnonzero(at.reshape(-1) == k)
        if not len(places):
            found.append(F.constant(empty, rows.shape[1:]))
            continue
        found.append(f(F.gather(rows, Variable.from_numpy_array(places), 0), axis=0))
    return computed(F.stack(*found, axis=0))


@reads("SUM", "MEAN", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "REDUCE_ANY", "REDUCE_ALL")
def _reduced(b: Builder, v: Value, axes: Value) -> Value:
    f = {"SUM": F.sum, "MEAN": F.mean, "REDUCE_MAX": F.max, "REDUCE_MIN": F.min}
    f |= {"REDUCE_PROD": F.prod, "REDUCE_ANY": F.max, "REDUCE_ALL": F.min}
    found = b.axes(axes, v.rank)
    if not found:
        return v
    keep = b.op.options["keep_dims"]
    order = v.order if keep else without(v.order, found)
    x = _number(b, v, v.order)
    return Value(f[b.op.name](x, axis=held_axes(found, v.order), keepdims=keep), order)


@reads("SOFTMAX", "LOG_SOFTMAX")
def _softmax(b: Builder, v: Value) -> Value:
    x = b.held(v)
    if b.op.name == "LOG_SOFTMAX":
        return computed(F.log_softmax(x, axis=v.rank - 1))
    beta = b.op.options["beta"]
    return computed(F.softmax(x if beta == 1 else x * beta, axis=v.rank - 1))


@reads("L2_NORMALIZATION")
def _l2(b: Builder, v: Value) -> Value:
    x = b.held(v)
    total = F.sum(x * x, axis=v.rank - 1, keepdims=True)
    return b.activated(computed(x / F.maximum_scalar(total, 1e-12) ** 0.5))


@reads("FULLY_CONNECTED")
def _fully_connected(b: Builder, v: Value, w: Value, bias: Value | None = None) -> Value:
    if b.op.options["weights_format"]:
        raise Damaged("its weights are shuffled, which nnl does not read")
    if w.rank != 2:
        raise Damaged(f"its weights have {w.rank} axes, wanted 2")
    outputs, inputs = w.shape
    keep = b.op.options["keep_num_dims"]
    if not inputs or math.prod(v.shape) % inputs or (keep and v.shape[-1:] != (inputs,)):
        raise Damaged(f"its weights are {list(w.shape)}, its input {list(v.shape)}")
    if not keep:
        v = b.reshaped(v, (math.prod(v.shape) // inputs, inputs))
    flat = None if bias is None else b.held(b.reshaped(bias, (outputs,)))
    return b.activated(computed(F.affine(b.held(v), b.held(w, (1, 0)), flat, base_axis=v.rank - 1)))


@reads("BATCH_MATMUL")
def _matmul(b: Builder, x: Value, y: Value) -> Value:
    rank = max(x.rank, y.rank)
    p, q = (b.held(b.reshaped(v, (1,) * (rank - v.rank) + v.shape)) for v in (x, y))
    o = b.op.options
    return computed(F.batch_matmul(p, q, o["adj_x"], o["adj_y"]))
