# SPDX-License-Identifier: Apache-2.0
"""Importers of operators on elements, of reductions, of Fourier transforms and of complex numbers,
which are pairs of real values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import nnl.functions as F
from nnl.converters.networks.layout import plain
from nnl.converters.tensorflow.import_arithmetic import ELEMENTWISE
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
from nnl.converters.tflite.tensorflow_names import IN_TENSORFLOW
from nnl.core.graph.variable import Variable
from nnl.core.ops.op import OPS

# ---- Fourier transforms and complex numbers ----


MAX_LENGTH = 2**20


@reads("RFFT2D")
def _rfft(b: Builder, v: Value, lengths: Value) -> Complex:
    """The half of the transform over the last two axes that is not known from the other one."""
    sizes = b.ints(lengths, "the lengths")
    if len(sizes) != 2 or v.rank < 2 or not 0 < min(sizes) <= max(sizes) <= MAX_LENGTH:
        raise Damaged(f"its lengths are {sizes}, with {v.rank} axes")
    x = b.held(v)
    for axis, n in zip((-2, -1), sizes, strict=True):
        if x.shape[axis] > n:
            stop = [*x.shape]
            stop[axis] = n
            x = F.slice(x, [0] * x.ndim, stop, [1] * x.ndim)
    rest = [n - m for n, m in zip(sizes, x.shape[-2:], strict=True)]
    if any(rest):
        x = F.pad(x, [0, rest[0], 0, rest[1]], "constant", 0.0)
    zeros = F.constant(0.0, (*x.shape, 1))
    pairs = F.concatenate(F.reshape(x, (*x.shape, 1)), zeros, axis=x.ndim)
    y = F.fft(pairs, 1 if sizes[0] == 1 else 2)
    half = (*x.shape[:-1], sizes[1] // 2 + 1)
    parts = [
        F.slice(y, [0] * len(half) + [k], [*half, k + 1], [1] * (len(half) + 1)) for k in (0, 1)
    ]
    return Complex(*[computed(F.reshape(p, half)) for p in parts])


@reads("REAL", takes=Complex)
def _real(b: Builder, v: Any) -> Value:
    return v.real if isinstance(v, Complex) else v


@reads("IMAG", takes=Complex)
def _imag(b: Builder, v: Any) -> Value:
    if isinstance(v, Complex):
        return v.imag
    return Value(np.zeros(v.x.shape, np.float32), v.order)


@reads("COMPLEX_ABS", takes=Complex)
def _abs(b: Builder, v: Any) -> Value:
    if not isinstance(v, Complex):
        raise Damaged("its input is not complex")
    x, y = b.held(v.real), b.held(v.imag)
    return computed((x * x + y * y) ** 0.5)


# ---- elements ----


MAX_LIMITS = 1024  # of buckets


# In TensorFlow's words, or as functions of Variables.
_FUNCTIONS: dict[str, Any] = {
    **{n: f for n, f in ACTIVATION.items() if n not in ("NONE", "SIGN_BIT")},
    "HARD_SWISH": lambda x: x * F.relu6(x + 3.0) * (1 / 6),
    "PRELU": lambda x, slope: F.relu(x) + F.minimum_scalar(x, 0.0) * slope,
    **{n: ELEMENTWISE[t] for n, t in IN_TENSORFLOW.items() if t in ELEMENTWISE},
    "ADD": ELEMENTWISE["Add"],
}


def _number(b: Builder, v: Value) -> Any:
    """As floating-point numbers, which functions compute with."""
    x = b.held(v, v.order)
    return x if x.spec.dtype.kind == "f" else OPS["cast"](x, dtype="float32")


@reads(*_FUNCTIONS)
def _elementwise(b: Builder, *vs: Value) -> Value:
    xs, order = b.together(*vs)
    y = _FUNCTIONS[b.op.name](*xs)
    return b.activated(Value(y if isinstance(y, Variable) else np.asarray(y), order))


@reads("GELU")
def _gelu(b: Builder, v: Value) -> Value:
    x = b.held(v, v.order)
    if b.op.options["approximate"]:
        return Value(F.gelu(x), v.order)
    return Value(x * (F.erf(x * math.sqrt(0.5)) + 1.0) * 0.5, v.order)


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
    x = _number(b, v)
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
    x = _number(b, v)
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


@reads("SOFTMAX")
def _softmax(b: Builder, v: Value) -> Value:
    x, beta = b.held(v), b.op.options["beta"]
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
